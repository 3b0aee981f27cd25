"""From data to the best model in one call: settings are tried on validation, and the best fitted on all of train.

While it works, OUTPUT.fit holds what was tried, and the models it goes on with: the same call goes on from there.
"""

import atexit
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umpteen.config.recipes import resolve
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset, Split, open_dataset, write_native
from umpteen.data.labels import LabelCatalogue, Relevance
from umpteen.errors import BadInput, Diverged, Stopped
from umpteen.evaluation.baselines import LinearOneVsRest, TfidfNeighbours, popularity
from umpteen.evaluation.report import Evaluator, Report
from umpteen.files.progress import Progress, named
from umpteen.files.storage import Workspace, open_workspace, write_atomically
from umpteen.model.calibrate import calibrate, carry_calibration
from umpteen.model.classifier import Classifier
from umpteen.model.folder import MANIFEST
from umpteen.model.rerank import fit_ranker, remove_ranker
from umpteen.model.train import is_complete, train
from umpteen.model.watch import Watch
from umpteen.parallel.world import cores
from umpteen.rerank.features import RankerSettings
from umpteen.search.ranking import Ranking
from umpteen.training.observer import Observer, Silence
from umpteen.training.tune import Candidate, Point, Trials, as_settings, climb, identify, usual_choices, where_it_fits

WORK = "umpteen fit"  # the kind of its workspace
RECIPE, QUICK = "mixed", "static"  # the most accurate for any data, and what is taken where time does not allow it
MINUTES = 10.0
MOST_TRIALS = 20
FIRST_SHARE = 0.25  # of the time: what the first training may take at most
READING = 2.0  # times as long for reading, which is done once: a frozen transformer's vectors serve all trials
FINAL_FITS = 2.5  # times the best trial's seconds are kept for the final fit, the ranker's two, and calibration
LEAST_STEPS = 120  # a training of fewer steps has not learnt much; batches are made smaller then
SMALLEST_BATCH = 32
FEW_TEXTS = 5_000
# Texts times labels: with more, linear machines would take longer than all else; with few, than processes to start.
MOST_PAIRS_OF_LINEAR, FEW_PAIRS_OF_LINEAR = 100_000_000, 1_000_000


@dataclass(frozen=True)
class Fitted:
    """What came out: the classifier, its recipe, what was tried, and how it does beside what one would run instead."""

    classifier: Classifier
    recipe: RunConfig
    trials: list[dict[str, Any]]
    split: str  # that the reports are of
    reports: Mapping[str, Report]


class _TooSlow(Exception):
    """Reading, or else training, would take so many seconds, more than there are."""

    def __init__(self, seconds: float, *, reading: bool) -> None:
        self.seconds, self.reading = seconds, reading


class _Over(Exception):
    """No time is left for another trial."""


