"""A temperature for each objective, tried on validation: none has to run with what was chosen for another."""

from typing import Any

from lab.comparison import finish_runs
from lab.training import Workbench

TRIED = (0.03, 0.05, 0.1)


def chosen_temperature(bench: Workbench, variant: str) -> float | None:
    """The one that is best on validation with seed 0, by the variant's own metric; None, the recipe's, for tiny.

    Trials are kept like runs, in a folder of their own, and never look at test.
    """
    if bench.setup.size == "tiny":
        return None

    def make(trial: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed, f"objective.temperature={trials[trial]}")
        return {"validation": trained.state.best_value, "metric": trained.config.evaluation.metric}

    trials = {f"{variant}, temperature {temperature}": temperature for temperature in TRIED}
    runs = [(trial, 0) for trial in trials]
    outcomes = finish_runs(bench.setup.output / "trials", runs, make, bench.setup.notice, what="trial")
    best = max(outcomes, key=lambda outcome: float(outcome["validation"]))
    return trials[best["variant"]]
