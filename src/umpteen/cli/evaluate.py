"""`umpteen evaluate`, `compare` and `verify`: what models are worth, and whether one is whole."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.main import DATA, MODEL, NO_RANKER, PATH, Watch, cli, file_columns, option, say, say_json, tell, verb
from umpteen.cli.tables import SHOWN, figures, show_differences, show_metrics, show_table
from umpteen.errors import BadInput, DamagedModel

if TYPE_CHECKING:
    from umpteen.evaluation.report import Report


@verb(cli, click.Argument(["models"], type=PATH, nargs=-1, required=True, metavar="MODEL..."), DATA)
@file_columns
@click.option("--split", type=click.Choice(["test", "validation", "train"]), help="[default: test; all of a file]")
@click.option("--at", multiple=True, type=int, help="A k for P@k and the others; repeat.  [default: 1 3 5 10 100]")
@click.option("--propensity", nargs=2, type=float, help="A and B of PSP and PSnDCG.  [default: the recipe's, 0.55 1.5]")
@click.option("--as-published", is_flag=True, help="Count queries without positives and filtered pairs as missed.")
@NO_RANKER
@click.option("--ensemble", is_flag=True, help="Evaluate the mean of the models' scores instead of each.")
@click.option("--predictions", type=PATH, help="Save the top-k scores as scipy CSR (.npz).")
def evaluate(
    models: tuple[Path, ...],
    source: str,
    split: str | None,
    at: tuple[int, ...],
    no_ranker: bool,
    ensemble: bool,
    predictions: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Evaluate MODEL on DATA: P, nDCG, R, PSP and PSnDCG with 95 % intervals, and by label frequency.

    Several models are evaluated beside each other, with the paired differences of each from the first.
    """
    from umpteen.data.dataset import ASKED, asked_of, with_asked
    from umpteen.data.formats.columns import parting
    from umpteen.model.classifier import Classifier
    from umpteen.model.evaluate import compare_models, evaluate_ensemble, evaluate_model, report_by_origin

    beside = len(models) > 1 and not ensemble
    by_origin: dict[str, dict[str, Any]] = {}  # seen and unseen labels apart, if there are any of the latter
    if beside and predictions is not None:
        raise BadInput("--predictions saves one ranking; give one model, or --ensemble")
    with Watch(quiet=as_json) as watch:
        classifiers = [Classifier.load(model, ranker=not no_ranker, index=False) for model in models]
        labels = classifiers[0].labels.count()
        if at and not 1 <= min(at) <= max(at) <= labels:
            given = " --at ".join(map(str, at))
            raise BadInput(f"--at {given}: the model has {labels:,} labels; ask for 1 to {labels}")
        source = with_asked(source, {name: asked.pop(name) for name in ASKED})
        dataset = watch.open_dataset(source)
        known = set(classifiers[0].labels.keys) if dataset.labels_are_named else set()
        mark = None if "separator" in asked_of(source)[1] else parting(dataset.labels.keys, known)
        if mark:  # which a small file may not show
            dataset = watch.open_dataset(with_asked(source, {"separator": mark}))
        split = split or ("test" if dataset.test or not dataset.is_one_file else "train")
        if dataset.is_one_file and dataset.fingerprint == classifiers[0].data.get("fingerprint"):
            watch.notice("warning: the model was trained on these very texts; figures of others will be lower")
        lacking = set(dataset.labels.keys) - known if dataset.labels_are_named else set()
        if lacking:
            watch.notice(f"{len(lacking):,} labels that the model lacks are left out, {min(lacking)!r} among them")
        asked |= {"at": at} if at else {}
        if beside:
            reports, differences = compare_models(classifiers, dataset, split, **asked)
        elif ensemble:
            report, ranking = evaluate_ensemble(classifiers, dataset, split, **asked)
        else:
            report, ranking = evaluate_model(classifiers[0], dataset, split, **asked)
            del asked["as_published"]
            by_origin = report_by_origin(classifiers[0], dataset, split, ranking, **asked)
    shown = SHOWN if not at else tuple(f"{name}@{k}" for k in at for name in ("P", "nDCG", "PSP", "PSnDCG", "R"))
    about = {"data": dataset.name, "split": split, **({"labels_left_out": len(lacking)} if lacking else {})}
    names = [str(model) for model in models]
    if beside:
        pairs = [{metric: one.to_dict() for metric, one in pair.items()} for pair in differences]
        found = dict(zip(names[1:], pairs, strict=True))
        if as_json:
            results = [{"model": name, **report.to_dict()} for name, report in zip(names, reports, strict=True)]
            paired = [{"model": name, "minus": names[0], "metrics": pair} for name, pair in found.items()]
            say_json({**about, "results": results, "differences": paired})
        else:
            show_metrics(dict(zip(names, reports, strict=True)), shown)
            show_differences(found, shown, title=f"minus {names[0]}, paired")
        return
    if as_json:
        named = {"ensemble": names} if ensemble else {"model": names[0]}
        say_json({**named, **about, **report.to_dict(), **({"by_origin": by_origin} if by_origin else {})})
    else:
        name = f"mean of {', '.join(names)}" if ensemble else names[0]
        _tell(name, dataset.name if dataset.is_one_file else f"{dataset.name} {split}", report, by_origin, shown)
    if predictions is not None:
        ranking.save(predictions)  # last: a full disk must not cost the figures