def fit_data(
    source: str,
    output: Path,
    *,
    minutes: float = MINUTES,
    trials: int = MOST_TRIALS,
    seed: int = 0,
    overwrite: bool = False,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Tries, chooses, fits, ranks and calibrates within about so many minutes; the model appears whole at the end.

    At most so many settings are tried, fewer where the time does not allow them.
    """
    observer = observer or Silence()
    is_complete(output, False, resume=False, overwrite=overwrite)  # refuses to lose something of value
    dataset = open_dataset(source, progress=named(progress, "reading"))
    for guess in dataset.told:
        observer.notice(guess)
    with open_workspace(Path(f"{output.resolve()}.fit"), WORK, [dataset.fingerprint, seed]) as workspace:
        search = _Search(source, dataset, workspace.folder, 60 * minutes, seed, observer, progress)
        try:
            return _fit(search, dataset, output, trials, observer, progress, workspace)
        except Stopped as stopped:
            kept = f"stopped; what was tried is kept in {workspace.folder}: the same command goes on"
            raise Stopped(kept, signal=stopped.signal) from None


def _fit(
    search: "_Search",
    dataset: Dataset,
    output: Path,
    trials: int,
    observer: Observer,
    progress: Progress | None,
    workspace: Workspace,
) -> Fitted:
    best = search.run(trials)
    tried = search.model_of(best)
    observer.notice("n-grams and training texts that vote: how much they count …")
    ranker, _ = fit_ranker(tried, dataset, RankerSettings(), jobs=cores(), progress=progress)
    if ranker.weight == 0:
        remove_ranker(tried)
    is_calibrated = _does(observer, "no probabilities", lambda: calibrate(tried, dataset, observer=observer))
    config = search.config((*best["settings"], *best["then"]), "train+validation")
    final = workspace.folder / f"final-{identify(config, dataset.fingerprint)}"
    observer.notice("the best of them, fitted on all of train …")
    train(config, output=final, resume=True, observer=observer, progress=progress)
    if ranker.weight:
        chosen = {"weight": ranker.weight, "votes": ranker.votes, "rare": ranker.rare}
        fit_ranker(final, dataset, ranker.settings, **chosen, jobs=cores(), progress=progress)
    if is_calibrated:
        carry_calibration(Classifier.load(tried, index=False), final)
    Classifier.load(final).save(output)
    on_test = dataset.test is not None and dataset.test.relevance.without(dataset.test.filtered).pairs > 0
    split = "test" if on_test else "validation"
    observer.notice(f"on {split}, beside what one would run instead …")
    reports = search.reports(split, Classifier.load(final if on_test else tried))
    workspace.remove()
    return Fitted(Classifier.load(output), config, search.trials(), split, reports)


def _does(observer: Observer, otherwise: str, work: Callable[[], object]) -> bool:
    """Whether something that a model can do without could be done; else it is told why not."""
    try:
        work()
    except (BadInput, ValueError) as problem:
        observer.notice(f"{otherwise}: {problem}")
        return False
    return True


def fit(
    texts: Any,
    labels: Any,
    label_texts: Mapping[str, str] | None = None,
    *,
    minutes: float = MINUTES,
    trials: int = MOST_TRIALS,
    seed: int = 0,
    output: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Classifier:
    """The best classifier for texts and their labels that about so many minutes allow.

    Takes texts and, for each, the key of its label or several of them: lists, or columns of pandas, polars, pyarrow and
    datasets. `label_texts` says what keys mean; without it, names are their own texts. Gives the fitted classifier,
    with a ranker and probabilities; without an `output` its folder goes with the process, and `save` keeps it.

    >>> import umpteen
    >>> texts = [f"{animal} number {n}" for n in range(9) for animal in ("a barking dog", "a purring cat")]
    >>> classifier = umpteen.fit(texts, ["dog", "cat"] * 9, trials=1, quiet=True)
    >>> classifier.predict(["my dog is barking"], k=1)[0][0].key
    'dog'
    """
    rows = [str(text) if isinstance(text, str) else "" for text in _listed(texts)]
    keys = [_keys(row) for row in _listed(labels)]
    for number, text in enumerate(rows):
        if not text.strip():
            raise BadInput(f"texts[{number}] is missing, empty or no string; leave it out, with its labels")
    if len(rows) != len(keys):
        raise BadInput(f"{len(rows):,} texts but {len(keys):,} rows of labels; give each text one")
    meaning = {key: key.replace("_", " ") for row in keys for key in row}
    meaning |= {str(key): str(text) for key, text in (label_texts or {}).items()}
    catalogue = LabelCatalogue(meaning, meaning.values())
    relevance = Relevance.from_lists([[catalogue.row(key) for key in row] for row in keys], len(catalogue))
    place = Path(tempfile.mkdtemp(prefix="umpteen-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    write_native(Dataset.of("texts", catalogue, Split.of(rows, relevance)), place / "data")
    with Watch(quiet=quiet) as watch:
        return fit_data(
            str(place / "data"),
            Path(output or place / "model"),
            minutes=minutes,
            trials=trials,
            seed=seed,
            overwrite=overwrite,
            observer=watch,
            progress=watch,
        ).classifier


def _listed(column: Any) -> list[Any]:
    """The values of a list, array or column as Python's own; numpy, pandas, polars, pyarrow name it differently."""
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, name):
            return list(getattr(column, name)())
    return list(column)


def _keys(row: Any) -> list[str]:
    """One label or several; None and NaN are none."""
    if row is None or isinstance(row, float):
        return []
    return [str(row)] if isinstance(row, str | int) else [str(key) for key in _listed(row) if key is not None]


