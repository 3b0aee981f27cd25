from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.choosing import MOST, Chosen, Place, chosen_settings, climb
from lab.experiment import Setup


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
