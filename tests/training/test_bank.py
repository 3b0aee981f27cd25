"""A bank: the loss over all labels by kept vectors, the label tower learning through those that are encoded."""

from itertools import cycle, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from step_cases import (
    LABELS,
    OBJECTIVES,
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
)
from torch import Tensor
from torch.nn.functional import normalize

from miniature import command, refused, write_recipe
from tiny import tiny_transformer
from umpteen.config.settings import BankPool, RunConfig
from umpteen.data.labels import Relevance
from umpteen.encoders.towers import Towers
from umpteen.parallel.world import Shard, World
from umpteen.training.gradient_cache import inclusion_probabilities, thin
from umpteen.training.negatives.mined import Bank
from umpteen.training.step import TrainingStep
from worlds import run_world

CONFIG = RunConfig.model_validate({"objective": {"temperature": 0.5}, "training": {"tile": 4}})
ROWS = np.array([1, 4])
EVERY = len(LABELS)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


def relevance() -> Relevance:
    return Relevance.from_lists(RELEVANT, EVERY, WEIGHTS)


def bank_step(
    towers: Towers, objective: str = "decoupled_softmax", *, world: World | None = None, rate: float = 0.1, **given: int
) -> tuple[TrainingStep, Bank]:
    """A step with a bank, into which a test may put vectors."""
    world, loss = world or World(), OBJECTIVES[objective][0]
    step = make_step(towers, loss, relevance(), world=world, rate=rate, epsilon=1e-5)
    bank = Bank(towers, step.data, Shard(world, EVERY), BankPool(**given), CONFIG, loss)
    step.pool = bank
    return step, bank


