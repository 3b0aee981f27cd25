"""scikit-learn's way in: `LabelClassifier`, an estimator of texts and their labels around `umpteen.fit`."""

import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from umpteen.errors import BadInput

if TYPE_CHECKING:
    from umpteen.model.classifier import Classifier

TEXTS_AT_A_TIME = 1024  # of which all labels' scores are ranked
_TIE = 1e-6  # of a probability: among equally probable labels, the one of the higher score is the likelier

Float = TypeVar("Float", np.float32, np.float64)


@dataclass(kw_only=True, eq=False, repr=False)
class LabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """Finds the best classifier for texts and labels in about so many minutes, as `umpteen.fit` does.

    Texts are a list, an array or a frame's column. Labels are one a text, then `predict` gives one, too; or a list of
    them a text, or an indicator matrix, dense or sparse: then `predict` gives a matrix with a column for each of
    `classes_`, sparse if `sparse_output` says so. `label_texts` tells what labels mean: a mapping, or texts in the
    order of `classes_`. The fitted `umpteen.Classifier` is `classifier_`.

    >>> from umpteen.sklearn import LabelClassifier
    >>> texts = [f"{animal} number {n}" for n in range(9) for animal in ("a barking dog", "a purring cat")]
    >>> model = LabelClassifier(recipe="static", trials=1).fit(texts, ["dog", "cat"] * 9)
    >>> model.predict(["my dog is barking"])
    array(['dog'], dtype='<U3')
    """

    minutes: float = 10.0
    trials: int = 20
    recipe: str = "mixed"
    label_texts: Mapping[Any, str] | Sequence[str] | None = None
    sparse_output: bool = False
    random_state: Any = 0
    quiet: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.target_tags.multi_output = tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Tries settings on held-out texts, and fits the best on all."""
        from umpteen.model.fit import fit

        texts = _texts(X)
        self.classes_, right, self._is_single = _targets(y)
        if self._is_single and len(self.classes_) < 2:
            raise ValueError(f"y has one class, {str(self.classes_[0])!r}; there is nothing to tell apart")
        keys = [str(one) for one in self.classes_.tolist()]
        labels = [[keys[row] for row in own] for own in np.split(right.indices, right.indptr[1:-1])]
        if len(labels) != len(texts):
            raise ValueError(f"{len(texts):,} texts but {len(labels):,} rows of labels; give each text one")
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        asked: dict[str, Any] = {name: getattr(self, name) for name in ("minutes", "trials", "recipe", "quiet")}
        try:
            self.classifier_: Classifier = fit(texts, labels, self._meanings(keys), **asked, seed=int(seed))
        except BadInput as problem:
            raise ValueError(str(problem)) from problem
        self._usual = max(1, round(sum(map(len, labels)) / len(labels)))  # labels a text
        place = {key: column for column, key in enumerate(keys)}
        self._columns = np.array([place[key] for key in self.classifier_.labels.keys])
        return self

    def predict(self, X: Any) -> Any:
        """The label of each text; or a matrix: by the rule for F1, or without probabilities as many as in train."""
        texts, model = self._asked(X), self.classifier_
        if self._is_single:
            return self.classes_[self._columns[model.rank(texts, 1).rows[:, 0]]]
        ranked = model.rank(texts, self._usual) if model.calibration is None else model.select(texts, rule="f1")[0]
        found = ranked.to_csr()
        ones, columns = np.ones(found.nnz, np.int64), self._columns[found.indices]
        matrix = csr_array((ones, columns, found.indptr), shape=(len(texts), len(self.classes_)))
        matrix.sort_indices()
        return matrix if self.sparse_output else matrix.toarray()

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Each label's probability to be right; of one label a text, they add up to 1."""
        from scipy.special import expit

        check_is_fitted(self, "classifier_")
        calibration = self.classifier_.calibration

        def probable(scores: NDArray[np.float32]) -> NDArray[np.float64]:
            found = np.asarray(calibration.probabilities(scores) if calibration else expit(scores), np.float64)
            if not self._is_single:
                return found
            found += _TIE * np.linspace(2, 1, found.shape[1])
            return np.asarray(found / found.sum(1, keepdims=True))

        return self._of_all(X, probable)

    def decision_function(self, X: Any) -> NDArray[np.floating]:
        """Each label's score, in float32; where each text has one of two labels, the log odds of the second."""
        check_is_fitted(self, "classifier_")
        if self._is_single and len(self.classes_) == 2:
            return np.asarray(np.diff(np.log(self.predict_proba(X)), axis=1)[:, 0])
        return self._of_all(X, lambda scores: scores)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of texts whose labels are all right, and no others given."""
        check_is_fitted(self, "classifier_")
        rows = _lists(y)
        if rows is not None:
            y = MultiLabelBinarizer(classes=self.classes_).fit_transform(rows)
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    def _asked(self, X: Any) -> list[str]:
        check_is_fitted(self, "classifier_")
        return _texts(X)

    def _meanings(self, keys: list[str]) -> dict[str, str]:
        """What each of the classes means, as told, or else by its name."""
        told = {} if self.label_texts is None else self.label_texts
        if not isinstance(told, Mapping):
            if len(told) != len(keys):
                raise ValueError(f"{len(told):,} label_texts but {len(keys):,} classes; give each one, in their order")
            told = dict(zip(keys, told, strict=True))
        own = {str(key): str(text) for key, text in told.items()}
        return {key: own.get(key, key.replace("_", " ")) for key in keys}

    def _of_all(self, X: Any, value: Callable[[NDArray[np.float32]], NDArray[Float]]) -> NDArray[Float]:
        """A value for each text and class, made of a text's scores, best first."""
        texts, parts = self._asked(X), []
        for first in range(0, len(texts), TEXTS_AT_A_TIME):
            ranking = self.classifier_.rank(texts[first : first + TEXTS_AT_A_TIME], len(self.classes_))
            found = value(ranking.scores)
            part = np.empty_like(found)
            np.put_along_axis(part, self._columns[ranking.rows], found, 1)
            parts.append(part)
        return np.concatenate(parts)

    def __getstate__(self) -> dict[str, Any]:
        """The model's files come along: a pickle is whole."""
        state = dict(super().__getstate__())
        if "classifier_" in state:
            with TemporaryDirectory(prefix="umpteen-") as place:
                state["classifier_"].save(f"{place}/model")
                files = [path for path in Path(place).rglob("*") if path.is_file()]
                state["classifier_"] = {str(path.relative_to(place)): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "classifier_" in state:
            from umpteen.model.classifier import Classifier

            place, files = Path(mkdtemp(prefix="umpteen-")), state["classifier_"]
            for name, content in files.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)
            loaded = Classifier.load(place / "model")
            weakref.finalize(loaded, shutil.rmtree, place, ignore_errors=True)
            state = {**state, "classifier_": loaded}
        super().__setstate__(state)


