from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.experiment import Setup
from lab.temperatures import TRIED, chosen_temperature

VALIDATION = dict(zip(TRIED, (50.0, 70.0, 60.0), strict=True))


class Bench:
    """Trains nothing: the temperature decides how good a run is on validation."""

    def __init__(self, output: Path, size: str) -> None:
        self.setup = Setup("losses", size, output)
        self.trained: list[str] = []

    def train(self, variant: str, seed: int, setting: str) -> Any:
        assert seed == 0
        self.trained.append(setting)
        value = VALIDATION[float(setting.removeprefix("objective.temperature="))]
        config = SimpleNamespace(evaluation=SimpleNamespace(metric="P@1"))
        return SimpleNamespace(state=SimpleNamespace(best_value=value), config=config)


def test_the_temperature_that_is_best_on_validation_is_taken_and_no_trial_is_made_twice(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "small")
    assert chosen_temperature(bench, "SoftTop-5") == 0.05  # type: ignore[arg-type]
    assert chosen_temperature(bench, "SoftTop-5") == 0.05  # type: ignore[arg-type]
    assert bench.trained == [f"objective.temperature={temperature}" for temperature in TRIED]
    assert len(list((tmp_path / "trials" / "runs").iterdir())) == 3


@pytest.mark.parametrize("variant", ["BCE", "softmax"])
def test_the_tiny_size_tries_nothing(tmp_path: Path, variant: str) -> None:
    assert chosen_temperature(Bench(tmp_path, "tiny"), variant) is None  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())
