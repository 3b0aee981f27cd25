"""The start of the command line is measured beside an empty Python."""

from benchmarks.start import ASKED, run


def test_each_is_measured_and_an_empty_python_is_the_measure() -> None:
    found = run(repeats=1)
    assert all(found["seconds"][name] > 0 for name in ASKED) and found["times_python"]["python"] == 1
    assert found["processor_seconds"].keys() == ASKED.keys()
