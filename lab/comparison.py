"""Variants under the same seeds and queries: every finished run is kept, differences are judged over both."""

import gc
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.estimate import Estimate, Figures
from umpteen.errors import BadFile, BadInput
from umpteen.files.progress import Notice
from umpteen.files.storage import write_atomically

BY_QUERY = "by_query"  # where a run keeps a measure of each test query, in percent: {"P@1": […], …}


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
    notice: Notice,
    *,
    what: str = "run",
) -> list[dict[str, Any]]:
    """The outcome of every (variant, seed): read where it is finished, made and stored where it is not."""
    outcomes = []
    for number, (variant, seed) in enumerate(runs, 1):
        file = output / "runs" / f"{_as_file_name(variant)}-{seed}.json"
        if file.exists():
            notice(f"{what} {number} of {len(runs)}: {variant}, seed {seed} is finished already")
        else:
            notice(f"{what} {number} of {len(runs)}: {variant}, seed {seed}")
            outcome = {"variant": variant, "seed": seed, **make(variant, seed)}
            write_atomically(file, json.dumps(outcome, indent=1) + "\n")
            gc.collect()  # a run and what watches it hold each other, gigabytes that would wait for chance
        try:
            outcomes.append(json.loads(file.read_bytes()))
        except ValueError as problem:
            raise BadFile(file, f"is not JSON ({problem}); remove it, and the run is made again") from None
    return outcomes


def _as_file_name(variant: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", variant)


class Outcomes(Sequence[dict[str, Any]]):
    """All runs of an experiment, and what they say over the seeds."""

    def __init__(self, runs: Iterable[dict[str, Any]]) -> None:
        runs = list(runs)
        self.variants = list(dict.fromkeys(run["variant"] for run in runs))
        self._runs = sorted(runs, key=lambda run: run["seed"])

    def __getitem__(self, place: Any) -> Any:
        return self._runs[place]

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def seeds(self) -> int:
        return len({run["seed"] for run in self._runs})

    def values(self, variant: str, measure: str) -> list[Any]:
        """What a variant's runs measured, in the order of the seeds."""
        return [run[measure] for run in self._runs if run["variant"] == variant]

    def mean(self, variant: str, measure: str, *, within: tuple[float, float] | None = None) -> Figures:
        """The mean over the seeds with its interval; that of P@1, R@10, … stays between 0 and 100."""
        possible = (0, 100) if "@" in measure else within or (-np.inf, np.inf)
        return Estimate.of(self.samples(variant, measure)).figures(possible)

    def difference(self, ours: str, theirs: str, measure: str) -> Estimate:
        """Ours − theirs, paired by seed and, where runs kept their queries, by query: what both share cancels out."""
        return Estimate.of(self.samples(ours, measure) - self.samples(theirs, measure))

    def samples(self, variant: str, measure: str) -> NDArray[np.float64]:
        """What the runs of a variant measured, of each query if all runs kept that."""  # [seeds] or [seeds, queries]
        if all(measure in run.get(BY_QUERY, ()) for run in self._runs):
            return np.array([run[BY_QUERY][measure] for run in self._runs if run["variant"] == variant])
        return np.array(self.values(variant, measure), dtype=np.float64)

    def best(self, measure: str, *, among: Iterable[str] | None = None) -> str:
        """The variant with the highest mean."""
        return max(among or self.variants, key=lambda variant: float(self.mean(variant, measure)["mean"]))

    def table(self, measures: Sequence[str]) -> list[dict[str, Any]]:
        """One row per variant: the mean and interval of every measure."""
        return [
            {"variant": variant, **{measure: self.mean(variant, measure) for measure in measures}}
            for variant in self.variants
        ]


def written(figures: Figures, unit: str = "") -> str:
    """A mean and its interval for people, small numbers with a digit more."""
    digits = 1 if abs(figures["mean"]) >= 10 else 2
    value = f"{figures['mean']:.{digits}f}{unit}"
    if figures["interval"] is None:
        return value
    low, high = figures["interval"]
    return f"{value} ({low:.{digits}f} to {high:.{digits}f})"


def signed(difference: Figures) -> str:
    """A difference and its interval for people."""
    if difference["interval"] is None:
        return f"{difference['mean']:+.2f}, one seed"
    low, high = difference["interval"]
    return f"{difference['mean']:+.2f} ({low:+.2f} to {high:+.2f})"
