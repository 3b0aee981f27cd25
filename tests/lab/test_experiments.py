from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract import assert_contract
from lab.experiment import Setup, run
from lab.report import write_report

from lab import EXPERIMENTS, named
from umpteen.errors import BadInput

Finished = Callable[[str], tuple[Path, Any]]


# Those that are killed and resumed in a test of their own are held against the contract there; trainers needs more.
ELSEWHERE = ("generation", "memorisation", "trainers")


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ELSEWHERE])
def test_every_experiment_has_a_tiny_size_that_leaves_what_the_contract_says(name: str, finished: Finished) -> None:
    assert_contract(name, *finished(name))


def test_a_killed_run_goes_on_after_the_finished_ones(tmp_path: Path, part_of_nouns: Path) -> None:
    heard: list[str] = []
    setup = Setup("seeds", "tiny", tmp_path, str(part_of_nouns), seeds=2, notice=heard.append)

    class Killed(BaseException):
        pass

    def kill(name: str, done: int, total: int) -> None:
        if name.endswith("seed 1"):
            raise Killed

    with pytest.raises(Killed):
        run(named("seeds"), Setup("seeds", "tiny", tmp_path, str(part_of_nouns), seeds=2, progress=kill))
    first = (tmp_path / "runs" / "decoupled-softmax-0.json").stat().st_mtime_ns
    results = run(named("seeds"), setup)
    assert heard[:3] == [
        "run 1 of 4: decoupled softmax, seed 0 is finished already",
        "run 2 of 4: softmax, seed 0 is finished already",
        "run 3 of 4: decoupled softmax, seed 1",
    ]
    assert (tmp_path / "runs" / "decoupled-softmax-0.json").stat().st_mtime_ns == first
    assert [outcome["seed"] for outcome in results["runs"]] == [0, 0, 1, 1]


def test_a_folder_of_another_experiment_is_refused(finished: Finished, part_of_nouns: Path) -> None:
    folder, _ = finished("seeds")
    with pytest.raises(BadInput, match=r"holds runs with other settings \(.*variants.*\); give another --output"):
        run(named("losses"), Setup("losses", "tiny", folder, str(part_of_nouns), seeds=1))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"size": "huge"}, "--size huge: known are tiny, small, paper"),
        ({"seeds": 0}, "--seeds 0"),
        ({"encoder": "gpt"}, "--encoder gpt: known are static, minilm"),
        ({"encoder": "minilm"}, "--size tiny trains a small static encoder"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_trained(
    tmp_path: Path, part_of_nouns: Path, settings: dict[str, Any], problem: str
) -> None:
    given = {"name": "losses", "size": "tiny", "output": tmp_path / "out", "source": str(part_of_nouns)} | settings
    with pytest.raises(BadInput, match=problem):
        run(named("losses"), Setup(**given))
    assert not (tmp_path / "out").exists()


def test_the_report_holds_every_claim_and_figure_and_nothing_from_elsewhere(finished: Finished, tmp_path: Path) -> None:
    folder, losses = finished("losses")
    _, stars = finished("token-star")
    page = tmp_path / "page.html"
    claims = write_report(folder.parent, page)
    text = page.read_text()
    shown = {claim["claim"] for claim in claims}
    for results in (losses, stars):
        assert {claim["claim"] for claim in results["claims"]} <= shown
        assert results["command"] in text
    assert text.count("<svg") >= 2
    for outside in ("<script", "src=", "<link", "@import"):
        assert outside not in text
    assert 'href="http' not in text
    names = [part.split('"')[0] for part in text.split(' id="')[1:]]
    assert len(names) == len(set(names))


def test_two_runs_of_an_experiment_have_sections_of_their_own(finished: Finished, tmp_path: Path) -> None:
    folder, _ = finished("losses")
    for name in ("static", "transformer"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file in (folder / "results.json", folder / "losses.svg"):
            (tmp_path / "runs" / name / file.name).write_bytes(file.read_bytes())
    write_report(tmp_path / "runs", tmp_path / "page.html")
    names = [part.split('"')[0] for part in (tmp_path / "page.html").read_text().split(' id="')[1:]]
    assert len(names) == len(set(names)) > 2


def test_a_folder_without_results_makes_no_report(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no results of `python -m lab run` below"):
        write_report(tmp_path, tmp_path / "page.html")
