"""A small saved model whose labels can be changed."""

import shutil
from pathlib import Path

import pytest
from small_catalogue import LABELS

from miniature import trained
from tiny import tiny_tokenizer
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.model.classifier import Classifier


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("written")
    tower = StaticEncoder.random(tiny_tokenizer(home / "tokenizer"), 16, seed=0)
    labels = LabelCatalogue(LABELS.keys(), LABELS.values())
    Classifier.build(Towers(tower).eval(), labels).save(home / "model", recipe="seed = 1\n")
    return home / "model"


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    """A model folder of its own for every test."""
    shutil.copytree(written, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in `data`, and in `model` what two steps of training made of it."""
    home = tmp_path_factory.mktemp("plain")
    trained(home, "training.steps=2")
    return home


@pytest.fixture
def plain_model(plain: Path, tmp_path: Path) -> Path:
    """That model, in a folder of its own for every test."""
    return Path(shutil.copytree(plain / "model", tmp_path / "model"))
