"""The product: an encoder, a label catalogue and the labels' vectors, in one folder a person can read.

umpteen.json (manifest) · encoder/ · labels.jsonl · vectors.safetensors · report.json · recipe.toml · README.md
· ranker/, once one was fitted
"""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.layout import write_tensors
from umpteen.encoders.towers import Towers
from umpteen.encoding import encode_texts
from umpteen.errors import BadInput, DamagedModel, UmpteenError
from umpteen.evaluation.report import Report
from umpteen.manifest import MANIFEST, problems, read_manifest, write_manifest
from umpteen.model_card import model_card
from umpteen.ranker.ranker import Ranker
from umpteen.retrieval.exact import top_k
from umpteen.retrieval.ranking import NO_LABEL, Ranking
from umpteen.storage import atomic_folder, can_hold

RANKER = "ranker"  # its folder in a model folder, and its entry in the manifest

Progress = Callable[[int, int], None]


class Prediction(NamedTuple):
    """One label of one text."""

    key: str
    text: str
    score: float


class Classifier:
    """Finds the best labels of a text among all of the catalogue's."""

    def __init__(
        self,
        towers: Towers,
        labels: LabelCatalogue,
        vectors: Tensor,
        *,
        report: Report | None = None,
        recipe: str | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        ranker: Ranker | None = None,
    ) -> None:
        if tuple(vectors.shape) != (len(labels), towers.dimension):
            raise BadInput(
                f"{len(labels):,} labels in {towers.dimension} dimensions need as many label vectors, "
                f"but these have the shape {tuple(vectors.shape)}"
            )
        if ranker is not None and ranker.labels != len(labels):
            raise BadInput(f"the ranker knows {ranker.labels:,} labels, the model {len(labels):,}; fit it again")
        self.towers = towers
        self.labels = labels
        self.vectors = vectors  # [L, d]
        self.report = report
        self.recipe = recipe
        self.data = data or {}
        self.training = training or {}
        self.ranker = ranker  # None: the dual encoder ranks alone

    @classmethod
    def build(
        cls,
        towers: Towers,
        labels: LabelCatalogue,
        progress: Progress | None = None,
        *,
        rows: NDArray[np.int64] | None = None,
    ) -> "Classifier":
        """A classifier over these labels, whose texts the label tower encodes now.

        Where the tower has a vector for each label it was trained with, `rows` says which of those each label is, -1
        for none; without it all labels are new.
        """
        return cls(towers, labels, encode_texts(towers.label, labels.texts, progress=progress, rows=rows).float())

    def predict(self, texts: Sequence[str], k: int = 5) -> list[list[Prediction]]:
        """The k best labels of each text, best first."""
        ranking = self.rank(texts, k)
        return [
            [
                Prediction(self.labels.keys[row], self.labels.texts[row], score)
                for row, score in zip(rows, scores, strict=True)
                if row != NO_LABEL
            ]
            for rows, scores in zip(ranking.rows.tolist(), ranking.scores.tolist(), strict=True)
        ]

    def rank(
        self, texts: Sequence[str], k: int, excluding: csr_array | None = None, progress: Progress | None = None
    ) -> Ranking:
        """The k best labels of each text as rows and scores; pairs stored in `excluding` are never returned.

        Where there is a ranker, it puts the dual encoder's first labels in order.
        """
        _check_texts(texts)
        if not 1 <= k <= len(self.labels):
            raise BadInput(
                f"k is {k:,}, but the model has {len(self.labels):,} labels; ask for 1 to {len(self.labels)}"
            )
        vectors = encode_texts(self.towers.query, texts, progress=progress)
        if self.ranker is None:
            return top_k(vectors, self.vectors, k, excluding=excluding)
        dense = top_k(vectors, self.vectors, max(k, self.ranker.settings.candidates), excluding=excluding)
        return self.ranker.rerank(texts, vectors.cpu().numpy(), dense).head(k)

    def save(
        self,
        path: Path | str,
        *,
        report: Report | None = None,
        recipe: str | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        extra_files: Iterable[Path] = (),
    ) -> None:
        """Writes the model folder, whole or not at all; a model that stood there is replaced.

        `data` (name, fingerprint, licence…) and `training` go into the manifest and the model card. What is not given
        is what the classifier was loaded with.
        """
        path = Path(path)
        if not can_hold(path, MANIFEST):
            raise BadInput(f"{path} exists and is not a model folder; nothing was written, choose another path")
        report, recipe = report or self.report, recipe or self.recipe
        settings = {
            "labels": len(self.labels),
            "dimension": self.towers.dimension,
            "encoder": self.towers.describe(),
            "shared_towers": self.towers.shared,
            "data": data or self.data,
            "training": training or self.training,
        }
        if self.ranker is not None:
            settings[RANKER] = self.ranker.describe()
        with atomic_folder(path) as folder:
            self.towers.save(folder / "encoder")
            _write_labels(folder / "labels.jsonl", self.labels)
            write_tensors(folder / "vectors.safetensors", {"vectors": self.vectors.float().cpu()})
            if self.ranker is not None:
                self.ranker.save(folder / RANKER)
            if report is not None:
                (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
            if recipe is not None:
                (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
            for file in extra_files:
                shutil.copyfile(file, folder / file.name)
            (folder / "README.md").write_text(model_card(settings, report, recipe), encoding="utf-8")
            write_manifest(folder, settings)

    @classmethod
    def load(cls, path: Path | str, *, ranker: bool = True) -> "Classifier":
        """The classifier of a model folder; small files are checked whole, arrays by size and header.

        Without its ranker, if it has one, the dual encoder ranks alone.
        """
        path = Path(path)
        manifest = read_manifest(path)
        damage = problems(path, manifest, arrays=False)
        if damage:
            raise DamagedModel(damage[0])
        try:
            report, recipe = path / "report.json", path / "recipe.toml"
            return cls(
                Towers.load(path / "encoder"),
                _read_labels(path / "labels.jsonl"),
                _read_vectors(path / "vectors.safetensors"),
                report=Report.from_dict(json.loads(report.read_text(encoding="utf-8"))) if report.exists() else None,
                recipe=recipe.read_text(encoding="utf-8") if recipe.exists() else None,
                data=manifest["settings"]["data"],
                training=manifest["settings"]["training"],
                ranker=Ranker.load(path / RANKER) if ranker and RANKER in manifest["settings"] else None,
            )
        except DamagedModel:
            raise
        except (UmpteenError, OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise DamagedModel(f"{path}: cannot be loaded although its files are whole: {error}") from error


def verify(path: Path | str, progress: Progress | None = None) -> list[str]:
    """Every file of a model folder, arrays too, against its manifest: one line for each damaged one."""
    path = Path(path)
    return problems(path, read_manifest(path), arrays=True, progress=progress)


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise BadInput(f"texts is a single string, {texts[:40]!r}; pass a list of texts, even for one: [text]")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadInput(f"texts[{position}] is a {type(text).__name__}, not a string")
        if not text.strip():
            raise BadInput(f"texts[{position}] is empty; leave it out or give it words")


def _write_labels(path: Path, labels: LabelCatalogue) -> None:
    with path.open("w", encoding="utf-8") as file:
        for key, text in zip(labels.keys, labels.texts, strict=True):
            file.write(json.dumps({"key": key, "text": text}, ensure_ascii=False) + "\n")


def _read_labels(path: Path) -> LabelCatalogue:
    keys, texts = [], []
    with path.open(encoding="utf-8") as file:
        for line in file:
            label = json.loads(line)
            keys.append(label["key"])
            texts.append(label["text"])
    return LabelCatalogue(keys, texts)


def _read_vectors(path: Path) -> Tensor:
    """Mapped, not read: a label's vector comes into memory when it is first scored."""
    with safe_open(path, framework="pt") as file:
        vectors: Tensor = file.get_tensor("vectors")
    return vectors
