"""Labels that came after training have a head start, wherever labels are ranked."""

from pathlib import Path

import numpy as np
import pytest

from miniature import LABELS, trained, write_miniature
from umpteen.data.dataset import open_dataset
from umpteen.encoders.encoder import encode_texts
from umpteen.model.classifier import Classifier
from umpteen.model.evaluate import evaluate_model
from umpteen.model.live import TEMPERATURES
from umpteen.search.ranking import Ranking

TEXTS = ["fish of tax and the trade", "law of dog", "network of trees in the library"]


def test_the_best_k_are_those_of_all_scores_with_the_bonus() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=(5, 40)).astype(np.float32)
    bonus = np.where(np.arange(40) % 7 == 0, np.float32(0.8), np.float32(0))
    order = np.argsort(-scores, axis=1)
    dense = Ranking(order.astype(np.int32), np.take_along_axis(scores, order, 1), 40)
    lifted = dense.lifted(bonus, 6)
    right = np.argsort(-(scores + bonus), axis=1)[:, :6]
    assert (lifted.rows == right).all()
    assert np.allclose(lifted.scores, np.take_along_axis(scores + bonus, right, 1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("model"))


def test_a_new_label_with_the_text_of_a_trained_one_stands_before_it(model: Path) -> None:
    classifier = Classifier.load(model)
    assert classifier.head_start is None
    before = {one.text: one.score for one in classifier.predict(TEXTS[:1], k=10)[0]}
    classifier.add_labels({"twin": LABELS[1]})
    after = {one.key: one for one in classifier.predict(TEXTS[:1], k=11)[0]}
    assert after["twin"].score == pytest.approx(before[LABELS[1]] + TEMPERATURES * 0.05, abs=1e-5)
    assert Classifier.load(model).predict(TEXTS[:1], k=11)[0] == list(after.values())
    classifier.undo()
    assert classifier.head_start is None
    assert {one.text: one.score for one in classifier.predict(TEXTS[:1], k=10)[0]} == pytest.approx(before)


def test_evaluation_ranks_as_prediction_does(model: Path, tmp_path: Path) -> None:
    classifier = Classifier.load(model)
    classifier.add_labels({"later": "a law of fish and tax", "other": "network of food"})
    dataset = open_dataset(write_miniature(tmp_path / "data"))
    assert dataset.test is not None
    _, ranking = evaluate_model(classifier, dataset)
    asked = classifier.rank(dataset.test.texts, ranking.width, excluding=None)
    plain = dataset.test.filtered.label_counts().sum() == 0
    rows = [row for row in range(len(ranking)) if plain or not len(dataset.test.filtered.of(row))]
    assert rows and np.allclose(ranking.scores[rows], asked.scores[rows], atol=1e-5)
    vectors = encode_texts(classifier.towers.query, dataset.test.texts)
    assert ranking.scores[rows].max() <= float((vectors @ classifier.vectors.T).max()) + TEMPERATURES * 0.05 + 1e-5
    classifier.undo()
