"""The whole step gives the weights the gradient of the plain formulas on one full graph, to float64's precision."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from step_cases import (
    LABELS,
    OBJECTIVES,
    QUERIES,
    RELEVANT,
    SEED,
    STEP,
    TOWERS,
    TOWERS_WITH_ROWS,
    WEIGHTS,
    assert_same,
    gradients,
    make_step,
    make_towers,
    naive,
)
from torch import Tensor

from tiny import tiny_transformer
from umpteen.data.labels import EpochSampler, Relevance, draw_positives
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.objectives import decoupled_softmax
from umpteen.training import step as training_step


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("names", [*TOWERS, *TOWERS_WITH_ROWS])
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
        loss = step.gradients(rows, step=STEP, seed=SEED).loss
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
    loss = step.gradients(rows, step=STEP, seed=SEED).loss
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

        monkeypatch.setattr(training_step, "draw_positives", drawn)
        step.gradients(rows, step=STEP, seed=SEED)
        for name, gradient in gradients(towers).items():
            total[name] += gradient / len(draws)
    monkeypatch.undo()
    make_step(towers, OBJECTIVES[objective][0], relevance, reduction=reduction).gradients(rows, step=STEP, seed=SEED)
    assert_same(total, gradients(towers))


@pytest.mark.parametrize("names", ["static shared", "static static"])
def test_each_distinct_text_of_a_side_is_encoded_once(names: str, start: str) -> None:
    towers = make_towers(names, start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    step = make_step(towers, decoupled_softmax, relevance, budget=10_000)
    seen: list[int] = []
    towers.query.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[1]) - 1))
    if not towers.shared:
        towers.label.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[1]) - 1))
    step.gradients(np.arange(len(QUERIES)), step=STEP, seed=SEED)
    assert seen == [7, 8]


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
