"""Exact search: the k labels with the largest inner products, found tile by tile, the score matrix never held.

B queries of a block, T labels of a tile, k best so far. Once k labels are known, a tile's score matters only if it
beats the k-th best, so a tile costs one product and one comparison; the few that pass are merged.
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.retrieval.ranking import NO_LABEL, Ranking

# A score and its label row as one int64, ordered by score and then by smaller row: no tie is left to chance.
_NOTHING = torch.iinfo(torch.int64).min
_LARGEST_ROW = torch.iinfo(torch.int32).max


def top_k(
    queries: Tensor,
    labels: Tensor,
    k: int,
    *,
    excluding: csr_array | None = None,
    block: int = 512,
    tile: int = 8192,
    progress: Callable[[int, int], None] | None = None,
) -> Ranking:
    """The k best labels of every query by inner product in float32; of equal scores the smaller row comes first.

    Pairs stored in `excluding` (queries × labels) are never returned; a query left with fewer than k ends in −1.
    """
    _check(queries, labels, k, excluding)
    rows = np.empty((len(queries), k), dtype=np.int32)
    scores = np.empty((len(queries), k), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(queries), block):
            stop = min(start + block, len(queries))
            excluded = None if excluding is None else _pairs(excluding[start:stop]).to(queries.device)
            best = _best_of_block(queries[start:stop].float(), labels, k, excluded, tile)
            rows[start:stop] = _row_of(best).cpu().numpy()
            scores[start:stop] = _score_of(best).cpu().numpy()
            if progress is not None:
                progress(stop, len(queries))
    return Ranking(rows, scores, len(labels))


def _best_of_block(queries: Tensor, labels: Tensor, k: int, excluded: Tensor | None, tile: int) -> Tensor:
    """Keys of the k best labels of each query, best first."""  # [B, k]
    best = torch.full((len(queries), k), _NOTHING, dtype=torch.int64, device=queries.device)
    bar = _score_of(best[:, -1])
    waiting: list[tuple[Tensor, Tensor]] = []  # candidates not yet merged: query, key
    # One buffer for all tiles: fresh memory for each would cost as much in page faults as the product itself.
    buffer = torch.empty(len(queries) * min(tile, len(labels)), device=queries.device)
    for start in range(0, len(labels), tile):
        part = labels[start : start + tile].to(queries)
        scores = torch.mm(queries, part.T, out=buffer[: len(queries) * len(part)].view(len(queries), len(part)))
        if excluded is not None:
            query, row = excluded[:, (excluded[1] >= start) & (excluded[1] < start + len(part))]
            scores[query, row - start] = -torch.inf
        if start == 0 and len(part) > k:
            # Nothing is known yet, so the tile's own k-th best is the bar, and what equals it must pass.
            bar = torch.nextafter(scores.topk(k, dim=1).values[:, -1], bar)
        query, row = _where(scores > bar[:, None])
        waiting.append((query, _key(scores[query, row], row + start)))
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


def _where(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Query and label positions that are true; numpy skips the false ones far faster on a CPU."""
    if mask.device.type == "cpu":
        flat = torch.from_numpy(np.flatnonzero(mask.numpy()))
    else:
        flat = mask.flatten().nonzero().squeeze(1)
    return flat // mask.shape[1], flat % mask.shape[1]


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


def _check(queries: Tensor, labels: Tensor, k: int, excluding: csr_array | None) -> None:
    if k < 1:
        raise BadInput(f"k is {k}; ask for at least 1 label")
    if k > len(labels):
        raise BadInput(f"k is {k:,} but there are only {len(labels):,} labels; ask for at most {len(labels)}")
    if queries.shape[1] != labels.shape[1]:
        raise BadInput(
            f"query vectors have {queries.shape[1]} numbers and label vectors {labels.shape[1]}; "
            "they must come from the same model"
        )
    if excluding is not None and excluding.shape != (len(queries), len(labels)):
        raise BadInput(
            f"pairs to exclude have the shape {excluding.shape}, "
            f"but there are {len(queries):,} queries and {len(labels):,} labels"
        )
    for name, vectors in (("query", queries), ("label", labels)):
        broken = (~torch.isfinite(vectors.sum(1, dtype=torch.float32))).nonzero()
        if len(broken):
            raise BadInput(f"the vector of {name} row {int(broken[0]):,} holds NaN or infinity; was the model trained?")
