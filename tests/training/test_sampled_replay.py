"""A sampled replay is unbiased: over all samples, the mean of the gradient is the exact one."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from step_cases import LABELS, OBJECTIVES, QUERIES, RELEVANT, SEED, STEP, gradients, make_step, make_towers

from tiny import tiny_transformer
from umpteen.data.labels import Relevance
from umpteen.data.tokens import TokenTable
from umpteen.encoders.static import StaticEncoder
from umpteen.errors import BadConfig
from umpteen.parallel.world import Shard, World
from umpteen.training.gradient_cache import CachedVectors, inclusion_probabilities, systematic_sample, thin


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_transformer(tmp_path_factory.mktemp("start"), hidden_size=8)


norms = st.lists(st.floats(0, 1e6), min_size=1, max_size=30).map(np.array)


@given(norms=norms, share=st.floats(0.01, 1))
def test_probabilities_are_proportional_to_norms_up_to_1_and_add_up(norms: np.ndarray, share: float) -> None:
    probabilities = inclusion_probabilities(norms, share * len(norms))
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    assert (probabilities[norms > 0] > 0).all() and (probabilities[norms == 0] == 0).all()
    assert probabilities.sum() == pytest.approx(min(share * len(norms), (norms > 0).sum()), rel=1e-6)
    below = (probabilities < 1) & (norms > 1e-90 * max(norms.max(), 1e-200))
    if below.any():
        ratio = probabilities[below] / norms[below]
        assert ratio == pytest.approx(np.full(len(ratio), ratio[0]), rel=1e-6)


def test_every_label_is_chosen_as_often_as_its_probability_says() -> None:
    probabilities = inclusion_probabilities(np.array([5.0, 0.0, 1.0, 2.0, 0.25, 1.0]), 3)
    starts = (np.arange(40_000) + 0.5) / 40_000
    counts = np.zeros(6)
    for start in starts:
        chosen = systematic_sample(probabilities, start)
        assert abs(len(chosen) - probabilities.sum()) < 1
        counts[chosen] += 1
    assert counts / len(starts) == pytest.approx(probabilities, abs=1e-4)


def every_subset(probabilities: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    """All subsets of the labels, each with its probability under independent draws of the same marginals."""
    return [
        (
            tuple(np.flatnonzero(bits)),
            float(np.prod(np.where(np.array(bits) == 1, probabilities, 1 - probabilities))),
        )
        for bits in product((0, 1), repeat=len(probabilities))
    ]


def test_over_every_subset_of_6_labels_the_replayed_gradient_is_exact_in_the_mean(start: str) -> None:
    texts = ["fish", "law of the tree", "book", "dog and tree", "food trade", "network"]
    encoder = StaticEncoder.random(start, 8, seed=1, max_length=8).double().train()
    table = TokenTable.of(encoder.tokenizer(texts), encoder.tokenizer.vocabulary_size)
    at_vectors = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    at_vectors *= torch.tensor([3.0, 0.1, 1.0, 0.5, 2.0, 0.3])[:, None]

    def replayed(rows: np.ndarray, gradient: torch.Tensor) -> torch.Tensor:
        encoder.zero_grad()
        cached = CachedVectors(encoder, table, budget=4, seed=0)
        taken: list[int] = []
        with encoder.register_forward_hook(lambda _, given, vectors: taken.append(len(vectors))):
            cached.replay(rows, gradient)
        assert sum(taken) == len(rows)
        return torch.zeros_like(encoder.table) if encoder.table.grad is None else encoder.table.grad.clone()

    exact = replayed(np.arange(6), at_vectors)
    probabilities = inclusion_probabilities(torch.linalg.vector_norm(at_vectors, dim=1).numpy(), 3)
    assert (probabilities < 1).any() and (probabilities == 1).any()
    mean, total = torch.zeros_like(exact), 0.0
    for subset, probability in every_subset(probabilities):
        rows = np.array(subset, dtype=np.int64)
        if probability == 0:
            continue
        weights = torch.from_numpy(1 / probabilities[rows])
        mean += probability * replayed(rows, at_vectors[rows] * weights[:, None])
        total += probability
    assert total == pytest.approx(1)
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(mean, exact, rtol=1e-11, atol=1e-12)


def test_over_all_systematic_samples_the_steps_gradient_is_exact_in_the_mean(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = make_towers("static static", start)
    relevance = Relevance.from_lists(RELEVANT, len(LABELS))
    rows = np.arange(len(QUERIES))
    objective = OBJECTIVES["decoupled_softmax"][0]
    make_step(towers, objective, relevance).gradients(rows, step=STEP, seed=SEED)
    exact = gradients(towers)

    found: list[np.ndarray] = []
    real = thin

    def keep_probabilities(to_labels: torch.Tensor, fraction: float, shard: Shard, start: float):  # type: ignore[no-untyped-def]
        norms = torch.linalg.vector_norm(to_labels, dim=1).numpy()
        found.append(inclusion_probabilities(norms, fraction * len(norms)))
        return real(to_labels, fraction, shard, starts.pop() if starts else start)

    starts: list[float] = []
    monkeypatch.setattr("umpteen.training.step.thin", keep_probabilities)
    step = make_step(towers, objective, relevance, replay_fraction=0.4)
    step.gradients(rows, step=STEP, seed=SEED)
    gradients(towers)
    # The sample changes only where the start passes a fractional part of the running sum.
    edges = np.unique(np.concatenate([[0.0, 1.0], np.cumsum(found[0]) % 1]))
    mean = {name: torch.zeros_like(gradient) for name, gradient in exact.items()}
    for low, high in pairwise(edges):
        starts.append((low + high) / 2)
        outcome = step.gradients(rows, step=STEP, seed=SEED)
        assert 0.3 < outcome.replay["replayed"] < 0.5 and outcome.replay["replay_noise"] > 0
        for name, gradient in gradients(towers).items():
            mean[name] += (high - low) * gradient
    for name, gradient in exact.items():
        torch.testing.assert_close(mean[name], gradient, rtol=1e-9, atol=1e-11, msg=lambda text: f"{name}: {text}")  # noqa: B023


def test_a_fraction_of_1_is_the_exact_gradient_without_noise() -> None:
    at_vectors = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, gradient, report = thin(at_vectors, 1.0, Shard(World(), 5), 0.3)
    assert rows.tolist() == [0, 1, 2, 3, 4] and torch.equal(gradient, at_vectors)
    assert report == {"replayed": 1.0, "replay_noise": 0.0}


def test_a_sampled_replay_refuses_dropout_which_would_make_it_spare_nothing(start: str) -> None:
    towers = make_towers("static static", start)
    towers.label.dropout = 0.1  # type: ignore[assignment]
    step = make_step(towers, OBJECTIVES["softmax"][0], Relevance.from_lists(RELEVANT, len(LABELS)), replay_fraction=0.5)
    with pytest.raises(BadConfig, match="hidden_dropout = 0"):
        step(np.arange(3), step=0, seed=0)
