"""`umpteen labels`: the verbs that change a model's labels; those that only look are in label_lists.py."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli import label_lists
from umpteen.cli.saying import say

if TYPE_CHECKING:
    from umpteen.catalogue.changes import Change
    from umpteen.catalogue.live import LiveLabels
    from umpteen.catalogue.live_catalogue import LiveCatalogue

MODEL = click.argument("model", type=click.Path(path_type=Path))
NOTE = click.option("--note", default="", help="A line for the history.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
FROM = click.option(
    "--from", "file", type=click.Path(path_type=Path), help="A .jsonl, .csv or .tsv file with `key` and `text`."
)


@click.group()
def labels() -> None:
    """Add, rename, retire and list the labels of MODEL without training (docs/manage-labels.md).

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
    from umpteen.catalogue.changes import Add
    from umpteen.catalogue.files import additions

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
    from umpteen.catalogue.changes import Rename
    from umpteen.catalogue.files import renamings

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
    from umpteen.catalogue.changes import Retire
    from umpteen.catalogue.files import retirements

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
    from umpteen.catalogue.files import changes_of

    if dry_run:
        label_lists.show_what_import_would_do(model, file, retire_missing, as_json)
        return
    _change(model, partial(changes_of, file, retire_missing=retire_missing), note or f"import {file.name}", as_json)


@labels.command()
@MODEL
@click.option("--to-version", type=int, help="The version to go back to.  [default: the one before]")
@NOTE
@JSON
def undo(model: Path, to_version: int | None, note: str, as_json: bool) -> None:
    """Make a new version in which all labels are as they were in an older one."""
    from umpteen.live_model import undo_labels

    _tell(model, undo_labels(model, to_version, note=note), as_json)


@labels.command()
@MODEL
@click.option("--drop-index", is_flag=True, help="Even if an index of older labels is lost by it.")
@JSON
def compact(model: Path, drop_index: bool, as_json: bool) -> None:
    """Fold all versions into the model's own files: rows and keys stay, the history ends."""
    from umpteen.live_model import compact as fold

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


for command in (label_lists.list_, label_lists.diff, label_lists.history, label_lists.export):
    labels.add_command(command)


def _require_one_way(file: Path | None, key: str | None, text: str | None) -> None:
    if (file is None) != (key is not None and text is not None) or (file is not None and key is not None):
        raise click.UsageError("give KEY and TEXT, or --from a file of them")


def _change(model: Path, changes: "Callable[[LiveLabels], Sequence[Change]]", note: str, as_json: bool) -> None:
    from umpteen.cli.console import Watch
    from umpteen.live_model import change_labels

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
