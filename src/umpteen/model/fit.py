"""From data to the best model in one call: settings are tried on validation, and the best fitted on all of train.

While it works, OUTPUT.fit holds what was tried, and the models it goes on with: the same call goes on from there.
"""

import json
import math
import re
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.config.recipes import resolve
from umpteen.config.settings import RunConfig, SumTower
from umpteen.data.dataset import Dataset, given_dataset, open_dataset, write_native
from umpteen.data.prepared import own_cache
from umpteen.encoders.folder import TextTokenizer
from umpteen.errors import BadInput, Diverged, Stopped, UmpteenError
from umpteen.evaluation.baselines import LinearOneVsRest, TfidfNeighbours, popularity
from umpteen.evaluation.report import Evaluator, Report
from umpteen.files.storage import open_workspace, write_atomically
from umpteen.model.calibrate import calibrate, carry_calibration
from umpteen.model.classifier import SHOWN, Classifier
from umpteen.model.folder import MANIFEST
from umpteen.model.rerank import fit_ranker, remove_ranker
from umpteen.model.train import is_complete, train, train_trial
from umpteen.model.watch import Watch
from umpteen.model.writing import Standing, standing_in, stood_in
from umpteen.parallel.meter import free_memory
from umpteen.parallel.world import TooLittleMemory, cores
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.ranker import Ranker
from umpteen.training.build import build_run
from umpteen.training.observer import Observer
from umpteen.training.tune import Candidate, Point, Trials, choices_of, climb, identify, with_transformer

WORK = "umpteen fit"  # the kind of its workspace
RECIPE, QUICK = "mixed", "static"  # the most accurate for any data, and what is taken where time does not allow it
MINUTES = 10.0
MOST_TRIALS = 20
FIRST_SHARE = 0.25  # of the time: what the first training may take at most
READING = 2.0  # times as long for reading, which is done once: a frozen transformer's vectors serve all trials
FINAL_FITS = 2.0  # times the best trial's seconds are kept for the final fit, the ranker's two, and calibration
TRANSFORMER_SHARE = 0.8  # of the time after the first trial: what a trained transformer's trial and final fit may take
TRANSFORMER_EPOCHS = 1.0  # at least, where the recipe's own take longer
TRANSFORMER_BYTES = 2_500_000_000  # the graph of a micro-batch of one, and what learns
LEAST_STEPS = 120  # a training of fewer steps has not learnt much; batches are made smaller then
SMALLEST_BATCH = 32
FEW_TEXTS = 5_000
FEW_TO_CHOOSE_BY = 100
# Of a core: with more, linear machines would take longer than all else; with few, than processes to start.
MOST_SECONDS_OF_LINEAR, FEW_SECONDS_OF_LINEAR = 250.0, 2.5
SECONDS_A_PAIR, SECONDS_A_WORD = 2.2e-6, 1.8e-8  # of a text and a label, and of each word of theirs
FOREIGN = 2.5  # word pieces a word; by MiniLM, English titles have 1.3, Debian's packages 1.9, some German lines 3.8
LOOKED_AT, LONGEST = 500, 2048  # texts, and word pieces of one
SHORTER, LIKELY = (1024, 512, 256, 128), 0.8  # word pieces of a text, and the share of the time they should take


@dataclass(frozen=True)
class Fitted:
    """What came out: the classifier, its recipe, what was tried, and how it does beside what one would run instead."""

    classifier: Classifier
    recipe: RunConfig
    trials: list[dict[str, Any]]
    split: str  # that the reports are of
    reports: Mapping[str, Report]


class _TooSlow(Exception):
    """Something would take so many seconds, more than there are; and whether it is reading, else training."""


class _Over(Exception):
    """No time is left for another trial."""


