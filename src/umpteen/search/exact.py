"""Exact search for many queries: the labels are walked in tiles, and the score matrix is never held.

B queries of a block, T labels of a tile, k best so far. Once k labels are known, a tile's score matters only if it
beats the k-th best, so a tile costs one product and one comparison; the few that pass are merged. On a CPU each thread
searches for queries of its own.
"""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.parallel.world import Shard, World, spread
from umpteen.search.ranking import NO_LABEL, Ranking, require_searchable

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
) -> Ranking:
    """The k best labels of every query by inner product in float32; of equal scores the smaller row comes first.

    Pairs stored in `excluding` (queries × labels) are never returned, nor are `hidden` rows (sorted) to anyone; a query
    left with fewer than k ends in −1. Label vectors are taken to be finite: they are checked when they are saved.
    With a shard of the labels, each process searches its own for all queries, and all of them get the best of all.
    """
    shard = Shard(World(), len(labels)) if shard is None else shard
    require_searchable(queries, labels.shape[1], k)
    if k > shard.count:
        raise BadInput(f"k is {k:,} but there are only {shard.count:,} labels; ask for at most {shard.count}")
    if excluding is not None and excluding.shape != (len(queries), shard.count):
        there = f"{len(queries):,} queries and {shard.count:,} labels"
        raise BadInput(f"pairs to exclude have the shape {excluding.shape}, but there are {there}")
    keys = torch.empty(len(queries), k, dtype=torch.int64)
    unseen = None if hidden is None or len(hidden) == 0 else torch.from_numpy(hidden).to(queries.device)
    is_long = queries.device.type == "cpu" and len(queries) * labels.numel() >= _WORTH_A_THREAD
    threads = max(1, min(torch.get_num_threads(), len(queries))) if is_long else 1
    block = max(1, min(block, -(-len(queries) // threads)))

    def search(first: int, share: int) -> None:
        start = first + share * block
        stop = min(start + block, len(queries))
        excluded = None
        if excluding is not None:
            pairs = excluding[start:stop].tocoo()
            excluded = torch.from_numpy(np.stack([pairs.row, pairs.col]).astype(np.int64)).to(queries.device)
        keys[start:stop] = _best_of_block(queries[start:stop].float(), labels, k, excluded, unseen, tile, shard.start)

    with torch.no_grad():
        for first in range(0, len(queries), block * threads):
            stop = min(first + block * threads, len(queries))
            spread(partial(search, first), -(-(stop - first) // block))
    if shard.world.size > 1:
        for some in torch.split(keys, _MERGED_AT_ONCE):
            everyone = torch.cat([*shard.world.gather(some.to(shard.world.device))], 1)  # the best of all processes
            some.copy_(everyone.topk(k, dim=1).values)
    return Ranking(_row_of(keys).to(torch.int32).numpy(), _score_of(keys).numpy(), shard.count)


def _best_of_block(
    queries: Tensor, labels: Tensor, k: int, excluded: Tensor | None, hidden: Tensor | None, tile: int, first_row: int
) -> Tensor:
    """Keys of the k best labels of each query, best first; the labels are the rows from `first_row` on."""  # [B, k]
    best = torch.full((len(queries), k), _NOTHING, dtype=torch.int64, device=queries.device)
    bar = _score_of(best[:, -1])
    waiting: list[tuple[Tensor, Tensor]] = []  # candidates not yet merged: query, key
    # One buffer for all tiles: fresh memory for each would cost as much in page faults as the product itself.
    buffer = torch.empty(len(queries) * min(tile, len(labels)), device=queries.device)
    for start in range(0, len(labels), tile):
        low = first_row + start
        part = labels[start : start + tile].to(queries)
        scores = torch.mm(queries, part.T, out=buffer[: len(queries) * len(part)].view(len(queries), len(part)))
        if excluded is not None:
            query, row = excluded[:, (excluded[1] >= low) & (excluded[1] < low + len(part))]
            scores[query, row - low] = -torch.inf
        if hidden is not None:
            first, last = torch.searchsorted(hidden, torch.tensor([low, low + len(part)], device=hidden.device))
            scores[:, hidden[first:last] - low] = -torch.inf
        if start == 0 and len(part) > k:
            # Nothing is known yet, so the tile's own k-th best is the bar, and what equals it must pass.
            bar = torch.nextafter(scores.topk(k, dim=1).values[:, -1], bar)
        if scores.device.type == "cpu":  # where numpy compares, and skips what is false, far faster
            flat = torch.from_numpy(np.flatnonzero(scores.numpy() > bar.numpy()[:, None]))
        else:
            flat = (scores > bar[:, None]).flatten().nonzero().squeeze(1)
        query, row = flat // len(part), flat % len(part)
        waiting.append((query, _key(scores[query, row], row + low)))
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