class _Search:
    """Trials, each a model in the workspace; only the best one's stays."""

    def __init__(
        self,
        source: str,
        dataset: Dataset,
        folder: Path,
        seconds: float,
        seed: int,
        observer: Observer,
        progress: Progress | None,
    ) -> None:
        self._source, self.dataset, self._folder, self._seed = source, dataset, folder, seed
        self._observer, self._progress = observer, progress
        self._began, self._seconds = time.monotonic(), seconds
        self._decided = folder / "decided.json"  # what the time allows was measured once
        self._recipe, self._sized, self._limit = RECIPE, sized(dataset), FIRST_SHARE * seconds
        if self._decided.exists():
            self._recipe, settings = json.loads(self._decided.read_bytes())
            self._sized, self._limit = tuple(settings), math.inf
        self._tried: list[dict[str, Any]] = []
        own = self.config(())
        self.held_out = dataset.with_validation(own.data.validation_fraction, seed)
        self._found = Trials(folder / "trials.jsonl", own.evaluation.metric, lambda message: None)

    def config(self, point: Point, fit_on: str = "train") -> RunConfig:
        alone = "encoder.query.kind=frozen" in point  # then there is no other part that could be set
        own = tuple(setting for setting in self._sized if not (alone and ".static." in setting))
        settings = (f"seed={self._seed}", f"data.fit_on={fit_on}", *own, *point)
        return resolve(self._recipe, settings, self._source)

    def reports(self, split: str, model: Classifier) -> dict[str, Report]:
        """The model on a split, beside what one would run instead, fitted on the same texts."""
        of, settings = self.held_out if split == "validation" else self.dataset, self.config(()).evaluation
        asked, known = of.splits()[split], of.train if split == "validation" else of.with_validation_in_train().train
        evaluator = Evaluator(of, asked, a=settings.propensity_a, b=settings.propensity_b)
        width, ignored = max(evaluator.at), asked.filtered.matrix
        relevance = known.relevance.without(known.filtered).matrix
        pairs = len(of.labels) * len(known)
        jobs = cores() if pairs > FEW_PAIRS_OF_LINEAR else 1
        found: dict[str, Ranking] = {"popularity": popularity(relevance, len(asked), width, excluding=ignored)}

        def beside(name: str, fitted: Callable[[], TfidfNeighbours | LinearOneVsRest]) -> None:
            ranked = lambda: found.update({name: fitted().rank(asked.texts, width, excluding=ignored)})  # noqa: E731
            _does(self._observer, f"{name} is left out", ranked)

        beside("tf-idf neighbours", lambda: TfidfNeighbours(known.texts, relevance))
        if pairs <= MOST_PAIRS_OF_LINEAR:
            beside("linear one-vs-rest", lambda: LinearOneVsRest(list(known.texts), relevance, jobs=jobs))
        found["umpteen"] = evaluator.rank(model.towers.query, model.vectors, ranker=model.ranker)
        return {name: evaluator.report(ranking) for name, ranking in found.items()}

    def trials(self) -> list[dict[str, Any]]:
        return self._found.best_first(self._tried)

    def model_of(self, trial: dict[str, Any]) -> Path:
        """The model of a trial; one that was removed is trained again."""
        folder: Path = self._folder / trial["identity"]
        if not (folder / MANIFEST).exists():
            config = self.config(tuple(trial["settings"]))
            train(config, output=folder, resume=True, observer=self._observer, progress=self._progress)
        return folder

    def run(self, trials: int) -> dict[str, Any]:
        """The best trial that was found in time."""
        while not self._tried:
            try:
                self._attempt(())
            except _TooSlow as found:
                self._make_quicker(found)
        write_atomically(self._decided, json.dumps([self._recipe, self._sized]))
        try:
            climb(usual_choices(self.config(())), trials, where_it_fits(self._attempt))
        except _Over:
            self._observer.notice(f"{len(self._tried)} settings were tried in the time there is")
        return self.trials()[0]

    def _make_quicker(self, found: _TooSlow) -> None:
        """Without a frozen transformer where its reading, or an epoch, takes too long; else with fewer epochs, once."""
        epochs = self.config(()).training.epochs * self._limit / found.seconds
        if self._recipe != QUICK and (found.reading or epochs < 1):
            self._recipe, self._sized = QUICK, tuple(own for own in self._sized if ".static." not in own)
            self._observer.notice("a frozen transformer would take too long here; without it")
            return
        self._limit = math.inf
        if not found.reading:
            self._sized = (*self._sized, f"training.epochs={max(epochs, 0.1):.2g}")
            minutes = f"{found.seconds / 60:.0f} minutes"
            self._observer.notice(f"one training would take {minutes}; {max(epochs, 0.1):.2g} epochs then")

    def _attempt(self, point: Point) -> float:
        config = self.config(point)
        identity = identify(config, self.dataset.fingerprint)
        if identity not in {trial["identity"] for trial in self._tried}:
            if self._tried:
                self._require_time()
            own = self._found.run(Candidate(point, identity, lambda: self._train(config, identity)))
            self._tried.append(own)
            self._tell(own)
        found = next(trial for trial in self._tried if trial["identity"] == identity)
        return self._found.metric_of(found)

    def _require_time(self) -> None:
        longest = max(trial["seconds"] for trial in self._tried)
        kept = FINAL_FITS * self.trials()[0]["seconds"]
        if time.monotonic() - self._began + longest + kept > self._seconds:
            raise _Over

    def _train(self, config: RunConfig, identity: str) -> dict[str, Any]:
        pace = _Pace(self._observer, self._progress, math.inf if self._tried else self._limit)
        try:
            model = train(config, output=self._folder / identity, resume=True, observer=pace, progress=pace)
        except Diverged as problem:
            self._observer.notice(str(problem))
            return {"metrics": {config.evaluation.metric: 0.0}, "then": []}
        assert model.report is not None
        return {"metrics": model.report.metrics, "then": as_settings(model.training.get("weights", {}))}

    def _tell(self, trial: dict[str, Any]) -> None:
        best = self.trials()[0]
        for other in self._tried:
            if other is not best:
                shutil.rmtree(self._folder / other["identity"], ignore_errors=True)
        changed = " ".join(trial["settings"]) or "as it is"
        reached, highest = self._found.metric_of(trial), self._found.metric_of(best)
        self._observer.notice(f"tried {len(self._tried)}: {changed}: {reached:.2f}; best so far {highest:.2f}")


