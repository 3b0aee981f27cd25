"""Exact search: the k labels with the largest inner products, found tile by tile, the score matrix never held.

B queries of a block, T labels of a tile, k best so far. Once k labels are known, a tile's score matters only if it
beats the k-th best, so a tile costs one product and one comparison; the few that pass are merged. On a CPU each thread
searches for queries of its own. One query, or a few, are one product with all labels and one look at its largest
scores. Over labels that change nothing is ever missed, and adding one costs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.files.progress import Advance
from umpteen.parallel.world import Shard, World, spread
from umpteen.search.index import Effort, Engine, Indexed, LabelIndex, LiveVectors, Rows, best_of, require_finite
from umpteen.search.ranking import NO_LABEL, Ranking

_MERGED_AT_ONCE = 8192  # queries whose best the processes tell each other together
# A score and its label row as one int64, ordered by score and then by smaller row: no tie is left to chance.
_NOTHING = torch.iinfo(torch.int64).min
_LARGEST_ROW = torch.iinfo(torch.int32).max
_WORTH_A_THREAD = 2**26  # multiplications that take longer than starting a thread does


def top_k(
    queries: Tensor,
    labels: Tensor,
    k: int,
    *,
    shard: Shard | None = None,
    excluding: csr_array | None = None,
    hidden: NDArray[np.int64] | None = None,
    block: int = 1024,
    tile: int = 2048,
    progress: Advance | None = None,
) -> Ranking:
    """The k best labels of every query by inner product in float32; of equal scores the smaller row comes first.

    Pairs stored in `excluding` (queries × labels) are never returned, nor are `hidden` rows (sorted) to anyone; a query
    left with fewer than k ends in −1. Label vectors are taken to be finite: they are checked when they are saved.
    With a shard of the labels, each process searches its own for all queries, and all of them get the best of all.
    """
    shard = Shard(World(), len(labels)) if shard is None else shard
    _check(queries, labels, k, excluding, shard.count)
    keys = torch.empty(len(queries), k, dtype=torch.int64)
    unseen = None if hidden is None or len(hidden) == 0 else torch.from_numpy(hidden).to(queries.device)
    threads = _threads(queries, labels)
    block = max(1, min(block, -(-len(queries) // threads)))

    def search(first: int, share: int) -> None:
        start = first + share * block
        stop = min(start + block, len(queries))
        excluded = None if excluding is None else _pairs(excluding[start:stop]).to(queries.device)
        keys[start:stop] = _best_of_block(queries[start:stop].float(), labels, k, excluded, unseen, tile, shard.start)

    with torch.no_grad():
        for first in range(0, len(queries), block * threads):
            stop = min(first + block * threads, len(queries))
            spread(partial(search, first), -(-(stop - first) // block))
            if progress is not None:
                progress(stop, len(queries))
    _keep_best_of_all_(keys, shard.world)
    return Ranking(_row_of(keys).to(torch.int32).numpy(), _score_of(keys).numpy(), shard.count)


def _keep_best_of_all_(keys: Tensor, world: World) -> None:
    """The best keys among those of all processes, in place."""  # [queries, k]
    if world.size > 1:
        for some in torch.split(keys, _MERGED_AT_ONCE):
            everyone = torch.cat([*world.gather(some.to(world.device))], 1)
            some.copy_(everyone.topk(some.shape[1], dim=1).values)


def _best_of_block(
    queries: Tensor,
    labels: Tensor,
    k: int,
    excluded: Tensor | None,
    hidden: Tensor | None,
    tile: int,
    first_row: int,
) -> Tensor:
    """Keys of the k best labels of each query, best first; the labels are the rows from `first_row` on."""  # [B, k]
    best = torch.full((len(queries), k), _NOTHING, dtype=torch.int64, device=queries.device)
    bar = _score_of(best[:, -1])
    waiting: list[tuple[Tensor, Tensor]] = []  # candidates not yet merged: query, key
    # One buffer for all tiles: fresh memory for each would cost as much in page faults as the product itself.
    buffer = torch.empty(len(queries) * min(tile, len(labels)), device=queries.device)
    for start in range(0, len(labels), tile):
        part = labels[start : start + tile].to(queries)
        scores = torch.mm(queries, part.T, out=buffer[: len(queries) * len(part)].view(len(queries), len(part)))
        if excluded is not None:
            low = first_row + start
            query, row = excluded[:, (excluded[1] >= low) & (excluded[1] < low + len(part))]
            scores[query, row - low] = -torch.inf
        if hidden is not None:
            low = first_row + start
            first, last = torch.searchsorted(hidden, torch.tensor([low, low + len(part)], device=hidden.device))
            scores[:, hidden[first:last] - low] = -torch.inf
        if start == 0 and len(part) > k:
            # Nothing is known yet, so the tile's own k-th best is the bar, and what equals it must pass.
            bar = torch.nextafter(scores.topk(k, dim=1).values[:, -1], bar)
        query, row = _above(scores, bar)
        waiting.append((query, _key(scores[query, row], row + first_row + start)))
        # Merging raises the bar but costs more than a tile: worth it once as many wait as are kept.
        if sum(len(query) for query, _ in waiting) >= best.numel() or start + tile >= len(labels):
            _merge(best, *map(torch.cat, zip(*waiting, strict=True)))
            bar = _score_of(best[:, -1])
            waiting.clear()
    return best


def _merge(best: Tensor, query: Tensor, keys: Tensor) -> None:
    """Folds candidates into the best so far, in place."""
    query, order = query.sort(stable=True)
    touched, place_of_query, counts = torch.unique_consecutive(query, return_inverse=True, return_counts=True)
    if len(touched) == 0:
        return
    first = counts.cumsum(0) - counts
    within = torch.arange(len(query), device=query.device) - first[place_of_query]
    candidates = keys.new_full((len(touched), int(counts.max())), _NOTHING)
    candidates[place_of_query, within] = keys[order]
    best[touched] = torch.cat([best[touched], candidates], 1).topk(best.shape[1], dim=1).values


def _pairs(matrix: csr_array) -> Tensor:
    """Query and label positions of the stored entries."""  # [2, pairs]
    query = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return torch.from_numpy(np.stack([query, matrix.indices.astype(np.int64)]))


def _above(scores: Tensor, bar: Tensor) -> tuple[Tensor, Tensor]:
    """Query and label positions of the scores above their query's bar."""
    if scores.device.type == "cpu":  # where numpy compares, and skips what is false, far faster
        flat = torch.from_numpy(np.flatnonzero(scores.numpy() > bar.numpy()[:, None]))
    else:
        flat = (scores > bar[:, None]).flatten().nonzero().squeeze(1)
    return flat // scores.shape[1], flat % scores.shape[1]