def old_vectors(dimension: int) -> dict[str, Tensor]:
    """Vectors that no tower gives, so that whoever mistakes them for new ones is found out."""
    some = torch.randn(EVERY, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return {"vectors": normalize(some), "seen": torch.zeros(EVERY, dtype=torch.int64)}


@pytest.mark.parametrize(("names", "objective"), list(zip(TOWERS, cycle(OBJECTIVES), strict=False)))
@pytest.mark.parametrize("given", [{"renewed": 3}, {"negatives": 1}, {"negatives": 1, "renewed": 2}], ids=str)
def test_loss_and_gradients_are_the_naive_formulas_over_new_and_kept_vectors(
    start: str, names: str, objective: str, given: dict[str, int]
) -> None:
    towers = make_towers(names, start)
    step, bank = bank_step(towers, objective, **{"sampled": 0, **given})
    kept = old_vectors(towers.dimension)["vectors"]
    bank.restore(old_vectors(towers.dimension))
    loss = step.gradients(ROWS, step=STEP, seed=SEED).loss
    found, is_new = gradients(towers), (bank.state()["seen"] == STEP)[:, None]
    assert is_new[[3, 8]].all() and 2 < is_new.sum() < EVERY
    judge = OBJECTIVES[objective][1]
    parts = iter(towers.label.shares)  # each of a concatenation has a loss of its own

    def seen_as(new: Tensor) -> Tensor:
        own, share = next(parts)
        return torch.where(is_new, new, kept[:, own] / share**0.5)

    expected = naive(towers, judge, relevance(), ROWS, seen_as=seen_as)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert_same(found, gradients(towers))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_bank_that_renews_every_label_is_no_bank(start: str, objective: str) -> None:
    towers = make_towers("transformer static", start)
    step, bank = bank_step(towers, objective, sampled=0, renewed=EVERY)
    bank.restore(old_vectors(towers.dimension))
    loss = step.gradients(ROWS, step=STEP, seed=SEED).loss
    found, step.pool = gradients(towers), None
    assert loss == pytest.approx(step.gradients(ROWS, step=STEP, seed=SEED).loss, rel=1e-12)
    assert_same(found, gradients(towers))


@pytest.mark.parametrize("objective", ["decoupled_softmax", "soft_top_3", "one_vs_all"])
def test_over_all_samples_every_label_learns_in_the_mean_what_the_kept_vectors_say(
    start: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = make_towers("static static", start)
    step, bank = bank_step(towers, objective, sampled=1)
    kept = old_vectors(towers.dimension)["vectors"]
    is_pulled = torch.zeros(EVERY, 1, dtype=torch.bool)
    is_pulled[[3, 8]] = True

    def as_kept_but_learning(new: Tensor) -> Tensor:
        return torch.where(is_pulled, new, kept + (new - new.detach()))

    expected = naive(towers, OBJECTIVES[objective][1], relevance(), ROWS, seen_as=as_kept_but_learning)
    exact = gradients(towers)
    edges, starts = [], list[float]()

    def at_chosen_starts(to_labels: Tensor, fraction: float, shard: Shard, start: float, certain: np.ndarray) -> Any:
        assert certain.tolist() == [3, 8]
        norms = torch.linalg.vector_norm(to_labels, dim=1).numpy().copy()
        norms[certain] = 0
        probabilities = inclusion_probabilities(norms, fraction * EVERY)
        assert ((probabilities > 0) & (probabilities < 1)).any()
        probabilities[certain] = 1
        edges.append(np.unique(np.concatenate([[0.0, 1.0], np.cumsum(probabilities) % 1])))
        return thin(to_labels, fraction, shard, starts.pop() if starts else start, certain)

    monkeypatch.setattr("umpteen.training.step.thin", at_chosen_starts)
    bank.restore(old_vectors(towers.dimension))
    step.gradients(ROWS, step=STEP, seed=SEED)
    gradients(towers)
    mean = {name: torch.zeros_like(gradient) for name, gradient in exact.items()}
    for low, high in pairwise(edges[0]):
        starts.append((low + high) / 2)
        bank.restore(old_vectors(towers.dimension))
        outcome = step.gradients(ROWS, step=STEP, seed=SEED)
        assert outcome.loss == pytest.approx(expected, rel=1e-10)  # it does not hang on the sample
        assert 3 / EVERY <= outcome.replay["replayed"] <= 5 / EVERY and outcome.replay["replay_noise"] > 0
        for name, gradient in gradients(towers).items():
            mean[name] += (high - low) * gradient
    assert_same(mean, exact)


def test_what_was_encoded_is_kept_and_labels_take_turns(start: str) -> None:
    towers = make_towers("static static", start)
    step, bank = bank_step(towers, rate=0.0, sampled=0, renewed=2)
    ages = []
    for number in range(6):
        if number == 1:
            bank.restore(old_vectors(towers.dimension))
        outcome = step(np.array([1]), step=number, seed=SEED)
        assert outcome.pool["pool"] == EVERY and outcome.replay["replayed"] == pytest.approx(3 / EVERY, abs=0.12)
        ages.append(outcome.pool["staleness"])
    state = bank.state()
    assert state["seen"].tolist() == [4, 5, 5, 1, 2, 2, 3, 3, 5]  # label 8 is pulled at every step
    new = towers.label(*towers.label.read_now(LABELS))
    torch.testing.assert_close(state["vectors"], new.detach())
    assert ages[:3] == [0, 1, pytest.approx((3 * 1 + 6 * 2) / EVERY)]


def trained(world: World, start: str, state: dict[str, Tensor] | None = None) -> Any:
    """Losses of steps over one or two queries with every way to renew labels; the weights and the bank at the end."""
    found = []
    for names, objective in (("static shared", "softmax"), ("static static", "soft_top_3")):
        towers = make_towers(names, start)
        step, bank = bank_step(towers, objective, world=world, rate=0.01, sampled=1, negatives=1, renewed=1)
        if state is not None:
            bank.restore({name: value.clone() for name, value in state.items()})
        losses = [step(np.array([[1], [4], [7, 1]][n % 3]), step=n, seed=SEED).loss for n in range(6)]
        weights = {key: weight.detach() for key, weight in towers.named_parameters()}
        kept = bank.state()
        found.append((losses, weights, kept))
    return found


def test_a_bank_trains_the_same_model_on_1_2_and_3_processes_wherever_its_vectors_were_kept(start: str) -> None:
    for state in (None, old_vectors(8)):
        alone = trained(World(), start, state)
        for size in (2, 3):
            for ours, theirs in zip(run_world(size, trained, start, state)[0], alone, strict=True):
                assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
                assert ours[2]["seen"].tolist() == theirs[2]["seen"].tolist()
                torch.testing.assert_close(ours[2]["vectors"], theirs[2]["vectors"], rtol=1e-10, atol=1e-10)
                for key, weight in theirs[1].items():
                    torch.testing.assert_close(ours[1][key], weight, rtol=1e-10, atol=1e-10)


def test_a_batch_of_unlabelled_queries_pushes_on_kept_vectors(start: str) -> None:
    towers = make_towers("static static", start)
    step, _ = bank_step(towers, "one_vs_all", sampled=2)
    outcome = step(np.array([6]), step=0, seed=0)
    assert outcome.loss > 0 and outcome.replay["replayed"] == pytest.approx(2 / EVERY)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("pool.sampled=0",), ("pool", "set sampled, negatives or renewed")),
        (("pool.sampled=11",), ("pool.sampled = 11", "10 labels")),
        (("pool.renewed=11",), ("pool.renewed = 11", "10 labels")),
        (("training.replay_fraction=0.5",), ("training.replay_fraction = 0.5", "pool.sampled")),
        (("encoder.label.kind=table",), ("pool.name = bank", "vectors of their own")),
    ],
    ids=str,
)
def test_a_senseless_bank_is_refused(changes: tuple[str, ...], words: tuple[str, ...], tmp_path: Any) -> None:
    given = [word for change in ("pool.name=bank", *changes) for word in ("--set", change)]
    recipe = write_recipe(tmp_path)
    refused(command("train", recipe, "--output", tmp_path / "model", "--quiet", *given), *words)
