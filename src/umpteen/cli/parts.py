"""`umpteen calibrate`, `ranker` and `index`: what can be added to a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.console import Watch, say, say_json
from umpteen.cli.options import DATA_OF_MODEL, JSON, MODEL, PATH, settings

if TYPE_CHECKING:
    from umpteen.model.index import Sample


@click.command()
@MODEL
@DATA_OF_MODEL
@click.option(
    "--folds",
    type=click.IntRange(2),
    help="Train the recipe anew so many times, each time without a small fold, and calibrate on what was left out: for "
    "models fitted on validation, too.",
)
@click.option("--unseen", is_flag=True, help="The model has seen none of DATA's training texts: calibrate on them.")
@click.option(
    "--coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The share of right labels that the rule of coverage is to give.  [default: 0.9, or what can be reached]",
)
@JSON
def calibrate(model: Path, source: str, as_json: bool, **asked: Any) -> None:
    """Learn probabilities, thresholds and rules on texts MODEL was not fitted on, and put them into its folder.

    The texts are those that training held out for validation; with --folds, training texts, each scored by a model that
    was trained without it. A killed run with folds goes on when it is started again. Test data is never used.
    """
    from umpteen.model.calibrate import calibrate as fit

    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        found = fit(model, dataset, **asked, observer=watch, progress=watch)
    rules = {name: rule._asdict() for name, rule in found.rules.items()}
    steps = [
        {"wanted": wanted, **step._asdict()}
        for wanted in (0.5, 0.7, 0.8, 0.9, 0.95)
        if (step := next((step for step in found.steps if step.precision >= wanted), None)) is not None
    ]
    if as_json:
        about = {"model": str(model), "data": dataset.name, "held_out": found.origin}
        say_json({**about, "figures": found.figures, "precision": steps, "rules": rules})
    else:
        _tell_calibration(model, found.origin, found.figures, steps, rules)


def _tell_calibration(
    model: Path,
    origin: dict[str, Any],
    figures: dict[str, Any],
    steps: list[dict[str, float]],
    rules: dict[str, dict[str, float]],
) -> None:
    say(f"calibrated on {origin['said']}")
    if origin.get("also_chosen_on_them"):
        say(f"  on the same texts were chosen: {', '.join(origin['also_chosen_on_them'])}")
    say(f"expected calibration error, Brier score and log loss over {figures['over']}")
    say("  (each text's probabilities from curves fitted on other texts):")
    depth = "5" if "5" in figures["by_depth"] else list(figures["by_depth"])[-1]
    for name, side in (("raw score", "raw"), ("calibrated", "calibrated")):
        found = figures["by_depth"][depth][side]
        say(f"  {name:<11} ECE {found['ece']:.4f}  Brier {found['brier']:.4f}  log loss {found['log_loss']:.4f}")
    for step in steps:
        say(
            f"precision {step['wanted']:g}: probability {step['threshold']:.3f} or more, "
            f"{100 * step['recall']:.1f} % of the right labels"
        )
    for name, rule in rules.items():
        say(
            f"rule {name}: probability {rule['threshold']:.3f} or more, {rule['at_most']:g} labels at most; "
            f"{rule['labels_per_text']:.1f} a text, micro F1 {100 * rule['micro_f1']:.1f}, "
            f"precision {100 * rule['precision']:.1f}, recall {100 * rule['recall']:.1f}"
        )
    say(f"try: umpteen predict {model} 'your text' --precision 0.9")


@click.group()
def ranker() -> None:
    """Add a sparse ranker to a trained model, or remove it (docs/how-to/ranker.md)."""


@ranker.command()
@MODEL
@DATA_OF_MODEL
@click.option("--weight", type=click.FloatRange(0, 1), help="Of the ranker's score.  [default: chosen on validation]")
@click.option("--rare", type=click.FloatRange(0), help="Head start of rare labels.  [default: chosen on validation]")
@click.option("--candidates", type=click.IntRange(1), help="Labels of a text to put in order.  [default: 100]")
@settings("A setting, e.g. cost=3 or words=[1,3].")
@click.option("--jobs", type=click.IntRange(1), help="Processes that fit labels.  [default: one for each core]")
@JSON
def fit(
    model: Path,
    source: str,
    candidates: int | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Fit a ranker on what MODEL was trained on and put it into the model folder; a killed fit goes on."""
    from umpteen.config.recipes import with_overrides
    from umpteen.model.rerank import fit_ranker
    from umpteen.parallel.world import cores
    from umpteen.rerank.features import RankerSettings

    width = {} if candidates is None else {"candidates": candidates}
    chosen = RankerSettings.of(with_overrides({}, overrides) | width)
    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        fitted, trials = fit_ranker(model, dataset, chosen, **asked, jobs=jobs or cores(), progress=watch)
    if as_json:
        course = [trial._asdict() for trial in trials]
        say_json({"model": str(model), "data": dataset.name, **fitted.describe(), "trials": course})
        return
    for trial in trials:
        if trial.weight == 0 or (trial.weight, trial.rare) == (fitted.weight, fitted.rare):
            figures = "  ".join(f"{name} {value:.2f}" for name, value in trial.metrics.items())
            say(f"validation, weight {trial.weight:g}, rare {trial.rare:g}: {figures}")
    say(f"{model} has a ranker of {fitted.weights.nnz:,} weights; it counts {fitted.weight:g}")


