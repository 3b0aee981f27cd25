"""`umpteen labels`, `learn`, `examples` and `review`: labels and corrections of a model, looked at and changed."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.main import JSON, MODEL, PATH, Watch, cli, option, say, say_json, tell, verb
from umpteen.model.changes import Step, VersionSummary

if TYPE_CHECKING:
    from umpteen.model.catalogue import LiveCatalogue
    from umpteen.model.labels import LiveLabels

FILE = click.Argument(["file"], type=PATH)
KEY, TEXT = click.Argument(["key"]), click.Argument(["text"])
NOTE = click.Option(["--note"], default="", help="A line for the history.")
_SIGNS = {"add": "+", "revive": "+", "rename": "~", "retire": "-"}
_COUNTED = ("added", "renamed", "retired")
SHOWN = 10  # labels that a version is told by


@cli.group()
def labels() -> None:
    """Add, rename, retire and list the labels of MODEL without training (docs/how-to/manage-labels.md).

    Every change is a new version, on disk before the command ends. Running services take it in.
    """


@verb(labels, MODEL, name="list")
@click.option("--search", default="", help="Only labels whose key or text holds this, whatever the case.")
@click.option("--origin", type=click.Choice(["trained", "added", "renamed"]), help="Only labels that came so.")
@click.option("--retired", is_flag=True, help="Retired labels, too.")
@option("--start", type=click.IntRange(0), default=0, help="Labels to pass over.")
@option("--count", type=click.IntRange(1), default=50, help="Labels to show.")
def list_(model: Path, search: str, origin: str | None, retired: bool, start: int, count: int, as_json: bool) -> None:
    """List labels: key, text, and what happened to them since training."""
    from umpteen.model.catalogue import open_labels
    from umpteen.model.labels import ORIGINS

    labels = open_labels(model).labels
    rows = list(labels.find_rows(search, retired=retired))
    if origin is not None:
        rows = [row for row in rows if labels.origins[row] == ORIGINS.index(origin)]
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


@verb(labels, MODEL)
@click.option("--from-version", "first", type=int, help="  [default: the labels in the model's own files]")
@click.option("--to-version", "last", type=int, help="  [default: now]")
def diff(model: Path, first: int | None, last: int | None, as_json: bool) -> None:
    """Show what changed between two versions; what a file would change, `import --dry-run` shows."""
    from umpteen.model.catalogue import open_labels

    catalogue = open_labels(model)
    first = catalogue.start.version if first is None else first
    last = catalogue.labels.version if last is None else last
    _show(catalogue.at(first), catalogue.between(first, last), {"from_version": first, "to_version": last}, as_json)


def _show(before: "LiveLabels", steps: Sequence[Step], about: dict[str, Any], as_json: bool) -> None:
    changes, lines = [], []
    for step in steps:
        old = before.text_of(step.key)
        changes.append({name: value for name, value in {**step._asdict(), "before": old}.items() if value})
        text = f"{old} → {step.text}" if step.do == "rename" else step.text or old
        lines.append(f"{_SIGNS[step.do]} {step.key}  {text}")
    tell(as_json, {**about, "changes": changes}, *(lines or ["no difference"]))


@verb(labels, MODEL)
@option("--count", type=click.IntRange(1, 1_000_000), default=20, help="Versions to show, newest first.")
def history(model: Path, count: int, as_json: bool) -> None:
    """List the versions of the labels since the model was written, newest first."""
    from umpteen.model.catalogue import open_labels

    catalogue = open_labels(model)
    shown = [VersionSummary.of(version) for version in catalogue.versions[::-1][:count]]
    answer = {"model": str(model), "version": catalogue.labels.version, "versions": [vars(one) for one in shown]}
    lines = [f"{one.version:>5}  {one.time}  {_counted(one)}{f'  ({one.note})' if one.note else ''}" for one in shown]
    tell(as_json, answer, *lines, f"{catalogue.start.version:>5}  the labels in the model's own files")


@verb(labels, MODEL, FILE, last=())
@click.option("--retired", is_flag=True, help="Retired labels, too.")
def export(model: Path, file: Path, retired: bool) -> None:
    """Write all labels to FILE (.jsonl, .csv or .tsv), as `import` reads them."""
    from umpteen.model.catalogue import open_labels
    from umpteen.model.label_files import write_label_file

    say(f"{write_label_file(file, open_labels(model).labels, retired=retired):,} labels in {file}")


@verb(labels, MODEL, KEY, TEXT, NOTE)
def add(key: str, text: str, **asked: Any) -> None:
    """Add the label KEY with this TEXT; a retired label comes back. Many labels are for `import`."""
    _change("Add", [(key, text)], **asked)


@verb(labels, MODEL, KEY, TEXT, NOTE)
def rename(key: str, text: str, **asked: Any) -> None:
    """Give the label KEY another TEXT; the key stays."""
    _change("Rename", [(key, text)], **asked)


@verb(labels, MODEL, click.Argument(["keys"], nargs=-1, required=True, metavar="KEY..."), NOTE)
def retire(keys: tuple[str, ...], **asked: Any) -> None:
    """Retire labels: nothing finds them any more, until they are added again."""
    _change("Retire", [(key,) for key in keys], **asked)


def _change(kind: str, each: Sequence[tuple[str, ...]], model: Path, note: str, as_json: bool) -> None:
    from umpteen.model import changes
    from umpteen.model.catalogue import change_labels

    given = [getattr(changes, kind)(*one) for one in each]
    _tell_change(model, change_labels(model, lambda _: given, note=note), as_json)


@verb(labels, MODEL, FILE, last=(NOTE, JSON), name="import")
@click.option("--retire-missing", is_flag=True, help="Retire labels that are not in the file.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
def import_(model: Path, file: Path, retire_missing: bool, dry_run: bool, note: str, as_json: bool) -> None:
    """Make the labels those of FILE in one version: new ones are added, other texts renamed.

    FILE is .jsonl, .csv or .tsv with `key` and `text`; lines with a true `retired` are retired.
    """
    from umpteen.model.catalogue import change_labels, open_labels
    from umpteen.model.label_files import changes_of

    changes = partial(changes_of, file, retire_missing=retire_missing)
    if dry_run:
        labels = open_labels(model).labels
        _show(labels, labels.steps_of(changes(labels)), {"from_version": labels.version, "file": str(file)}, as_json)
        return
    with Watch(quiet=as_json) as watch:
        progress = partial(watch, "encoding labels")
        changed = change_labels(model, changes, note=note or f"import {file.name}", progress=progress)
    _tell_change(model, changed, as_json)


@verb(labels, MODEL, last=(NOTE, JSON))
@click.option("--to-version", type=int, help="The version to go back to.  [default: the one before]")
def undo(model: Path, to_version: int | None, note: str, as_json: bool) -> None:
    """Make a new version in which all labels are as they were in an older one."""
    from umpteen.model.catalogue import with_labels

    _tell_change(model, with_labels(model, lambda labels: labels.undo(to_version, note)), as_json, steps=True)


@verb(labels, MODEL)
@click.option("--drop-index", is_flag=True, help="Even if an index of older labels is lost by it.")
def compact(model: Path, drop_index: bool, as_json: bool) -> None:
    """Fold all versions into the model's own files: rows and keys stay, the history ends."""
    from umpteen.model.writing import compact as fold

    found = fold(model, drop_index=drop_index)
    lines = [f"{model}: {found.versions:,} versions folded into its files; {found.labels:,} labels"]
    if found.versions == 0:
        lines = [f"{model} has nothing to compact: no label has changed since it was written"]
    if found.dropped_index:
        lines.append(f"its index was of older labels and is gone; search is exact until `umpteen index build {model}`")
    tell(as_json, {"model": str(model), **found._asdict()}, *lines)


