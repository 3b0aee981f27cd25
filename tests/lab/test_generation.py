import json
from pathlib import Path

import numpy as np
import pytest
from contract import assert_contract
from lab.experiment import Setup, run
from lab.generation import begin
from lab.generation_rows import NONE, ROWS, texts_of
from lab.generation_scores import rouge

from lab import generation_rows, generation_scores
from umpteen.errors import BadInput


def test_rouge_is_what_one_counts_by_hand() -> None:
    scores = rouge(["the cat sat down", "a b c d e"], ["the cat sat up", "E d c b a"])
    # Three of four words; one of two trigrams; the longest common subsequence has three words.
    assert [scores[name][0] for name in ("ROUGE-1", "ROUGE-3", "ROUGE-L")] == pytest.approx([75, 50, 75])
    # The same words backwards: all of them, no trigram, a common subsequence of one.
    assert [scores[name][1] for name in ("ROUGE-1", "ROUGE-3", "ROUGE-L")] == pytest.approx([100, 0, 20])


def test_precision_and_recall_are_both_in_the_f_measure() -> None:
    assert rouge(["a b"], ["a b c d e f"])["ROUGE-1"][0] == pytest.approx(100 * 2 * (1 / 3) / (1 / 3 + 1))
    assert all(values[0] == 0 for values in rouge(["a b"], [""]).values())


def test_the_tiny_experiment_runs_and_goes_on_with_its_finished_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup("generation", "tiny", tmp_path / "out", seeds=1)
    original = generation_rows.rouge
    scored: list[int] = []

    def killed(*given: list[str]) -> dict[str, np.ndarray]:
        scored.append(len(scored))
        if len(scored) == 3:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(generation_rows, "rouge", killed)
    with pytest.raises(KeyboardInterrupt):
        run(begin, setup)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2
    heard: list[str] = []
    results = run(begin, Setup("generation", "tiny", tmp_path / "out", seeds=1, notice=heard.append))
    assert len(scored) == 5  # the first two rows were not made again
    assert [message.endswith("is finished already") for message in heard[:4]] == [True, True, False, False]
    assert [row["variant"] for row in results["results"]] == list(ROWS)
    assert len(results["claims"]) == 3
    for row in ROWS:
        records = [json.loads(line) for line in texts_of(tmp_path / "out", row, 0).read_text().splitlines()]
        assert len(records) == results["settings"]["data"]["test_texts"]
        assert all(("Tags:" in record["prompt"]) <= (row != NONE) for record in records)
        assert not any(record["definition"].casefold() in record["prompt"].casefold() for record in records)
    assert sum("Tags:" in record["prompt"] for record in records) == len(records)  # the true ones are always there
    assert_contract("generation", tmp_path / "out", results)


def test_what_cannot_be_run_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"--model .*nowhere is not a folder"):
        begin(Setup("generation", "tiny", tmp_path / "out", model=str(tmp_path / "nowhere")))
    with pytest.raises(BadInput, match="--encoder gpt"):
        begin(Setup("generation", "tiny", tmp_path / "out", encoder="gpt"))
    monkeypatch.setattr(generation_scores, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'umpteen\[generation\]'"):
        begin(Setup("generation", "tiny", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
