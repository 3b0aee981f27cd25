"""The lock of a model folder: who may wait how long for it, and who can see it."""

import time
from pathlib import Path

import pytest

from umpteen.catalogue.lock import PATIENCE, Locked, is_locked, locked, patience
from umpteen.classifier import Classifier
from umpteen.errors import NotSaved


def test_patience_is_as_long_as_said_however_deep_the_lock_is_asked_for(model: Path) -> None:
    classifier = Classifier.load(model)
    began = time.monotonic()
    with locked(model), patience(0.05), pytest.raises(Locked, match=r"for 0.05 s; nothing was changed"):
        classifier.add_labels({"n": "new"})
    assert 0.05 <= time.monotonic() - began < 5 < PATIENCE
    assert issubclass(Locked, NotSaved) and classifier.add_labels({"n": "new"}) == 1


def test_a_lock_is_seen_and_looking_takes_it_from_nobody(model: Path) -> None:
    assert not is_locked(model) and not is_locked(model / "nowhere")
    with locked(model):
        assert is_locked(model)
    assert not is_locked(model)
    with patience(0.05), locked(model):
        pass