def _tell_change(model: Path, catalogue: "LiveCatalogue", as_json: bool, *, steps: bool = False) -> None:
    """What the command did, label by label if asked for."""
    change, version, count = catalogue.last_change, catalogue.labels.version, catalogue.labels.count()
    done = None if change is None else VersionSummary.of(change)
    counts = {name: getattr(done, name) if done else 0 for name in _COUNTED}
    lines = [f"nothing to change; {count:,} labels, version {version}"]
    if done is not None:
        made = catalogue.versions[-1].items if steps else ()
        lines = [f"version {version}: {_counted(done)}; {count:,} labels"]
        lines += [f"  {_SIGNS[step.do]} {step.key}" + (f": {step.text}" if step.text else "") for step in made[:SHOWN]]
        if len(made) > SHOWN:
            lines.append(f"  and {len(made) - SHOWN:,} more; `umpteen labels diff {model}` has all")
    tell(as_json, {"model": str(model), "version": version, "labels": count, **counts}, *lines)


def _counted(change: object) -> str:
    counts = {name: getattr(change, name) for name in _COUNTED}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


@verb(cli, MODEL, FILE, NOTE)
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


@verb(examples, MODEL, name="list")
@option("--count", type=click.IntRange(1, 1_000_000), default=20, help="Examples to show, newest first.")
def list_examples(model: Path, count: int, as_json: bool) -> None:
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


@verb(examples, MODEL, FILE, last=(), name="export")
def export_examples(model: Path, file: Path) -> None:
    """Write the examples to FILE (.jsonl) as training lines, which `umpteen fit` reads."""
    from umpteen.model.correcting import export_examples as write

    say(f"{write(model, file):,} training lines in {file}")


@verb(examples, MODEL, name="undo")
def undo_examples(model: Path, as_json: bool) -> None:
    """Undo what was learnt last: all examples of one file, or of one request."""
    from umpteen.model.classifier import Classifier

    classifier = Classifier.load(model, ranker=False, index=False)
    undone, count = classifier.undo_examples(), len(classifier.examples())
    answer = {"model": str(model), "undone": undone, "count": count}
    tell(as_json, answer, f"{undone:,} examples undone; {count:,} are left")


@verb(cli, MODEL, FILE, last=())
@option("--most", type=click.IntRange(1), default=100, help="Texts to show.")
@click.option("--field", help="Where a row has its text.  [default: as `fit` finds it]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a text, ready to be corrected.")
def review(model: Path, file: Path, most: int, field: str | None, as_json: bool) -> None:
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
