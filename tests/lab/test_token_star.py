import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lab.__main__ import lab
from lab.comparison import Outcomes
from lab.experiment import Setup
from lab.figures import Curve, Lines
from lab.figures import draw as draw_panels
from lab.token_star import OURS, THEIRS, begin, conclude
from lab.token_star_data import Sizes, make_dataset, whole_words

from umpteen.encoders.folder import TextTokenizer
from umpteen.errors import BadInput
from umpteen.evaluation import figures
from umpteen.evaluation.report import Evaluator, Report

SIZES = Sizes(queries=30, star_queries=7, labels=20, test_queries=11, words=4)
WORDS = [f"word{number}" for number in range(500)]


def test_t_star_stands_first_in_its_queries_last_in_label_0_and_nowhere_else() -> None:
    dataset = make_dataset(SIZES, WORDS, seed=3)
    assert dataset.validation is not None and dataset.test is not None
    star = dataset.labels.texts[0].split()[-1]
    assert len(dataset.labels.texts[0].split()) == SIZES.words + 1
    assert not {*dataset.validation.texts} & {*dataset.test.texts}
    for texts, marked in ((dataset.train.texts, 7), (dataset.validation.texts, 11), (dataset.test.texts, 11)):
        assert [text.split().index(star) for text in texts if star in text.split()] == [0] * marked
        assert all(text.split()[0] == star for text in list(texts)[:marked])
    assert sum(star in text.split() for text in dataset.labels.texts) == 1


def test_queries_with_t_star_carry_five_labels_others_one_of_the_rest_and_new_ones_label_0() -> None:
    dataset = make_dataset(SIZES, WORDS, seed=3)
    assert dataset.validation is not None and dataset.test is not None
    tagged = [dataset.train.relevance.of(query).tolist() for query in range(SIZES.queries)]
    assert tagged[:7] == [[0, 1, 2, 3, 4]] * 7
    assert all(len(labels) == 1 and 5 <= labels[0] < SIZES.labels for labels in tagged[7:])
    for new in (dataset.validation, dataset.test):
        assert [new.relevance.of(query).tolist() for query in range(11)] == [[0]] * 11


def test_the_data_follow_from_the_seed() -> None:
    first, again, other = (make_dataset(SIZES, WORDS, seed).fingerprint for seed in (1, 1, 2))
    assert first == again != other


def test_every_word_is_one_token_of_the_model() -> None:
    words = whole_words("all-MiniLM-L6-v2")
    assert len(words) == len(set(words)) > 10_000
    tokens = TextTokenizer.load("all-MiniLM-L6-v2", 128, special_tokens=False)([" ".join(words[:100])])
    assert len(tokens[0]) == 100


def test_the_tiny_experiment_runs_from_the_command_line_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, judged = Evaluator.report, list[tuple[tuple[str, ...], float]]()

    def heard(evaluator: Evaluator, *given: Any, **more: Any) -> Report:
        report = real(evaluator, *given, **more)
        judged.append((tuple(evaluator.split.texts), round(report.metrics["P@1"], 3)))
        return report

    monkeypatch.setattr(Evaluator, "report", heard)
    command = [
        "run",
        "token-star",
        "--size",
        "tiny",
        "--seeds",
        "2",
        "--json",
        "--output",
        str(tmp_path / "out"),
    ]
    first = CliRunner().invoke(lab, command, catch_exceptions=False)
    results = json.loads(first.stdout)
    assert results["verdict"] in {"confirmed", "refuted", "undecided"}
    assert [(outcome["variant"], outcome["seed"]) for outcome in results["runs"]] == [
        (OURS, 0),
        (THEIRS, 0),
        (OURS, 1),
        (THEIRS, 1),
    ]
    for outcome in results["runs"]:
        assert [point["epoch"] for point in outcome["course"]] == [0, 1, 2, 3]
        assert all(0 <= point["P@1"] <= 100 for point in outcome["course"])
    for number, outcome in enumerate(results["runs"]):  # each judges validation four times, then train, then test
        *watched, _, (asked, found) = judged[6 * number : 6 * number + 6]
        assert [value for _, value in watched] == [point["P@1"] for point in outcome["course"]]
        assert outcome["final"] == found and asked not in {texts for texts, _ in watched}
    assert len(judged) == 6 * len(results["runs"])
    starts = {(outcome["seed"], outcome["course"][0]["P@1"]) for outcome in results["runs"]}
    assert len(starts) == 2  # both objectives of a seed start from the same model and data
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    before = (tmp_path / "out" / "runs" / "softmax-1.json").stat().st_mtime_ns
    assert json.loads(CliRunner().invoke(lab, command, catch_exceptions=False).stdout) == results
    assert (tmp_path / "out" / "runs" / "softmax-1.json").stat().st_mtime_ns == before


def outcomes(ours: list[float], theirs: list[float]) -> Outcomes:
    return Outcomes(
        {"variant": variant, "seed": seed, "final": final, "final_R@5": 100, "final_on_training_queries": 100}
        | {"seconds": 1.0, "course": [{"epoch": epoch, "P@1": value} for epoch, value in enumerate([0.0, 60.0, final])]}
        for variant, finals in ((OURS, ours), (THEIRS, theirs))
        for seed, final in enumerate(finals)
    )


def test_the_verdict_and_the_summary_follow_from_the_numbers() -> None:
    found = conclude(outcomes([100.0, 99.0, 98.0], [40.0, 50.0, 45.0]), encoder="static")
    assert found.claims[0].verdict == "confirmed"
    assert found.results[0]["P@1"]["mean"] == 99
    assert found.claims[0].difference is not None and found.claims[0].difference["mean"] == 54
    assert found.results[1]["highest"] == {"epoch": 1, "P@1": 60}
    assert "99.0 %" in found.summary and "54.0 points" in found.summary
    for ours, theirs in (([40.0, 50.0], [50.0, 40.0]), ([100.0], [20.0])):
        assert conclude(outcomes(ours, theirs), encoder="static").claims[0].verdict == "undecided"


@pytest.mark.parametrize(("source", "encoder"), [("wordnet-nouns", None), (None, "gpt")])
def test_data_and_encoders_it_cannot_use_are_refused_before_anything_is_written(
    tmp_path: Path, source: str | None, encoder: str | None
) -> None:
    with pytest.raises(BadInput, match=r"--(data wordnet-nouns: token-star makes its own|encoder gpt)"):
        begin(Setup("token-star", "tiny", tmp_path / "out", source, encoder))
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_there_is_a_notice_and_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    heard: list[str] = []
    assert draw(tmp_path, heard) == []
    assert "pip install" in heard[0] and "umpteen[plots]" in heard[0]
    assert not list(tmp_path.iterdir())


def test_the_figure_is_written_twice_and_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = draw(tmp_path, [])
    assert [path.name for path in written] == ["figure.svg", "figure.png"]
    contents = [path.read_bytes() for path in written]
    assert b"<svg" in contents[0] and contents[1].startswith(b"\x89PNG")
    assert [path.read_bytes() for path in draw(tmp_path, [])] == contents


def draw(folder: Path, heard: list[str]) -> list[Path]:
    curves = {
        "ours": Curve([0, 1, 2], [[0.0, 50.0, 100.0], [0.0, 60.0, 90.0]]),
        "theirs": Curve([0, 2], [0.0, 20.0]),
    }
    panel = Lines(curves, x="epoch", y="P@1 (%)", whole_x=True)
    return draw_panels(folder / "figure", [panel], title="a title", notice=heard.append)
