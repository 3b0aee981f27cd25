"""A small dataset with every oddity, all towers and objectives over it, and the plain formulas that judge them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

import reference
from reference import Problem
from umpteen.config.settings import RunConfig
from umpteen.data.labels import Relevance, draw_positives
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder, tokens_for
from umpteen.encoders.frozen import FrozenEncoder, FrozenReader
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.rows import RowTable, row_tables
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.table import LabelTable
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.objectives import decoupled_softmax, one_vs_all, soft_top_k, softmax
from umpteen.parallel.world import Shard, World
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import TrainingData, TrainingStep

# Two queries alike, one that is also a label, two labels alike, one query without labels.
QUERIES = [
    "the law of fish",
    "tax",
    "trade and food in the library",
    "tax",
    "book",
    "network dog tree",
    "dog",
    "a tree",
]
LABELS = [
    "fish",
    "law of the tree",
    "book",
    "book",
    "dog and tree",
    "food trade",
    "network",
    "library of law",
    "tax law",
]
RELEVANT = [[0, 1, 7], [8], [5, 7], [1, 8], [2, 3], [4, 6, 0, 5], [], [1, 4]]
WEIGHTS = [[1, 0.5, 2], [1], [1, 0.25], [0, 1], [1, 1], [1, 3, 0, 0.5], [], [0.5, 0.5]]
FILTERED = [[2], [], [0, 5], [6], [2], [], [4, 5], []]  # some of them are relevant: they leave all the same

Objective = tuple[Callable[..., Tensor], Callable[[Problem], Tensor]]
OBJECTIVES: dict[str, Objective] = {
    "softmax": (softmax, reference.softmax),
    "decoupled_softmax": (decoupled_softmax, reference.decoupled_softmax),
    "soft_top_3": (lambda s, t: soft_top_k(s, t, 3, 2.0), lambda p: reference.soft_top_k(p, 3, 2.0)),
    "soft_top_positives": (
        lambda s, t: soft_top_k(s, t, "positives", 2.0),
        lambda p: reference.soft_top_k(p, "positives", 2.0),
    ),
    "soft_top_3_masked": (
        lambda s, t: soft_top_k(s, t, 3, mask_unsampled=True),
        lambda p: reference.soft_top_k(p, 3, 2.0, mask_unsampled=True),
    ),
    "one_vs_all": (one_vs_all, reference.one_vs_all),
}
TOWERS = ["static shared", "static static", "transformer shared", "transformer static", "static transformer"]
TOWERS += ["frozen shared", "frozen-hidden static", "sum shared", "sum sum-transformer", "concat concat"]
TOWERS_WITH_ROWS = [
    "static table",
    "static table-bias",
    "static sum-table",
    "transformer table",
    "sum sum-transformer-table",
]
SEED, STEP = 3, 17


def make_encoder(kind: str, start: str, seed: int, world: World | None = None) -> Encoder:
    how, *more = kind.split("-")
    if how == "table":
        shard = Shard(world or World(), len(LABELS))
        bias = RowTable.gaussian(shard, 1, seed) if more else None
        return LabelTable(RowTable.gaussian(shard, 8, seed), bias)
    if how in ("sum", "concat"):
        kinds = ["static", *(name for name in more if name != "table")] if more else ["static", "frozen"]
        parts = {name: make_encoder(name, start, seed) for name in kinds}
        if "table" in more:
            rows = RowTable.gaussian(Shard(world or World(), len(LABELS)), 8, seed)
            parts["table"] = LabelTable(rows, normalise=False, optional=True)
        weights = {name: 0.5 + 0.3 * place for place, name in enumerate(parts)}
        return PartsEncoder(parts, "sum" if how == "sum" else "concat", weights=weights)
    if how == "frozen":
        reader = FrozenReader(TransformerEncoder.load(start, max_length=8))
        encoder = FrozenEncoder(reader, hidden=3 if more else 0)
        for parameter in encoder.parameters():  # not at the identity
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
        return encoder
    if kind == "static":
        encoder = StaticEncoder.random(start, 8, seed=seed, bigrams=20, max_length=8)
        assert encoder.bigrams is not None
        torch.nn.init.normal_(encoder.bigrams, generator=torch.Generator().manual_seed(seed))  # they start at zero
        return encoder
    return TransformerEncoder.load(start, max_length=8, hidden_dropout=0.0)


def make_towers(names: str, start: str, world: World | None = None) -> Towers:
    first, second = names.split()
    query = make_encoder(first, start, 1)
    towers = Towers(query) if second == "shared" else Towers(query, make_encoder(second, start, 2, world))
    return towers.double().train()


def table(encoder: Encoder, texts: list[str]) -> TokenTable:
    return tokens_for(encoder, Texts.of(texts), np.arange(len(texts)))


def make_step(
    towers: Towers,
    objective: Callable[..., Tensor],
    relevance: Relevance,
    *,
    reduction: Any = "mean",
    positives: int | None = None,
    budget: int = 8,
    tile: int | None = 4,
    rate: float = 0.1,
    decay: float = 0.0,
    epsilon: float = 1e-8,
    clip_norm: float = 0.0,
    replay_fraction: float | None = None,
    half_labels: bool = False,
    **more: Any,
) -> TrainingStep:
    return TrainingStep(
        towers,
        TrainingData(
            table(towers.query, QUERIES),
            table(towers.label, LABELS),
            relevance,
            Relevance.from_lists(FILTERED, len(LABELS)),
        ),
        objective,
        make_optimizer([(towers, rate)], weight_decay=decay, betas=(0.9, 0.99), eps=epsilon),
        RunConfig.model_validate(
            {
                "objective": {"temperature": 0.5, "reduction": reduction, "positives_per_query": positives},
                "training": {
                    "token_budget": budget,
                    "tile": tile,
                    "replay_fraction": replay_fraction,
                    "half_labels": half_labels,
                },
                "optimizer": {"clip_norm": clip_norm},
            }
        ),
        **more,
    )


def gradients(towers: Towers) -> dict[str, Tensor]:
    """The gradient of every weight, which is then cleared; a weight without one counts as zero."""
    found = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in towers.named_parameters()
    }
    towers.zero_grad()
    for name, rows in row_tables(towers).items():
        found[name] += rows.dense_gradient()
        rows.forget_gradients()
    return found


def naive(
    towers: Towers,
    judge: Callable[[Problem], Tensor],
    relevance: Relevance,
    rows: NDArray[np.int64],
    reduction: Any = "mean",
    positives: int | None = None,
    in_play: NDArray[np.int64] | None = None,
    kept_out: list[tuple[int, int]] | None = None,
    seen_as: Callable[[Tensor], Tensor] = lambda new: new,
) -> float:
    """Every text encoded on its own, in one graph, under the dense formula; leaves gradients, returns the loss.

    A label that is not in play counts for no query, as if filtered for all of them. `seen_as` gives the vectors that
    the formula has instead of the labels' new ones.
    """

    def encoded(encoder: Encoder, texts: list[str]) -> Tensor:
        if isinstance(encoder, LabelTable):
            rows = normalize(encoder.table.weight) if encoder.normalise else encoder.table.weight
            return rows if encoder.bias is None else torch.cat([rows, encoder.bias.weight], 1)
        if isinstance(encoder, PartsEncoder):
            parts = zip(encoder.learned_weights(), encoder.encoders.values(), strict=True)
            return normalize(sum((weight * encoded(part, texts) for weight, part in parts), torch.zeros(1)))
        if isinstance(encoder, FrozenEncoder):
            with torch.no_grad():
                read = torch.cat([encoder.reader.encoder.encode([text]) for text in texts]).float().double()  # as kept
            hidden = 0 if encoder.hidden is None else encoder.hidden(read)
            return normalize(read @ encoder.map.weight.T + hidden)
        return torch.cat([encoder(*encoder.read_now([text])) for text in texts])

    pulled, weights = [], []
    absent = [] if in_play is None else sorted(set(range(len(LABELS))) - set(in_play.tolist()))
    relevance = relevance.without(Relevance.from_lists(FILTERED, len(LABELS)))  # a filtered pair is never drawn
    query, label, weight = draw_positives(relevance, rows, positives, np.random.default_rng([SEED, STEP]))
    for position, row, value in zip(query.tolist(), label.tolist(), weight.tolist(), strict=True):
        pulled.append((position, row))
        weights.append(value)
    every = [(position, int(row)) for position, at in enumerate(rows) for row in relevance.of(at)]
    counts = [(relevance.weights_of(at) > 0).sum() for at in rows]
    drawn = [max(1, sum(position == owner for owner, _ in pulled)) for position in range(len(rows))]
    sides = [(towers.query, towers.label)]
    if isinstance(towers.query, PartsEncoder) and towers.query.how == "concat":  # each part by itself
        assert isinstance(towers.label, PartsEncoder)
        sides = list(zip(towers.query.encoders.values(), towers.label.encoders.values(), strict=True))
    losses = [
        judge(
            Problem(
                queries=encoded(query_tower, [QUERIES[row] for row in rows]),
                labels=seen_as(encoded(label_tower, LABELS)),
                pulled=pulled,
                unpulled=[pair for pair in every if pair not in pulled],
                filtered=[
                    *((position, row) for position, at in enumerate(rows) for row in FILTERED[at]),
                    *((position, row) for position in range(len(rows)) for row in absent),
                    *(kept_out or []),
                ],
                weights=weights,
                scale=[float(count / some) for count, some in zip(counts, drawn, strict=True)] if positives else None,
                reduction=reduction,
                temperature=0.5,
            )
        )
        for query_tower, label_tower in sides
    ]
    loss = torch.stack(losses).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert any(gradient.abs().max() > 1e-3 for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert torch.isfinite(ours[name]).all(), name
        torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}")