def fit_data(
    source: str,
    output: Path,
    minutes: float = MINUTES,
    trials: int = MOST_TRIALS,
    recipe: str = RECIPE,
    seed: int = 0,
    overwrite: bool = False,
    *,
    compare: bool = True,
    observer: Observer | None = None,
) -> Fitted:
    """Tries, chooses, fits, ranks and calibrates within about so many minutes; the model appears whole at the end.

    At most so many settings are tried, fewer where the time does not allow them, the recipe's own first. Unless it is
    to `compare`, there are no reports.
    """
    observer = observer or Observer()
    is_complete(output, False, resume=False, overwrite=overwrite)  # refuses to lose something of value
    stands = standing_in(output)
    dataset = open_dataset(source, progress=partial(observer, "reading"))
    observer.notice(_looked_at(dataset))
    if told := _foreign(dataset, recipe):
        observer.notice(told)
    linear = _seconds_of_linear(dataset)
    linear = linear / cores() if compare and linear <= MOST_SECONDS_OF_LINEAR else 0.0
    with open_workspace(Path(f"{output.resolve()}.fit"), WORK, [dataset.fingerprint, seed, recipe]) as workspace:
        search = _Search(source, dataset, workspace.folder, minutes, linear, recipe, seed, observer)
        try:
            found = search.fit(output, stood_in(workspace, stands), trials, compare)
        except (Stopped, KeyboardInterrupt) as stopped:
            kept = f"stopped; what was tried is kept in {workspace.folder}: the same command goes on"
            raise Stopped(kept, signal=stopped.signal if isinstance(stopped, Stopped) else signal.SIGINT) from None
        except UmpteenError:
            observer.notice(f"what was tried is kept in {workspace.folder}")
            raise
        workspace.remove()
    return found


def _looked_at(dataset: Dataset) -> str:
    """What there is to learn from, in a line."""
    texts, labels, pairs = len(dataset.train), len(dataset.labels), dataset.train.relevance.pairs
    meant = "known by name alone" if dataset.labels_are_named else "with texts of their own"
    known = set(dataset.labels.texts)  # of all training texts, a set might be too large
    own = len({text for text in dataset.train.texts if text in known})
    both = f", {own:,} of which are texts, too" if own else ""
    return f"{texts:,} texts with {pairs / max(1, texts):.1f} of {labels:,} labels each, {meant}{both}"


def _seconds_of_linear(dataset: Dataset) -> float:
    """What one linear machine a label takes of a core."""
    words = _words(dataset) / max(1, min(LOOKED_AT, len(dataset.train)))
    return len(dataset.labels) * len(dataset.train) * (SECONDS_A_PAIR + SECONDS_A_WORD * words)


def _some(dataset: Dataset) -> list[str]:
    return [dataset.train.texts[row] for row in range(min(LOOKED_AT, len(dataset.train)))]


def _words(dataset: Dataset) -> int:
    return sum(len(re.findall(r"\w+", text)) for text in _some(dataset))


def _pieces(dataset: Dataset, recipe: str) -> NDArray[np.int64]:
    """How many word pieces some texts have by the recipe's frozen transformer; none if it has none."""
    tower = next((tower for tower in resolve(recipe).encoder.query.reading() if tower.kind == "frozen"), None)
    tokenizer = None if tower is None else TextTokenizer.load(tower.start, LONGEST, special_tokens=False)
    return np.array([] if tokenizer is None else tokenizer.uncut_lengths(_some(dataset)), dtype=np.int64)


def _foreign(dataset: Dataset, recipe: str) -> str | None:
    """What to tell of texts whose words the encoder cuts into many pieces."""
    words = _words(dataset)
    if words == 0 or (pieces := int(_pieces(dataset, recipe).sum()) / words) < FOREIGN:
        return None
    return f"{pieces:.1f} word pieces a word: the encoder may not know this language; `umpteen train` can take others"