def _texts(X: Any) -> list[str]:
    """The texts of a list, an array or a frame's column, or of the only column of either."""
    if isinstance(X, str) or issparse(X):
        raise ValueError(f"X is a {type(X).__name__}; give a list of texts, even for one: [text]")
    values = X if isinstance(X, list | tuple) else np.asarray(X)
    if isinstance(values, np.ndarray):
        if values.ndim != 1 and values.shape[1:] != (1,):
            raise ValueError(f"X has the shape {values.shape}; give one text a row, a list or one column")
        values = values.ravel().tolist()
    for row, text in enumerate(values):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"X[{row}] is {text!r:.60}, not a text; leave it out, with its labels")
    if not len(values):
        raise ValueError("X holds no texts; give some")
    return list(values)


def _lists(y: Any) -> list[Any] | None:
    """The labels of each text, if they are given as lists; rows of as many 0 and 1 each are a matrix."""
    if issparse(y) or hasattr(y, "columns") or getattr(y, "ndim", 1) == 2:
        return None
    rows = list(y) if isinstance(y, list | tuple) else np.asarray(y, dtype=object).tolist()
    if not rows or not all(isinstance(row, list | tuple | set | frozenset | np.ndarray) for row in rows):
        return None
    width = len(rows[0])
    return None if width > 1 and all(len(row) == width and set(row) <= {0, 1} for row in rows) else rows


def _targets(y: Any) -> tuple[NDArray[Any], csr_array, bool]:
    """The classes, what is right as texts × classes, and whether each text has one."""
    if y is None:
        raise ValueError("LabelClassifier requires y to be passed, but the target y is None")
    rows = _lists(y)
    if rows is not None:
        binarizer = MultiLabelBinarizer(sparse_output=True)
        found = csr_array(binarizer.fit_transform(rows))
        return binarizer.classes_, found, False
    matrix: Any = y if issparse(y) else np.asarray(y)
    assert_all_finite(matrix.data if issparse(y) else matrix, input_name="y")
    if matrix.ndim == 2 and matrix.shape[1] > 1:
        check_classification_targets(matrix)
        found = csr_array(matrix, copy=True)
        found.eliminate_zeros()
        if (found.data != 1).any():
            raise ValueError("y is a matrix of more than 0 and 1; give an indicator, or lists of labels")
        found.sort_indices()
        return np.asarray(getattr(y, "columns", np.arange(found.shape[1]))), found, False
    single = column_or_1d(matrix, warn=True)
    check_classification_targets(single)
    classes, places = np.unique(single, return_inverse=True)
    return classes, csr_array((np.ones(len(places)), places, np.arange(len(places) + 1))), True
