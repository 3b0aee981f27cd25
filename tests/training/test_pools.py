"""Pools of competing labels: each draw is what its definition says, and the step over a pool is the naive formula."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from step_cases import (
    FILTERED,
    LABELS,
    OBJECTIVES,
    QUERIES,
    RELEVANT,
    SEED,
    STEP,
    TOWERS,
    WEIGHTS,
    assert_same,
    gradients,
    make_step,
    make_towers,
    naive,
    table,
)
from torch import Tensor

import reference
from tiny import tiny_transformer
from umpteen.config.settings import CachePool, RunConfig, ShortlistPool
from umpteen.data.labels import Relevance
from umpteen.encoders.encoder import encode_tokens
from umpteen.encoders.towers import Towers
from umpteen.objectives.targets import Pairs
from umpteen.parallel.world import Shard, World
from umpteen.training.negatives.mined import Shortlist, VectorCache, sample_per_row
from umpteen.training.negatives.pool import Batch, Draw, Pool, Uniform, draw_unknown
from umpteen.training.step import TrainingData
from worlds import run_world

ROWS = np.array([0, 2, 3, 5, 6])
CONFIG = RunConfig.model_validate({"objective": {"temperature": 0.5}, "training": {"tile": 4}})


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


def relevance() -> Relevance:
    return Relevance.from_lists(RELEVANT, len(LABELS), WEIGHTS)


def data_for(towers: Towers) -> TrainingData:
    return TrainingData(
        table(towers.query, QUERIES),
        table(towers.label, LABELS),
        relevance(),
        Relevance.from_lists(FILTERED, len(LABELS)),
    )


def shortlist(towers: Towers, world: World, **changes: Any) -> Shortlist:
    settings = ShortlistPool(**{"shortlist": 4, "negatives": 2, "refresh_epochs": 3, **changes})
    return Shortlist(towers, data_for(towers), Shard(world, len(LABELS)), settings, CONFIG, batches_per_epoch=1)


def cache(towers: Towers, world: World, objective: Callable[..., Tensor], per_query: int = 1) -> VectorCache:
    settings = CachePool(negatives=per_query)
    return VectorCache(towers, data_for(towers), Shard(world, len(LABELS)), settings, CONFIG, objective)


def batch_of(towers: Towers, rows: NDArray[np.int64], positives: int | None = None, step: int = STEP) -> Batch:
    data = data_for(towers)
    rng = np.random.default_rng([SEED, step])
    objective = CONFIG.objective.model_copy(update={"positives_per_query": positives})
    targets, filtered = data.targets(rows, objective, rng, torch.device("cpu"))
    vectors = encode_tokens(towers.query, data.queries.take(rows))
    return Batch(rows, vectors, targets, data.known.take(rows), filtered, step, rng)


def known(row: int) -> set[int]:
    return {*RELEVANT[row], *FILTERED[row]}


class Fixed(Pool):
    """The pulled labels, some others, and pairs kept out: whatever a test asks for."""

    def __init__(self, others: list[int], kept_out: list[tuple[int, int]]) -> None:
        self._others = np.array(others, dtype=np.int64)
        self._kept_out = kept_out

    def draw(self, batch: Batch) -> Draw:
        query, label = torch.tensor(self._kept_out, dtype=torch.int64).reshape(-1, 2).T
        return Draw(np.union1d(batch.pulled, self._others), Pairs(query, label))


# Every kind of towers and every objective, not every pair, which test_step.py has: a pool sees vectors and targets.
@pytest.mark.parametrize(("names", "objective"), list(zip(TOWERS, cycle(OBJECTIVES), strict=False)))
@pytest.mark.parametrize("positives", [None, 1])
def test_a_step_over_a_pool_is_the_naive_formula_over_its_labels(
    start: str, names: str, objective: str, positives: int | None
) -> None:
    towers = make_towers(names, start)
    ours, judge = OBJECTIVES[objective]
    kept_out = [(0, 4), (2, 6), (2, 3)]  # not all of them are in play
    step = make_step(towers, ours, relevance(), positives=positives, pool=Fixed([1, 3, 6, 7], kept_out))
    drawn = np.union1d(batch_of(towers, ROWS, positives).pulled, [1, 3, 6, 7])
    loss = step.gradients(ROWS, step=STEP, seed=SEED).loss
    found = gradients(towers)
    expected = naive(towers, judge, relevance(), ROWS, positives=positives, in_play=drawn, kept_out=kept_out)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert_same(found, gradients(towers))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_pool_of_all_labels_is_no_pool(start: str, objective: str) -> None:
    found = []
    for pool in (None, Fixed(list(range(len(LABELS))), [])):
        towers = make_towers("transformer shared", start)
        step = make_step(towers, OBJECTIVES[objective][0], relevance(), pool=pool)
        loss = step.gradients(ROWS, step=STEP, seed=SEED).loss
        found.append((loss, gradients(towers)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert_same(found[1][1], found[0][1])


def test_in_batch_are_the_pulled_labels_of_the_batch_and_no_others(start: str) -> None:
    towers = make_towers("static static", start)
    pulled = {
        label
        for row in ROWS
        for label, weight in zip(RELEVANT[row], WEIGHTS[row], strict=True)
        if weight > 0 and label not in FILTERED[row]
    }
    assert Uniform().draw(batch_of(towers, ROWS)).rows.tolist() == sorted(pulled)
    one = batch_of(towers, ROWS, positives=1)
    assert Uniform().draw(one).rows.tolist() == sorted({int(label) for label in one.targets.pulled.label})


def test_random_labels_are_uniform_over_those_not_known_to_be_right() -> None:
    pairs = Relevance.from_lists([[0, 3, 4, 8], [], list(range(9))], 9)
    rng = np.random.default_rng(0)
    counts = np.zeros(9)
    for _ in range(3000):
        drawn = draw_unknown(pairs, 0, 2, rng)
        assert len(set(drawn.tolist())) == 2
        counts[drawn] += 1
    assert (counts[[0, 3, 4, 8]] == 0).all()
    assert counts[[1, 2, 5, 6, 7]] / 3000 == pytest.approx(2 / 5, abs=0.03)
    assert sorted(draw_unknown(pairs, 0, 99, rng).tolist()) == [1, 2, 5, 6, 7]
    assert sorted(draw_unknown(pairs, 1, 99, rng).tolist()) == list(range(9))
    assert draw_unknown(pairs, 2, 5, rng).tolist() == []


def test_random_labels_join_the_batch_and_never_on_behalf_of_a_query_that_knows_them(start: str) -> None:
    towers = make_towers("static static", start)
    for step in range(30):
        batch = batch_of(towers, np.array([5]), step=step)
        drawn = Uniform(2).draw(batch).rows
        others = set(drawn.tolist()) - set(batch.pulled.tolist())
        assert len(others) == 2 and not others & known(5)


def best_of(towers: Towers, row: int, width: int) -> list[tuple[int, float]]:
    """The labels not known to be right for a query that score best, by brute force."""
    data = data_for(towers)
    query, labels = encode_tokens(towers.query, data.queries)[row], encode_tokens(towers.label, data.labels)
    scored = [(label, float(query.float() @ labels[label].float())) for label in range(len(LABELS))]
    return sorted((pair for pair in scored if pair[0] not in known(row)), key=lambda pair: -pair[1])[:width]


def test_a_shortlist_holds_the_best_labels_not_known_to_be_right_and_each_query_gives_some(start: str) -> None:
    towers = make_towers("static static", start)
    pool = shortlist(towers, World())
    pool.prepare(0)
    seen: dict[int, set[int]] = {int(row): set() for row in ROWS}
    for step in range(40):
        for row in ROWS:
            batch = batch_of(towers, np.array([row]), step=step)
            mined = set(pool.draw(batch).rows.tolist()) - set(batch.pulled.tolist())
            assert len(mined) == 2
            seen[int(row)] |= mined
    for row, labels in seen.items():
        assert labels == {label for label, _ in best_of(towers, row, 4)} and not labels & known(row)


def test_labels_that_beat_the_best_positive_by_the_margin_are_kept_out(start: str) -> None:
    towers = make_towers("static static", start)
    pool = shortlist(towers, World(), margin=0.1, negatives=4)
    pool.prepare(0)
    data = data_for(towers)
    vectors = encode_tokens(towers.query, data.queries), encode_tokens(towers.label, data.labels)
    suspects = 0
    for row in (0, 2, 5, 7):
        positives = [label for label in RELEVANT[row] if label not in FILTERED[row]]
        limit = max(float(vectors[0][row] @ vectors[1][label]) for label in positives) - 0.1
        expected = {label for label, score in best_of(towers, row, 4) if score > limit}
        batch = batch_of(towers, np.array([row]))
        draw = pool.draw(batch)
        assert {int(label) for label in draw.kept_out.label} == expected
        assert not expected & (set(draw.rows.tolist()) - set(batch.pulled.tolist()))
        suspects += len(expected)
    assert suspects > 0


def test_a_shortlist_waits_for_its_first_step_and_is_refreshed_on_time(start: str) -> None:
    towers = make_towers("static static", start)
    pool = shortlist(towers, World(), from_epoch=2, refresh_epochs=3)
    staleness = []
    for step in range(8):
        pool.prepare(step)
        batch = batch_of(towers, ROWS, step=step)
        draw = pool.draw(batch)
        if step < 2:
            assert draw.rows.tolist() == batch.pulled.tolist()
        staleness.append(draw.staleness)
    assert staleness == [0, 0, 0, 1, 2, 0, 1, 2]


def test_samples_of_a_row_are_distinct_and_allowed_and_all_of_them_where_there_are_few() -> None:
    rows = np.array([[5, 6, 7, 8], [1, 2, 3, 4]], dtype=np.int32)
    allowed = np.array([[True, False, True, True], [False, False, False, True]])
    found = [sample_per_row(rows, allowed, 2, np.random.default_rng(seed)).tolist() for seed in range(50)]
    assert {frozenset(sample[:2]) for sample in found} == {frozenset(pair) for pair in ((5, 7), (5, 8), (7, 8))}
    assert all(sample[2:] == [4] for sample in found)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("positives", [None, 1])
def test_the_mined_labels_are_those_with_the_largest_gradient_against_the_cache(
    start: str, objective: str, positives: int | None
) -> None:
    towers = make_towers("static static", start)
    ours, judge = OBJECTIVES[objective]
    pool = cache(towers, World(), ours)
    pool.prepare(0)
    data = data_for(towers)
    for rows in (np.array([1, 4]), np.array([0, 3, 7])):
        batch = batch_of(towers, rows, positives)
        cached = encode_tokens(towers.label, data.labels).requires_grad_()
        pulled = list(zip(batch.targets.pulled.query.tolist(), batch.targets.pulled.label.tolist(), strict=True))
        others = [(i, label) for i, row in enumerate(rows) for label in known(row) if (i, label) not in pulled]
        weights = batch.targets.weights
        problem = reference.Problem(
            batch.vectors,
            cached,
            pulled=pulled,
            filtered=others,
            weights=weights.tolist() if weights is not None else None,
            temperature=0.5,
        )
        judge(problem).backward()  # type: ignore[no-untyped-call]
        assert cached.grad is not None
        norms = {label: float(cached.grad[label].norm()) for label in range(len(LABELS))}
        candidates = [label for label in norms if label not in batch.pulled and norms[label] > 0]
        expected = sorted(candidates, key=lambda label: -norms[label])[: len(rows)]
        mined = set(pool.draw(batch).rows.tolist()) - set(batch.pulled.tolist())
        assert mined == set(expected) and mined


def test_a_cached_vector_is_renewed_when_its_label_is_in_play_and_ages_otherwise(start: str) -> None:
    towers = make_towers("static static", start)
    pool = cache(towers, World(), OBJECTIVES["decoupled_softmax"][0], per_query=9)
    pool.prepare(0)
    batch = batch_of(towers, ROWS, step=6)
    assert batch.pulled.tolist() == [0, 1, 4, 5, 6, 7, 8]
    assert pool.draw(batch).staleness == 6
    fresh = torch.full((2, towers.dimension), 0.25, dtype=torch.float64)
    pool.seen(np.array([2, 7]), fresh, 7)
    state = pool.state()
    assert torch.equal(state["vectors"][[2, 7]], fresh)
    assert state["seen"].tolist() == [6, 6, 7, 0, 6, 6, 6, 7, 6]


def test_a_batch_s_own_labels_are_renewed_in_the_cache_before_others_are_mined(start: str) -> None:
    towers = make_towers("static static", start)
    pool = cache(towers, World(), OBJECTIVES["softmax"][0])
    pool.prepare(0)
    old = pool.state()["vectors"].clone()
    with torch.no_grad():
        towers.label.table += 0.3 * torch.randn(towers.label.table.shape, generator=torch.Generator().manual_seed(1))
    now = encode_tokens(towers.label, data_for(towers).labels)
    rows = np.array([0, 3, 7])
    batch = batch_of(towers, rows)
    mixed = old.clone()
    mixed[batch.pulled] = now[batch.pulled]
    found = []
    for cached in (mixed.requires_grad_(), old.requires_grad_()):  # as the paper has it; and mined before
        pulled = list(zip(batch.targets.pulled.query.tolist(), batch.targets.pulled.label.tolist(), strict=True))
        others = [(i, label) for i, row in enumerate(rows) for label in known(row) if (i, label) not in pulled]
        weights = None if batch.targets.weights is None else batch.targets.weights.tolist()
        reference.softmax(
            reference.Problem(batch.vectors, cached, pulled=pulled, filtered=others, weights=weights, temperature=0.5)
        ).backward()  # type: ignore[no-untyped-call]
        assert cached.grad is not None
        found.append(torch.linalg.vector_norm(cached.grad, dim=1))
    pool.draw(batch)
    torch.testing.assert_close(pool.push(batch), found[0])
    assert (found[0] - found[1]).abs().max() > 1e-3
    torch.testing.assert_close(pool.state()["vectors"], mixed.detach())


def test_a_query_without_a_negative_in_the_pool_is_told_of_once_and_counted(start: str) -> None:
    towers = make_towers("static static", start)
    told: list[str] = []
    step = make_step(towers, OBJECTIVES["decoupled_softmax"][0], relevance(), pool=Uniform(), notice=told.append)
    counts = [step(np.array([1]), step=number, seed=0).pool["queries_without_negatives"] for number in range(2)]
    assert counts == [1, 1]
    assert len(told) == 1 and "no negative among the 1 labels in play" in told[0]


def test_the_step_reports_the_size_of_its_pool_and_how_stale_it_is(start: str) -> None:
    towers = make_towers("static static", start)
    step = make_step(towers, OBJECTIVES["softmax"][0], relevance(), pool=shortlist(towers, World(), refresh_epochs=9))
    outcomes = [step(ROWS, step=number, seed=0).pool for number in range(3)]
    assert [outcome["staleness"] for outcome in outcomes] == [0, 1, 2]
    assert all(7 <= outcome["pool"] <= len(LABELS) for outcome in outcomes)
    assert make_step(towers, OBJECTIVES["softmax"][0], relevance())(ROWS, step=0, seed=0).pool == {}


def make_pool(name: str, towers: Towers, world: World, objective: Callable[..., Tensor]) -> Pool:
    return {
        "batch": Uniform,
        "random": lambda: Uniform(1),
        "shortlist": lambda: shortlist(towers, world, margin=0.0),
        "cache": lambda: cache(towers, world, objective),
    }[name]()


POOLS = ["batch", "random", "shortlist", "cache"]
MANY = ["softmax", "decoupled_softmax", "soft_top_positives", "one_vs_all"]


def trained_with_pools(
    world: World, start: str, cases: list[tuple[str, str]]
) -> list[tuple[list[float], dict[str, Tensor]]]:
    """Losses and weights after 5 steps, with a shortlist that is refreshed once, with some pools and objectives."""
    found = []
    for name, objective in cases:
        towers = make_towers("static static" if objective == "softmax" else "static shared", start)
        pool = make_pool(name, towers, world, OBJECTIVES[objective][0])
        step = make_step(towers, OBJECTIVES[objective][0], relevance(), rate=0.01, epsilon=1e-5, world=world, pool=pool)
        losses = [step(ROWS[number % 2 :], step=number, seed=3).loss for number in range(5)]
        found.append((losses, {key: weight.detach() for key, weight in towers.named_parameters()}))
    return found


def test_every_pool_trains_the_same_model_on_1_2_and_3_processes(start: str) -> None:
    # Each pool with each objective; of each a case on 3 processes, which take turns on few cores, and the others on 2.
    on_three = list(zip(POOLS, MANY, strict=True))
    on_two = [(pool, objective) for pool in POOLS for objective in MANY if (pool, objective) not in on_three]
    for size, cases in ((2, on_two), (3, on_three)):
        alone = trained_with_pools(World(), start, cases)
        for ours, theirs in zip(run_world(size, trained_with_pools, start, cases)[0], alone, strict=True):
            assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
            for key, weight in theirs[1].items():
                torch.testing.assert_close(ours[1][key], weight, rtol=1e-10, atol=1e-10)


def resumed_elsewhere(world: World, start: str, states: dict[str, dict[str, Tensor]]) -> dict[str, list[int]]:
    """What each pool draws after taking up a state."""
    towers = make_towers("static static", start)
    found = {}
    for name, state in states.items():
        pool = make_pool(name, towers, world, OBJECTIVES["softmax"][0])
        pool.restore(state)
        pool.prepare(1)
        found[name] = pool.draw(batch_of(towers, ROWS)).rows.tolist()
        assert set(pool.state()) == (set(state) if world.is_first or name == "shortlist" else set())
    return found


def test_a_pool_saved_by_one_process_goes_on_with_three(start: str) -> None:
    towers = make_towers("static static", start)
    states, drawn = {}, {}
    for name in ("shortlist", "cache"):
        pool = make_pool(name, towers, World(), OBJECTIVES["softmax"][0])
        pool.prepare(0)
        if name == "cache":
            pool.seen(np.array([0, 8]), torch.full((2, towers.dimension), 0.3, dtype=torch.float64), 0)
        states[name], drawn[name] = pool.state(), pool.draw(batch_of(towers, ROWS)).rows.tolist()
    assert run_world(3, resumed_elsewhere, start, states)[2] == drawn


def test_soft_top_k_over_a_pool_gives_nothing_for_a_query_with_no_more_than_k_labels(start: str) -> None:
    towers = make_towers("static static", start)
    step = make_step(towers, OBJECTIVES["soft_top_3"][0], relevance(), pool=Uniform())
    assert step.gradients(np.array([1]), step=STEP, seed=SEED).loss == 0


def test_a_batch_of_unlabelled_queries_without_a_label_in_play_teaches_nothing_and_stops_nothing(start: str) -> None:
    towers = make_towers("static static", start)
    before = {name: weight.detach().clone() for name, weight in towers.named_parameters()}
    step = make_step(towers, OBJECTIVES["one_vs_all"][0], relevance(), pool=Uniform())
    outcome = step(np.array([6]), step=0, seed=0)
    assert (outcome.loss, outcome.pool["pool"]) == (0, 0)
    assert all(torch.equal(weight, before[name]) for name, weight in towers.named_parameters())


def test_a_query_without_positives_has_no_probable_false_negatives(start: str) -> None:
    towers = make_towers("static static", start)
    pool = shortlist(towers, World(), margin=0.5)
    pool.prepare(0)
    assert len(pool.draw(batch_of(towers, np.array([6]))).kept_out.query) == 0
