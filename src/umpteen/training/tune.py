"""Tries settings of a recipe on validation; every finished trial is a line of a file, so a stopped search goes on."""

import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from umpteen.config.settings import RunConfig
from umpteen.data.dataset import open_dataset
from umpteen.errors import BadConfig, BadFile, Diverged, Stopped
from umpteen.files.progress import Notice, Progress
from umpteen.files.storage import write_atomically
from umpteen.training.build import build_run
from umpteen.training.observer import Observer

# Around a recipe's own learning rate and temperature; half an order of magnitude, since both act by their logarithm.
_RATES, _TEMPERATURES = (1.0, 0.33, 3.0), (1.0, 0.6, 1.6)

Trial = tuple[tuple[str, ...], RunConfig]  # what was set on top of the recipe, and what came out


class Candidate(NamedTuple):
    """Settings that may be tried: for people, for telling trials apart, and how it is done."""

    settings: tuple[str, ...]
    identity: str
    run: Callable[[], dict[str, Any]]  # gives the trial's metrics on validation, and more if there is more


def grid(choices: Iterable[str], trials: int | None, seed: int, *, own_first: bool = False) -> list[tuple[str, ...]]:
    """`key=v1,v2` choices as a list of override tuples: all combinations, or some drawn by seed.

    `own_first`: the first values are the recipe's own; that point is always among those drawn, and leads them.
    """
    axes = []
    for choice in choices:
        key, equals, values = choice.partition("=")
        if not equals or not values:
            raise BadConfig(
                f"--try {choice}: write it as key=value,value, for instance objective.temperature=0.05,0.07"
            )
        axes.append([f"{key.strip()}={value.strip()}" for value in values.split(",")])
    points = list(itertools.product(*axes))
    if trials is None or trials >= len(points):
        return points
    chance = random.Random(seed)
    return [points[0], *chance.sample(points[1:], trials - 1)] if own_first else chance.sample(points, trials)


def usual_choices(config: RunConfig) -> list[str]:
    """What is tried when nothing else is said: the recipe's learning rate and temperature, and values around them; and
    labels' texts as queries, or not."""
    own = config.encoder.query.learning_rate  # where a tower has its own rate, the optimizer's would change nothing
    rate = ("encoder.query.learning_rate", own) if own else ("optimizer.learning_rate", config.optimizer.learning_rate)
    temperature = ("objective.temperature", config.objective.temperature)
    as_queries = config.data.label_queries
    return [
        f"{key}={value!r}," + ",".join(f"{value * factor:.2g}" for factor in factors[1:])
        for (key, value), factors in ((rate, _RATES), (temperature, _TEMPERATURES))
    ] + [f"data.label_queries={as_queries!r},{0.0 if as_queries else 0.1!r}"]


def tune(
    trials: list[Trial],
    output: Path,
    *,
    notice: Notice,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> list[dict[str, Any]]:
    """Runs each trial that is not yet in the output file; returns all that are there, best first."""
    metric = trials[0][1].evaluation.metric
    return search(candidates(trials, progress=progress, observer=observer, notice=notice), output, metric, notice)


def candidates(
    trials: Sequence[Trial],
    *,
    notice: Notice,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> list[Candidate]:
    """The trials of a recipe, each ready to run."""
    if any(config.data.fit_on != "train" for _, config in trials):
        raise BadConfig('tuning needs a validation split: set data.fit_on="train"')

    def candidate(point: tuple[str, ...], config: RunConfig) -> Candidate:
        identity = identify(config, open_dataset(config.data.source).fingerprint)
        return Candidate(point, identity, lambda: _run(config, notice, progress, observer))

    return [candidate(point, config) for point, config in trials]


def search(candidates: Sequence[Candidate], output: Path, metric: str, notice: Notice) -> list[dict[str, Any]]:
    """Runs each candidate that is not yet in the output file; returns all trials that are there, best first."""
    done = {trial["identity"]: trial for trial in _read(output)}
    # Without a line cut short by a kill, to which the next trial would be glued.
    write_atomically(output, "".join(json.dumps(trial) + "\n" for trial in done.values()))
    for number, candidate in enumerate(candidates, 1):
        if candidate.identity in done:
            continue
        notice(f"trial {number} of {len(candidates)}: {' '.join(candidate.settings)}".rstrip(": "))
        began = time.monotonic()
        try:
            outcome = candidate.run()
        except Stopped as stopped:
            kept = f"stopped; {len(done):,} finished trials are kept in {output}: the same command goes on from there"
            raise Stopped(kept, signal=stopped.signal) from None
        seconds = round(time.monotonic() - began, 1)
        trial = {"settings": list(candidate.settings), **outcome, "seconds": seconds, "identity": candidate.identity}
        done[candidate.identity] = trial
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(trial) + "\n")
        step = f" at step {trial['best_step']}" if "best_step" in trial else ""
        notice(f"  {metric} {trial['metrics'][metric]:.2f}{step}")
    return sorted(done.values(), key=lambda trial: -float(trial["metrics"][metric]))


def _run(config: RunConfig, notice: Notice, progress: Progress | None, observer: Observer | None) -> dict[str, Any]:
    metric = config.evaluation.metric
    try:
        run = build_run(config, workspace=None, progress=progress, observer=observer)
        evaluations = run.loop.run().evaluations
    except Diverged as problem:
        notice(str(problem))
        evaluations = [{"step": None, "metrics": {metric: 0.0}}]
    best = max(evaluations, key=lambda evaluation: float(evaluation["metrics"][metric]))
    return {
        "metrics": best["metrics"],
        "best_step": best["step"],
        "course": [(evaluation["step"], round(evaluation["metrics"][metric], 2)) for evaluation in evaluations],
    }


def identify(config: RunConfig, data: str) -> str:
    """One name for all configurations that give the same trial, wherever the data lies and however many threads run."""
    settings = config.model_dump(mode="json", exclude={"name": True, "data": {"source"}, "training": {"threads"}})
    settings["encoder"]["label"] = config.encoder.label_tower.model_dump(mode="json")
    return hashlib.sha256(json.dumps([settings, data], sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path) -> list[dict[str, Any]]:
    """The trials of an earlier search; its last line may have been cut short, and then that trial runs again."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    trials: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            trial = json.loads(line)
            _ = trial["identity"]
            trials.append(trial)
        except (ValueError, KeyError, TypeError):
            if number < len(lines) or not line.startswith('{"settings"'):
                raise BadFile(path, "is not a trial of `umpteen tune`; give another --output", line=number) from None
    return trials
