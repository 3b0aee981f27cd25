"""The benchmark of rankers compares two ways that give the same margins."""

from benchmarks.ranker import run


def test_both_ways_give_the_same_margins() -> None:
    found = run(labels=120, weights=200, texts=3)
    assert found["error"] < 1e-4 and found["ms_a_text"] > 0
