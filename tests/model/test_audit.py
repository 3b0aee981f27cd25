"""The audit of mined negatives: what scores above all of a query's positives, found by brute force too."""

import json
from pathlib import Path

import numpy as np
import pytest

from tiny import tiny_tokenizer
from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import LabelCatalogue, Relevance
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput
from umpteen.model.classifier import Classifier
from umpteen.model.correcting import audit_negatives

LABELS = ["fish", "tax law", "library", "book", "dog and tree", "network"]
TEXTS = ["the fish trade", "a tax in law", "library network", "a book of fish", "dog"]
RELEVANT = [[1, 2], [1], [0, 3], [5], []]
FILTERED = [[], [], [], [5, 3], []]


@pytest.fixture
def classifier(tmp_path: Path) -> Classifier:
    tower = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 8, seed=0)
    return Classifier.build(Towers(tower).eval(), LabelCatalogue([f"L{row}" for row in range(6)], LABELS))


@pytest.fixture
def dataset(classifier: Classifier) -> Dataset:
    split = Split.of(TEXTS, Relevance.from_lists(RELEVANT, 6), Relevance.from_lists(FILTERED, 6))
    return Dataset.of("tiny", classifier.labels, split)


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_suspects_are_the_unknown_labels_that_beat_every_positive(
    classifier: Classifier, dataset: Dataset, margin: float
) -> None:
    scores = (classifier.towers.query.encode(TEXTS) @ classifier.vectors.T).numpy()
    expected = set()
    for query, (right, left_out) in enumerate(zip(RELEVANT, FILTERED, strict=True)):
        positives = [label for label in right if label not in left_out]
        for label in set(range(6)) - {*right, *left_out} if positives else ():
            if scores[query, label] > max(scores[query, positives]) - margin:
                expected.add((query, label))
    found = audit_negatives(classifier, dataset, shortlist=6, margin=margin)
    assert expected and set(zip(found.query.tolist(), found.label.tolist(), strict=True)) == expected
    assert found.queries == 3 and found.mined == 4 + 5 + 4
    most = found.most_frequent(3)
    counts = np.bincount([label for _, label in expected], minlength=6)
    assert most[0]["suspected"] == counts.max() and most[0]["text"] in LABELS


def test_each_suspect_is_a_line_with_its_texts_the_clearest_of_a_query_first(
    classifier: Classifier, dataset: Dataset
) -> None:
    lines = [json.loads(line) for line in audit_negatives(classifier, dataset, shortlist=6, margin=1.0).lines()]
    assert lines and [line["query"] for line in lines] == sorted(line["query"] for line in lines)
    first = [line["score"] for line in lines if line["query"] == lines[0]["query"]]
    assert first == sorted(first, reverse=True)
    for line in lines:
        assert line["text"] == TEXTS[line["query"]]
        assert line["label"] not in line["positives"]
        assert line["score"] > line["best_positive_score"] - 1.0


def test_a_shortlist_longer_than_the_catalogue_is_refused(classifier: Classifier, dataset: Dataset) -> None:
    with pytest.raises(BadInput, match="--shortlist 7: there are only 6 labels"):
        audit_negatives(classifier, dataset, shortlist=7)