def sized(dataset: Dataset) -> Point:
    """Smaller batches where there are few texts, so that training has steps enough, and then no vectors of word pairs:
    few pairs come twice, and each step moves them all."""
    texts, own = len(dataset.train), resolve(RECIPE).training
    batch = own.batch_size
    while batch > SMALLEST_BATCH and own.epochs * texts / batch < LEAST_STEPS:
        batch //= 2
    settings = ["encoder.query.static.bigrams=0"] if texts < FEW_TEXTS else []
    settings += [f"training.batch_size={batch}"] if batch < own.batch_size else []
    settings += ['evaluation.metric="P@1"'] if len(dataset.labels) < 5 else []  # a metric at 5 needs as many
    return tuple(settings)


_AFTER = 5.0  # seconds of something it can be told how long it takes


class _Pace:
    """Passes on what it hears, and ends work that would take longer than the limit."""

    def __init__(self, observer: Observer, progress: Progress | None, limit: float) -> None:
        self._observer, self._progress, self._limit = observer, progress, limit
        self._steps = 0
        self._began: dict[str, tuple[float, int]] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(name, done, total)
        self._check(name, done, total)

    def started(self, step: int, steps: int) -> None:
        self._steps = steps
        self._observer.started(step, steps)
        self._check("training", step, steps)

    def stepped(self, record: dict[str, Any]) -> None:
        self._observer.stepped(record)
        self._check("training", record["step"], self._steps)

    def evaluated(self, record: dict[str, Any]) -> None:
        self._observer.evaluated(record)

    def notice(self, message: str) -> None:
        self._observer.notice(message)

    def _check(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, first = self._began.get(name, (now, done))
        if done <= first:  # it begins, or does so again
            self._began[name] = now, done
            return
        seconds = (now - start) / (done - first) * (total - first)
        reading = name.startswith("reading")
        if now - start > _AFTER and seconds > self._limit * (READING if reading else 1):
            raise _TooSlow(seconds, reading=reading)
