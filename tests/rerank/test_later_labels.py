"""Labels that came after the ranker take the encoder's place, and are not buried."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from miniature import KEYS, command, refused, trained
from umpteen.data.dataset import open_dataset
from umpteen.model.changes import Add, Rename, Retire
from umpteen.model.classifier import Classifier, verify
from umpteen.model.rerank import fit_ranker
from umpteen.model.writing import compact
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.ranker import LATER, fuse, keep_place
from umpteen.search.ranking import NO_LABEL, Ranking

NEW = "network of dog food"


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ and a model/ with a ranker that counts for nearly everything."""
    folder = tmp_path_factory.mktemp("ranked")
    fit_ranker(trained(folder), open_dataset(folder / "data"), RankerSettings(candidates=10), weight=0.98)
    return folder


@pytest.fixture
def home(ranked: Path, tmp_path: Path) -> Path:
    shutil.copytree(ranked, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.9, 1.0])
def test_a_later_label_falls_no_further_than_twice_its_place(weight: float) -> None:
    chance = np.random.default_rng(0)
    rows = np.stack([chance.permutation(40)[:20] for _ in range(200)]).astype(np.int32)
    dense = Ranking(rows, -np.sort(-chance.random(rows.shape).astype(np.float32), axis=1), 40)
    later = chance.random(rows.shape) < 0.2
    there = np.ones(rows.shape, dtype=np.bool_)
    second = keep_place(chance.random(rows.shape).astype(np.float32) ** 8, later, there)
    fused = fuse(dense, second, weight)
    for query, place in zip(*np.nonzero(later), strict=True):
        final = int(np.flatnonzero(fused.rows[query] == rows[query, place])[0])
        assert final <= 2 * place


def test_scores_of_other_labels_stay_and_missing_ones_teach_nothing() -> None:
    scores = np.array([[0.2, 0.9, 0.5, 0.1, 0.7], [0.2, 0.9, 0.5, 0.1, 0.7]], dtype=np.float32)
    later = np.array([[True, False, True, False, True], [True] * 5])
    there = np.array([[True, True, True, True, False], [True] * 5])
    found = keep_place(scores, later, there)
    np.testing.assert_allclose(found[0, :4], [0.9, 0.9, 0.1, 0.1])
    assert (found[1] == 0).all()
    assert keep_place(scores, np.zeros_like(later), there) is scores


@pytest.mark.parametrize("with_ranker", [False, True])
def test_a_perfect_match_among_new_labels_reaches_the_first_five(home: Path, with_ranker: bool) -> None:
    classifier = Classifier.load(home / "model", ranker=with_ranker)
    classifier.change_labels([Add("new", NEW), Rename(KEYS[2], "library of trees")])
    for one in (classifier, Classifier.load(home / "model", ranker=with_ranker)):
        for text, key in ((NEW, "new"), ("library of trees", KEYS[2])):
            assert key in [label.key for label in one.predict([text], k=5)[0]]
        assert one.predict([NEW], k=1)[0][0].key == "new"


def test_the_ranker_knows_nothing_of_changed_labels_and_all_of_the_others(home: Path) -> None:
    classifier = Classifier.load(home / "model")
    before = classifier.ranker
    classifier.change_labels([Add("new", NEW), Rename(KEYS[2], "library of trees"), Retire(KEYS[5])])
    after = classifier.ranker
    assert before is not None and after is not None and after.weights.shape[1] == 11
    assert np.flatnonzero(after.texts == LATER).tolist() == [2, 10]
    assert classifier.ranker is after  # computed once for a version
    for texts in (["law of fish"], [NEW]):
        ranking = classifier.rank(texts, 10)
        excluding = classifier.rank(texts, 10, excluding=csr_array((1, 11)))
        np.testing.assert_array_equal(ranking.rows, excluding.rows)
        assert 5 not in ranking.rows and NO_LABEL not in ranking.rows
    classifier.rename_labels({KEYS[2]: classifier.labels.first.texts[2]})
    assert classifier.ranker is not None and np.flatnonzero(classifier.ranker.texts == LATER).tolist() == [10]


def test_a_ranker_fitted_on_changed_labels_knows_what_the_data_says_and_survives_compacting(home: Path) -> None:
    model = home / "model"
    Classifier.load(model).change_labels([Add("new", NEW), Rename(KEYS[2], "library of trees"), Retire(KEYS[5])])
    few = ("--set", "candidates=5", "--jobs", "1", "--weight", "0.5")
    outcome = command("rerank", "fit", model, "--data", home / "data", *few)
    assert outcome.code == 0, outcome.err
    assert verify(model) == []
    ranker = Classifier.load(model).ranker
    assert ranker is not None and ranker.texts[10] == LATER and ranker.texts[2] > 0  # the data has texts of KEYS[2]
    answers = Classifier.load(model).predict([NEW, "law of fish"], k=5)
    assert answers[0][0].key == "new"
    compact(model)
    assert verify(model) == []
    for one, other in zip(answers, Classifier.load(model).predict([NEW, "law of fish"], k=5), strict=True):
        assert [label.key for label in one] == [label.key for label in other]


def test_unseen_labels_are_judged_apart(home: Path) -> None:
    model, data = home / "model", home / "more"
    shutil.copytree(home / "data", data)
    asked = ("evaluate", model, data, "--json", "--at", "1", "--at", "5")
    assert "by_origin" not in json.loads(command("evaluate", model, home / "data", "--json").out)
    with (data / "labels.jsonl").open("a") as file:
        file.write(json.dumps({"key": "new", "text": NEW}) + "\n")
    with (data / "test.jsonl").open("a") as file:
        for text, labels in ((NEW, ["new"]), ("food for a dog network", ["new", KEYS[0]])):
            file.write(json.dumps({"text": text, "labels": labels, "ignore": []}) + "\n")
    refused(command(*asked), "'new'", "umpteen labels import")
    assert command("labels", "import", model, data / "labels.jsonl").code == 0
    found = json.loads(command(*asked).out)
    assert found["queries"] == 22
    seen, unseen = found["by_origin"]["seen"], found["by_origin"]["unseen"]
    assert (seen["labels"], seen["queries"]) == (10, 21) and (unseen["labels"], unseen["queries"]) == (1, 2)
    assert unseen["right_pairs"] == 2 and unseen["metrics"]["R@5"] == 100 and unseen["metrics"]["P@1"] == 100
    shown = command("evaluate", model, data)
    assert "by origin" in shown.out and "unseen" in shown.out

    # A retired label leaves the data; a renamed one is unseen.
    Classifier.load(model).change_labels([Retire("new"), Rename(KEYS[0], "the law of all fish")])
    found = json.loads(command(*asked).out)
    assert found["queries"] == 21 and found["by_origin"]["unseen"]["labels"] == 1
    assert found["by_origin"]["seen"]["labels"] == 9