def _threads(queries: Tensor, labels: Tensor) -> int:
    worthwhile = queries.device.type == "cpu" and len(queries) * labels.numel() >= _WORTH_A_THREAD
    return max(1, min(torch.get_num_threads(), len(queries))) if worthwhile else 1


def _key(scores: Tensor, rows: Tensor) -> Tensor:
    bits = (scores + 0.0).view(torch.int32)  # −0 + 0 is +0, so that both zeros are equal
    return _as_ordered(bits).to(torch.int64) << 32 | (_LARGEST_ROW - rows)


def _row_of(keys: Tensor) -> Tensor:
    rows = _LARGEST_ROW - (keys & 0xFFFFFFFF)
    return rows.masked_fill(keys == _NOTHING, NO_LABEL)


def _score_of(keys: Tensor) -> Tensor:
    scores = _as_ordered((keys >> 32).to(torch.int32)).view(torch.float32)
    return scores.masked_fill(keys == _NOTHING, -torch.inf)


def _as_ordered(bits: Tensor) -> Tensor:
    """A float's bits as an integer that grows with the float; applied twice it gives the bits back."""
    return bits ^ ((bits >> 31) & torch.iinfo(torch.int32).max)


def _check(queries: Tensor, labels: Tensor, k: int, excluding: csr_array | None, count: int) -> None:
    if k < 1:
        raise BadInput(f"k is {k}; ask for at least 1 label")
    if k > count:
        raise BadInput(f"k is {k:,} but there are only {count:,} labels; ask for at most {count}")
    if queries.shape[1] != labels.shape[1]:
        raise BadInput(
            f"query vectors have {queries.shape[1]} numbers and label vectors {labels.shape[1]}; "
            "they must come from the same model"
        )
    if excluding is not None and excluding.shape != (len(queries), count):
        raise BadInput(
            f"pairs to exclude have the shape {excluding.shape}, "
            f"but there are {len(queries):,} queries and {count:,} labels"
        )
    require_finite("query", queries)


_PAIRS_AT_A_TIME = 65_536


def best_known(queries: Tensor, labels: Tensor, known: csr_array, shard: Shard) -> NDArray[np.float32]:
    """Each query's largest score over the labels stored for it, −∞ where there are none: the same on every process.

    `labels` are this process's shard of them.
    """
    query = np.repeat(np.arange(known.shape[0]), np.diff(known.indptr))
    own = np.flatnonzero((known.indices >= shard.start) & (known.indices < shard.stop))
    best = torch.full((known.shape[0],), -torch.inf, device=queries.device)
    for start in range(0, len(own), _PAIRS_AT_A_TIME):
        some = own[start : start + _PAIRS_AT_A_TIME]
        at = torch.from_numpy(query[some]).to(queries.device)
        rows = torch.from_numpy(known.indices[some].astype(np.int64) - shard.start).to(labels.device)
        scores = torch.linalg.vecdot(queries[at].float(), labels[rows].float())
        best.scatter_reduce_(0, at, scores, "amax")
    found: NDArray[np.float32] = shard.world.max_(best).cpu().numpy()
    return found


_FEW_QUERIES = 32
_SCORES_AT_ONCE = 2**24  # 64 MB
_BLOCK = 256  # labels whose largest score is compared first


