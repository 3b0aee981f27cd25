"""`umpteen labels list, diff, history, export`: the verbs that only look at a model's labels."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.saying import say

if TYPE_CHECKING:
    from umpteen.catalogue.changes import Step
    from umpteen.catalogue.live import LiveLabels

MODEL = click.argument("model", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_SIGNS = {"add": "+", "revive": "+", "rename": "~", "retire": "-"}


@click.command(name="list")
@MODEL
@click.option("--search", default="", help="Only labels whose key or text holds this, whatever the case.")
@click.option("--origin", type=click.Choice(["trained", "added", "renamed"]), help="Only labels that came so.")
@click.option("--retired", is_flag=True, help="Retired labels, too.")
@click.option("--start", type=click.IntRange(0), default=0, show_default=True, help="Labels to pass over.")
@click.option("--count", type=click.IntRange(1), default=50, show_default=True, help="Labels to show.")
@JSON
def list_(model: Path, search: str, origin: str | None, retired: bool, start: int, count: int, as_json: bool) -> None:
    """List labels: key, text, and what happened to them since training."""
    from umpteen.catalogue.live import ORIGINS
    from umpteen.live_model import open_labels

    labels = open_labels(model).labels
    rows: Iterator[int] = labels.find_rows(search, retired=retired)
    if origin is not None:
        wanted = labels.origins() == ORIGINS.index(origin)
        rows = (row for row in rows if wanted[row])
    total = 0
    shown = []
    for total, row in enumerate(rows, 1):
        if start < total <= start + count:
            shown.append(labels.entry(row))
    if as_json:
        found = [{name: value for name, value in entry._asdict().items() if name != "row"} for entry in shown]
        click.echo(json.dumps({"version": labels.version, "total": total, "labels": found}, ensure_ascii=False))
        return
    for entry in shown:
        marks = ", ".join([entry.origin] * (entry.origin != "trained") + ["retired"] * entry.retired)
        say(f"{entry.key}  {entry.text}" + (f"  [{marks}]" if marks else ""))
    last = f"; --start {start + count} shows more" if total > start + count else ""
    say(f"{len(shown):,} of {total:,} labels, version {labels.version}{last}", err=True)


@click.command()
@MODEL
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--from-version", type=int, help="  [default: the labels in the model's own files]")
@click.option("--to-version", type=int, help="  [default: now]")
@click.option("--retire-missing", is_flag=True, help="With FILE: as `import --retire-missing` would.")
@JSON
def diff(
    model: Path,
    file: Path | None,
    from_version: int | None,
    to_version: int | None,
    retire_missing: bool,
    as_json: bool,
) -> None:
    """Show what changed between two versions, or what importing FILE would change."""
    from umpteen.live_model import open_labels

    if file is not None:
        if from_version is not None or to_version is not None:
            raise click.UsageError("give FILE, or versions; FILE is compared with the labels there are now")
        show_what_import_would_do(model, file, retire_missing, as_json)
        return
    catalogue = open_labels(model)
    first = catalogue.start.version if from_version is None else from_version
    last = catalogue.labels.version if to_version is None else to_version
    steps = catalogue.between(first, last)
    _show(catalogue.at(first), steps, {"from_version": first, "to_version": last}, as_json)


def show_what_import_would_do(model: Path, file: Path, retire_missing: bool, as_json: bool) -> None:
    """The difference between the labels there are and those of a file."""
    from umpteen.catalogue.changes import steps_of
    from umpteen.catalogue.files import changes_of
    from umpteen.live_model import open_labels

    labels = open_labels(model).labels
    steps = steps_of(changes_of(file, labels, retire_missing=retire_missing), labels)
    _show(labels, steps, {"from_version": labels.version, "file": str(file)}, as_json)


@click.command()
@MODEL
@click.option(
    "--count", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="Versions to show, newest first."
)
@JSON
def history(model: Path, count: int, as_json: bool) -> None:
    """List the versions of the labels since the model was written, newest first."""
    from umpteen.live_model import open_labels

    catalogue = open_labels(model)
    lines = catalogue.history()
    shown = list(islice(reversed(lines), count))
    if as_json:
        found = [line._asdict() for line in shown]
        now = {"version": catalogue.labels.version, "versions": found}
        click.echo(json.dumps({"model": str(model), **now}, ensure_ascii=False))
        return
    for line in shown:
        counts = {"added": line.added, "renamed": line.renamed, "retired": line.retired}
        said = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
        say(f"{line.version:>5}  {line.time}  {said}" + (f"  ({line.note})" if line.note else ""))
    say(f"{catalogue.start.version:>5}  the labels in the model's own files")


@click.command()
@MODEL
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--retired", is_flag=True, help="Retired labels, too.")
def export(model: Path, file: Path, retired: bool) -> None:
    """Write all labels to FILE (.jsonl, .csv or .tsv), as `import` reads them."""
    from umpteen.catalogue.files import write_label_file
    from umpteen.live_model import open_labels

    count = write_label_file(file, open_labels(model).labels, retired=retired)
    say(f"{count:,} labels in {file}")


def _show(before: "LiveLabels", steps: "Sequence[Step]", about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        found = [
            {name: value for name, value in {**step._asdict(), "before": before.text_of(step.key)}.items() if value}
            for step in steps
        ]
        click.echo(json.dumps({**about, "changes": found}, ensure_ascii=False))
        return
    for step in steps:
        old = before.text_of(step.key)
        text = f"{old} → {step.text}" if step.do == "rename" else step.text or old
        say(f"{_SIGNS[step.do]} {step.key}  {text}")
    if not steps:
        say("no difference")