@ranker.command(name="remove")
@MODEL
def remove_ranker(model: Path) -> None:
    """Take the ranker out of MODEL."""
    from umpteen.model.rerank import remove_ranker as remove

    remove(model)
    say(f"{model} ranks with its dual encoder alone")


KINDS = ["exact", "faiss-flat", "faiss-hnsw", "faiss-ivfpq", "faiss-sq", "milvus"]
QUERIES = click.option("--queries", type=PATH, help="A .txt, .jsonl, .csv or .tsv file of typical texts.")
TYPICAL = click.option("--data", "source", help="A dataset folder or bundled name whose training texts are typical.")
SAMPLE = click.option(
    "--sample", default=1000, show_default=True, type=click.IntRange(2), help="Texts to take: half tune, half certify."
)


@click.group()
def index() -> None:
    """Build, show or remove the index that MODEL finds its labels with (docs/how-to/choose-an-index.md)."""


@index.command()
@MODEL
@click.option("--kind", type=click.Choice(KINDS), required=True)
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.99,
    show_default=True,
    help="The share of the k best labels that must be found.",
)
@click.option("--k", type=click.IntRange(1), help="Of how many labels.  [default: 10, or the ranker's candidates]")
@QUERIES
@TYPICAL
@SAMPLE
@click.option(
    "--uri",
    help="Milvus: a cluster's address, or a folder ending in .db; set UMPTEEN_MILVUS_URI, too.  [default: in MODEL]",
)
@JSON
def build(
    model: Path, kind: str, queries: Path | None, source: str | None, sample: int, as_json: bool, **asked: Any
) -> None:
    """Build an index, tune it until its recall holds, and put it into MODEL with its certificate.

    Without --queries or --data, the labels' own texts are the queries. If the recall cannot be reached, nothing changes
    and the exit code is 2. A cluster's token is read from UMPTEEN_MILVUS_TOKEN.
    """
    from umpteen.model.index import build_index

    with Watch(quiet=as_json) as watch:
        texts = _sample(queries, source, sample, watch)
        certificate = build_index(model, kind, **asked, sample=texts, progress=watch)
    _tell_certificate(model, certificate.to_dict(), as_json)


@index.command()
@MODEL
@JSON
def show(model: Path, as_json: bool) -> None:
    """Print the certificate of MODEL's index."""
    from umpteen.model.index import certificate_of

    certificate = certificate_of(model)
    if certificate is not None:
        _tell_certificate(model, certificate.to_dict(), as_json)
    elif as_json:
        say_json({"model": str(model), "kind": "exact"})
    else:
        say(f"{model} has no index: it searches exactly")


@index.command()
@MODEL
@QUERIES
@TYPICAL
@SAMPLE
@JSON
def sync(model: Path, queries: Path | None, source: str | None, sample: int, as_json: bool) -> None:
    """Take labels that have changed since the index was built into it.

    Until then they are searched exactly beside it. Milvus is told of them; other kinds are built again.
    """
    from umpteen.model.index import sync_index

    with Watch(quiet=as_json) as watch:
        rows = sync_index(model, sample=_sample(queries, source, sample, watch), progress=watch)
    if as_json:
        say_json({"model": str(model), "rows": rows})
    else:
        say(f"{rows:,} labels had changed; the index of {model} holds them now" if rows else "nothing to do")


@index.command(name="remove")
@MODEL
def remove_index(model: Path) -> None:
    """Go back to exact search."""
    from umpteen.model.index import remove_index as remove

    left_behind = remove(model)
    if left_behind is not None:
        say(left_behind, err=True)
    say(f"{model} searches exactly")


def _sample(queries: Path | None, source: str | None, count: int, watch: Watch) -> "Sample | int":
    """The texts that were asked for, or how many of the labels' own."""
    from umpteen.errors import BadInput
    from umpteen.model.index import of_dataset, of_file

    if queries is not None and source is not None:
        raise BadInput("--queries and --data both name the texts to tune on; give one of them")
    if queries is not None:
        return of_file(queries, count)
    return count if source is None else of_dataset(watch.open_dataset(source), count)


def _tell_certificate(model: Path, certificate: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json({"model": str(model), **certificate})
        return
    low, high = certificate["recall_interval"]
    speed = certificate["queries_per_second"]
    size = {name: "unknown" if size is None else f"{size / 1e6:,.1f} MB" for name, size in certificate["bytes"].items()}
    lines = {
        f"recall@{certificate['k']}": f"{certificate['recall']:.4f} ({low:.4f} to {high:.4f}); "
        f"asked for {certificate['target']:g}",
        "queries a second": f"{speed['index']:,.0f}; exact {speed['exact']:,.0f} (one thread, one query at a time)",
        "size": f"{size['index']}; exact {size['exact']}",
        "effort": ", ".join(f"{name} {value:,}" for name, value in certificate["effort"].items()),
        "measured on": f"{certificate['queries']:,} queries: {certificate['sample']}",
        "tuned on": f"{certificate['queries_tuned_on']:,} others",
        "labels": f"{certificate['labels']:,} × {certificate['dimension']}, version {certificate['catalogue_version']}",
        "built in": f"{certificate['build_seconds']:,.1f} s",
    }
    say(f"{model} searches with {certificate['kind']}")
    for name, value in lines.items():
        say(f"  {name:<18}{value}")
