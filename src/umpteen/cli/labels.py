"""`umpteen labels`: the verbs that look at a model's labels, and those that change them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.main import JSON, MODEL, PATH, Watch, cli, option, say, say_json

if TYPE_CHECKING:
    from umpteen.model.catalogue import LiveCatalogue
    from umpteen.model.changes import Change, Step
    from umpteen.model.labels import LiveLabels

FILE = click.argument("file", type=PATH)
NOTE = click.option("--note", default="", help="A line for the history.")
_SIGNS = {"add": "+", "revive": "+", "rename": "~", "retire": "-"}
_COUNTED = ("added", "renamed", "retired")


@cli.group()
def labels() -> None:
    """Add, rename, retire and list the labels of MODEL without training (docs/how-to/manage-labels.md).

    Every change is a new version, on disk before the command ends. Running services take it in.
    """


@labels.command(name="list")
@MODEL
@click.option("--search", default="", help="Only labels whose key or text holds this, whatever the case.")
@click.option("--origin", type=click.Choice(["trained", "added", "renamed"]), help="Only labels that came so.")
@click.option("--retired", is_flag=True, help="Retired labels, too.")
@option("--start", type=click.IntRange(0), default=0, help="Labels to pass over.")
@option("--count", type=click.IntRange(1), default=50, help="Labels to show.")
@JSON
def list_(model: Path, search: str, origin: str | None, retired: bool, start: int, count: int, as_json: bool) -> None:
    """List labels: key, text, and what happened to them since training."""
    from umpteen.model.catalogue import open_labels
    from umpteen.model.labels import ORIGINS

    labels = open_labels(model).labels
    rows = list(labels.find_rows(search, retired=retired))
    if origin is not None:
        wanted = labels.origins() == ORIGINS.index(origin)
        rows = [row for row in rows if wanted[row]]
    total, shown = len(rows), [labels.entry(row) for row in rows[start : start + count]]
    if as_json:
        found = [{name: value for name, value in entry._asdict().items() if name != "row"} for entry in shown]
        say_json({"version": labels.version, "total": total, "labels": found})
        return
    for entry in shown:
        marks = ", ".join([entry.origin] * (entry.origin != "trained") + ["retired"] * entry.retired)
        say(f"{entry.key}  {entry.text}" + (f"  [{marks}]" if marks else ""))
    last = f"; --start {start + count} shows more" if total > start + count else ""
    say(f"{len(shown):,} of {total:,} labels, version {labels.version}{last}", err=True)


@labels.command()
@MODEL
@click.argument("file", type=PATH, required=False)
@click.option("--from-version", "first", type=int, help="  [default: the labels in the model's own files]")
@click.option("--to-version", "last", type=int, help="  [default: now]")
@click.option("--retire-missing", is_flag=True, help="With FILE: as `import --retire-missing` would.")
@JSON
def diff(
    model: Path, file: Path | None, first: int | None, last: int | None, retire_missing: bool, as_json: bool
) -> None:
    """Show what changed between two versions, or what importing FILE would change."""
    from umpteen.model.catalogue import open_labels

    if file is not None:
        if first is not None or last is not None:
            raise click.UsageError("give FILE, or versions; FILE is compared with the labels there are now")
        _show_what_import_would_do(model, file, retire_missing, as_json)
        return
    catalogue = open_labels(model)
    first = catalogue.start.version if first is None else first
    last = catalogue.labels.version if last is None else last
    steps = catalogue.between(first, last)
    _show(catalogue.at(first), steps, {"from_version": first, "to_version": last}, as_json)


def _show_what_import_would_do(model: Path, file: Path, retire_missing: bool, as_json: bool) -> None:
    from umpteen.model.catalogue import open_labels
    from umpteen.model.changes import steps_of
    from umpteen.model.label_files import changes_of

    labels = open_labels(model).labels
    steps = steps_of(changes_of(file, labels, retire_missing=retire_missing), labels)
    _show(labels, steps, {"from_version": labels.version, "file": str(file)}, as_json)


def _show(before: "LiveLabels", steps: "Sequence[Step]", about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        found = ({**step._asdict(), "before": before.text_of(step.key)} for step in steps)
        changes = [{name: value for name, value in change.items() if value} for change in found]
        say_json({**about, "changes": changes})
        return
    for step in steps:
        old = before.text_of(step.key)
        text = f"{old} → {step.text}" if step.do == "rename" else step.text or old
        say(f"{_SIGNS[step.do]} {step.key}  {text}")
    if not steps:
        say("no difference")


@labels.command()
@MODEL
@option("--count", type=click.IntRange(1, 1_000_000), default=20, help="Versions to show, newest first.")
@JSON
def history(model: Path, count: int, as_json: bool) -> None:
    """List the versions of the labels since the model was written, newest first."""
    from umpteen.model.catalogue import open_labels

    catalogue = open_labels(model)
    shown = catalogue.history()[::-1][:count]
    if as_json:
        versions = [line._asdict() for line in shown]
        say_json({"model": str(model), "version": catalogue.labels.version, "versions": versions})
        return
    for line in shown:
        note = f"  ({line.note})" if line.note else ""
        say(f"{line.version:>5}  {line.time}  {_counted(line)}{note}")
    say(f"{catalogue.start.version:>5}  the labels in the model's own files")


@labels.command()
@MODEL
@FILE
@click.option("--retired", is_flag=True, help="Retired labels, too.")
def export(model: Path, file: Path, retired: bool) -> None:
    """Write all labels to FILE (.jsonl, .csv or .tsv), as `import` reads them."""
    from umpteen.model.catalogue import open_labels
    from umpteen.model.label_files import write_label_file

    count = write_label_file(file, open_labels(model).labels, retired=retired)
    say(f"{count:,} labels in {file}")


def _of_key_and_text(verb: Callable[..., None]) -> click.Command:
    """A verb for one label, or for all labels of a file."""
    label = click.argument("label", nargs=-1, metavar="[KEY TEXT]")
    file = click.option("--from", "file", type=PATH, help="A .jsonl, .csv or .tsv file with `key` and `text`.")
    return labels.command()(MODEL(label(file(NOTE(JSON(verb))))))


@_of_key_and_text
def add(**given: Any) -> None:
    """Add a label by KEY and TEXT, or all labels of a file; a retired label comes back."""
    _change_by_key_and_text("add", **given)


@_of_key_and_text
def rename(**given: Any) -> None:
    """Give the label KEY another TEXT, or all labels of a file theirs; keys stay."""
    _change_by_key_and_text("rename", **given)


def _change_by_key_and_text(do: str, label: tuple[str, ...], file: Path | None, **asked: Any) -> None:
    from umpteen.model.changes import Add, Rename
    from umpteen.model.label_files import additions, renamings

    _require_one_way(len(label) == (0 if file else 2), "KEY and TEXT")
    read, change = (additions, Add) if do == "add" else (renamings, Rename)
    _change(changes=partial(read, file) if file else lambda _: [change(*label)], **asked)


@labels.command()
@MODEL
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--from", "file", type=PATH, help="A .jsonl, .csv or .tsv file with `key`.")
@NOTE
@JSON
def retire(model: Path, keys: tuple[str, ...], file: Path | None, note: str, as_json: bool) -> None:
    """Retire labels: nothing finds them any more, until they are added again."""
    from umpteen.model.changes import Retire
    from umpteen.model.label_files import retirements

    _require_one_way(bool(keys) == (file is None), "keys")
    _change(model, partial(retirements, file) if file else lambda _: [Retire(key) for key in keys], note, as_json)


def _require_one_way(holds: bool, what: str) -> None:
    if not holds:
        raise click.UsageError(f"give {what}, or --from a file of them")


@labels.command(name="import")
@MODEL
@FILE
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
        _show_what_import_would_do(model, file, retire_missing, as_json)
    else:
        changes = partial(changes_of, file, retire_missing=retire_missing)
        _change(model, changes, note or f"import {file.name}", as_json)


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
        say_json({"model": str(model), **found._asdict()})
    elif found.versions == 0:
        say(f"{model} has nothing to compact: no label has changed since it was written")
    else:
        say(f"{model}: {found.versions:,} versions folded into its files; {found.labels:,} labels")
        if found.dropped_index:
            say(f"its index was of older labels and is gone; search is exact until `umpteen index build {model}`")


def _change(model: Path, changes: "Callable[[LiveLabels], Sequence[Change]]", note: str, as_json: bool) -> None:
    from umpteen.model.catalogue import change_labels

    with Watch(quiet=as_json) as watch:
        changed = change_labels(model, changes, note=note, progress=partial(watch, "encoding labels"))
    _tell(model, changed, as_json)


def _tell(model: Path, catalogue: "LiveCatalogue", as_json: bool) -> None:
    """What the command did."""
    done, version, count = catalogue.last_change, catalogue.labels.version, catalogue.labels.count()
    if as_json:
        counts = {name: getattr(done, name) if done else 0 for name in _COUNTED}
        say_json({"model": str(model), "version": version, "labels": count, **counts})
    elif done is None:
        say(f"nothing to change; {count:,} labels, version {version}")
    else:
        say(f"version {version}: {_counted(done)}; {count:,} labels")


def _counted(change: object) -> str:
    counts = {name: getattr(change, name) for name in _COUNTED}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
