"""Tries settings of a recipe on validation; every finished trial is a line of a file, so a stopped search goes on."""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from umpteen.config.recipes import resolve
from umpteen.config.settings import PartsTower, RunConfig
from umpteen.data.dataset import open_dataset
from umpteen.errors import BadConfig, BadFile, Diverged, Stopped
from umpteen.files.progress import Notice
from umpteen.files.storage import digest_of, locked_file, write_atomically
from umpteen.parallel.world import World
from umpteen.training.build import build_run, weigh_parts
from umpteen.training.observer import Observer

# Around a recipe's own; half an order of magnitude, since learning rate and temperature act by their logarithm.
_EPOCHS, _RATES, _TEMPERATURES = (1.0, 2.0), (1.0, 0.33, 3.0), (1.0, 0.6, 1.6)

USUAL_TRIALS = 12

# A transformer that is trained beside the other parts of the query tower, as the recipe finetuned has it.
TRANSFORMER = (
    "encoder.query.transformer.learning_rate=1e-4",
    "encoder.query.transformer.dropout=0.1",
    "encoder.label.transformer=none",
    "training.token_budget=8192",
)
LARGEST_BATCH = 256  # with one; few epochs need many steps

Point = tuple[str, ...]  # settings on top of a recipe


class Candidate(NamedTuple):
    """Settings that may be tried: for people, for telling trials apart, and how it is done."""

    settings: Point
    identity: str
    run: Callable[[], dict[str, Any]]  # gives the trial's metrics on validation, and more if there is more


def axes_of(choices: Iterable[str]) -> list[Point]:
    """`key=v1,v2` choices, each as the settings that it offers."""
    axes = []
    for choice in choices:
        key, equals, values = choice.partition("=")
        if not equals or not values:
            raise BadConfig(f"--try {choice}: write it as key=value,value, such as objective.temperature=0.05,0.07")
        axes.append(tuple(f"{key.strip()}={value.strip()}" for value in values.split(",")))
    return axes


def climb(choices: Iterable[str], trials: int, attempt: Callable[[Point], float]) -> None:
    """Tries the first values of all choices, then one choice after another: its other values on top of the best so far.

    `attempt` gives a point's metric. A point after the first whose settings do not go together costs no trial. It ends
    after so many trials, or with a round over all choices that had nothing new to try.
    """
    axes = axes_of(choices)
    best = tuple(axis[0] for axis in axes)
    highest, tried, left = attempt(best), {best}, trials - 1
    known = 0
    while known < len(tried):
        known = len(tried)
        for number, axis in enumerate(axes):
            for value in axis:
                point = (*best[:number], value, *best[number + 1 :])
                if point in tried or left == 0:
                    continue
                tried.add(point)
                try:
                    reached = attempt(point)
                except BadConfig:
                    continue
                left -= 1
                if reached > highest:
                    best, highest = point, reached


def choices_of(config: RunConfig) -> list[str]:
    """What is tried when nothing else is said, the likeliest gains first: labels' texts as queries, other mixes of the
    parts, a vector for each label, longer training, and values around the recipe's temperature and learning rate."""
    query, as_queries = config.encoder.query, config.data.label_queries
    kinds = ",".join(sorted(("sum", "concat", "frozen"), key=lambda kind: kind != query.kind))  # its own comes first
    is_mixed = isinstance(query, PartsTower) and query.frozen
    mixes = [f"encoder.query.kind={kinds}", "encoder.label.table=none,{}"] if is_mixed else []
    own = query.learning_rate  # where a tower has its own rate, the optimizer's would change nothing
    rate = ("encoder.query.learning_rate", own) if own else ("optimizer.learning_rate", config.optimizer.learning_rate)
    around = [
        ("training.epochs", config.training.epochs, _EPOCHS),
        ("objective.temperature", config.objective.temperature, _TEMPERATURES),
        (*rate, _RATES),
    ]
    return [
        f"data.label_queries={as_queries!r},{0.0 if as_queries else 0.1!r}",
        *mixes,
        *(f"{key}={now!r}," + ",".join(f"{now * by:.2g}" for by in factors[1:]) for key, now, factors in around),
    ]


def with_transformer(point: Point, batch_size: int) -> Point:
    """The same with one more part for queries: the transformer, trained; labels go without it.

    Batches are as large as without it, or smaller.
    """
    bag = ("encoder.query.static=none", "encoder.label.static=none") if "encoder.query.kind=frozen" in point else ()
    others = tuple(setting for setting in point if not setting.startswith("encoder.query.kind="))
    return (*others, *bag, *TRANSFORMER, f"training.batch_size={min(batch_size, LARGEST_BATCH)}")