def _tell(name: str, where: str, report: "Report", by_origin: dict[str, Any], shown: tuple[str, ...]) -> None:
    show_metrics({name: report}, shown)
    columns: dict[str, list[str]] = {}
    for decile in report.deciles:
        for name, value in decile.items():
            cell = f"{value:.2f}" if isinstance(value, float) else str(value)
            columns.setdefault(name.replace("_", " "), []).append(cell)
    added_up = "contributions, which add up to P@k"
    show_table(columns, title=f"by label frequency (decile 1: the most frequent labels): {added_up}")
    if groups := list(by_origin.values()):
        metrics = [group["metrics"] for group in groups]
        sizes = {size: [f"{group[size]:,}" for group in groups] for size in ("labels", "queries")}
        there = {metric: figures(metrics, metric) for metric in shown if any(metric in one for one in metrics)}
        title = "by origin (unseen: added or renamed since training; all labels compete)"
        show_table({"": by_origin, **sizes, **there}, title=title)
    left_out = f"; {report.queries_left_out:,} without positives left out" if report.queries_left_out else ""
    constants = ", ".join(f"{name} {value}" for name, value in report.propensity.items())
    say(f"{where}: {report.queries:,} queries{left_out}; propensity {constants}")
    if found := report.calibration:
        errors = {"calibration error": found["ece"], "of the raw score": found["ece_raw"], "over": found["over"]}
        precisions = {f"--precision {one['wanted']:g}": one for one in found["precision"]}
        tell(False, errors | precisions | {f"--rule {name}": rule for name, rule in found["rules"].items()})


OURS = "Ours: a recipe's name or file, NAME+ranker with a ranker; repeat.  [default: those of the data, or of any]"
INSTALLED = "linear-svm, minilm-knn, minilm-probe, bonsai, xr-linear, xr-transformer, mnrl"
PEERS = f"Out of popularity, tfidf-knn; from umpteen's repository also {INSTALLED}; or none."


@verb(cli, DATA)
@click.option("--recipe", "recipes", multiple=True, help=OURS)
@option("--peers", default="popularity,tfidf-knn,xr-linear", help=PEERS)
@option("--trials", type=click.IntRange(1), default=4, help="Settings tried a method.")
@option("--metric", default="nDCG@5", help="Chooses the settings, on validation.")
@option("--validation", type=click.FloatRange(0, 1, True, True), default=0.1, help="Of train.")
@option("--seed", type=click.IntRange(0), default=0, help="Of the split, the draws, training.")
@option("--ensemble", type=click.IntRange(1), default=1, help="Also the mean of so many seeds of each.")
@click.option("--output", type=PATH, help="Folder of trials, models, results.  [default: runs/compare/DATASET]")
def compare(
    source: str, recipes: tuple[str, ...], peers: str, trials: int, output: Path | None, as_json: bool, **asked: Any
) -> None:
    """Compare recipes with popularity, tf-idf neighbours and PECOS on DATA; the same command goes on when stopped."""
    from umpteen.compare import comparison
    from umpteen.compare.methods import our_methods, their_methods, with_ensembles
    from umpteen.config.recipes import names, resolve

    wanted = [] if peers == "none" else [name.strip() for name in peers.split(",") if name.strip()]
    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        chosen, seeds = recipes or _usual_recipes(dataset.name, names()), asked.pop("ensemble")
        first = resolve(chosen[0].removesuffix("+ranker"), (), source).evaluation
        task = comparison.make_task(source, dataset, propensity=(first.propensity_a, first.propensity_b), **asked)
        methods = with_ensembles([*their_methods(wanted), *our_methods(chosen, watch)], seeds)
        folder = output or Path("runs/compare") / dataset.name
        outcome = comparison.compare(task, methods, trials=trials, output=folder, observer=watch)
    if as_json:
        say_json(outcome)
        return
    results = outcome["results"]
    metrics = [result["metrics"] for result in results]
    columns = {
        "": [result["method"] for result in results],
        **{metric: figures(metrics, metric) for metric in comparison.shown_metrics(outcome)},
        "train s": [f"{result['train_seconds']:.1f}" for result in results],
        "parameters": [comparison.short_number(result["parameters"]) for result in results],
    }
    differences = {result["method"]: result["differences"] for result in results if result["differences"]}
    show_table(columns, title=f"{outcome['dataset']}, test: %, and what it took")
    show_differences(differences, title=f"each minus {outcome['reference']}, paired")
    for skip in outcome["skipped"]:
        say(f"left out: {skip['method']}: {skip['reason']}")
    say(f"{folder / 'index.html'} shows this with figures; {folder / 'results.json'} has every number")


def _usual_recipes(data: str, shipped: list[str]) -> tuple[str, ...]:
    """Those of the dataset's name, or those that serve any data: the most accurate and the quickest."""
    mixed, plain = (f"{data}-mixed", data) if data in shipped else ("mixed", "static")
    return (f"{mixed}+ranker", plain) if mixed in shipped else (plain,)


@verb(cli, MODEL, last=())
def verify(model: Path) -> None:
    """Check every file of MODEL, large arrays too, against its manifest."""
    from umpteen.model.classifier import verify as check

    with Watch() as watch:
        problems = check(model, progress=partial(watch, "verifying"))
    if problems:
        raise DamagedModel("; ".join(problems))
    say(f"{model} is whole")
