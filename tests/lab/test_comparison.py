import json
from pathlib import Path

import pytest

from umpteen.errors import BadFile, BadInput
from umpteen.lab.comparison import claim_folder, finish_runs, over_seeds, verdict, written

RUNS = [("a", 0), ("b", 0)]


def test_a_finished_run_is_never_repeated(tmp_path: Path) -> None:
    made: list[tuple[str, int]] = []
    heard: list[str] = []

    def make(objective: str, seed: int) -> dict[str, object]:
        made.append((objective, seed))
        if len(made) == 2:
            raise KeyboardInterrupt
        return {"objective": objective, "seed": seed, "number": len(made)}

    with pytest.raises(KeyboardInterrupt):
        finish_runs(tmp_path, RUNS, make, notice=heard.append)
    outcomes = finish_runs(tmp_path, RUNS, make, notice=heard.append)
    assert made == [("a", 0), ("b", 0), ("b", 0)]
    assert [outcome["number"] for outcome in outcomes] == [1, 3]
    assert finish_runs(tmp_path, RUNS, make, notice=heard.append) == outcomes
    assert len(made) == 3
    assert heard[-1] == "run 2 of 2: b, seed 0 is finished already"


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a-0.json").write_text('{"objective"')
    with pytest.raises(BadFile, match=r"a-0\.json: is not JSON .* remove it"):
        finish_runs(tmp_path, RUNS, lambda objective, seed: {}, notice=lambda message: None)


def test_a_folder_keeps_to_its_first_settings(tmp_path: Path) -> None:
    claim_folder(tmp_path / "new", {"size": "tiny", "at": (1, 5)})
    claim_folder(tmp_path / "new", {"size": "tiny", "at": (1, 5)})
    with pytest.raises(BadInput, match=r"holds runs with other settings \(size\); give another --output"):
        claim_folder(tmp_path / "new", {"size": "small", "at": (1, 5)})
    assert json.loads((tmp_path / "new" / "settings.json").read_text())["size"] == "tiny"


def test_the_interval_is_students_and_stays_within_what_is_possible() -> None:
    # Three values with a standard deviation of 1: the half-width is 4.3027 / √3.
    figures = over_seeds([9.0, 10.0, 11.0])
    assert figures["mean"] == 10
    assert figures["interval"] == pytest.approx([10 - 2.4841, 10 + 2.4841], abs=1e-3)
    assert over_seeds([98.0, 99.0, 100.0], within=(0, 100))["interval"][1] == 100
    assert over_seeds([7.0]) == {"mean": 7.0, "interval": None}


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ([0.1, 5.0], "confirmed"),
        ([-5.0, -0.1], "refuted"),
        ([-1.0, 1.0], "undecided"),
        ([0.0, 0.0], "undecided"),
        (None, "undecided"),
    ],
)
def test_a_claim_is_decided_only_by_an_interval_without_zero(interval: list[float] | None, expected: str) -> None:
    assert verdict(interval) == expected


def test_a_figure_for_people_shows_its_interval() -> None:
    assert written({"mean": 51.04, "interval": [40.0, 62.0]}, " points") == "51.0 points (40.0 to 62.0)"
    assert written({"mean": 51.04, "interval": None}, " %") == "51.0 %"
