"""The benchmark of memories: who looks at all texts finds the same neighbours, an index nearly all."""

from pathlib import Path

from benchmarks.memory import copied, indexed, mapped, write


def test_mapped_halves_find_the_neighbours_of_a_copy_and_an_index_nearly_all(tmp_path: Path) -> None:
    write(tmp_path, 3_000, 16)
    least = {mapped: 1.0, copied: 1.0, indexed: 0.9}
    for side, share in least.items():
        found = side(tmp_path)()
        assert share <= found["same"] <= 1 and found["one"] > 0 and found["megabytes"] > 0
