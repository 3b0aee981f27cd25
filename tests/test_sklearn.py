"""The estimator keeps scikit-learn's promises: its own checks, metrics, search, pipelines and pickles."""

import gc
import pickle
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import umpteen.model.fit
from miniature import LABELS, write_recipe
from tiny import LETTERS, tiny_tokenizer
from umpteen.data.dataset import given_dataset
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.model.classifier import Classifier
from umpteen.sklearn import LabelClassifier

TEXTS = [f"{label} number {number}" for number in range(9) for label in LABELS[:4]]
ONE_EACH = LABELS[:4] * 9
SEVERAL = [[label, label.split()[0]] for label in ONE_EACH]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_recipe(tmp_path_factory.mktemp("recipe"), "evaluation.metric=P@1"))


@pytest.fixture(scope="module")
def several(recipe: str) -> LabelClassifier:
    return LabelClassifier(recipe=recipe, trials=1).fit(TEXTS, SEVERAL)


@pytest.fixture
def untrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not about training does without: each label's vector is the mean of its texts'."""
    tower = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 64, seed=0)

    def fit(texts: list[str], labels: list[list[str]], meant: dict[str, str], **asked: Any) -> Classifier:
        dataset = given_dataset(texts, labels, meant)
        made, right = Classifier.build(Towers(tower).eval(), dataset.labels), dataset.train.relevance
        vectors = encode_texts(tower, dataset.train.texts).numpy()
        means = (right.matrix.T @ vectors) / np.maximum(1, right.label_counts())[:, None]
        made.vectors.copy_(made.vectors.new_tensor(means))
        return made

    monkeypatch.setattr(umpteen.model.fit, "fit", fit)


class OfNumbers(LabelClassifier):  # type: ignore[misc]
    """scikit-learn's checks know numbers only: here each is spelt as a letter, rounded."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        return super().fit(_spelt(validate_data(self, X)), y)

    def _asked(self, X: Any) -> list[str]:
        check_is_fitted(self)
        return super()._asked(_spelt(validate_data(self, X, reset=False)))


def _spelt(numbers: Any) -> list[str]:
    places = 9 * np.arange(numbers.shape[1]) + np.clip(np.round(numbers), -4, 4).astype(int)
    return [" ".join(LETTERS[place % len(LETTERS)] for place in row) for row in places]


NOT_FOR_US = {
    "check_classifier_multioutput": "a text gets the labels that are best for F1, not those beyond 0 or one half",
}


@pytest.mark.usefixtures("untrained")
@parametrize_with_checks([OfNumbers()], expected_failed_checks=lambda _: NOT_FOR_US)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_it_says_that_it_takes_texts_and_several_labels() -> None:
    tags = LabelClassifier().__sklearn_tags__()
    assert tags.input_tags.string and tags.input_tags.one_d_array and not tags.input_tags.two_d_array
    assert tags.classifier_tags.multi_label and tags.classifier_tags.multi_class and tags.target_tags.required


def test_lists_of_labels_become_an_indicator_that_metrics_take(several: LabelClassifier) -> None:
    binarizer = MultiLabelBinarizer().fit(SEVERAL)
    truth = binarizer.transform(SEVERAL)
    assert several.classes_.tolist() == binarizer.classes_.tolist()
    found = several.predict(TEXTS)
    assert f1_score(truth, found, average="samples") > 0.8
    assert several.score(TEXTS, SEVERAL) == several.score(TEXTS, truth) > 0.3
    sparse = clone(several).set_params(sparse_output=True)
    sparse.__dict__.update({name: value for name, value in vars(several).items() if name != "sparse_output"})
    assert isinstance(sparse.predict(TEXTS), csr_array) and (sparse.predict(TEXTS).toarray() == found).all()


def test_all_scores_and_probabilities_stand_under_their_classes(several: LabelClassifier) -> None:
    scores, probable = several.decision_function(TEXTS[:5]), several.predict_proba(TEXTS[:5])
    assert scores.shape == probable.shape == (5, len(several.classes_))
    assert ((probable >= 0) & (probable <= 1)).all()
    for text, row, likely in zip(TEXTS, scores, probable, strict=False):
        first, second = several.classifier_.predict([text], k=2)[0]
        place = several.classes_.tolist().index(first.key)
        assert place == row.argmax() and row[place] == pytest.approx(first.score, abs=1e-6)
        assert first.probability is None or likely[place] == pytest.approx(first.probability, abs=1e-6)
        assert row[several.classes_.tolist().index(second.key)] == pytest.approx(second.score, abs=1e-6)


