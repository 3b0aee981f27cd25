"""Search over labels sharded on 1, 2 and 3 processes finds what one process finds, ties and excluded pairs included."""

import numpy as np
import pytest
from test_exact import by_full_sort, pairs_matrix, whole_numbers

from umpteen.parallel.world import Shard, World
from umpteen.search.exact import top_k
from worlds import run_world

QUERIES, LABELS, K = 9, 23, 10
EXCLUDED = {(0, 0), (0, 22), (3, 7), (3, 8), (8, 11), (8, 15)} | {(5, row) for row in range(4, 23)}


def searched(world: World, labels: int) -> tuple[list[list[int]], list[list[float]], int]:
    shard = Shard(world, labels)
    queries, vectors = whole_numbers(QUERIES, 3, 1), whole_numbers(labels, 3, 2)
    excluded = pairs_matrix({pair for pair in EXCLUDED if pair[1] < labels}, (QUERIES, labels))
    found = top_k(queries, vectors[shard.rows], min(K, labels), shard=shard, excluding=excluded, block=4, tile=3)
    return found.rows.tolist(), found.scores.tolist(), found.labels


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("labels", [LABELS, 2], ids=["many labels", "fewer labels than processes"])
def test_every_process_gets_the_best_of_all_shards(size: int, labels: int) -> None:
    queries, vectors = whole_numbers(QUERIES, 3, 1), whole_numbers(labels, 3, 2)
    expected = by_full_sort(queries, vectors, min(K, labels), {pair for pair in EXCLUDED if pair[1] < labels})
    for rows, scores, count in run_world(size, searched, labels):
        assert count == labels
        assert rows == expected
        matrix = (queries @ vectors.T).numpy()
        for query, (found, values) in enumerate(zip(rows, scores, strict=True)):
            kept = [row for row in found if row >= 0]
            assert np.allclose(values[: len(kept)], matrix[query, kept])
