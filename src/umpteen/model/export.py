"""Adds a runtime to a saved model: what encodes its queries faster than torch does, and was seen to agree with it."""

from pathlib import Path
from typing import Any

import numpy as np

from umpteen.encoders.encoder import Encoder, encode_texts
from umpteen.encoders.runtime import export
from umpteen.errors import BadInput
from umpteen.model.classifier import USUAL_K, Classifier
from umpteen.model.folder import RUNTIME, ModelFolder, weights_of
from umpteen.model.index import USUAL, Sample, of_label_texts
from umpteen.search.certificate import a_second, interval, recalls
from umpteen.search.index import exact_scores, exact_search, size_of
from umpteen.search.ranking import Ranking


def export_model(model: Path | str, *, agreement: float = 0.99, sample: Sample | int = USUAL) -> dict[str, Any]:
    """Puts the query tower's transformers into the model folder as ONNX graphs, and says what was measured of them.

    Unless at least this share of the sample's texts have the same five best labels as with torch, nothing is changed.
    Where the sample is a number, so many of the labels' own texts stand in for it.
    """
    if not 0 < agreement <= 1:
        raise BadInput(f"an agreement of {agreement:g} is asked for; it must lie above 0 and not above 1")
    classifier = Classifier.load(model, ranker=False, index=False, runtime=False)
    folder, tower, labels = classifier.home, classifier.towers.query, classifier.index.labels
    texts, origin = of_label_texts(classifier.labels, sample) if isinstance(sample, int) else sample
    if not texts:
        raise BadInput("the sample has no texts to hold the export against; give some, or a number of labels' own")
    k = min(USUAL_K, labels.count())
    try:
        with folder.adding(RUNTIME) as part:
            exported = export(tower, part.folder)
            queries = encode_texts(tower, texts).float()
            found = exact_search(encode_texts(exported, texts).float(), labels, k).rows
            as_scored = Ranking(found, exact_scores(queries, found.astype(np.int64), labels), len(labels))
            same = (recalls(as_scored, exact_search(queries, labels, k)) == 1).astype(np.float64)
            if same.mean() < agreement:
                agree = f"{same.mean():.4f} of {len(texts):,} texts have the same {k} labels as with torch"
                advice = "nothing was changed: ask for less (--agreement), or stay with torch"
                raise BadInput(f"{agree}, not {agreement:g}; {advice}")
            part.labels_version = classifier.version
            part.about = {
                "kind": "onnx",
                "agreement": float(same.mean()),
                "agreement_interval": list(interval(same)),
                "target": agreement,
                "k": k,
                "texts": len(texts),
                "sample": origin,
                "texts_per_second": {"onnx": _speed(exported, texts), "torch": _speed(tower, texts)},
                "bytes": size_of(part.folder),
                "weights": weights_of(folder.manifest["files"]),
            }
    except ModuleNotFoundError as missing:
        raise BadInput(f"this needs {missing.name}, which is not here: pip install 'umpteen[onnx]'") from missing
    return part.about


def _speed(tower: Encoder, texts: list[str]) -> float:
    return a_second(lambda row: tower.encode([texts[row]]), len(texts))


def remove_runtime(model: Path) -> None:
    """Torch encodes from now on."""
    ModelFolder(model).drop(RUNTIME)
