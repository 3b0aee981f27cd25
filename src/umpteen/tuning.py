"""Tries settings of a recipe on validation; every finished trial is a line of a file, so a stopped search goes on."""

import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from umpteen.assemble import Progress, build_run
from umpteen.config import RunConfig
from umpteen.data.dataset import open_dataset
from umpteen.errors import BadConfig, BadFile, Diverged, Stopped
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


Trial = tuple[tuple[str, ...], RunConfig]  # what was set on top of the recipe, and what came out


def tune(
    trials: list[Trial], output: Path, *, notice: Callable[[str], None], progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Runs each trial that is not yet in the output file; returns all that are there, best first."""
    if any(config.data.fit_on != "train" for _, config in trials):
        raise BadConfig('tuning needs a validation split: set data.fit_on="train"')
    metric = trials[0][1].evaluation.metric
    done = {trial["identity"]: trial for trial in _read(output)}
    # Without a line cut short by a kill, to which the next trial would be glued.
    write_atomically(output, "".join(json.dumps(trial) + "\n" for trial in done.values()))
    for number, (point, config) in enumerate(trials, 1):
        identity = identify(config, open_dataset(config.data.source).fingerprint)
        if identity in done:
            continue
        notice(f"trial {number} of {len(trials)}: {' '.join(point)}")
        began = time.monotonic()
        try:
            run = build_run(config, workspace=None, progress=progress)
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