def fit(
    texts: Any,
    labels: Any = None,
    label_texts: Mapping[str, str] | None = None,
    *,
    minutes: float = MINUTES,
    trials: int = MOST_TRIALS,
    recipe: str = RECIPE,
    seed: int = 0,
    output: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Classifier:
    """The best classifier for texts and their labels that about so many minutes allow.

    Takes texts and, for each, the key of its label or several of them: lists, or columns of pandas, polars, pyarrow and
    datasets; or a whole Dataset or DatasetDict of datasets, whose columns are made out, and told. Rows of the same text
    become one, with all their labels. `label_texts` says what keys mean; without it, names are their own texts. Gives
    the fitted classifier, with a ranker and probabilities; without an `output` its folder goes when it does, and `save`
    keeps it.

    >>> import umpteen
    >>> texts = [f"{animal} number {n}" for n in range(9) for animal in ("a barking dog", "a purring cat")]
    >>> classifier = umpteen.fit(texts, ["dog", "cat"] * 9, trials=1, quiet=True)
    >>> classifier.predict(["my dog is barking"], k=1)[0][0].key
    'dog'
    """
    if labels is None and (label_texts or not hasattr(texts, "save_to_disk")):
        raise BadInput("labels are missing; give each text its own, or a Dataset of Hugging Face's `datasets` alone")
    dataset = open_dataset(texts) if labels is None else given_dataset(texts, labels, label_texts)
    place = Path(tempfile.mkdtemp(prefix="umpteen-"))
    try:
        data, model = place / "data", Path(output or place / "model")
        write_native(dataset, data)
        # Nobody will ask again for copies of data that goes: they go, too.
        with Watch(quiet=quiet) as watch, nullcontext() if output else own_cache(place / "cache"):
            for message in dataset.told:
                watch.notice(message)
            found = fit_data(str(data), model, minutes, trials, recipe, seed, overwrite, compare=False, observer=watch)
    except BaseException as problem:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(problem, Stopped) and output is None:
            told = "stopped, and nothing is kept; with an `output`, the same call would go on"
            raise Stopped(told, signal=problem.signal) from None
        raise
    weakref.finalize(found.classifier, shutil.rmtree, place, ignore_errors=True)
    return found.classifier


_IMPOSSIBLE = BadInput, Diverged, TooLittleMemory  # with these settings, or here


class _Search:
    """Trials, each a model in the workspace; only the best one's stays."""

    def __init__(
        self,
        source: str,
        dataset: Dataset,
        folder: Path,
        minutes: float,
        linear: float,
        recipe: str,
        seed: int,
        observer: Observer,
    ) -> None:
        self._source, self.dataset, self._folder, self._seed = source, dataset, folder, seed
        self._observer, self._began, self._minutes, self._linear = observer, time.monotonic(), minutes, linear
        self._seconds = max(30 * minutes, 60 * minutes - linear)
        self._decided = folder / "decided.json"  # what the time allows was measured once
        self._recipe, self._sized, self._limit = recipe, sized(dataset, recipe), FIRST_SHARE * self._seconds
        self._decided_for, self._reserved = self._seconds, 0.0  # seconds that other trials leave for a transformer
        self._transformer: float | None = None  # seconds that one takes to train with the recipe's own settings
        with suppress(OSError, ValueError):  # nothing was decided, or by an earlier release
            recipe, settings, transformer, allowed = json.loads(self._decided.read_bytes())
            if self._seconds <= allowed:  # with more, it may allow more
                self._recipe, self._sized, self._limit, self._decided_for = recipe, tuple(settings), math.inf, allowed
                self._transformer = transformer
        own = self.config(())
        self.held_out = dataset.with_validation(own.data.validation_fraction, seed)
        self._found = Trials(folder / "trials.jsonl", own.evaluation.metric, observer.notice)
        self._tried = self._found.tried

    def config(self, point: Point, fit_on: str = "train") -> RunConfig:
        alone = {"encoder.query.kind=frozen", "encoder.query.static=none"} & {*point}  # there is no bag to be set
        own = tuple(setting for setting in self._sized if not (alone and ".static." in setting))
        return resolve(self._recipe, (f"seed={self._seed}", f"data.fit_on={fit_on}", *own, *point), self._source)

    def fit(self, output: Path, stands: Standing | None, trials: int, compare: bool) -> Fitted:
        """Tries settings, and makes the model of the best of them."""
        dataset, observer = self.dataset, self._observer
        assert self.held_out.validation is not None
        if (asked := len(self.held_out.validation)) < FEW_TO_CHOOSE_BY:
            rough = "what is best on them, and their figures, are rough"
            observer.notice(f"warning: validation is {asked:,} texts: {rough}")
        best = self.run(trials)
        tried: Path = self._folder / best["identity"]
        if not (tried / MANIFEST).exists():  # an earlier call may have removed it
            config = self.config(tuple(best["settings"]))
            train(config, output=tried, resume=True, observers=[observer])
        observer.notice("n-grams and training texts that vote: how much they count …")
        ranker = self._ranker(tried)
        try:
            calibrate(tried, dataset, observer=observer)
        except (BadInput, ValueError) as problem:
            observer.notice(f"no probabilities: {problem}")
        config = self.config((*best["settings"], *best["then"]), "train+validation")
        final = self._folder / f"final-{identify(config, dataset.fingerprint)}"
        observer.notice("the best of them, fitted on all of train …")
        train(config, output=final, resume=True, observers=[observer])
        if ranker is not None:
            fit_ranker(final, dataset, ranker.settings, **ranker.chosen(), jobs=cores(), progress=observer)
        chosen_as = Classifier.load(tried)
        if chosen_as.calibration is not None:
            carry_calibration(chosen_as, final)
        fitted = Classifier.load(final)
        held_out = chosen_as.report.metrics if chosen_as.report else {}
        told = {metric: round(held_out[metric], 2) for metric in SHOWN if metric in held_out}
        training = {**fitted.training, "held_out": told}  # by the same settings, without validation
        on_test = dataset.test is not None and dataset.test.relevance.without(dataset.test.filtered).pairs > 0
        split = "test" if on_test else "validation"
        reports: Mapping[str, Report] = {}
        if compare:
            observer.notice(f"on {split}, beside what one would run instead …")
            reports = self._reports(split, fitted if on_test else chosen_as)
        kept = fitted.save(output, training=training, unless_changed=stands)
        if kept is not None:
            observer.notice(f"{output} was changed while this one was fitted; what stood there is kept in {kept}")
        return Fitted(Classifier.load(output), config, self._found.best_first(), split, reports)

    def _ranker(self, model: Path) -> Ranker | None:
        """The model's ranker, if validation has a use for one; of votes alone where texts have no n-grams."""
        for settings in (RankerSettings(), RankerSettings(sparse=False)):
            try:
                ranker, _ = fit_ranker(model, self.dataset, settings, jobs=cores(), progress=self._observer)
            except BadInput as problem:
                self._observer.notice(f"{'no n-grams' if settings.sparse else 'no ranker'}: {problem}")
            else:
                if ranker.weight == 0:
                    remove_ranker(model)
                return ranker if ranker.weight else None
        return None

    def _reports(self, split: str, model: Classifier) -> dict[str, Report]:
        """The model on a split, beside what one would run instead, fitted on the same texts."""
        of, settings = self.held_out if split == "validation" else self.dataset, self.config(()).evaluation
        asked, known = of.splits()[split], of.train if split == "validation" else of.with_validation_in_train().train
        evaluator = Evaluator(of, asked, a=settings.propensity_a, b=settings.propensity_b)
        width, seconds = max(evaluator.at), _seconds_of_linear(self.dataset)
        jobs = cores() if seconds > FEW_SECONDS_OF_LINEAR else 1
        others: dict[str, Callable[[], Any]] = {"tf-idf neighbours": lambda: TfidfNeighbours(known)}
        if seconds <= MOST_SECONDS_OF_LINEAR:
            others["linear one-vs-rest"] = lambda: LinearOneVsRest(known, jobs=jobs)
        found = {"popularity": popularity(known, asked, width)}
        for name, fitted in others.items():
            try:
                found[name] = fitted().rank(asked, width)
            except (BadInput, ValueError) as problem:
                self._observer.notice(f"{name} is left out: {problem}")
        found["umpteen"] = model.rank(asked.texts, width, asked.filtered.matrix)
        return {name: evaluator.report(ranking) for name, ranking in found.items()}

    def run(self, trials: int) -> dict[str, Any]:
        """The best trial that was found in time."""
        while not self._tried:
            try:
                self._attempt(())
            except _TooSlow as found:
                self._make_quicker(*found.args)
        self._limit = math.inf
        self._keep_decided()
        if trials > 1:
            self._reserve_for_transformer()
            self._keep_decided()
        try:
            climb(choices_of(self.config(())), trials - bool(self._reserved), self._attempt)
        except _Over:
            self._observer.notice(f"the time there is was enough for {len(self._tried)}")
        if self._reserved:
            self._reserved = 0.0
            self._try_transformer(tuple(self._found.best_first()[0]["settings"]))
        return self._found.best_first()[0]

    def _keep_decided(self) -> None:
        decided = self._recipe, self._sized, self._transformer, self._decided_for
        write_atomically(self._decided, json.dumps(decided))

    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._began)

    def _reserve_for_transformer(self) -> None:
        """Keeps the time for a transformer's trial and final fit, if there is enough."""
        query, first = self.config(()).encoder.query, self._found.best_first()[0]["again"]
        if not isinstance(query, SumTower) or query.transformer is not None or 2 * first > self._left():
            return
        if self._transformer is None:
            self._transformer = self._seconds_of_transformer()
        own, left = self.config(()).training.epochs, self._left()
        whole, least = 2 * self._transformer, 2 * self._transformer * min(1.0, TRANSFORMER_EPOCHS / own)
        if least <= TRANSFORMER_SHARE * left:
            self._reserved = min(whole, TRANSFORMER_SHARE * left)
        elif least < math.inf:
            seconds = least / TRANSFORMER_SHARE + self._seconds - left
            minutes = math.ceil(min(2 * seconds, seconds + self._linear) / 60)
            more = max(minutes, math.floor(self._minutes) + 1)
            self._observer.notice(f"--minutes {more} would also try a transformer that is trained")

    def _seconds_of_transformer(self) -> float:
        """How long one takes to train with the recipe's own settings, by a few of its steps."""
        if (free := free_memory()) is not None and free < TRANSFORMER_BYTES:
            told = f"about {TRANSFORMER_BYTES / 1e9:.1f} GB of memory would be needed, and {free / 1e9:.1f} GB are free"
            self._observer.notice(f"no transformer is trained: {told}")
            return math.inf
        began = time.monotonic()
        try:
            config = self.config(self._with_transformer(()))
            build_run(config, workspace=None, observer=_Pace(0, reading=math.inf)).loop.run()
        except _TooSlow as found:
            return float(found.args[0])
        except _IMPOSSIBLE as problem:
            self._observer.notice(f"no transformer is trained: {problem}")
            return math.inf
        return time.monotonic() - began

    def _try_transformer(self, best: Point) -> None:
        """A trial of these settings with a transformer; where time is short, of fewer epochs, then of fewer queries."""
        assert self._transformer is not None
        self._limit = TRANSFORMER_SHARE * self._left() / 2  # the final fit takes as long once more
        most = self._limit / self._transformer * self._passes(())
        own = self.config(()).training.epochs
        usual = tuple(setting for setting in best if not setting.startswith("training.epochs="))
        fewer = tuple(setting for setting in usual if not setting.startswith("data.label_queries="))
        fitting = [best] if self._passes(best) <= most else []
        for point in (usual, fewer):
            epochs = min(own, math.floor(10 * own * most / self._passes(point)) / 10)
            if epochs >= min(own, TRANSFORMER_EPOCHS):
                fitting.append(point if epochs == own else (*point, f"training.epochs={epochs:g}"))
        if not fitting:
            self._observer.notice("no time is left for a transformer that is trained")
            return
        self._observer.notice("the best of them with a transformer that is trained, too …")
        try:
            self._attempt(self._with_transformer(fitting[0]))
        except (_Over, _TooSlow):
            self._observer.notice("it would take too long; without it")
        except _IMPOSSIBLE as problem:
            self._observer.notice(f"no transformer is trained: {problem}")

    def _with_transformer(self, point: Point) -> Point:
        return with_transformer(point, self.config(point).training.batch_size)

    def _passes(self, point: Point) -> float:
        """How many texts a training with these settings reads as queries."""
        config, dataset = self.config(point), self.dataset
        as_queries = len(dataset.labels) if config.data.label_queries else 0
        return config.training.epochs * (len(dataset.train) + as_queries)

    def _make_quicker(self, seconds: float, reading: bool) -> None:
        """Where reading takes too long, texts are read less far; where that does not do, or an epoch takes too long, it
        goes without a frozen transformer; else with fewer epochs, once."""
        epochs = self.config(()).training.epochs * self._limit / seconds
        if self._recipe == RECIPE and reading and (length := self._length_in_time(seconds)):
            self._sized = (*self._sized, f"encoder.query.frozen.max_length={length}")
            self._observer.notice(
                f"reading all of the texts would take {seconds / 60:.1f} minutes; {length} tokens then"
            )
            return
        if self._recipe == RECIPE and (reading or epochs < 1):
            self._recipe, self._sized = QUICK, tuple(own for own in self._sized if not own.startswith("encoder."))
            self._observer.notice("a frozen transformer would take too long here; without it")
            return
        self._limit = math.inf
        if not reading:
            fewer = f"{max(epochs, 0.1):.2g}"
            self._sized = (*self._sized, f"training.epochs={fewer}")
            self._observer.notice(f"one training would take {seconds / 60:.1f} minutes; {fewer} epochs then")

    def _length_in_time(self, seconds: float) -> int | None:
        """How far texts, which would take so long, may be read; None if that was tried or would not do."""
        pieces, most = _pieces(self.dataset, self._recipe), READING * self._limit * LIKELY
        if any("max_length" in own for own in self._sized):
            return None
        whole = np.minimum(pieces, LONGEST).sum() / seconds  # tokens a second
        return next((length for length in SHORTER if np.minimum(pieces, length).sum() <= most * whole), None)

    def _attempt(self, point: Point) -> float:
        config = self.config(point)
        identity = identify(config, self.dataset.fingerprint)
        if identity not in self._tried:
            if self._tried:
                longest = max(trial["again"] for trial in self._tried.values())
                kept = FINAL_FITS * self._found.best_first()[0]["again"] + self._reserved
                if longest + kept > self._left():
                    raise _Over
            self._found.attempt(Candidate(point, identity, lambda: self._train(config, identity)))
            best, *others = self._found.best_first()
            for other in others:
                shutil.rmtree(self._folder / other["identity"], ignore_errors=True)
            self._observer.notice(f"  {len(self._tried)} tried, best so far {self._found.metric_of(best):.2f}")
        return self._found.metric_of(self._tried[identity])

    def _train(self, config: RunConfig, identity: str) -> dict[str, Any]:
        pace = _Pace(self._limit)
        began = time.monotonic()
        found = train_trial(config, self._folder / identity, self._observer, pace)
        return {**found, "again": round(time.monotonic() - began - pace.read, 1)}  # what it takes once texts are read


