"""`umpteen predict`: labels for texts on the command line, on stdin, or in a file of any length."""

import json
import sys
from collections.abc import Iterable
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from umpteen.cli.saying import say


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--k", type=int, help="Labels per text.  [default: 5, or the most that --rule gives]")
@click.option("--min-probability", type=click.FloatRange(0, 1), help="Only labels that are at least so probable.")
@click.option("--precision", type=click.FloatRange(0, 1), help="Only labels of which this share is right, e.g. 0.9.")
@click.option(
    "--rule",
    type=click.Choice(["f1", "coverage"]),
    help="As many labels as was best on held-out texts: for F1, or to give most of the right ones.",
)
@click.option("--no-ranker", is_flag=True, help="The dual encoder alone, if the model has a ranker.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a text.")
@click.option("--input", "source", type=click.Path(path_type=Path), help="A .jsonl, .csv, .tsv or .txt file, or .gz.")
@click.option("--output", type=click.Path(path_type=Path), help="With --input: a .jsonl file, or a .npz matrix.")
@click.option("--field", default="text", show_default=True, help="With --input: where a row has its text.")
@click.option("--id-field", help="With --input: a field to name answers by.  [default: the line's number]")
@click.option("--skip-bad", is_flag=True, help="With --input: list rows without a text in OUTPUT.bad.jsonl and go on.")
@click.option("--resume", is_flag=True, help="With --input: go on after a kill; starts where there is nothing.")
@click.option("--overwrite", is_flag=True, help="With --input: replace OUTPUT at the end; discard unfinished work.")
def predict(
    model: Path,
    texts: tuple[str, ...],
    k: int | None,
    min_probability: float | None,
    precision: float | None,
    rule: str | None,
    no_ranker: bool,
    as_json: bool,
    source: Path | None,
    output: Path | None,
    **of_file: Any,
) -> None:
    """Print the best labels of each TEXT, or of each line of stdin; or write those of a file's texts to another.

    Probabilities, --min-probability, --precision and --rule need a calibrated model (umpteen calibrate).
    """
    limits = {"k": k, "min_probability": min_probability, "precision": precision, "rule": rule}
    if source is None and output is None:
        if given := [name for name in ("id_field", "skip_bad", "resume", "overwrite") if of_file[name]]:
            raise click.UsageError(f"--{given[0].replace('_', '-')} goes with --input and --output")
        _answer(model, _given_texts(texts), limits, no_ranker, as_json)
        return
    if source is None or output is None or texts:
        raise click.UsageError("--input and --output go together, and without TEXT")
    _answer_file(model, source, output, limits, no_ranker, as_json, **of_file)


def _given_texts(texts: tuple[str, ...]) -> list[str]:
    from umpteen.errors import BadInput

    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # as arguments come; refused by name below
    given = list(texts) or [line.rstrip("\r\n") for line in sys.stdin]
    if not given:
        raise BadInput("no text given; pass texts as arguments, or one per line on stdin")
    for number, text in enumerate(given, 1):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise BadInput(f"text {number:,} is not UTF-8: {text.encode(errors='replace').decode()[:60]!r}; convert it")
    return given


def _answer(model: Path, texts: list[str], limits: dict[str, Any], no_ranker: bool, as_json: bool) -> None:
    from umpteen.model.classifier import Classifier

    classifier = Classifier.load(model, ranker=not no_ranker)
    for text, found in zip(texts, classifier.predict(texts, **limits), strict=True):
        if as_json:
            labels = [{name: value for name, value in one._asdict().items() if value is not None} for one in found]
            click.echo(json.dumps({"text": text, "labels": labels}, ensure_ascii=False))
            continue
        say(text, bold=True)
        _tell(found)


def _tell(found: Iterable[Any]) -> None:
    nothing = True
    for label in found:
        nothing = False
        sure = "" if label.probability is None else f"{100 * label.probability:5.1f} %  "
        say(f"  {label.score:6.3f}  {sure}{label.text}  [{label.key}]")
    if nothing:
        say("  no label is as probable as that")


def _answer_file(
    model: Path,
    source: Path,
    output: Path,
    limits: dict[str, Any],
    no_ranker: bool,
    as_json: bool,
    *,
    field: str,
    id_field: str | None,
    skip_bad: bool,
    resume: bool,
    overwrite: bool,
) -> None:
    from umpteen.cli.console import Watch
    from umpteen.model.batch import Wanted, bad_rows_of, predict_file
    from umpteen.model.classifier import Classifier

    wanted = Wanted(**limits, field=field, id_field=id_field, skip_bad=skip_bad)
    with Watch(quiet=as_json) as watch:
        classifier = Classifier.load(model, ranker=not no_ranker)
        done = predict_file(
            classifier,
            source,
            output,
            wanted,
            resume=resume,
            overwrite=overwrite,
            progress=partial(watch, "predicting (bytes)"),
        )
    if as_json:
        about = {} if done is None else {"texts": done.texts, "labels": done.labels, "bad_rows": done.bad}
        click.echo(json.dumps({"output": str(output), "complete": True, **about}))
    elif done is None:
        say(f"{output} is complete; nothing is left to predict")
    else:
        skipped = f"; {done.bad:,} bad rows are listed in {bad_rows_of(output)}" if done.bad else ""
        say(f"{output}: {done.labels:,} labels for {done.texts:,} texts{skipped}")
