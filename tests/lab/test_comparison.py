import json
from pathlib import Path

import pytest
from lab.comparison import Outcomes, claim_folder, finish_runs, over_seeds, signed, verdict, written
from lab.experiment import claim_best, claim_better

from umpteen.errors import BadFile, BadInput

RUNS = [("a", 0), ("b", 0)]


def test_a_finished_run_is_never_repeated(tmp_path: Path) -> None:
    made: list[tuple[str, int]] = []
    heard: list[str] = []

    def make(variant: str, seed: int) -> dict[str, object]:
        made.append((variant, seed))
        if len(made) == 2:
            raise KeyboardInterrupt
        return {"number": len(made)}

    with pytest.raises(KeyboardInterrupt):
        finish_runs(tmp_path, RUNS, make, notice=heard.append)
    outcomes = finish_runs(tmp_path, RUNS, make, notice=heard.append)
    assert made == [("a", 0), ("b", 0), ("b", 0)]
    assert outcomes == [{"variant": "a", "seed": 0, "number": 1}, {"variant": "b", "seed": 0, "number": 3}]
    assert finish_runs(tmp_path, RUNS, make, notice=heard.append) == outcomes
    assert len(made) == 3
    assert heard[-1] == "run 2 of 2: b, seed 0 is finished already"


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a-0.json").write_text('{"variant"')
    with pytest.raises(BadFile, match=r"a-0\.json: is not JSON .* remove it"):
        finish_runs(tmp_path, RUNS, lambda variant, seed: {}, notice=lambda message: None)


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


def outcomes_of(**measured: list[float]) -> Outcomes:
    """P@1 by variant and seed, the seeds out of order, as files may be."""
    return Outcomes(
        [
            {"variant": variant, "seed": seed, "P@1": value}
            for variant, values in measured.items()
            for seed, value in reversed(list(enumerate(values)))
        ]
    )


def test_differences_are_paired_by_seed() -> None:
    # The seeds differ by 40 points, the variants by 1 or 1.1 within each: only pairing can see it.
    outcomes = outcomes_of(ours=[11.0, 31.1, 51.0], theirs=[10.0, 30.0, 50.0])
    assert outcomes.seeds == 3 and outcomes.variants == ["ours", "theirs"]
    difference = outcomes.difference("ours", "theirs", "P@1")
    assert difference["mean"] == pytest.approx(1.033, abs=1e-3)
    assert difference["interval"] == pytest.approx([0.890, 1.177], abs=1e-3)
    claim = claim_better(outcomes, "ours is better", "ours", "theirs", "P@1", paper="said")
    assert claim.verdict == "confirmed" and claim.ours.startswith("P@1 31.0 ")
    assert (
        signed(difference) == "+1.03 (+0.89 to +1.18)" and signed({"mean": 2.0, "interval": None}) == "+2.00, one seed"
    )
    assert claim_better(outcomes, "theirs is better", "theirs", "ours", "P@1", paper="said").verdict == "refuted"


def test_the_best_of_all_is_compared_with_its_strongest_rival() -> None:
    outcomes = outcomes_of(ours=[50.0, 51.0, 52.0], weak=[10.0, 10.0, 10.0], strong=[51.0, 51.0, 51.0])
    claim = claim_best(outcomes, "ours is the best", "ours", "P@1", paper="said")
    assert claim.verdict == "undecided" and "for strong" in claim.ours
    assert outcomes.best("P@1", among=["weak", "ours"]) == "ours"


def test_intervals_of_percentages_end_at_100() -> None:
    assert outcomes_of(ours=[98.0, 99.0, 100.0]).mean("ours", "P@1")["interval"][1] == 100