def test_a_pickle_is_whole(several: LabelClassifier) -> None:
    again = pickle.loads(pickle.dumps(several))
    assert again.classifier_.path != several.classifier_.path
    assert (again.decision_function(TEXTS[:3]) == several.decision_function(TEXTS[:3])).all()


def test_the_models_folder_goes_when_the_model_does(recipe: str) -> None:
    model = LabelClassifier(recipe=recipe, trials=1).fit(TEXTS, ONE_EACH)
    folder = model.classifier_.path
    assert folder is not None and folder.exists()
    assert model.predict(TEXTS[:4]).tolist() == LABELS[:4] and model.classes_.tolist() == sorted(LABELS[:4])
    assert np.allclose(model.predict_proba(TEXTS).sum(1), 1)
    del model
    gc.collect()
    assert not folder.parent.exists()


@pytest.mark.usefixtures("untrained")
def test_an_indicator_keeps_its_columns_named_numbered_sparse_or_dense() -> None:
    pandas = pytest.importorskip("pandas")
    binarizer = MultiLabelBinarizer()
    truth = np.pad(binarizer.fit_transform(SEVERAL), ((0, 0), (0, 1)))  # a label that no text has
    names = [*binarizer.classes_, "never"]
    for given in (truth, csr_matrix(truth), csr_array(truth), truth.tolist()):
        model = LabelClassifier(label_texts=names).fit(TEXTS, given)
        assert model.classes_.tolist() == list(range(truth.shape[1]))
        assert dict(zip(model.classifier_.labels.keys, model.classifier_.labels.texts, strict=True))["0"] == names[0]
        assert (model.predict(TEXTS).sum(1) == 2).all()
    frame = pandas.DataFrame(truth, columns=names)
    assert LabelClassifier().fit(pandas.DataFrame({"text": TEXTS}), frame).classes_.tolist() == names


@pytest.mark.usefixtures("untrained")
def test_it_works_in_cross_validation_search_and_pipelines() -> None:
    truth = MultiLabelBinarizer().fit_transform(SEVERAL)
    model = LabelClassifier()
    assert cross_val_score(model, TEXTS, ONE_EACH, cv=3).mean() > 0.8
    assert cross_val_score(model, np.array(TEXTS), truth, cv=3, scoring="f1_samples").mean() > 0.6
    assert cross_val_score(model, TEXTS, truth, cv=2, scoring="average_precision").min() > 0
    search = GridSearchCV(model, {"recipe": ["static", "mixed"]}, cv=2).fit(TEXTS, ONE_EACH)
    assert search.best_params_["recipe"] == "static" and search.predict(TEXTS[:1]).tolist() == LABELS[:1]
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    assert make_pipeline(lower, model).fit(TEXTS, ONE_EACH).predict(["FISH OF TAX"]).tolist() == ["fish of tax"]


@pytest.mark.usefixtures("untrained")
def test_what_cannot_be_used_is_named() -> None:
    model = LabelClassifier()
    for X, y, problem in [
        (["a", ""], ["x", "y"], r"X\[1\] is '', not a text"),
        ("a text", ["x"], "give a list of texts"),
        (["a", "b"], ["x", "x"], "one class"),
        (["a", "b", "c"], ["x", "y"], "3 texts but 2 rows of labels"),
        (["a", "b"], None, "requires y"),
        (["a", "b"], np.array([[2, 0], [1, 1]]), "more than 0 and 1"),
        (np.array([["a", "b"]]), ["x"], "one text a row"),
    ]:
        with pytest.raises(ValueError, match=problem):
            model.fit(X, y)
    with pytest.raises(ValueError, match="3 label_texts but 2 classes"):
        LabelClassifier(label_texts=["a", "b", "c"]).fit(["a", "b"], ["x", "y"])
    with pytest.raises(NotFittedError):
        model.predict(["a"])
