"""umpteen finds, for a text, the right few out of umpteen labels.

import umpteen

classifier = umpteen.fit(texts, labels, minutes=10)
classifier = umpteen.train("recipe.toml", output="runs/mine")
classifier = umpteen.Classifier.load("runs/mine")
classifier.predict(["a small dog with a curly tail"], k=5)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umpteen.config.settings import RunConfig
    from umpteen.data.dataset import Dataset, open_dataset
    from umpteen.model.classifier import Classifier
    from umpteen.model.fit import fit
    from umpteen.model.train import train
    from umpteen.training.observer import Observer

__version__ = "0.1.0"

__all__ = ["Classifier", "Dataset", "Observer", "RunConfig", "__version__", "fit", "open_dataset", "train"]

_HOMES = {
    "Classifier": "umpteen.model.classifier",
    "Dataset": "umpteen.data.dataset",
    "Observer": "umpteen.training.observer",
    "RunConfig": "umpteen.config.settings",
    "fit": "umpteen.model.fit",
    "open_dataset": "umpteen.data.dataset",
    "train": "umpteen.model.train",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Loads what is asked for, when it is asked for: `umpteen --help` must not wait for torch."""
    from importlib import import_module

    if name in ("functional", "sentence_transformers", "sklearn"):
        return import_module(f"umpteen.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'umpteen' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
