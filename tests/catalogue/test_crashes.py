"""A process that dies at any point leaves the last version or the new one, whole; processes that change at once lose
nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import ends_of, fork

from umpteen.catalogue.changes import Add, Change, Rename, Retire
from umpteen.classifier import Classifier, verify

CHANGES: list[Change] = [Add("n", "network of food"), Rename("f", "trade"), Retire("t")]
DIED = 99
Call = Callable[..., object]


def dying_at(call: int, *, after: bool) -> None:
    """From now on this process dies at its n-th write, flush, rename or removal: before or after it."""
    counted = 0

    def dying(real: Call) -> Call:
        def instead(*arguments: object, **named: object) -> object:
            nonlocal counted
            counted += 1
            own = counted
            if own == call and not after:
                os._exit(DIED)
            found = real(*arguments, **named)
            if own == call:
                os._exit(DIED)
            return found

        return instead

    for owner, name in ((os, "fsync"), (os, "open"), (os, "replace"), (Path, "replace"), (Path, "open"),
                        (Path, "unlink"), (Path, "mkdir")):  # fmt: skip
        setattr(owner, name, dying(getattr(owner, name)))


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_leaves_the_old_labels_or_the_new_ones(model: Path, after: bool) -> None:
    old = Classifier.load(model).labels.page()
    left, code = [], DIED
    while code == DIED:
        before = Classifier.load(model).version

        def change() -> None:
            classifier = Classifier.load(model)
            dying_at(len(left) + 1, after=after)
            classifier.change_labels(CHANGES)

        (code,) = ends_of(fork(change))
        assert code in (0, DIED) and verify(model) == []
        found = Classifier.load(model)
        left.append(found.version - before)
        if found.version == before:
            assert found.labels.page() == old and code == DIED
        else:
            assert [found.labels.text_of(key) for key in "nft"] == ["network of food", "trade", None]
            found.undo()  # the next change works
            assert found.labels.page() == old
            assert not [path for path in (model / "catalogue").iterdir() if path.name.startswith(".")]
    # Many deaths before the version counts, at least one after, and then none.
    assert left == sorted(left) and left.count(0) >= 8 and left.count(1) >= 2


def test_processes_that_change_labels_at_once_lose_nothing(model: Path) -> None:
    def change(own: int) -> None:
        classifier = Classifier.load(model)
        for number in range(8):
            classifier.add_labels({f"{own}-{number}": f"word {own} of {number}"})
            if number % 3 == 2:
                classifier.change_labels([Retire(f"{own}-{number - 1}"), Rename(f"{own}-{number}", f"law {own}")])

    assert ends_of(*(fork(lambda own=own: change(own)) for own in range(3))) == [0, 0, 0]  # type: ignore[misc]
    classifier = Classifier.load(model)
    assert classifier.version == 3 * 10 and verify(model) == []
    assert [line.version for line in classifier.history()] == list(range(1, 31))
    for own in range(3):
        assert [f"{own}-{number}" in classifier.labels for number in range(8)] == [
            number not in (1, 4) for number in range(8)
        ]
        assert classifier.labels.text_of(f"{own}-5") == f"law {own}"
    assert len(set(classifier.labels.keys)) == len(classifier.labels) == 5 + 24
