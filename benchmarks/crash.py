"""kill -9 during label changes: every acknowledged change is there afterwards, none is half-done, the next one works.

A child process changes the labels of a small model, in a loop, and tells each version it was promised. It is killed at
a random moment; then the folder is opened afresh and held against what the child was told. Of several writers at once,
which undo each other's changes, too, each is killed at a moment of its own, and the history is held against all they
were told.
"""

import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import count, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.ledger import Ledger
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.folder import DEFAULT_MODEL
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, UmpteenError
from umpteen.files.progress import Progress
from umpteen.model.catalogue import open_labels
from umpteen.model.changes import Add, Change, Rename, Retire, Step
from umpteen.model.classifier import Classifier, verify

FIRST_LABELS, MOST_LABELS = 50, 500
MOST_AT_ONCE = 20  # labels in a change
LONGEST_LIFE = 1.0  # seconds from the child's first change to its end
PATIENCE = 120.0  # seconds until a child begins


def run(
    times: int = 50, progress: Progress | None = None, *, writers: int = 1, start: str = DEFAULT_MODEL, seed: int = 0
) -> dict[str, Any]:
    """Kills the writers so many times and counts what was promised and what was found; `start` gives the tokenizer."""
    if writers > 1:
        return _run_many(times, writers, progress, start, seed)
    began, chance = time.monotonic(), random.Random(seed)
    counts = dict.fromkeys(("lost", "half_done", "unacknowledged", "damaged", "next_change_failed"), 0)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        write_small_model(model, start)
        ledger = Ledger(texts_of(Classifier.load(model)), 0)
        for number in range(times):
            _change_until_killed(model, ledger, chance)
            check(model, ledger, counts)
            if progress is not None:
                progress("crashes", number + 1, times)
        versions = Classifier.load(model).version
    return {
        "times": times,
        "acknowledged": ledger.acknowledged,
        **counts,
        "versions": versions,
        "seconds": round(time.monotonic() - began, 1),
    }


class Promise(NamedTuple):
    """What a writer was told of one of its changes."""

    version: int
    changes: list[Change] | None  # None: it undid the version before


def _run_many(times: int, writers: int, progress: Progress | None, start: str, seed: int) -> dict[str, Any]:
    began, chance = time.monotonic(), random.Random(seed)
    counts = dict.fromkeys(("lost", "half_done", "unacknowledged", "damaged", "next_change_failed"), 0)
    acknowledged = undone = 0
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        write_small_model(model, start)
        for number in range(times):
            first = open_labels(model).labels.version
            promises, intended = _write_until_killed(model, writers, number, chance)
            acknowledged += len(promises)
            undone += sum(promise.changes is None for promise in promises)
            judge_history(model, first, promises, intended, counts)
            if progress is not None:
                progress("crashes", number + 1, times)
        versions = open_labels(model).labels.version
    return {
        "times": times,
        "writers": writers,
        "acknowledged": acknowledged,
        "undone": undone,
        **counts,
        "versions": versions,
        "seconds": round(time.monotonic() - began, 1),
    }


def judge_history(
    model: Path, first: int, promises: list[Promise], intended: list[list[Change]], counts: dict[str, int]
) -> None:
    """Holds all versions after the first against what was promised and intended, and changes the labels once more."""
    try:
        counts["damaged"] += len(verify(model))
        catalogue = open_labels(model)
    except UmpteenError:
        counts["damaged"] += 1
        return
    meant, told = [_asked(changes) for changes in intended], {promise.version: promise for promise in promises}
    counts["lost"] += len(promises) - len(told)  # two writers were promised one version
    counts["lost"] += sum(version > catalogue.labels.version for version in told)
    texts = {catalogue.start.keys[row]: catalogue.start.texts[row] for row in catalogue.start.find_rows()}
    before: dict[str, str | None] = {}  # what the keys of the last version were until then
    for version in catalogue.versions:
        done, undoes = _asked(version.items), {key: text for key, text in before.items() if text != texts.get(key)}
        promise = told.get(version.number)
        if promise is not None:
            counts["lost"] += done != (undoes if promise.changes is None else _asked(promise.changes))
        elif version.number > first:
            counts["unacknowledged"] += 1
            counts["half_done"] += done != undoes and done not in meant
        before = {key: texts.get(key) for key in done}
        texts = {key: text for key, text in {**texts, **done}.items() if text is not None}
    counts["half_done"] += texts_of(Classifier.load(model)) != texts
    key = f"after-{catalogue.labels.version}"
    made = Classifier.load(model).add_labels({key: _words(key, 0)})
    counts["next_change_failed"] += made != catalogue.labels.version + 1


def _asked(changes: Iterable[Change | Step]) -> dict[str, str | None]:
    """What is to become of each key."""
    return {change.key: getattr(change, "text", None) for change in changes}


def write_small_model(path: Path, start: str = DEFAULT_MODEL) -> None:
    """A model of random vectors whose labels can be changed."""
    keys = [f"first-{row}" for row in range(FIRST_LABELS)]
    tower = StaticEncoder.random(start, 32, seed=0)
    Classifier.build(Towers(tower).eval(), LabelCatalogue(keys, [_words(key, 0) for key in keys])).save(path)


