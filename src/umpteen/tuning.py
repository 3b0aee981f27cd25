"""Tries settings of a recipe on validation; every finished trial is a line of a file, so a stopped search goes on."""

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from umpteen.assemble import Progress, build_run
from umpteen.config import RunConfig, checked, with_overrides
from umpteen.errors import BadConfig, Diverged, Stopped
from umpteen.storage import write_atomically


def grid(choices: Iterable[str], trials: int | None, seed: int) -> list[tuple[str, ...]]:
    """`key=v1,v2` choices as a list of override tuples: all combinations, or some drawn by seed."""
    axes = []
    for choice in choices:
        key, equals, values = choice.partition("=")
        if not equals or not values:
            raise BadConfig(
                f"--try {choice}: write it as key=value,value, for instance objective.temperature=0.05,0.07"
            )
        axes.append([f"{key.strip()}={value.strip()}" for value in values.split(",")])
    points = list(itertools.product(*axes))
    return points if trials is None or trials >= len(points) else random.Random(seed).sample(points, trials)


def tune(
    config: RunConfig,
    points: list[tuple[str, ...]],
    output: Path,
    *,
    notice: Callable[[str], None],
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """One trial per point not yet in the output file; returns all trials, best first."""
    if config.data.fit_on != "train":
        raise BadConfig('tuning needs a validation split: set data.fit_on="train"')
    metric = config.evaluation.metric
    settings = config.model_dump(mode="json", exclude_none=True)
    trials = [checked(with_overrides(settings, point), origin="--try") for point in points]
    done = {trial["identity"]: trial for trial in _read(output)}
    # Without a line cut short by a kill, to which the next trial would be glued.
    write_atomically(output, "".join(json.dumps(trial) + "\n" for trial in done.values()))
    for number, (point, trial_config) in enumerate(zip(points, trials, strict=True), 1):
        identity = trial_config.model_dump_json()
        if identity in done:
            continue
        notice(f"trial {number} of {len(points)}: {' '.join(point)}")
        began = time.monotonic()
        try:
            run = build_run(trial_config, workspace=None, progress=progress)
            evaluations = run.loop.run().evaluations
        except Stopped as stopped:
            kept = f"stopped; {len(done):,} finished trials are kept in {output}: the same command goes on from there"
            raise Stopped(kept, signal=stopped.signal) from None
        except Diverged as problem:
            notice(str(problem))
            evaluations = [{"step": None, "metrics": {metric: 0.0}}]
        best = max(evaluations, key=lambda evaluation: float(evaluation["metrics"][metric]))
        done[identity] = {
            "settings": list(point),
            "metrics": best["metrics"],
            "best_step": best["step"],
            "course": [(evaluation["step"], round(evaluation["metrics"][metric], 2)) for evaluation in evaluations],
            "seconds": round(time.monotonic() - began, 1),
            "identity": identity,
        }
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[identity]) + "\n")
        notice(f"  {metric} {best['metrics'][metric]:.2f} at step {best['step']}")
    return sorted(done.values(), key=lambda trial: -float(trial["metrics"][metric]))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    trials = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            trials.append(json.loads(line))
        except ValueError:
            continue  # cut short by a kill: the trial runs again
    return trials
