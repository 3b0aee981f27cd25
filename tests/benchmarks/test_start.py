"""The start of the command line is measured beside an empty Python, and an answer beside one that loads torch."""

from pathlib import Path

from benchmarks.start import ASKED, run

from tiny import tiny_default_model


def test_each_is_measured_beside_an_empty_python_or_one_with_torch(tmp_path: Path) -> None:
    with tiny_default_model(tmp_path):
        found = run(repeats=1, labels=20, texts=30)
    assert all(found["seconds"][name] > 0 for name in ASKED) and found["times_python"]["python"] == 1
    assert found["processor_seconds"].keys() == found["seconds"].keys() > ASKED.keys()
    assert found["times_light"].keys() == {"static", "with_all_parts"}
