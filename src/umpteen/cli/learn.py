"""`umpteen learn`, `examples` and `review`: corrections that count at once, and which texts to look at first."""

from functools import partial
from pathlib import Path

import click

from umpteen.cli.labels import FILE, NOTE
from umpteen.cli.main import JSON, MODEL, Watch, cli, option, say, say_json, tell


@cli.command()
@MODEL
@FILE
@NOTE
@JSON
def learn(model: Path, file: Path, note: str, as_json: bool) -> None:
    """Teach MODEL the corrections of FILE: `text`, its right `labels`, and those that are `wrong`, by key.

    FILE is .jsonl, .csv, .tsv or .parquet. These texts and those near to them are answered accordingly at once, by
    running services, too; all of the file is learnt or nothing (docs/how-to/learn.md).
    """
    from umpteen.model.classifier import Classifier
    from umpteen.model.correcting import read_corrections

    classifier = Classifier.load(model, ranker=False, index=False)
    given = read_corrections(file, classifier.labels, partial(say, err=True))
    right, wrong = [one.labels for one in given], [one.wrong for one in given]
    learnt = classifier.learn([one.text for one in given], right, wrong, note)
    count = len(classifier.examples())
    answer = {"model": str(model), "learnt": learnt, "count": count}
    tell(as_json, answer, f"{learnt:,} examples learnt; {count:,} in all")


@cli.group()
def examples() -> None:
    """List, export and undo what MODEL was taught by `umpteen learn`, the service or the page."""


@examples.command(name="list")
@MODEL
@option("--count", type=click.IntRange(1, 1_000_000), default=20, help="Examples to show, newest first.")
@JSON
def list_(model: Path, count: int, as_json: bool) -> None:
    """List examples, newest first."""
    from umpteen.model.examples import open_examples

    found = open_examples(model).all()
    shown = found[::-1][:count]
    if as_json:
        say_json({"model": str(model), "count": len(found), "examples": [one._asdict() for one in shown]})
        return
    for one in shown:
        say(one.text, bold=True)
        marked = [f"+ {key}" for key in one.labels] + [f"- {key}" for key in one.wrong]
        say(f"  {'  '.join(marked)}  ({', '.join(filter(None, (one.time, one.note)))})")
    say(f"{len(shown):,} of {len(found):,} examples", err=True)


@examples.command()
@MODEL
@FILE
def export(model: Path, file: Path) -> None:
    """Write the examples to FILE (.jsonl) as training lines, which `umpteen fit` reads."""
    from umpteen.model.correcting import export_examples

    say(f"{export_examples(model, file):,} training lines in {file}")


@examples.command()
@MODEL
@JSON
def undo(model: Path, as_json: bool) -> None:
    """Undo what was learnt last: all examples of one file, or of one request."""
    from umpteen.model.classifier import Classifier

    classifier = Classifier.load(model, ranker=False, index=False)
    undone, count = classifier.undo_examples(), len(classifier.examples())
    answer = {"model": str(model), "undone": undone, "count": count}
    tell(as_json, answer, f"{undone:,} examples undone; {count:,} are left")


@cli.command()
@MODEL
@FILE
@option("--most", type=click.IntRange(1), default=100, help="Texts to show.")
@option("--field", default="text", help="Where a row has its text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a text, ready to be corrected.")
def review(model: Path, file: Path, most: int, field: str, as_json: bool) -> None:
    """Show the texts of FILE (.jsonl, .csv, .tsv, .txt) whose answers are the least certain, these first.

    With --json, correct the `labels` of each line, name some that are `wrong`, and `umpteen learn` the file.
    """
    from umpteen.model.classifier import Classifier
    from umpteen.model.correcting import review as queue

    with Watch(quiet=as_json) as watch:
        found = queue(Classifier.load(model), file, most, field=field, progress=partial(watch, "reading (bytes)"))
    for doubt in found:
        if as_json:
            say_json(doubt.line())
        else:
            say(doubt.text, bold=True)
            say(f"  {doubt.certainty:.3f}  {', '.join(doubt.labels) or 'no label'}")
