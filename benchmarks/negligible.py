"""Benchmark: how much of a trained model's loss has no gradient worth a float32 bit, and so could be left out.

The vectors are those that a training step sees, dropout and all. A pair is negligible where its weight is below 2⁻²⁴ of
the sum of its query's weights; a query's part of a tile, where the sum of the tile's weights is; a tile, where it is so
for every query of the batch. No order of the labels, and no size of tiles, can spare more than the negligible pairs.
Beside it: what label vectors of half precision (training.half_labels) do to loss and gradients.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn.functional import logsigmoid

from umpteen.data.dataset import open_dataset
from umpteen.encoders.encoder import tokens_now
from umpteen.errors import BadInput
from umpteen.model.classifier import Classifier
from umpteen.objectives import Pairs, Scores, Targets, decoupled_softmax, one_vs_all, soft_top_k
from umpteen.objectives.scores import even_tile
from umpteen.training.gradient_cache import CachedVectors
from umpteen.training.step import pairs_of

WORTH_A_BIT = -24 * float(np.log(2))
K, ALPHA = 5, 2.0
LOSSES: dict[str, Callable[[Scores, Targets], Tensor]] = {
    "decoupled_softmax": decoupled_softmax,
    f"soft_top_{K}": lambda scores, targets: soft_top_k(scores, targets, K, ALPHA),
    "one_vs_all": one_vs_all,
}
FINEST = 32  # labels of the smallest tiles that are looked at


def run(
    model: Path, data: str, *, batch: int = 1024, temperature: float | None = None, seed: int = 0
) -> dict[str, Any]:
    """Shares of pairs, of queries' parts of tiles, and of tiles, with the labels in their own order and by cluster."""
    classifier, dataset = Classifier.load(model), open_dataset(data)
    texts = dataset.train.texts
    if not 1 <= batch <= len(texts):
        raise BadInput(f"a batch of {batch:,} cannot be drawn from {len(texts):,} training queries")
    own = tomllib.loads(classifier.recipe or "").get("objective", {}).get("temperature", 0.05)
    temperature = temperature or float(own)
    rows = np.sort(np.random.default_rng(seed).choice(len(texts), batch, replace=False))
    towers = classifier.towers.train()
    labels = tokens_now(towers.label, list(dataset.labels.texts), np.arange(len(dataset.labels)))
    sides = [(towers.query, tokens_now(towers.query, [texts[int(row)] for row in rows])), (towers.label, labels)]
    queries, vectors = (CachedVectors(tower, table, budget=2**18, seed=seed).vectors.detach() for tower, table in sides)
    relevant = pairs_of(dataset.train.relevance.take(rows), queries.device)
    by_cluster = torch.from_numpy(cluster_order(vectors.numpy(), even_tile(batch, len(vectors)), seed))
    place = torch.empty_like(by_cluster).index_copy_(0, by_cluster, torch.arange(len(by_cluster)))
    orders = {
        "as given": (vectors, relevant),
        "by cluster": (vectors[by_cluster], Pairs(relevant.query, place[relevant.label])),
    }
    return {
        "benchmark": "negligible",
        "labels": len(vectors),
        "batch": batch,
        "temperature": temperature,
        "results": [
            {"objective": objective, "order": order} | shares(queries, *given, temperature, objective)
            for objective in LOSSES
            for order, given in orders.items()
        ],
        "half_labels": {each: errors_of_halves(queries, vectors, relevant, temperature, each) for each in LOSSES},
    }


def cluster_order(vectors: NDArray[np.float32], tile: int, seed: int) -> NDArray[np.int64]:
    """Labels of a small cluster side by side, and small clusters that are near each other, too."""
    small = MiniBatchKMeans(max(min(len(vectors) // FINEST, 2048), 2), random_state=seed, n_init=1, max_iter=20)
    large = MiniBatchKMeans(max(len(vectors) // tile, 2), random_state=seed, n_init=1, max_iter=20)
    found = small.fit_predict(vectors)
    return np.lexsort((found, large.fit_predict(small.cluster_centers_)[found]))


def errors_of_halves(
    queries: Tensor, labels: Tensor, relevant: Pairs, temperature: float, objective: str
) -> dict[str, float]:
    """By how much loss and gradients differ from those of float32 label vectors, ‖difference‖ ÷ ‖those‖."""

    def solved(labels: Tensor) -> list[Tensor]:
        vectors = queries.clone().requires_grad_(), labels.clone().requires_grad_()
        given = Scores(*vectors, temperature=temperature), Targets(relevant, relevant, len(queries))
        loss = LOSSES[objective](*given)
        return [loss.detach(), *torch.autograd.grad(loss, vectors)]

    names = ("loss", "query_gradient", "label_gradient")
    return {
        name: float((half.float() - whole).norm() / whole.norm())
        for name, whole, half in zip(names, solved(labels), solved(labels.bfloat16()), strict=True)
    }


def shares(queries: Tensor, labels: Tensor, relevant: Pairs, temperature: float, objective: str) -> dict[str, float]:
    """What of one objective is negligible."""
    log_weight: Callable[[Tensor], Tensor]
    if objective == f"soft_top_{K}":
        threshold, out = Scores(queries, labels, temperature=temperature).soft_threshold(K, ALPHA), Pairs.empty()

        def log_weight(tile: Tensor) -> Tensor:
            distance = ALPHA * (tile - threshold[:, None])
            return logsigmoid(distance) + logsigmoid(-distance)
    else:
        out, log_weight = relevant, logsigmoid if objective == "one_vs_all" else torch.clone

    tile = even_tile(len(queries), len(labels))
    weights = []
    for start in range(0, len(labels), tile):
        some = queries @ labels[start : start + tile].T / temperature
        inside = (out.label >= start) & (out.label < start + tile)
        some[out.query[inside], out.label[inside] - start] = -torch.inf
        weights.append(log_weight(some))
    total = torch.stack([each.logsumexp(1) for each in weights]).logsumexp(0)[:, None]

    def negligible(mass: Tensor) -> Tensor:
        return mass - total < WORTH_A_BIT

    parts = torch.stack([negligible(each.logsumexp(1, keepdim=True))[:, 0] for each in weights])  # [tiles, B]
    fine = [negligible(part.logsumexp(1, keepdim=True)) for each in weights for part in torch.split(each, FINEST, 1)]
    pairs = sum(int(negligible(each).sum()) for each in weights) / (len(queries) * len(labels))
    return {
        "pairs": pairs,
        f"parts_of_{FINEST}": float(torch.cat(fine, 1).float().mean()),
        f"parts_of_{tile}": float(parts.float().mean()),
        f"tiles_of_{tile}": float(parts.all(1).float().mean()),
    }
