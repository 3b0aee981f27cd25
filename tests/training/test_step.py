"""The whole step gives the weights the gradient of the plain formulas on one full graph, to float64's precision."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import reference
from reference import Problem
from tiny import tiny_transformer
from umpteen.data.batches import EpochSampler, draw_positives
from umpteen.data.relevance import Relevance
from umpteen.data.token_table import TokenTable
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.objectives import decoupled_softmax, one_vs_all, soft_top_k, softmax
from umpteen.training import step as step_module
from umpteen.training.optimizer import make_optimizer
from umpteen.training.step import StepSettings, TrainingData, TrainingStep

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
    "one_vs_all": (one_vs_all, reference.one_vs_all),
}
TOWERS = ["static shared", "static static", "transformer shared", "transformer static", "static transformer"]
SEED, STEP = 3, 17


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


def make_encoder(kind: str, start: str, seed: int) -> Encoder:
    if kind == "static":
        encoder = StaticEncoder.random(start, 8, seed=seed, bigrams=20, max_length=8)
        assert encoder.bigrams is not None
        torch.nn.init.normal_(encoder.bigrams, generator=torch.Generator().manual_seed(seed))  # they start at zero
        return encoder
    return TransformerEncoder.load(start, max_length=8, hidden_dropout=0.0)


def make_towers(names: str, start: str) -> Towers:
    first, second = names.split()
    query = make_encoder(first, start, 1)
    towers = Towers(query) if second == "shared" else Towers(query, make_encoder(second, start, 2))
    return towers.double().train()


def table(encoder: Encoder, texts: list[str]) -> TokenTable:
    return TokenTable.of(encoder.tokenizer(texts), encoder.tokenizer.vocabulary_size)


def make_step(
    towers: Towers,
    objective: Callable[..., Tensor],
    relevance: Relevance,
    *,
    reduction: Any = "mean",
    positives: int | None = None,
    budget: int = 8,
    tile: int | None = 4,
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
        make_optimizer([(towers, 0.1)], weight_decay=0.0, betas=(0.9, 0.99), epsilon=1e-8),
        StepSettings(
            temperature=0.5,
            reduction=reduction,
            positives_per_query=positives,
            token_budget=budget,
            tile=tile,
            clip_norm=0.0,
        ),
    )


def gradients(towers: Towers) -> dict[str, Tensor]:
    """The gradient of every weight, which is then cleared; a weight without one counts as zero."""
    found = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in towers.named_parameters()
    }
    towers.zero_grad()
    return found


def naive(
    towers: Towers,
    judge: Callable[[Problem], Tensor],
    relevance: Relevance,
    rows: NDArray[np.int64],
    reduction: Any = "mean",
    positives: int | None = None,
) -> float:
    """Every text encoded on its own, in one graph, under the dense formula; leaves gradients, returns the loss."""

    def encoded(encoder: Encoder, texts: list[str]) -> Tensor:
        return torch.cat([encoder(*encoder.tokenizer.batch([text])) for text in texts])

    pulled, weights = [], []
    relevance = relevance.without(Relevance.from_lists(FILTERED, len(LABELS)))  # a filtered pair is never drawn
    query, label, weight = draw_positives(relevance, rows, positives, np.random.default_rng([SEED, STEP]))
    for position, row, value in zip(query.tolist(), label.tolist(), weight.tolist(), strict=True):
        pulled.append((position, row))
        weights.append(value)
    every = [(position, int(row)) for position, at in enumerate(rows) for row in relevance.of(at)]
    counts = [(relevance.weights_of(at) > 0).sum() for at in rows]
    drawn = [max(1, sum(position == owner for owner, _ in pulled)) for position in range(len(rows))]
    loss = judge(
        Problem(
            queries=encoded(towers.query, [QUERIES[row] for row in rows]),
            labels=encoded(towers.label, LABELS),
            pulled=pulled,
            unpulled=[pair for pair in every if pair not in pulled],
            filtered=[(position, row) for position, at in enumerate(rows) for row in FILTERED[at]],
            weights=weights,
            scale=[float(count / some) for count, some in zip(counts, drawn, strict=True)] if positives else None,
            reduction=reduction,
            temperature=0.5,
        )
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert any(gradient.abs().max() > 1e-3 for gradient in theirs.values())
    for name, gradient in theirs.items():
        assert torch.isfinite(ours[name]).all(), name
        torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("names", TOWERS)
def test_every_objective_on_every_pair_of_towers_gives_the_naive_gradient(
    names: str, objective: str, start: str
) -> None:
    towers = make_towers(names, start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)
    ours, judge = OBJECTIVES[objective]
    step = make_step(towers, ours, relevance)
    sampler = EpochSampler(relevance, 5, seed=0, keep_unlabelled=True)
    batches = [sampler.rows(0, index) for index in range(sampler.batches_per_epoch)]
    assert [len(rows) for rows in batches] == [5, 3]
    for rows in batches:
        loss, _ = step.gradients(rows, step=STEP, seed=SEED)
        found = gradients(towers)
        assert loss == pytest.approx(naive(towers, judge, relevance, rows), rel=1e-10)
        assert_same(found, gradients(towers))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("names", "reduction", "positives", "budget", "tile"),
    [
        ("static shared", "mean", 1, 1, 1),
        ("static shared", "sum", 1, 10_000, None),
        ("static static", "sum", 2, 8, 2),
        ("transformer shared", "sum", 2, 12, 9),
        ("transformer static", "mean", 2, 10_000, None),
        ("static transformer", "sum", None, 8, 4),
    ],
)
def test_reductions_sampled_positives_budgets_and_tiles_give_the_naive_gradient(
    names: str, objective: str, reduction: str, positives: int | None, budget: int, tile: int | None, start: str
) -> None:
    towers = make_towers(names, start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)
    ours, judge = OBJECTIVES[objective]
    step = make_step(towers, ours, relevance, reduction=reduction, positives=positives, budget=budget, tile=tile)
    rows = np.arange(len(QUERIES))
    loss, _ = step.gradients(rows, step=STEP, seed=SEED)
    found = gradients(towers)
    assert loss == pytest.approx(naive(towers, judge, relevance, rows, reduction, positives), rel=1e-10)
    assert_same(found, gradients(towers))


@pytest.mark.parametrize("objective", ["softmax", "decoupled_softmax", "soft_top_3", "one_vs_all"])
@pytest.mark.parametrize(("reduction", "positives"), [("mean", 1), ("sum", 1), ("sum", 2)])
def test_over_all_samples_of_positives_the_mean_gradient_is_that_of_pulling_all(
    objective: str, reduction: str, positives: int, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = make_towers("static static", start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))  # graded weights would not be drawn in proportion
    rows = np.array([0, 7])
    choices = [list(itertools.combinations(RELEVANT[row], min(positives, len(RELEVANT[row])))) for row in rows]
    draws = list(itertools.product(*choices))
    step = make_step(towers, OBJECTIVES[objective][0], relevance, reduction=reduction, positives=positives)
    total = {name: torch.zeros_like(weight) for name, weight in towers.named_parameters()}
    for draw in draws:

        def drawn(relevance: Relevance, rows: Any, limit: int | None, rng: Any, draw: Any = draw) -> Any:
            if limit is None:
                return draw_positives(relevance, rows, limit, rng)
            query = np.repeat(np.arange(len(draw)), [len(labels) for labels in draw])
            label = np.array([label for labels in draw for label in sorted(labels)])
            return query, label, np.ones(len(label), dtype=np.float32)

        monkeypatch.setattr(step_module, "draw_positives", drawn)
        step.gradients(rows, step=STEP, seed=SEED)
        for name, gradient in gradients(towers).items():
            total[name] += gradient / len(draws)
    monkeypatch.undo()
    make_step(towers, OBJECTIVES[objective][0], relevance, reduction=reduction).gradients(rows, step=STEP, seed=SEED)
    assert_same(total, gradients(towers))


@pytest.mark.parametrize(("names", "encoded"), [("static shared", 7 + 8 - 1), ("static static", 7 + 8)])
def test_each_distinct_text_is_encoded_once(names: str, encoded: int, start: str) -> None:
    towers = make_towers(names, start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    step = make_step(towers, decoupled_softmax, relevance, budget=10_000)
    seen: list[int] = []
    towers.query.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[1]) - 1))
    if not towers.shared:
        towers.label.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[1]) - 1))
    step.gradients(np.arange(len(QUERIES)), step=STEP, seed=SEED)
    assert sum(seen) == encoded


def test_a_step_follows_from_seed_and_step_alone(start: str) -> None:
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    rows = np.arange(len(QUERIES))

    def after(step: int, seed: int) -> Tensor:
        torch.manual_seed(step + 7 * seed)  # of no influence
        encoder = StaticEncoder.random(start, 8, seed=1, dropout=0.5)
        towers = Towers(encoder).double()
        make_step(towers, decoupled_softmax, relevance, positives=1)(rows, step=step, seed=seed)
        return encoder.table.detach()

    torch.manual_seed(0)
    first = after(4, 1)
    torch.rand(5)
    assert torch.equal(first, after(4, 1))
    assert not torch.equal(first, after(5, 1)) and not torch.equal(first, after(4, 2))