class Trials:
    """The finished trials of a search, each a line of a file; what is there is not run again."""

    def __init__(self, file: Path, metric: str, notice: Notice) -> None:
        self._file, self._metric, self._notice = file, metric, notice
        self.tried: dict[str, dict[str, Any]] = {}  # in this search, by identity; the file may hold others
        self._lock = file.with_name(f".{file.name}.lock")  # another search may have the same file
        with locked_file(self._lock, wait=None):
            self._done = _read(file)
            # Without a line cut short by a kill, to which the next trial would be glued.
            write_atomically(file, "".join(json.dumps(trial) + "\n" for trial in self._done.values()))

    def attempt(self, candidate: Candidate) -> float:
        """The metric of these settings' trial, which is made now unless the file has it."""
        if candidate.identity not in self._done:
            self._notice(f"trying {' '.join(candidate.settings) or 'its own settings'}")
            began = time.monotonic()
            try:
                outcome = candidate.run()
            except Stopped as stopped:
                kept = f"stopped; {len(self._done):,} finished trials are kept in {self._file}"
                raise Stopped(f"{kept}: the same command goes on from there", signal=stopped.signal) from None
            about = {"settings": list(candidate.settings), **outcome, "seconds": round(time.monotonic() - began, 1)}
            self._done[candidate.identity] = trial = {**about, "identity": candidate.identity}
            with locked_file(self._lock, wait=None), self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(trial) + "\n")
            step = f" at step {trial['best_step']}" if "best_step" in trial else ""
            self._notice(f"  {self._metric} {self.metric_of(trial):.2f}{step}")
        self.tried[candidate.identity] = self._done[candidate.identity]
        return self.metric_of(self.tried[candidate.identity])

    def metric_of(self, trial: dict[str, Any]) -> float:
        return float(trial["metrics"][self._metric])

    def best_first(self) -> list[dict[str, Any]]:
        return sorted(self.tried.values(), key=lambda trial: -self.metric_of(trial))


def tune(
    recipe: str,
    output: Path,
    *,
    overrides: Point = (),
    source: str | None = None,
    choices: Sequence[str] = (),
    trials: int | None = None,
    observer: Observer,
) -> list[dict[str, Any]]:
    """Every combination of the choices, or so many trials by climbing, best first; the file may hold others, too."""
    own = resolve(recipe, overrides, source)
    found = Trials(output, own.evaluation.metric, observer.notice)

    def attempt(point: Point) -> float:
        settings = (*overrides, *point)
        return found.attempt(candidate(settings, resolve(recipe, settings, source), observer))

    if choices and trials is None:
        for point in itertools.product(*axes_of(choices)):
            attempt(point)
    else:
        climb(choices or choices_of(own), trials or USUAL_TRIALS, attempt)
    return found.best_first()


def candidate(point: Point, config: RunConfig, observer: Observer) -> Candidate:
    """A trial of a recipe, ready to run."""
    if config.data.fit_on != "train":
        raise BadConfig('tuning needs a validation split: set data.fit_on="train"')
    metric = config.evaluation.metric

    def run() -> dict[str, Any]:
        try:
            built = build_run(config, workspace=None, observer=observer)
            state = built.loop.run()
            evaluations, weights = state.evaluations, weigh_parts(built, metric, World())
        except Diverged as problem:
            observer.notice(str(problem))
            evaluations, weights = [{"step": None, "metrics": {metric: 0.0}}], {}
        if weights and built.loop.evaluate is not None:
            evaluations = [*evaluations, {"step": state.step, "metrics": built.loop.evaluate()}]
        own = evaluations[-1:] if weights else []  # of equal ones, the weighed is the best, and then the first
        best = max([*own, *evaluations], key=lambda evaluation: float(evaluation["metrics"][metric]))
        course = [(evaluation["step"], round(evaluation["metrics"][metric], 2)) for evaluation in evaluations]
        then = as_settings(weights) if best in own else []
        return {"metrics": best["metrics"], "best_step": best["step"], "course": course, "then": then}

    return Candidate(point, identify(config, open_dataset(config.data.source).fingerprint), run)


def as_settings(weights: Mapping[str, float]) -> list[str]:
    """Weights of parts that validation chose after training, for a fit that has no validation left."""
    return [f"encoder.query.{name}.weight={weight:.3g}" for name, weight in weights.items()]


def identify(config: RunConfig, data: str) -> str:
    """One name for all configurations that give the same trial, wherever the data lies and however many threads run."""
    elsewhere: Any = {"name": True, "data": {"source"}, "training": {"threads", "trackers"}}
    settings = config.model_dump(mode="json", exclude=elsewhere)
    settings["encoder"]["label"] = config.encoder.label_tower.model_dump(mode="json")
    return digest_of([settings, data])[:16]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """An earlier search's trials by identity; its last line may be cut short, and then that trial runs again."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    trials: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            trial = json.loads(line)
            trials[trial["identity"]] = trial
        except (ValueError, KeyError, TypeError):
            if number < len(lines) or not line.startswith('{"settings"'):
                raise BadFile(path, "is not a trial of `umpteen tune`; give another --output", line=number) from None
    return trials
