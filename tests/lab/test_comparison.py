import json
from pathlib import Path

import numpy as np
import pytest
from lab.comparison import BY_QUERY, Outcomes, claim_folder, finish_runs, signed, written
from lab.estimate import verdict
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
    difference = outcomes.difference("ours", "theirs", "P@1").figures()
    assert difference["mean"] == pytest.approx(1.033, abs=1e-3)
    assert difference["interval"] == pytest.approx([0.890, 1.177], abs=1e-3)
    claim = claim_better(outcomes, "ours is better", "ours", "theirs", "P@1", paper="said")
    assert claim.verdict == "confirmed" and claim.ours.startswith("P@1 31.0 ")
    assert (
        signed(difference) == "+1.03 (+0.89 to +1.18)" and signed({"mean": 2.0, "interval": None}) == "+2.00, one seed"
    )
    assert claim_better(outcomes, "theirs is better", "theirs", "ours", "P@1", paper="said").verdict == "refuted"


def test_the_best_of_all_is_compared_with_every_rival() -> None:
    outcomes = outcomes_of(ours=[50.0, 51.0, 52.0], weak=[10.0, 10.0, 10.0], strong=[51.0, 51.0, 51.0])
    claim = claim_best(outcomes, "ours is the best", "ours", "P@1", paper="said")
    assert claim.verdict == "undecided" and "to strong" in claim.ours and "to weak" in claim.ours
    assert claim.difference == outcomes.difference("ours", "strong", "P@1").figures()
    assert outcomes.best("P@1", among=["weak", "ours"]) == "ours"


def test_where_runs_kept_their_queries_differences_are_paired_by_query_and_other_queries_count() -> None:
    hard = 100.0 * (np.arange(40) % 2)  # what both variants find, query by query
    runs = [
        {"variant": variant, "seed": seed, "P@1": 0.0, BY_QUERY: {"P@1": (hard + gain + 0.1 * seed).tolist()}}
        for variant, gain in (("ours", 1.0 + np.arange(40) / 40), ("theirs", 0.0))
        for seed in (0, 1)
    ]
    found = Outcomes(runs).difference("ours", "theirs", "P@1")
    assert found.mean == pytest.approx(1.4875)
    # The seeds agree to the last digit; only which queries were drawn could have moved the mean.
    assert found.error == pytest.approx(np.std(np.arange(40) / 40, ddof=1) / np.sqrt(40))


def test_intervals_of_percentages_end_at_100() -> None:
    assert outcomes_of(ours=[98.0, 99.0, 100.0]).mean("ours", "P@1")["interval"][1] == 100
