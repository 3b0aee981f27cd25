"""`umpteen evaluate`, `umpteen predict` and `umpteen verify`: what is done with a trained model."""

import json
import sys
from functools import partial
from io import TextIOWrapper
from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", metavar="DATA")
@click.option("--split", type=click.Choice(["test", "validation", "train"]), default="test", show_default=True)
@click.option("--at", multiple=True, type=int, help="A k for P@k and the others; repeat.  [default: 1 3 5 10 100]")
@click.option("--propensity", nargs=2, type=float, help="A and B of PSP and PSnDCG.  [default: the recipe's, 0.55 1.5]")
@click.option("--as-published", is_flag=True, help="Keep queries without positives in the means, as pyxclib does.")
@click.option("--predictions", type=click.Path(path_type=Path), help="Save the top-k scores as scipy CSR (.npz).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    model: Path,
    source: str,
    split: str,
    at: tuple[int, ...],
    propensity: tuple[float, float] | None,
    as_published: bool,
    predictions: Path | None,
    as_json: bool,
) -> None:
    """Judge MODEL on DATA: P, nDCG, R, PSP and PSnDCG with 95 % intervals, and by label frequency."""
    from umpteen.classifier import Classifier
    from umpteen.cli.console import SHOWN, Watch, decile_table, metrics_table, show
    from umpteen.data.dataset import open_dataset
    from umpteen.errors import BadInput
    from umpteen.evaluating import evaluate_model
    from umpteen.evaluation.report import USUAL_KS

    with Watch(quiet=as_json) as watch:
        classifier = Classifier.load(model)
        labels = len(classifier.labels)
        if at and not 1 <= min(at) <= max(at) <= labels:
            raise BadInput(
                f"--at {' --at '.join(map(str, at))}: the model has {labels:,} labels; ask for 1 to {labels}"
            )
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        report, ranking = evaluate_model(
            classifier, dataset, split, at=at or USUAL_KS, propensity=propensity, as_published=as_published
        )
    if as_json:
        click.echo(json.dumps({"model": str(model), "data": dataset.name, "split": split, **report.to_dict()}))
    else:
        shown = SHOWN if not at else tuple(f"{name}@{k}" for k in at for name in ("P", "nDCG", "PSP", "PSnDCG", "R"))
        show(metrics_table({str(model): report}, shown), decile_table(report))
        left_out = f"; {report.queries_left_out:,} without positives left out" if report.queries_left_out else ""
        constants = ", ".join(f"{name} {value}" for name, value in report.propensity.items())
        click.echo(f"{dataset.name} {split}: {report.queries:,} queries{left_out}; propensity {constants}")
    if predictions is not None:
        ranking.save(predictions)  # last: a full disk must not cost the figures


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--k", default=5, show_default=True, help="Labels per text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a text.")
def predict(model: Path, texts: tuple[str, ...], k: int, as_json: bool) -> None:
    """Print the best labels of each TEXT, or of each line of stdin."""
    from umpteen.classifier import Classifier
    from umpteen.errors import BadInput

    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # as arguments come; refused by name below
    given = list(texts) or [line.rstrip("\r\n") for line in sys.stdin]
    if not given:
        raise BadInput("no text given; pass texts as arguments, or one per line on stdin")
    for number, text in enumerate(given, 1):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise BadInput(f"text {number:,} is not UTF-8: {text.encode(errors='replace').decode()[:60]!r}; convert it")
    for text, found in zip(given, Classifier.load(model).predict(given, k), strict=True):
        if as_json:
            labels = [{"key": label.key, "text": label.text, "score": label.score} for label in found]
            click.echo(json.dumps({"text": text, "labels": labels}, ensure_ascii=False))
            continue
        click.secho(text, bold=True)
        for label in found:
            click.echo(f"  {label.score:6.3f}  {label.text}  [{label.key}]")


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
def verify(model: Path) -> None:
    """Check every file of MODEL, large arrays too, against its manifest."""
    from umpteen.classifier import verify as check
    from umpteen.cli.console import Watch
    from umpteen.errors import DamagedModel

    with Watch() as watch:
        problems = check(model, progress=partial(watch, "verifying"))
    if problems:
        raise DamagedModel("; ".join(problems))
    click.echo(f"{model} is whole")