def texts_of(classifier: Classifier) -> dict[str, str]:
    """The labels there are, by key."""
    labels = classifier.labels
    return {labels.keys[row]: labels.texts[row] for row in labels.find_rows()}


def check(model: Path, ledger: Ledger, counts: dict[str, int]) -> None:
    """Opens the folder afresh, holds it against the ledger, changes it once more, and counts what went wrong."""
    try:
        classifier = Classifier.load(model)
        counts["damaged"] += bool(verify(model))
    except UmpteenError:
        counts["damaged"] += 1
        return
    found = ledger.judge(texts_of(classifier), classifier.version)
    counts["lost"] += len(found.lost)
    counts["half_done"] += len(found.half_done)
    counts["unacknowledged"] += found.unacknowledged
    key = f"after-{classifier.version}"
    ledger.intend([Add(key, _words(key, 0))])
    try:
        ledger.acknowledge(classifier.add_labels({key: _words(key, 0)}))
        right = classifier.predict([_words(key, 0)], k=1)[0][0].key == key
    except UmpteenError:
        right = False
    counts["next_change_failed"] += not right


def next_changes(texts: dict[str, str], number: int, chance: random.Random) -> list[Change]:
    """Some labels added, renamed and retired at once; their number stays within bounds."""
    keys = chance.sample(sorted(texts), min(len(texts) - 1, chance.randint(0, MOST_AT_ONCE)))
    few = len(texts) < MOST_LABELS
    changes: list[Change] = [Add(f"{number}-{place}", _words(f"{number} {place}", 1)) for place in range(few * 10 + 1)]
    for key in keys:
        changes.append(Rename(key, _words(key, number)) if few and chance.random() < 0.7 else Retire(key))
    return changes


def _words(key: str, number: int) -> str:
    return f"label {key} in its version {number}"


def _change_until_killed(model: Path, ledger: Ledger, chance: random.Random) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.crash"])  # so that a child starts at once
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_change_for_ever, args=(str(model), there, chance.random()), daemon=True)
    child.start()
    there.close()
    try:
        here.poll(PATIENCE)
        _listen(here, ledger, until=time.monotonic() + chance.uniform(0, LONGEST_LIFE))
    finally:
        assert child.pid is not None
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.join()
    with suppress(EOFError, OSError):  # what the child has said stays in the pipe; its last word may be cut
        _listen(here, ledger, until=float("inf"))
    here.close()


def _listen(here: Connection, ledger: Ledger, until: float) -> None:
    """Takes down what the child says, for a while or until it has said its last."""
    while here.poll(max(0.0, min(PATIENCE, until - time.monotonic()))):
        said = here.recv()
        ledger.acknowledge(said) if isinstance(said, int) else ledger.intend(said)
        if time.monotonic() > until:
            return


def _write_until_killed(
    model: Path, writers: int, number: int, chance: random.Random
) -> tuple[list[Promise], list[list[Change]]]:
    """What the writers were promised, and all that they were about to do."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.crash"])
    ends: dict[Connection, BaseProcess] = {}
    for writer in range(writers):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_write_for_ever, args=(str(model), f"{number}.{writer}", there), daemon=True)
        child.start()
        there.close()
        ends[here] = child
    said: dict[Connection, list[Any]] = {here: [] for here in ends}
    for here in ends:
        here.poll(PATIENCE)
    now = time.monotonic()
    deadlines = {here: now + chance.uniform(0, LONGEST_LIFE) for here in ends}
    while ends:
        for ready in wait(list(ends), timeout=0.01):
            assert isinstance(ready, Connection)
            with suppress(EOFError, OSError):
                said[ready].append(ready.recv())
        for here in [here for here, until in deadlines.items() if here in ends and time.monotonic() > until]:
            killed = ends.pop(here)
            killed.kill()
            killed.join()
            with suppress(EOFError, OSError):  # its last word may be cut
                while True:
                    said[here].append(here.recv())
    promises, intended = [], []
    for words in said.values():
        intended += [word for word in words if isinstance(word, list)]
        promises += [Promise(after, before) for before, after in pairwise(words) if isinstance(after, int)]
    return promises, intended


def _write_for_ever(model: str, name: str, tell: Connection) -> None:
    classifier, chance = Classifier.load(model), random.Random(name)
    mine: dict[str, str] = {}
    for number in count():
        changes: list[Change] | None = None
        if chance.random() > 0.2:
            changes = [Add(f"{name}-{number}-{place}", _words(f"{name} {number}", place)) for place in range(5)]
            changes += [Rename(key, _words(key, number + 1)) for key in chance.sample(sorted(mine), min(len(mine), 2))]
        tell.send(changes)
        try:
            version = classifier.undo() if changes is None else classifier.change_labels(changes)
        except BadInput:  # another writer has undone what this one would rename, or there is nothing to undo
            mine.clear()
            continue
        tell.send(version)
        mine = {change.key: change.key for change in changes or ()}


def _change_for_ever(model: str, tell: Connection, seed: float) -> None:
    classifier, chance = Classifier.load(model), random.Random(seed)
    while True:
        changes = next_changes(texts_of(classifier), classifier.version + 1, chance)
        tell.send(changes)
        tell.send(classifier.change_labels(changes))
