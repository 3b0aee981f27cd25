"""The product: texts in, the right few labels out, of a model whose labels may change while it is in use.

Heavy modules load inside the functions: a static model has answered before torch would be there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, time_ns
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from umpteen.calibration.calibration import CONFIDENCE, Calibration, fit_calibration
from umpteen.calibration.curves import DEPTH, HeldOut
from umpteen.data.texts import Texts, values_of
from umpteen.errors import BadInput, UmpteenError
from umpteen.model.catalogue import Encoded, LiveCatalogue, encode_new, encoding
from umpteen.model.changes import PATIENCE, Add, Change, Example, Rename, Replaced, Retire, VersionSummary
from umpteen.model.folder import CALIBRATION, INDEX, RANKER, RUNTIME, Stamp, read_plainly
from umpteen.model.folder import verify as verify
from umpteen.model.labels import LiveLabels
from umpteen.model.live import LiveModel
from umpteen.search.index import exact_scores, search_many
from umpteen.search.ranking import NO_LABEL, SPARE, Ranking, Vectors

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo
    from scipy.sparse import csr_array
    from torch import Tensor

    from umpteen.data.labels import LabelCatalogue, Split
    from umpteen.encoders.towers import Towers
    from umpteen.evaluation.report import Report
    from umpteen.model.evaluate import How
    from umpteen.model.explain import Explainer, Explanation
    from umpteen.model.writing import Standing
    from umpteen.rerank.memory import Corrections

USUAL_K = 5  # labels a text
SHOWN = ("P@1", "P@5", "nDCG@5")  # metrics that tell what a model is worth
LIMITS = ("k", "min_probability", "precision", "rule")  # what `Classifier.predict` can be told
_UNTIL_NEXT_MODEL = 60.0  # seconds, to load a model that took this one's place and is damaged
_SETTLED = 100_000_000  # nanoseconds, more than the steps in which file systems count time

Value = TypeVar("Value")


class Prediction(NamedTuple):
    """One label of one text."""

    key: str
    text: str
    score: float
    probability: float | None = None  # of being right, if the model is calibrated


def answer(about: dict[str, Any], labels: Iterable[Prediction]) -> dict[str, Any]:
    """An answer for machines: what it is about, and its labels, with probabilities where there are any."""
    found = [{name: value for name, value in one._asdict().items() if value is not None} for one in labels]
    return {**about, "labels": found}


class _OfModel(Generic[Value]):
    """An attribute of the model that a classifier uses, whichever that is by now."""

    def __init__(self, read: Callable[[LiveModel], Value]) -> None:
        self._read = read

    def __get__(self, classifier: Classifier | None, _: type | None = None) -> Value:
        if classifier is None:
            return self  # type: ignore[return-value]  # asked of the class, as a property answers
        return self._read(classifier._live)


class Classifier:
    """Finds the best labels of a text among all of the model's, which may change while it is in use.

    Calls that change or refresh it and calls that search must not run at the same time; `labels` may be read whenever.
    `umpteen.train` gives one, `load` opens a saved one; `build` makes one of two encoders and a catalogue of labels.

    >>> from umpteen import Classifier
    >>> classifier = Classifier.load("runs/tiny")
    >>> best = classifier.predict(["a small dog with a curly tail"], k=1)[0][0]
    >>> best.key in classifier.labels.keys
    True
    >>> classifier.add_labels({"spitz": "a dog whose tail curls over its back"})
    1
    """

    _seen: Stamp | None = None  # of the folder, when it was last looked into
    _damaged: tuple[Stamp, Exception, float] | None = None  # a model that cannot be loaded, and until when

    def __init__(self, towers: Towers, labels: LabelCatalogue, vectors: Tensor, **about: Any) -> None:
        self._live = LiveModel(towers, LiveCatalogue(LiveLabels(labels), vectors), **about)

    @classmethod
    def load(
        cls, path: Path | str, *, ranker: bool = True, index: bool = True, runtime: bool = True, light: bool = False
    ) -> Self:
        """The classifier of a model folder, its labels as they are now; large files are hashed once after a change.

        Without its ranker, if it has one, the dual encoder ranks alone; without its index it searches exactly; without
        its runtime torch encodes. `light` is for who has few texts and no time to load torch: a static model predicts
        with numpy, and its encoders are read when something else needs them.
        """
        wanted = {RANKER: ranker, CALIBRATION: True, INDEX: index, RUNTIME: runtime}
        loaded = cls.__new__(cls)
        loaded._live = LiveModel.load(path, [name for name, is_wanted in wanted.items() if is_wanted], light=light)
        return loaded

    @classmethod
    def from_pretrained(
        cls,
        name: Path | str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        ranker: bool = True,
        index: bool = True,
        runtime: bool = True,
    ) -> Self:
        """The classifier of a model folder, or of a model on the Hugging Face hub, "user/model"; parts as for `load`.

        One of the hub is fetched into the hub's cache, once, and copied: what is changed is the copy, whose folder goes
        when the classifier does; `save` keeps it. `revision` is a branch, a tag or a commit.
        """
        if (folder := Path(name).expanduser()).is_dir():
            if revision is not None:
                raise BadInput(f"{name} is a folder here, which has no revision {revision}; leave it out")
            return cls.load(folder, ranker=ranker, index=index, runtime=runtime)
        from umpteen.model.hub import fetch

        with ExitStack() as held:
            place = held.enter_context(TemporaryDirectory(prefix="umpteen-", ignore_cleanup_errors=True))
            fetch(str(name), Path(place), revision, token)
            loaded = cls.load(place, ranker=ranker, index=index, runtime=runtime)
            weakref.finalize(loaded, held.pop_all().close)
        return loaded

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
        licence: str | None = None,
        language: str | None = None,
    ) -> CommitInfo:
        """Sends the model as it is now to the Hugging Face hub, in one commit that replaces what model is there.

        The repository is made if it is not there, `private` or as the hub's default is, and so is a branch called
        `revision`. Gives what the hub's client does: `oid`, `commit_url`. The card says the licence and the language
        that are told here, or with `save(data=…)`.
        """
        from umpteen.model.hub import push

        told = {"licence": licence, "language": language}
        return push(self._live, name, private, token, revision, commit_message, told)

    @classmethod
    def build(cls, towers: Towers, labels: LabelCatalogue, rows: NDArray[np.int64] | None = None) -> Self:
        """A classifier over these labels, whose texts are encoded now; `rows` are theirs in a table, −1 if new."""
        from umpteen.encoders.encoder import encode_texts

        return cls(towers, labels, encode_texts(towers.label, labels.texts, rows=rows).float())

    towers = _OfModel(lambda model: model.towers)
    query_tower = _OfModel(lambda model: model.query_tower)
    """What encodes texts that ask for labels: the towers' own, or the same computed by the model's runtime."""
    runtime = _OfModel(lambda model: getattr(model.parts.get(RUNTIME), "about", None) if model.runtime else None)
    """What was measured of the runtime in use; None: torch encodes."""
    labels = _OfModel(lambda model: model.labels)
    """The labels as they are now; a snapshot that later changes leave alone."""
    version = _OfModel(lambda model: model.version)
    """Of the labels: 0 as trained, one more with each change."""
    vectors = _OfModel(lambda model: model.catalogue.vectors.everything)
    """The labels' vectors, retired rows included; mapped while no label has changed, else held in memory."""
    hidden = _OfModel(lambda model: np.flatnonzero(~model.labels.active))
    """The rows of retired labels, which no search may return."""
    index = _OfModel(lambda model: model.index)
    """What finds the best labels of a vector."""
    ranker = _OfModel(lambda model: model.ranker)
    """What puts the dual encoder's first labels in order, as they are now; None: the dual encoder ranks alone."""
    listed = _OfModel(lambda model: (model.labels, model.last_ranker))
    """The labels and the ranker that was last used, of one model, whatever happens meanwhile; any thread may ask."""
    head_start = _OfModel(lambda model: model.head_start)
    """What labels that came after training get on top of their scores; None if there are none."""
    lessons = _OfModel(lambda model: len(model.examples.lessons))
    """How often examples were learnt or undone since the model was written."""
    corrections = _OfModel(lambda model: model.examples.corrections(model.labels))
    """What examples say of texts that are near to them; None if there are none that count."""
    has_ranker = _OfModel(lambda model: model.fitted_ranker is not None)
    calibration = _OfModel(lambda model: model.calibration)
    """What makes probabilities of scores, if the model is calibrated."""
    report = _OfModel(lambda model: model.report)
    """On validation, as training ended."""
    recipe = _OfModel(lambda model: model.told.recipe)
    """What the model was trained by, as TOML."""
    data = _OfModel(lambda model: model.told.data)
    """What it was trained on."""
    training = _OfModel(lambda model: model.told.training)
    """Steps, seconds and parameters."""
    folder = _OfModel(lambda model: model.folder)
    """The folder it was loaded from, and the model in it."""
    home = _OfModel(lambda model: model.home)
    """The same, of one that was loaded."""
    path = _OfModel(lambda model: None if model.folder is None else model.folder.path)
    """Where it was loaded from; changes of its labels are on disk then."""
    parts = _OfModel(lambda model: model.parts)
    """What was added to the trained model and is in use, by name."""

    def __repr__(self) -> str:
        return f"<Classifier: {'; '.join(f'{name} {value}' for name, value in self._about().items())}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._about().items())
        return f"<table><caption>umpteen.Classifier</caption>{''.join(rows)}</table>"

    def _about(self) -> dict[str, str]:
        """What it is, for people."""
        ranker, calibration, report, runtime = self.ranker, self.calibration, self.report, self.runtime
        held_out = report.metrics if report is not None else self.training.get("held_out", {})
        told = {
            "labels": f"{self.labels.count():,}" + (f", version {self.version}" if self.version else ""),
            "encoder": self.towers.describe(),
            "runtime": "" if runtime is None else f"{runtime.get('kind')}, agreement {runtime.get('agreement')}",
            "trained on": str(self.data.get("name") or ""),
            "ranker": "" if ranker is None else f"weight {ranker.weight:g}, of it memory {ranker.votes:g}",
            "probabilities": "" if calibration is None else f"learnt from {calibration.origin['said']}",
            "index": self.index.kind,
            "on validation": ", ".join(f"{name} {held_out[name]:.1f}" for name in SHOWN if name in held_out),
            "folder": str(self.path or ""),
        }
        return {name: value for name, value in told.items() if value}

    def part_file(self, name: str, file: str) -> bytes | None:
        """A file of a part in use, as it was written; None if the part has no such file, or is gone by now."""
        part, folder = self.parts.get(name), self.folder
        if part is not None and folder is not None and file in part.files:
            with suppress(OSError):
                return read_plainly(folder.path / part.folder / file)
        return None

    def history(self) -> list[VersionSummary]:
        """What happened to the labels since the model was written, oldest first."""
        return [VersionSummary.of(version) for version in self._live.catalogue.versions]

    def predict(
        self,
        texts: Sequence[str],
        k: int | None = None,
        *,
        min_probability: float | None = None,
        precision: float | None = None,
        rule: str | None = None,
    ) -> list[list[Prediction]]:
        """The k best labels of each text, best first; fewer, or none, if some are less probable than asked for.

        `precision` asks for as many labels as can be given so that this share of them is right, `rule` ("f1" or
        "coverage") for as many as was found best on held-out texts. k is 5 if left out, or the most the rule gives.
        """
        labels = self.labels
        ranking, probable = self.select(texts, k, min_probability=min_probability, precision=precision, rule=rule)
        columns = ranking.rows, ranking.scores, np.full(ranking.rows.shape, None) if probable is None else probable
        answers = zip(*(column.tolist() for column in columns), strict=True)
        given = ([one for one in zip(*answer, strict=True) if one[0] != NO_LABEL] for answer in answers)
        return [[Prediction(labels.keys[row], labels.texts[row], *sure) for row, *sure in text] for text in given]

    def select(
        self,
        texts: Sequence[str],
        k: int | None = None,
        *,
        min_probability: float | None = None,
        precision: float | None = None,
        rule: str | None = None,
    ) -> tuple[Ranking, NDArray[np.float32] | None]:
        """What `predict` gives as label rows and scores, and their probabilities if the model is calibrated."""
        if self.calibration is None:
            if (min_probability, precision, rule) != (None, None, None):
                raise BadInput("the model gives no probabilities yet; `umpteen calibrate` fits them")
            return self.rank(texts, min(USUAL_K, self.labels.count()) if k is None else k), None
        line = self.calibration.line(min_probability=min_probability, precision=precision, rule=rule)
        ranking = self.rank(texts, min(line.at_most or USUAL_K, self.labels.count()) if k is None else k)
        probabilities = self.calibration.probabilities(ranking.scores)
        given = line.given(probabilities)
        rows = np.where(given, ranking.rows, np.int32(NO_LABEL))
        return Ranking(rows, np.where(given, ranking.scores, np.float32(-np.inf)), ranking.labels), probabilities

    def rank(
        self,
        texts: Sequence[str],
        k: int,
        excluding: csr_array | None = None,
        *,
        examples: bool = True,
        trained: bool = False,
    ) -> Ranking:
        """The k best labels of each text as rows and scores; pairs stored in `excluding` are never returned.

        Where there is a ranker, it puts the dual encoder's first labels in order; texts that it may have been `trained`
        on have no vote for themselves. Examples have the last word, if they have any.
        """
        count = self.labels.count()
        if not 1 <= k <= count:
            raise BadInput(f"k is {k:,}, but the model has {count:,} labels; ask for 1 to {count}")
        texts, light = texts if isinstance(texts, Texts) else _checked(texts), self._live.light
        vectors: Vectors = encode_new(self.query_tower, texts) if light is None else light.encode(texts)
        return self._answer(texts, vectors, k, excluding, self.corrections if examples else None, trained)[-1].head(k)

    def _answer(
        self,
        texts: Sequence[str],
        vectors: Vectors,
        k: int,
        excluding: csr_array | None = None,
        corrections: Corrections | None = None,
        trained: bool = False,
    ) -> tuple[Ranking, Ranking]:
        """The first labels of texts with these vectors, k or more: by the dual encoder, and as they are answered."""
        count, ranker, head_start = self.labels.count(), self.ranker, self.head_start

        def search(
            texts: Sequence[str], vectors: Vectors, excluding: csr_array | None, votes: csr_array | None = None
        ) -> tuple[Ranking, Ranking]:
            """Of texts that all have votes, or none."""
            asked = k if votes is None else min(count, k + SPARE)  # who is voted out leaves a gap
            width = asked if ranker is None else min(count, max(asked, ranker.settings.candidates))
            wider = width if head_start is None else min(count, max(width, SPARE) + SPARE)
            if excluding is None:
                dense = replace(self.index.search(vectors, wider), labels=len(self.labels))
            else:
                dense = search_many(vectors, self.vectors, wider, excluding=excluding, hidden=self.hidden)
            dense = dense if head_start is None else dense.lifted(head_start, width)
            answered = dense if ranker is None else ranker.rerank(texts, vectors, dense, trained=trained)
            if votes is not None:
                from umpteen.rerank.memory import corrected

                answered = corrected(answered, votes, lambda rows: self._scores(vectors, rows))
            return dense, answered

        votes = None if corrections is None else corrections.votes(vectors, excluding)
        if votes is None or votes.nnz == 0:
            return search(texts, vectors, excluding)
        near = np.flatnonzero(np.diff(votes.indptr))
        if len(near) == len(texts):
            return search(texts, vectors, excluding, votes)
        # All together as if nobody had a say: texts that are far from every example are answered as ever, to the bit.
        dense, answered = search(texts, vectors, excluding)
        some = None if excluding is None else excluding[near]
        own = search([texts[row] for row in near.tolist()], vectors[near], some, votes[near])
        return dense.with_answers(near, own[0]), answered.with_answers(near, own[1])

    def _scores(self, vectors: Vectors, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """What labels outside the ranker's candidates have: the dual encoder's scores, for rows of each text."""
        scores = exact_scores(vectors, rows.astype(np.int64), self._live.catalogue.vectors)
        scores += 0 if self.head_start is None else self.head_start[rows]
        return scores if self.ranker is None else np.float32(1 - self.ranker.weight) * scores

    def explain(self, text: str, key: str) -> Explanation:
        """Why a text gets this label, or does not: its score in terms that add up, and what is behind each of them."""
        return self.explainer(text).explain(key)

    def explainer(self, text: str) -> Explainer:
        """Explains labels of one text, several for little more than the price of one."""
        from umpteen.model.explain import Explainer

        _checked([text])
        vectors = encode_new(self.query_tower, [text])
        k = min(USUAL_K, self.labels.count())
        return Explainer(self._live, text, vectors, *self._answer([text], vectors, k, corrections=self.corrections))

    def evaluate(self, texts: Any, labels: Any, **how: Unpack[How]) -> Report:
        """P, nDCG, R, PSP and PSnDCG on texts and labels as `umpteen.fit` takes them, by what `umpteen evaluate` uses.

        Labels that the model lacks are left out of the truth, and propensities count the texts that are given.
        """
        from umpteen.data.dataset import given_dataset
        from umpteen.model.evaluate import evaluate_model

        return evaluate_model(self, given_dataset(texts, labels), "train", **how)[0]

    def calibrate(self, texts: Any, labels: Any, *, confidence: float = CONFIDENCE) -> Calibration:
        """Learns probabilities from texts that the model was not trained on and their labels, and keeps them."""
        if self.folder is None:
            raise BadInput("the model has no folder to keep a calibration in; `save` it, and `load` what was saved")
        from umpteen.data.dataset import given_dataset
        from umpteen.model.evaluate import in_rows_of

        held_out = self.held_out(in_rows_of(self, given_dataset(texts, labels)).train)
        said = f"{len(held_out):,} texts, none of which the model was trained on, as the caller says"
        calibration = fit_calibration(held_out, {"source": "unseen", "said": said}, confidence=confidence)
        self.keep_calibration(calibration)
        return calibration

    def held_out(self, split: Split) -> HeldOut:
        """Its best labels of a split's texts, pairs to ignore left out, and which are right; examples have no say."""
        ranking = self.rank(split.texts, min(DEPTH, self.labels.count()), split.filtered.matrix, examples=False)
        return HeldOut.of(ranking, split.relevance.without(split.filtered).matrix)

    def keep_calibration(self, calibration: Calibration) -> None:
        """Puts it into the folder, and uses it from now on."""
        with self.home.adding(CALIBRATION) as part:
            calibration.save(part.folder)
            part.about = calibration.describe()
            part.labels_version, part.needs = self.version, {RANKER: self.parts.get(RANKER)}
        self.refresh()

    def add_labels(self, labels: Mapping[str, str] | Iterable[tuple[str, str]], *, note: str = "") -> int:
        """New labels by key and text, found from now on; returns the new version."""
        pairs = labels.items() if isinstance(labels, Mapping) else labels
        return self.change_labels([Add(key, text) for key, text in pairs], note=note)

    def rename_labels(self, texts: Mapping[str, str], *, note: str = "") -> int:
        """New texts for the labels with these keys; returns the new version."""
        return self.change_labels([Rename(key, text) for key, text in texts.items()], note=note)

    def retire_labels(self, keys: Iterable[str], *, note: str = "") -> int:
        """The labels with these keys are found no more; returns the new version."""
        if isinstance(keys, str):
            raise BadInput(f"keys is a single string, {keys[:40]!r}; pass a list of keys, even for one: [key]")
        return self.change_labels([Retire(key) for key in keys], note=note)

    def change_labels(
        self, changes: Sequence[Change], *, note: str = "", patience: float = PATIENCE, encoded: Encoded | None = None
    ) -> int:
        """Several changes at once, all or none of them; returns the new version, or the old one if nothing changes.

        A classifier with a path has it on disk for good when this returns. It waits for other processes' changes for
        `patience` seconds at most; who may try again gives `encoded`, so that no text is encoded twice.
        """
        encode = encoding(lambda: self.towers.label, encoded)
        self._changed(lambda model: model.catalogue.change(changes, encode, note, patience))
        return self.version

    def undo(self, to_version: int | None = None, *, note: str = "", patience: float = PATIENCE) -> int:
        """A new version in which all labels are as they were in an older one, by default the one before."""
        self._changed(lambda model: model.catalogue.undo(to_version, note, patience))
        return self.version

    def learn(
        self,
        texts: Sequence[str],
        labels: Sequence[str | Iterable[str]] | None = None,
        wrong: Sequence[str | Iterable[str]] | None = None,
        note: str = "",
        *,
        patience: float = PATIENCE,
        encoded: Encoded | None = None,
    ) -> int:
        """Texts with the keys of labels that are right for them, and of some that are wrong; returns how many.

        From now on these texts, and those near to them, are answered accordingly. All are learnt or none; with a path,
        they are on disk for good. `patience` and `encoded` are as `change_labels` has them.
        """
        texts = _checked(texts)
        right, wrong = ([()] * len(texts) if column is None else values_of(column) for column in (labels, wrong))
        if not len(texts) == len(right) == len(wrong):
            lists = f"{len(right):,} lists of right and {len(wrong):,} of wrong labels"
            raise BadInput(f"{len(texts):,} texts, but {lists}; give each text one of each")
        keys = [[(one,) if isinstance(one, str) else tuple(one) for one in column] for column in (right, wrong)]
        given = [Example(*row) for row in zip(texts, *keys, strict=True)]
        encode = encoding(lambda: self.query_tower, encoded)
        return self._changed(lambda model: model.examples.learn(given, model.catalogue, encode, note, patience))

    def examples(self) -> list[Example]:
        """What was learnt and not undone, oldest first."""
        return self._live.examples.all()

    def undo_examples(self, *, patience: float = PATIENCE) -> int:
        """What the last call of `learn` taught counts no more; returns how many examples that were."""
        return self._changed(lambda model: model.examples.undo(patience))

    def refresh(self) -> bool:
        """Takes in what other processes have done to the folder; a few looks at the disk if there is nothing.

        That is: changed labels, examples, another ranker, index or calibration, or a whole new model. What cannot be
        used is an error, and what was in use before stays in use.
        """
        if self.folder is None:
            return False
        seen = self.folder.stamp()
        is_settled = max(changed for _, changed, _ in seen) < time_ns() - _SETTLED  # a later change has another time
        if seen == self._seen and is_settled and not self._live.troubles and self._damaged is None:
            return False
        try:
            changed = self._live.look()
        except Replaced:
            self._turn_to_the_current(seen)
            changed = True
        self._seen, self._damaged = seen, None
        return changed

    def _turn_to_the_current(self, seen: Stamp) -> None:
        """Another model has taken the place of this one; one that is damaged is not tried again and again."""
        if self._damaged is not None and self._damaged[0] == seen and monotonic() < self._damaged[2]:
            raise self._damaged[1].with_traceback(None)
        try:
            new = LiveModel.load(self.home.path, [name for name in self._live.follows if name != INDEX])
        except Exception as error:
            self._damaged = seen, error, monotonic() + _UNTIL_NEXT_MODEL
            raise
        old, self._live, self._damaged = self._live, new, None
        old.index.close()
        if INDEX in old.follows:
            new.follows += (INDEX,)
            with suppress(UmpteenError, OSError, Replaced):  # the next `refresh` tells why it cannot be used
                new.look()

    def save(
        self,
        path: Path | str,
        *,
        report: Report | None = None,
        recipe: str | None = None,
        data: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        extra_files: Iterable[Path] = (),
        unless_changed: Standing | EllipsisType | None = ...,
    ) -> Path | None:
        """Writes the model folder, whole or not at all; a model that stood there is replaced.

        `data` (name, fingerprint, licence…) and `training` go into the manifest and the model card. What is not given
        is what the classifier was loaded with. Labels and examples are written as they are now; their history stays
        behind. Over its own folder it is refused if that folder's index would be lost. `unless_changed`: see
        `save_model`.
        """
        from umpteen.model.writing import save_model

        reported = None if report is None else report.to_dict()
        given: dict[str, Any] = {"report": reported, "recipe": recipe, "data": data, "training": training}
        told = replace(self._live.told, **{name: value for name, value in given.items() if value})
        return save_model(self._live, Path(path), told, extra_files=extra_files, unless_changed=unless_changed)

    def _changed(self, change: Callable[[LiveModel], Value]) -> Value:
        while True:
            try:
                return change(self._live)
            except Replaced:
                self._turn_to_the_current(self.home.stamp())
            finally:  # even if it was refused: other processes' changes may have come in meanwhile
                self._live.tell_index()


def _checked(texts: Any) -> list[str]:
    """The texts of a list, or of a column, whose own rows may have any names and order."""
    if isinstance(texts, str):
        raise BadInput(f"texts is a single string, {texts[:40]!r}; pass a list of texts, even for one: [text]")
    found: list[str] = texts if isinstance(texts, list) else values_of(texts)
    for position, text in enumerate(found):
        if not isinstance(text, str):
            column = "; of a table, give its column of texts" if isinstance(text, dict) else ""
            raise BadInput(f"texts[{position}] is a {type(text).__name__}, not a string{column}")
        if not text.strip():
            raise BadInput(f"texts[{position}] is empty; leave it out or give it words")
    return found
