"""kill -9 during label changes: every acknowledged change is there afterwards, none is half-done, the next one works.

A child process changes the labels of a small model, in a loop, and tells each version it was promised. It is killed at
a random moment; then the folder is opened afresh and held against what the child was told.
"""

import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from umpteen.bench.ledger import Ledger
from umpteen.catalogue.changes import Add, Change, Rename, Retire
from umpteen.classifier import Classifier, verify
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.pretrained import DEFAULT_MODEL
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import UmpteenError

FIRST_LABELS, MOST_LABELS = 50, 500
MOST_AT_ONCE = 20  # labels in a change
LONGEST_LIFE = 1.0  # seconds from the child's first change to its end
PATIENCE = 120.0  # seconds until a child begins

Progress = Callable[[str, int, int], None]


def run(
    times: int = 50, progress: Progress | None = None, *, start: str = DEFAULT_MODEL, seed: int = 0
) -> dict[str, Any]:
    """Kills a child so many times and counts what was promised and what was found; `start` gives the tokenizer."""
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
    context.set_forkserver_preload(["umpteen.bench.crash"])  # so that a child starts at once
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


def _change_for_ever(model: str, tell: Connection, seed: float) -> None:
    classifier, chance = Classifier.load(model), random.Random(seed)
    while True:
        changes = next_changes(texts_of(classifier), classifier.version + 1, chance)
        tell.send(changes)
        tell.send(classifier.change_labels(changes))
