"""The names to build on: which they are, and that what is said of each is true."""

import doctest
from pathlib import Path

import pytest

import umpteen
from tiny import tiny_default_model

PUBLIC = ["Classifier", "Dataset", "Observer", "RunConfig", "__version__", "fit", "open_dataset", "train"]
# In the order in which a reader meets them: the model of one example is the next one's.
DESCRIBED = ["open_dataset", "Dataset", "RunConfig", "train", "Observer", "Classifier", "fit"]


def test_these_names_are_public_and_no_others() -> None:
    assert sorted(umpteen.__all__) == dir(umpteen) == PUBLIC
    assert all(getattr(umpteen, name) is not None for name in PUBLIC)
    assert umpteen.sklearn.LabelClassifier  # as the README writes it, without an import of its own
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = umpteen.fitt


def test_every_public_name_has_an_example_and_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted(DESCRIBED) == [name for name in PUBLIC if name != "__version__"]
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    with tiny_default_model(tmp_path / "default"):  # MiniLM's table would take a minute, and knows no more of these
        for name in DESCRIBED:
            (example,) = finder.find(getattr(umpteen, name), name, globs={})
            assert example.examples, f"umpteen.{name} shows no example"
            runner.run(example)
            assert runner.failures == 0, f"the example of umpteen.{name} gives something else"
