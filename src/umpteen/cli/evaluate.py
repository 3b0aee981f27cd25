"""`umpteen evaluate`, `verify` and `negatives`: what a trained model is worth, and whether it is whole."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from umpteen.cli.saying import say


@click.command()
@click.argument("models", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="MODEL...")
@click.argument("source", metavar="DATA")
@click.option("--split", type=click.Choice(["test", "validation", "train"]), default="test", show_default=True)
@click.option("--at", multiple=True, type=int, help="A k for P@k and the others; repeat.  [default: 1 3 5 10 100]")
@click.option("--propensity", nargs=2, type=float, help="A and B of PSP and PSnDCG.  [default: the recipe's, 0.55 1.5]")
@click.option("--as-published", is_flag=True, help="Keep queries without positives in the means, as pyxclib does.")
@click.option("--no-ranker", is_flag=True, help="The dual encoder alone, if the model has a ranker.")
@click.option("--ensemble", is_flag=True, help="Evaluate the mean of the models' scores instead of each.")
@click.option("--predictions", type=click.Path(path_type=Path), help="Save the top-k scores as scipy CSR (.npz).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    models: tuple[Path, ...],
    source: str,
    split: str,
    at: tuple[int, ...],
    propensity: tuple[float, float] | None,
    as_published: bool,
    no_ranker: bool,
    ensemble: bool,
    predictions: Path | None,
    as_json: bool,
) -> None:
    """Evaluate MODEL on DATA: P, nDCG, R, PSP and PSnDCG with 95 % intervals, and by label frequency.

    Several models are evaluated beside each other, with the paired differences of each from the first.
    """
    from umpteen.cli.console import SHOWN, Watch, decile_table, differences_table, metrics_table, origin_table, show
    from umpteen.cli.parts import calibration_lines
    from umpteen.data.dataset import open_dataset
    from umpteen.errors import BadInput
    from umpteen.evaluation.report import USUAL_KS
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
            raise BadInput(
                f"--at {' --at '.join(map(str, at))}: the model has {labels:,} labels; ask for 1 to {labels}"
            )
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        asked: dict[str, Any] = {"at": at or USUAL_KS, "propensity": propensity, "as_published": as_published}
        if beside:
            reports, differences = compare_models(classifiers, dataset, split, **asked)
        elif ensemble:
            report, ranking = evaluate_ensemble(classifiers, dataset, split, **asked)
        else:
            report, ranking = evaluate_model(classifiers[0], dataset, split, **asked)
            del asked["as_published"]
            by_origin = report_by_origin(classifiers[0], dataset, split, ranking, **asked)
    shown = SHOWN if not at else tuple(f"{name}@{k}" for k in at for name in ("P", "nDCG", "PSP", "PSnDCG", "R"))
    about = {"data": dataset.name, "split": split}
    if beside:
        names = [str(model) for model in models]
        found = {
            name: {metric: one.to_dict() for metric, one in pair.items()}
            for name, pair in zip(names[1:], differences, strict=True)
        }
        if as_json:
            results = [{"model": name, **report.to_dict()} for name, report in zip(names, reports, strict=True)]
            pairs = [{"model": name, "minus": names[0], "metrics": pair} for name, pair in found.items()]
            click.echo(json.dumps({**about, "results": results, "differences": pairs}))
        else:
            show(metrics_table(dict(zip(names, reports, strict=True)), shown))
            show(differences_table(found, shown, title=f"minus {names[0]}, paired"))
        return
    name = "mean of " + ", ".join(map(str, models)) if ensemble else str(models[0])
    if as_json:
        named = {"ensemble": [str(model) for model in models]} if ensemble else {"model": name}
        apart = {"by_origin": by_origin} if by_origin else {}
        click.echo(json.dumps({**named, **about, **report.to_dict(), **apart}))
    else:
        show(metrics_table({name: report}, shown), decile_table(report))
        if by_origin:
            show(origin_table(by_origin, shown))
        left_out = f"; {report.queries_left_out:,} without positives left out" if report.queries_left_out else ""
        constants = ", ".join(f"{name} {value}" for name, value in report.propensity.items())
        say(f"{dataset.name} {split}: {report.queries:,} queries{left_out}; propensity {constants}")
        for line in calibration_lines(report.calibration):
            say(line)
    if predictions is not None:
        ranking.save(predictions)  # last: a full disk must not cost the figures


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
def verify(model: Path) -> None:
    """Check every file of MODEL, large arrays too, against its manifest."""
    from umpteen.cli.console import Watch
    from umpteen.errors import DamagedModel
    from umpteen.model.classifier import verify as check

    with Watch() as watch:
        problems = check(model, progress=partial(watch, "verifying"))
    if problems:
        raise DamagedModel("; ".join(problems))
    say(f"{model} is whole")


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", metavar="DATA")
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="train", show_default=True)
@click.option("--shortlist", default=100, show_default=True, help="Labels mined per query.")
@click.option(
    "--margin",
    default=0.0,
    show_default=True,
    help="Suspected is what scores above a query's best positive less this.",
)
@click.option("--top", default=20, show_default=True, help="Labels in the table.")
@click.option("--output", type=click.Path(path_type=Path), help="Every suspect as a line of JSON, with its texts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def negatives(
    model: Path,
    source: str,
    split: str,
    shortlist: int,
    margin: float,
    top: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Mine hard negatives with MODEL on DATA and list those that are probably unlabelled positives."""
    from rich.table import Table

    from umpteen.cli.console import Watch, cell, show
    from umpteen.data.dataset import open_dataset
    from umpteen.files.storage import write_atomically
    from umpteen.model.audit import audit_negatives
    from umpteen.model.classifier import Classifier

    with Watch(quiet=as_json) as watch:
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        classifier = Classifier.load(model, index=False)
        found = audit_negatives(
            classifier, dataset, split, shortlist=shortlist, margin=margin, progress=partial(watch, "mining")
        )
    if output is not None:
        write_atomically(output, "".join(f"{line}\n" for line in found.lines()))
    summary, labels = found.summary(), found.most_frequent(top)
    if as_json:
        given = {"model": str(model), "data": dataset.name, "split": split, "shortlist": shortlist, "margin": margin}
        click.echo(json.dumps({**given, **summary, "labels": labels}, ensure_ascii=False))
        return
    table = Table(title="Labels most often suspected of missing")
    for name in ("suspected", "given"):
        table.add_column(name, justify="right")
    table.add_column("label")
    for label in labels:
        table.add_row(f"{label['suspected']:,}", f"{label['given']:,}", cell(f"{label['text']}  [{label['key']}]"))
    show(table)
    less = f" less {margin:g}" if margin else ""
    say(
        f"{summary['suspects']:,} of {summary['mined']:,} mined negatives ({summary['suspect_percent']} %) score above "
        f"their query's best positive{less}; {summary['queries_with_suspects']:,} of {summary['queries']:,} queries "
        "have one"
    )
    if output is not None:
        say(f"all of them, with their texts: {output}")
    elif summary["suspects"]:
        say(
            "--output FILE.jsonl lists them all; pool.margin keeps them out of training (docs/explanation/negatives.md)"
        )
