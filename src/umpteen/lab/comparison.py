"""Two objectives, the same seeds: every finished run is kept, and the difference is judged over the seeds."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from umpteen.errors import BadFile, BadInput
from umpteen.storage import write_atomically

Interval = tuple[float, float]


def claim_folder(output: Path, settings: dict[str, Any]) -> None:
    """The folder belongs to these settings from now on; one that belongs to others is refused."""
    file = output / "settings.json"
    written = json.loads(json.dumps(settings))
    if not file.exists():
        write_atomically(file, json.dumps(written, indent=1) + "\n")
        return
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, OSError) as problem:
        raise BadFile(file, f"cannot be read ({problem}); give another --output") from None
    if found != written:
        different = sorted(key for key in {*found, *written} if found.get(key) != written.get(key))
        raise BadInput(
            f"{output} holds runs with other settings ({', '.join(different)}); give another --output, or remove it"
        )


def finish_runs(
    output: Path,
    runs: Sequence[tuple[str, int]],
    make: Callable[[str, int], dict[str, Any]],
    notice: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The outcome of every (objective, seed): read where it is finished, made and stored where it is not."""
    outcomes = []
    for number, (objective, seed) in enumerate(runs, 1):
        file = output / "runs" / f"{objective}-{seed}.json"
        if file.exists():
            notice(f"run {number} of {len(runs)}: {objective}, seed {seed} is finished already")
        else:
            notice(f"run {number} of {len(runs)}: {objective}, seed {seed}")
            write_atomically(file, json.dumps(make(objective, seed), indent=1) + "\n")
        try:
            outcomes.append(json.loads(file.read_bytes()))
        except ValueError as problem:
            raise BadFile(file, f"is not JSON ({problem}); remove it, and the run is made again") from None
    return outcomes


def over_seeds(values: Sequence[float], *, within: Interval | None = None) -> dict[str, Any]:
    """The mean with Student's 95 % interval, cut to the possible values; a single seed has no interval."""
    mean = float(np.mean(values))
    interval = None
    if len(values) > 1:
        half = float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
        low, high = within or (-np.inf, np.inf)
        interval = [round(max(low, mean - half), 3), round(min(high, mean + half), 3)]
    return {"mean": round(mean, 3), "interval": interval}


def written(figures: dict[str, Any], unit: str) -> str:
    """A mean and its interval for people."""
    value = f"{figures['mean']:.1f}{unit}"
    return f"{value} ({figures['interval'][0]:.1f} to {figures['interval'][1]:.1f})" if figures["interval"] else value


def verdict(difference: Sequence[float] | None) -> str:
    """What the interval of ours − theirs says to the claim that ours is better."""
    if difference is None or difference[0] <= 0 <= difference[1]:
        return "undecided"
    return "confirmed" if difference[0] > 0 else "refuted"
