"""`umpteen predict`: labels for texts on the command line, on stdin, or in a file of any length."""

import sys
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import MODEL, NO_RANKER, PATH, Watch, cli, option, say, say_json


@cli.command()
@MODEL
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--k", type=int, help="Labels per text.  [default: 5, or the most that --rule gives]")
@click.option("--min-probability", type=click.FloatRange(0, 1), help="Only labels that are at least so probable.")
@click.option("--precision", type=click.FloatRange(0, 1), help="Only labels of which this share is right, e.g. 0.9.")
@click.option(
    "--rule",
    type=click.Choice(["f1", "coverage"]),
    help="As many labels as was best on held-out texts: for F1, or to give most of the right ones.",
)
@NO_RANKER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a text.")
@click.option("--input", "source", type=PATH, help="A .jsonl, .csv, .tsv or .txt file, or .gz.")
@click.option("--output", type=PATH, help="With --input: a .jsonl file, or a .npz matrix.")
@option("--field", default="text", help="With --input: where a row has its text.")
@click.option("--id-field", help="With --input: a field to name answers by.  [default: the line's number]")
@click.option("--skip-bad", is_flag=True, help="With --input: list rows without a text in OUTPUT.bad.jsonl and go on.")
@click.option("--resume", is_flag=True, help="With --input: go on after a kill; starts where there is nothing.")
@click.option("--overwrite", is_flag=True, help="With --input: replace OUTPUT at the end; discard unfinished work.")
def predict(
    model: Path,
    texts: tuple[str, ...],
    no_ranker: bool,
    as_json: bool,
    source: Path | None,
    output: Path | None,
    resume: bool,
    overwrite: bool,
    **asked: Any,
) -> None:
    """Print the best labels of each TEXT, or of each line of stdin; or write those of a file's texts to another.

    Probabilities, --min-probability, --precision and --rule need a calibrated model (umpteen calibrate).
    """
    if source is not None and output is not None and not texts:
        _answer_file(model, source, output, asked, no_ranker, as_json, resume=resume, overwrite=overwrite)
    elif source is not None or output is not None:
        raise click.UsageError("--input and --output go together, and without TEXT")
    elif asked["id_field"] or asked["skip_bad"] or resume or overwrite:
        raise click.UsageError("--id-field, --skip-bad, --resume and --overwrite go with --input and --output")
    else:
        _answer(model, _given_texts(texts), asked, no_ranker, as_json)


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


def _answer(model: Path, texts: list[str], asked: dict[str, Any], no_ranker: bool, as_json: bool) -> None:
    from umpteen.model.classifier import LIMITS, Classifier, answer

    limits = {name: asked[name] for name in LIMITS}
    answers = Classifier.load(model, ranker=not no_ranker).predict(texts, **limits)
    for text, found in zip(texts, answers, strict=True):
        if as_json:
            say_json(answer({"text": text}, found))
            continue
        say(text, bold=True)
        for label in found:
            sure = "" if label.probability is None else f"{100 * label.probability:5.1f} %  "
            say(f"  {label.score:6.3f}  {sure}{label.text}  [{label.key}]")
        if not found:
            say("  no label is as probable as that")


def _answer_file(
    model: Path, source: Path, output: Path, asked: dict[str, Any], no_ranker: bool, as_json: bool, **how: bool
) -> None:
    from umpteen.model.batch import Wanted, bad_rows_of, predict_file
    from umpteen.model.classifier import Classifier

    with Watch(quiet=as_json) as watch:
        classifier = Classifier.load(model, ranker=not no_ranker)
        progress = partial(watch, "predicting (bytes)")
        done = predict_file(classifier, source, output, Wanted(**asked), **how, progress=progress)
    if as_json:
        about = {} if done is None else {"texts": done.texts, "labels": done.labels, "bad_rows": done.bad}
        say_json({"output": str(output), "complete": True, **about})
    elif done is None:
        say(f"{output} is complete; nothing is left to predict")
    else:
        skipped = f"; {done.bad:,} bad rows are listed in {bad_rows_of(output)}" if done.bad else ""
        say(f"{output}: {done.labels:,} labels for {done.texts:,} texts{skipped}")
