"""What an experiment is, and the one way to run it.

An experiment is a module with a function `begin(setup: Setup) -> Job`, listed in `lab.EXPERIMENTS`. `begin`
opens what the experiment needs and refuses what cannot be run; it trains nothing and writes nothing but data into
`setup.output`. The Job it returns says

- `settings`: what the numbers depend on but for the seeds; a folder with other settings is refused, not mixed,
- `variants`: the names of what is compared; every variant is run once with each of the seeds 0, 1, …,
- `make(variant, seed)`: one run, as a dictionary for JSON; its numbers are what `conclude` averages,
- `conclude(outcomes)`: the claims with their verdicts, a table with intervals, a paragraph, and the figure.

`run` does the rest: every finished run is kept as output/runs/VARIANT-SEED.json, so that the same command goes on
after a kill and loses at most one run; results.json, NAME.svg and NAME.png stand in the folder at the end. A run that
measures on test does it once, after validation has chosen.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from lab.comparison import BY_QUERY, Outcomes, claim_folder, finish_runs, signed, written
from lab.estimate import Estimate, Figures, best_of_all, verdict
from lab.figures import Panel, draw
from umpteen import __version__
from umpteen.errors import BadInput, Stopped
from umpteen.files.progress import Notice, Progress
from umpteen.files.storage import write_atomically

Choice = TypeVar("Choice")

SIZES = ("tiny", "small", "paper")


@dataclass(frozen=True)
class Setup:
    """What one command asked for."""

    name: str  # of the experiment
    size: str
    output: Path
    source: str | None = None  # a dataset folder or the name of a bundled one; None: the experiment's own choice
    encoder: str | None = None  # None: the size's own
    seeds: int = 3
    notice: Notice = lambda message: None
    progress: Progress = lambda name, done, total: None
    model: str | None = None  # generation: the folder of a causal language model; None: a small one made in the run

    def __post_init__(self) -> None:
        chosen("size", self.size, dict.fromkeys(SIZES))
        if self.seeds < 1:
            raise BadInput(f"--seeds {self.seeds}: at least one run of each variant is needed")
        if self.model is not None and self.name != "generation":
            raise BadInput(f"--model {self.model}: only generation takes a language model; leave it out")


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, and what our runs say to it."""

    claim: str
    paper: str  # the figures it rests on there
    verdict: str  # confirmed, refuted, undecided
    ours: str  # our figures, for people
    difference: Figures | None = None  # the claim holds if this is above 0, and fails if it is below

    @classmethod
    def of(cls, claim: str, paper: str, ours: str, difference: Estimate) -> "Claim":
        """The claim that a difference is above 0."""
        return cls(claim, paper, verdict(difference.interval), ours, difference.figures())


@dataclass(frozen=True)
class Conclusion:
    claims: Sequence[Claim]  # the first is the experiment's main one
    results: Any  # the table: means with intervals, for JSON
    summary: str  # a paragraph that compares with the paper
    title: str  # of the figure
    panels: Sequence[Panel]  # of the figure


@dataclass(frozen=True)
class Job:
    """An experiment that is ready to run; the module's docstring says what its parts are."""

    settings: Mapping[str, Any]
    variants: Sequence[str]
    make: Callable[[str, int], dict[str, Any]]
    conclude: Callable[[Outcomes], Conclusion]
    data: str = "made in the run"  # the dataset's name
    bulky: Sequence[str] = ()  # what runs keep for `conclude` and results.json can do without


Begin = Callable[[Setup], Job]


def run(begin: Begin, setup: Setup) -> dict[str, Any]:
    """Makes the runs that are not yet in the folder; leaves results.json and the figure there, returns the results."""
    job = begin(setup)
    claim_folder(setup.output, dict(job.settings))

    def make(variant: str, seed: int) -> dict[str, Any]:
        began = time.monotonic()
        try:
            outcome = job.make(variant, seed)
        except Stopped as stopped:
            message = f"stopped during {variant}, seed {seed}; finished runs are kept: the same command goes on"
            raise Stopped(message, signal=stopped.signal) from None
        return {**outcome, "seconds": round(time.monotonic() - began, 1)}

    runs = [(variant, seed) for seed in range(setup.seeds) for variant in job.variants]
    outcomes = Outcomes(finish_runs(setup.output, runs, make, setup.notice))
    conclusion = job.conclude(outcomes)
    main = conclusion.claims[0]
    results = {
        "experiment": setup.name,
        "claim": main.claim,
        "verdict": main.verdict,
        "summary": conclusion.summary,
        "claims": [asdict(claim) for claim in conclusion.claims],
        "results": conclusion.results,
        "data": job.data,
        "size": setup.size,
        "seeds": setup.seeds,
        "seconds": round(sum(outcome["seconds"] for outcome in outcomes), 1),
        "command": command_of(setup, job.data),
        "settings": dict(job.settings),
        "version": __version__,
        "runs": [{key: value for key, value in run.items() if key not in (*job.bulky, BY_QUERY)} for run in outcomes],
    }
    write_atomically(setup.output / "results.json", json.dumps(results, indent=1) + "\n")
    draw(setup.output / setup.name, conclusion.panels, title=conclusion.title, notice=setup.notice)
    return results


def command_of(setup: Setup, data: str) -> str:
    """What gives these results again, the dataset by its name wherever it lies."""
    asked = {"data": data if setup.source else None, "size": setup.size, "encoder": setup.encoder}
    options = asked | {"model": setup.model, "seeds": setup.seeds}
    given = " ".join(f"--{name} {value}" for name, value in options.items() if value)
    return f"python -m lab run {setup.name} {given}"


def claim_better(
    outcomes: Outcomes, claim: str, ours: str, theirs: str, measure: str, *, paper: str, unit: str = ""
) -> Claim:
    """The claim that one variant's measure is above another's, judged by differences paired by seed and query."""
    figures = (
        f"{measure} {written(outcomes.mean(ours, measure), unit)} for {ours}; "
        f"{written(outcomes.mean(theirs, measure), unit)} for {theirs}"
    )
    return Claim.of(claim, paper, figures, outcomes.difference(ours, theirs, measure))


def claim_best(
    outcomes: Outcomes, claim: str, ours: str, measure: str, *, paper: str, among: Iterable[str] | None = None
) -> Claim:
    """The claim that one variant's measure is above all others': each rival is tested, corrected for their number."""
    rivals = [variant for variant in among or outcomes.variants if variant != ours]
    differences = {rival: outcomes.difference(ours, rival, measure) for rival in rivals}
    decided, leads = best_of_all(differences)
    nearest = min(differences.values(), key=lambda difference: difference.mean)
    each = "; ".join(
        f"{signed(difference.figures())} to {rival} (p of its lead {leads[rival]:.3f})"
        for rival, difference in differences.items()
    )
    figures = f"{measure} {written(outcomes.mean(ours, measure))} for {ours}; {each}; p by Holm"
    return Claim(claim, paper, decided, figures, nearest.figures())


def chosen(what: str, name: str, choices: Mapping[str, Choice]) -> Choice:
    """The choice of this name, or an error that lists the known ones."""
    if name not in choices:
        raise BadInput(f"--{what} {name}: known are {', '.join(choices)}")
    return choices[name]
