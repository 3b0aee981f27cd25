from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.choosing import MOST, Chosen, Place, chosen_settings, climb, only_settled, train_chosen
from lab.comparison import Outcomes
from lab.experiment import Claim, Setup


class Bench:
    """Trains nothing: validation is best at the temperature 0.08, twice the recipe's learning rate and its epochs."""

    def __init__(self, output: Path, size: str) -> None:
        self.setup = Setup("losses", size, output)
        self.trained: list[tuple[str, ...]] = []

    def config(self, variant: str, seed: int, *settings: str) -> Any:
        return SimpleNamespace(
            settings=settings,
            evaluation=SimpleNamespace(metric="P@1"),
            objective=SimpleNamespace(temperature=0.05),
            optimizer=SimpleNamespace(learning_rate=0.01),
            training=SimpleNamespace(epochs=5.0, steps=None, minutes=None),
        )

    def train(self, variant: str, seed: int, *settings: str) -> Any:
        assert seed == 0
        self.trained.append(settings)
        temperature, rate, epochs = (float(setting.partition("=")[2]) for setting in settings)
        value = 80 - log(temperature / 0.08) ** 2 - log(rate / 0.02) ** 2 - log(epochs / 5) ** 2
        return SimpleNamespace(state=SimpleNamespace(best_value=value), config=self.config(variant, seed, *settings))


def test_settings_end_where_no_step_of_any_knob_is_better_and_no_trial_is_made_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "small")
    found = chosen_settings(bench, "SoftTop-5")  # type: ignore[arg-type]
    assert found.settled
    assert found.settings == ("objective.temperature=0.08", "optimizer.learning_rate=0.02", "training.epochs=5")
    neighbours = [
        ("objective.temperature=0.128", "objective.temperature=0.05"),
        ("optimizer.learning_rate=0.04", "optimizer.learning_rate=0.01"),
        ("training.epochs=10", "training.epochs=2.5"),
    ]
    for place, sides in enumerate(neighbours):
        for side in sides:
            assert (*found.settings[:place], side, *found.settings[place + 1 :]) in bench.trained
    made = len(bench.trained)
    assert found.trained is not None and found.trained.config.settings == found.settings  # type: ignore[attr-defined]
    assert len(set(bench.trained)) == made == len(list((tmp_path / "trials" / "runs").iterdir()))
    again = chosen_settings(bench, "SoftTop-5")  # type: ignore[arg-type]
    assert again == found and again.trained is None  # what another call has trained is not kept
    assert len(bench.trained) == made


def test_a_climb_that_never_ends_is_not_settled() -> None:
    asked: list[Place] = []

    def higher_and_higher(place: Place) -> float:
        asked.append(place)
        return float(place[0])

    best, settled = climb(higher_and_higher, 3, MOST)
    assert not settled and len(asked) == MOST and best[0] > 0


@pytest.mark.parametrize("variant", ["BCE", "softmax"])
def test_the_tiny_size_tries_nothing_and_is_not_settled(tmp_path: Path, variant: str) -> None:
    found = chosen_settings(Bench(tmp_path, "tiny"), variant)  # type: ignore[arg-type]
    assert found == Chosen((), settled=False)
    assert not any(tmp_path.iterdir())


def test_where_a_variant_found_no_settings_nothing_is_decided() -> None:
    claims = [Claim("ours is better", "80 against 70", "confirmed", "81 against 70", {"mean": 11, "interval": [9, 13]})]
    for settled, verdict in ((True, "confirmed"), (False, "undecided")):
        runs = [{"variant": "ours", "seed": 0, "settled": settled}, {"variant": "theirs", "seed": 0, "settled": True}]
        assert [claim.verdict for claim in only_settled(claims, Outcomes(runs))] == [verdict]


def test_the_run_of_the_first_seed_is_the_best_trial_and_says_what_was_chosen(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "small")
    trained, how = train_chosen(bench, "SoftTop-5", 0)  # type: ignore[arg-type]
    best = ("objective.temperature=0.08", "optimizer.learning_rate=0.02", "training.epochs=5")
    assert how == {"chosen": list(best), "settled": True} and bench.trained.count(best) == 1
    assert trained.config.settings == best  # type: ignore[attr-defined]