def sized(dataset: Dataset, recipe: str = RECIPE) -> Point:
    """Smaller batches where there are few texts, so that training has steps enough, and then no vectors of word pairs:
    few pairs come twice, and each step moves them all."""
    texts, own = len(dataset.train), resolve(recipe).training
    batch = own.batch_size
    while batch > SMALLEST_BATCH and own.epochs * texts / batch < LEAST_STEPS:
        batch //= 2
    settings = ["encoder.query.static.bigrams=0"] if recipe == RECIPE and texts < FEW_TEXTS else []
    settings += [f"training.batch_size={batch}"] if batch < own.batch_size else []
    settings += ['evaluation.metric="P@1"'] if len(dataset.labels) < 5 else []  # a metric at 5 needs as many
    return tuple(settings)


_AFTER = 5.0  # seconds of something it can be told how long it takes


class _Pace(Observer):
    """Hears how far work is, and ends what would take longer than the limit."""

    def __init__(self, limit: float, reading: float | None = None) -> None:
        self._limit, self._reading, self._steps = limit, READING * limit if reading is None else reading, 0
        self._began: dict[str, tuple[float, int]] = {}
        self.read = 0.0  # seconds of reading, which is done once

    def started(self, config: RunConfig, step: int, steps: int) -> None:
        self._steps = steps
        self("training", step, steps)

    def stepped(self, record: dict[str, Any]) -> None:
        self("training", record["step"], self._steps)

    def __call__(self, work: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, first = self._began.get(work, (now, done))
        if done <= first:  # it begins, or does so again
            self._began[work] = now, done
            return
        seconds = (now - start) / (done - first) * (total - first)
        reading = work.startswith("reading")
        if done >= total:  # what comes next under this name is another stage
            del self._began[work]
            self.read += now - start if reading else 0
        elif now - start > _AFTER and seconds > (self._reading if reading else self._limit):
            raise _TooSlow(seconds, reading)
