"""`umpteen labels`: the verbs that look at a model's labels, and those that change them."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.saying import say

if TYPE_CHECKING:
    from umpteen.model.catalogue import LiveCatalogue
    from umpteen.model.changes import Change, Step
    from umpteen.model.labels import LiveLabels

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
    from umpteen.model.catalogue import open_labels
    from umpteen.model.labels import ORIGINS

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
    from umpteen.model.catalogue import open_labels

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
    from umpteen.model.catalogue import open_labels
    from umpteen.model.changes import steps_of
    from umpteen.model.label_files import changes_of

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
    from umpteen.model.catalogue import open_labels

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
    from umpteen.model.catalogue import open_labels
    from umpteen.model.label_files import write_label_file

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


NOTE = click.option("--note", default="", help="A line for the history.")
FROM = click.option(
    "--from", "file", type=click.Path(path_type=Path), help="A .jsonl, .csv or .tsv file with `key` and `text`."
)


@click.group()
def labels() -> None:
    """Add, rename, retire and list the labels of MODEL without training (docs/how-to/manage-labels.md).

    Every change is a new version, on disk before the command ends. Running services take it in.
    """


@labels.command()
@MODEL
@click.argument("key", required=False)
@click.argument("text", required=False)
@FROM
@NOTE
@JSON
def add(model: Path, key: str | None, text: str | None, file: Path | None, note: str, as_json: bool) -> None:
    """Add a label by KEY and TEXT, or all labels of a file; a retired label comes back."""
    from umpteen.model.changes import Add
    from umpteen.model.label_files import additions

    _require_one_way(file, key, text)
    one = [Add(str(key), str(text))]
    _change(model, partial(additions, file) if file else lambda _: one, note, as_json)


@labels.command()
@MODEL
@click.argument("key", required=False)
@click.argument("text", required=False)
@FROM
@NOTE
@JSON
def rename(model: Path, key: str | None, text: str | None, file: Path | None, note: str, as_json: bool) -> None:
    """Give the label KEY another TEXT, or all labels of a file theirs; keys stay."""
    from umpteen.model.changes import Rename
    from umpteen.model.label_files import renamings

    _require_one_way(file, key, text)
    one = [Rename(str(key), str(text))]
    _change(model, partial(renamings, file) if file else lambda _: one, note, as_json)


@labels.command()
@MODEL
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--from", "file", type=click.Path(path_type=Path), help="A .jsonl, .csv or .tsv file with `key`.")
@NOTE
@JSON
def retire(model: Path, keys: tuple[str, ...], file: Path | None, note: str, as_json: bool) -> None:
    """Retire labels: nothing finds them any more, until they are added again."""
    from umpteen.model.changes import Retire
    from umpteen.model.label_files import retirements

    if bool(keys) == (file is not None):
        raise click.UsageError("give keys, or --from a file of them")
    named = [Retire(key) for key in keys]
    _change(model, partial(retirements, file) if file else lambda _: named, note, as_json)


@labels.command(name="import")
@MODEL
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--retire-missing", is_flag=True, help="Retire labels that are not in the file.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@NOTE
@JSON
def import_(model: Path, file: Path, retire_missing: bool, dry_run: bool, note: str, as_json: bool) -> None:
    """Make the labels those of FILE in one version: new ones are added, other texts renamed.

    FILE is .jsonl, .csv or .tsv with `key` and `text`; lines with a true `retired` are retired.
    """
    from umpteen.model.label_files import changes_of

    if dry_run:
        show_what_import_would_do(model, file, retire_missing, as_json)
        return
    _change(model, partial(changes_of, file, retire_missing=retire_missing), note or f"import {file.name}", as_json)


@labels.command()
@MODEL
@click.option("--to-version", type=int, help="The version to go back to.  [default: the one before]")
@NOTE
@JSON
def undo(model: Path, to_version: int | None, note: str, as_json: bool) -> None:
    """Make a new version in which all labels are as they were in an older one."""
    from umpteen.model.catalogue import undo_labels

    _tell(model, undo_labels(model, to_version, note=note), as_json)


@labels.command()
@MODEL
@click.option("--drop-index", is_flag=True, help="Even if an index of older labels is lost by it.")
@JSON
def compact(model: Path, drop_index: bool, as_json: bool) -> None:
    """Fold all versions into the model's own files: rows and keys stay, the history ends."""
    from umpteen.model.classifier import compact as fold

    found = fold(model, drop_index=drop_index)
    if as_json:
        click.echo(json.dumps({"model": str(model), **found._asdict()}))
        return
    if found.versions == 0:
        say(f"{model} has nothing to compact: no label has changed since it was written")
        return
    say(f"{model}: {found.versions:,} versions folded into its files; {found.labels:,} labels")
    if found.dropped_index:
        say(f"its index was of older labels and is gone; search is exact until `umpteen index build {model}`")


for command in (list_, diff, history, export):
    labels.add_command(command)


def _require_one_way(file: Path | None, key: str | None, text: str | None) -> None:
    if (file is None) != (key is not None and text is not None) or (file is not None and key is not None):
        raise click.UsageError("give KEY and TEXT, or --from a file of them")


def _change(model: Path, changes: "Callable[[LiveLabels], Sequence[Change]]", note: str, as_json: bool) -> None:
    from umpteen.cli.console import Watch
    from umpteen.model.catalogue import change_labels

    with Watch(quiet=as_json) as watch:
        changed = change_labels(model, changes, note=note, progress=partial(watch, "encoding labels"))
    _tell(model, changed, as_json)


def _tell(model: Path, catalogue: "LiveCatalogue", as_json: bool) -> None:
    """What the command did."""
    done = catalogue.last_change
    now: dict[str, Any] = {"version": catalogue.labels.version, "labels": catalogue.labels.count()}
    counts = {name: getattr(done, name) if done else 0 for name in ("added", "renamed", "retired")}
    if as_json:
        click.echo(json.dumps({"model": str(model), **now, **counts}))
    elif done is None:
        say(f"nothing to change; {now['labels']:,} labels, version {now['version']}")
    else:
        said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        say(f"version {now['version']}: {said}; {now['labels']:,} labels")