class ExactIndex:
    """All labels are looked at for every query."""

    kind = "exact"
    one_process = False
    away = None

    def __init__(self, base: Tensor, active: NDArray[np.bool_] | None = None) -> None:
        self.labels = LiveVectors(base, active)
        self.effort = Effort(1, 0, 1)

    @classmethod
    def of(cls, labels: LiveVectors) -> "ExactIndex":
        """Searches labels that have changed already."""
        index = cls(labels.base)
        index.labels = labels
        return index

    def search(self, queries: Tensor, k: int) -> Ranking:
        return exact_search(queries, self.labels, k)

    def candidates(self, queries: Tensor, effort: Effort) -> Rows:
        return exact_search(queries, self.labels, effort.rescored).rows.astype(np.int64)

    def efforts(self, k: int) -> list[Effort]:
        return [Effort(k, 0, k)]

    def add(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self.labels = self.labels.with_rows(rows, vectors)

    def remove(self, rows: NDArray[np.int64]) -> None:
        self.labels = self.labels.without(rows)

    def close(self) -> None:
        """There is nothing to let go of."""

    def save(self, folder: Path) -> dict[str, Any]:
        """There is nothing to write; returns what to remember."""
        return {"kind": self.kind}


class ExactEngine(Engine):
    """Nothing is built or kept: the labels' vectors are all there is."""

    @contextmanager
    def build(
        self, folder: Path, indexed: Indexed, uri: str | None, progress: Advance
    ) -> Iterator[tuple[LabelIndex, dict[str, Any]]]:
        yield ExactIndex.of(indexed.vectors), {}

    def open(self, folder: Path, about: dict[str, Any], indexed: Indexed) -> LabelIndex:
        return ExactIndex.of(indexed.vectors)


def exact_search(queries: Tensor, labels: LiveVectors, k: int) -> Ranking:
    """The k best current labels of each query."""
    queries = checked_queries(queries, labels.dimension, k)
    rows, scores = _best(queries, labels.base, k, labels.hidden)
    if len(labels.changed) or rows.shape[1] < k:
        new, new_scores = changed_best(queries, labels, k)
        return best_of(np.concatenate([rows, new], 1), np.concatenate([scores, new_scores], 1), k, len(labels))
    return Ranking(rows.astype(np.int32), scores, len(labels))


def completed(best: Ranking, queries: Tensor, labels: LiveVectors) -> Ranking:
    """Exact answers for the queries that something quicker gave fewer labels than there are."""
    wanted = min(best.width, labels.count())
    short = np.flatnonzero(best.rows[:, wanted - 1] == NO_LABEL) if wanted else np.empty(0, dtype=np.int64)
    if len(short) == 0:
        return best
    exact = exact_search(queries[torch.from_numpy(short)], labels, best.width)
    rows, scores = best.rows.copy(), best.scores.copy()
    rows[short], scores[short] = exact.rows, exact.scores
    return Ranking(rows, scores, best.labels)


def changed_best(queries: Tensor, labels: LiveVectors, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The best of the rows in the overlay alone."""
    place, scores = _best(queries, labels.vectors, k, np.empty(0, dtype=np.int64))
    if len(labels.changed) == 0:
        return place, scores
    return np.where(place == NO_LABEL, NO_LABEL, labels.changed[place]), scores


def checked_queries(queries: Tensor, dimension: int, k: int) -> Tensor:
    """The queries as float32 in the machine's memory, if they can be searched for."""
    if k < 1:
        raise BadInput(f"k is {k}; ask for at least 1 label")
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise BadInput(
            f"query vectors have the shape {tuple(queries.shape)} and label vectors {dimension} numbers; "
            "they must come from the same model"
        )
    require_finite("query", queries)
    return queries.detach().float().cpu()


def _best(
    queries: Tensor, vectors: Tensor, k: int, hidden: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Positions and scores of the best visible vectors, as many of k as there are vectors; −1 where none is left."""
    k = min(k, len(vectors))
    if k == 0 or len(queries) == 0:
        return np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.float32)
    if len(queries) > _FEW_QUERIES or len(queries) * len(vectors) > _SCORES_AT_ONCE:
        ranking = top_k(queries, vectors, k, hidden=hidden)
        return ranking.rows.astype(np.int64), ranking.scores
    with torch.no_grad():
        if len(queries) == 1:
            scores = torch.mv(vectors.float(), queries[0])[None]
        else:
            scores = torch.mm(queries, vectors.float().T)
        if len(hidden):
            scores.index_fill_(1, torch.from_numpy(hidden), -torch.inf)
    found = [_best_of_one(of_query, k) for of_query in scores.numpy()]
    return np.stack([rows for rows, _ in found]), np.stack([best for _, best in found])


def _best_of_one(scores: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Positions and values of the k largest scores, of equal ones the earlier first."""
    blocks = len(scores) // _BLOCK
    if blocks > k:
        # k blocks hold a score of at least the k-th largest of their maxima, so the k best do not lie below it.
        maxima = scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(1)
        bar = np.partition(maxima, blocks - k)[blocks - k]
    else:
        bar = np.partition(scores, len(scores) - k)[len(scores) - k]
    at = np.flatnonzero(scores >= bar)
    at = at[np.argsort(-scores[at], kind="stable")[:k]]
    best = scores[at]
    return np.where(best == -np.inf, NO_LABEL, at), best
