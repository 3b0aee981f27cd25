"""Temperature, learning rate and length of training of each variant, found on validation: none runs with another's."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab.comparison import Outcomes, finish_runs
from lab.experiment import Claim
from lab.training import Trained, Workbench
from umpteen.errors import BadInput, Diverged

RATE = "optimizer.learning_rate"
FACTORS = {"objective.temperature": 1.6, RATE: 2.0, "training.epochs": 2.0}  # of one step each
MOST = 24  # trials of a variant; one that is not settled by then decides nothing

Place = tuple[int, ...]  # steps of each knob from where it began


@dataclass(frozen=True)
class Chosen:
    """What a variant runs with, on top of its own settings."""

    settings: tuple[str, ...]
    settled: bool  # one step more or less of every knob was tried and is no better
    trained: Trained | None = field(default=None, compare=False)  # with them and seed 0, if that was just now


def chosen_settings(bench: Workbench, variant: str, factors: Mapping[str, float] = FACTORS) -> Chosen:
    """The best on validation with seed 0, by the variant's own metric; the recipe's own for the size tiny.

    Trials are kept like runs, in a folder of their own, and never look at test.
    """
    if bench.setup.size == "tiny":
        return Chosen((), settled=False)
    own = bench.config(variant, 0)
    if own.training.steps is not None or own.training.minutes is not None:
        raise BadInput(
            f"{bench.recipe} ends after so many steps or minutes, so epochs cannot be chosen; train by epochs: "
            "--encoder static or minilm-short, or a recipe with training.steps and training.minutes left out"
        )
    start = {
        "objective.temperature": own.objective.temperature,
        RATE: own.optimizer.learning_rate,
        "training.epochs": own.training.epochs,
    }

    def settings_at(place: Place) -> tuple[str, ...]:
        knobs = zip(factors.items(), place, strict=True)
        return tuple(f"{name}={start[name] * factor**steps:.6g}" for (name, factor), steps in knobs)

    highest: list[tuple[float, Trained]] = []  # at most one: the best of those that were trained just now

    def value_at(place: Place) -> float:
        def make(trial: str, seed: int) -> dict[str, Any]:
            try:
                trained = bench.train(variant, seed, *settings_at(place))
            except Diverged as problem:
                return {"validation": 0.0, "diverged": str(problem)}
            value = float(trained.state.best_value or 0.0)
            if not highest or value > highest[0][0]:
                highest[:] = [(value, trained)]
            return {"validation": value, "metric": trained.config.evaluation.metric}

        trial = f"{variant}, {', '.join(settings_at(place))}"
        [outcome] = finish_runs(bench.setup.output / "trials", [(trial, 0)], make, bench.setup.notice, what="trial")
        return float(outcome["validation"])

    best, settled = climb(value_at, len(factors), MOST)
    wanted = bench.config(variant, 0, *settings_at(best))
    return Chosen(settings_at(best), settled, next((one for _, one in highest if one.config == wanted), None))


def train_chosen(
    bench: Workbench, variant: str, seed: int, factors: Mapping[str, float] = FACTORS
) -> tuple[Trained, dict[str, Any]]:
    """A run of the variant with settings of its own, and what a run keeps of how they were chosen."""
    own = chosen_settings(bench, variant, factors)
    trained = own.trained if seed == 0 and own.trained else bench.train(variant, seed, *own.settings)
    return trained, {"chosen": list(own.settings), "settled": own.settled}


def only_settled(claims: Iterable[Claim], outcomes: Outcomes) -> list[Claim]:
    """The claims, undecided where a variant did not find its settings."""
    if all(run["settled"] for run in outcomes):
        return list(claims)
    return [replace(claim, verdict="undecided") for claim in claims]


def climb(value_at: Callable[[Place], float], knobs: int, most: int) -> tuple[Place, bool]:
    """The place from which no step of one knob leads higher, and whether it was reached within so many trials.

    One knob after another is turned as long as that helps, so the best never lies at the edge of what was tried.
    """
    best: Place = (0,) * knobs
    values = {best: value_at(best)}
    knob, at_rest = 0, 0  # knobs in a row that lead no higher
    while at_rest < knobs:
        sides = [(*best[:knob], best[knob] + way, *best[knob + 1 :]) for way in (1, -1)]
        for place in sides:
            if place not in values:
                if len(values) == most:
                    return best, False
                values[place] = value_at(place)
        higher = max(sides, key=lambda place: values[place])
        if values[higher] > values[best]:
            best, at_rest = higher, 0
        else:
            knob, at_rest = (knob + 1) % knobs, at_rest + 1
    return best, True
