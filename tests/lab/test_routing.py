"""The curve of lists against a search that opens them one by one, and lists that stay balanced and learn."""

import pytest
import torch
from lab.routing import Lists, Space, balanced, k_means, learned_over, lists_curve, of_lists, routing_loss, share_at
from torch.nn.functional import normalize

from umpteen.objectives import Pairs

LABELS, DIMENSION = 300, 8


@pytest.fixture
def space() -> Space:
    generator = torch.Generator().manual_seed(0)
    labels, train, test = (normalize(torch.randn(count, DIMENSION, generator=generator)) for count in (LABELS, 500, 20))
    query = torch.arange(500).repeat_interleave(2)
    label = torch.randint(LABELS, (1000,), generator=generator)
    return Space(labels, train, test, Pairs(query, label))


def test_recall_at_a_share_is_what_opening_the_best_lists_one_by_one_finds(space: Space) -> None:
    lists = k_means(space.labels, 0)
    exact = (space.test @ space.labels.T).topk(5).indices
    compared, recalls = lists_curve(lists, space, exact)
    found, costs = 0, list[float]()
    for query, wanted in zip(space.test, exact, strict=True):
        seen = len(lists.centres)
        for opened in (lists.centres @ query).argsort(descending=True):
            inside = torch.nonzero(lists.of_label == opened)[:, 0]
            seen += len(inside)
            here = int(torch.isin(wanted, inside).sum())
            found += here
            costs += [seen / LABELS] * here
    assert found == exact.numel() and recalls[-1] == 1.0
    assert compared.tolist() == pytest.approx(sorted(costs))
    assert share_at(0.5, compared, recalls) == pytest.approx(100 * sorted(costs)[len(costs) // 2 - 1], abs=0.001)


def test_no_list_is_longer_than_twice_the_mean_and_who_fits_best_stays() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = normalize(torch.ones(DIMENSION) + 0.3 * torch.randn(1000, DIMENSION, generator=generator))
    centres = vectors[torch.randperm(1000, generator=generator)[:30]]
    chosen, scores = balanced(vectors, centres), vectors @ centres.T
    crowded = int(torch.bincount(scores.argmax(1), minlength=30).argmax())
    assert torch.bincount(scores.argmax(1)).max() > 67 == torch.bincount(chosen, minlength=30).max()
    wanting = torch.nonzero(scores.argmax(1) == crowded)[:, 0]
    assert bool((chosen[wanting[scores[wanting, crowded].argsort(descending=True)[:67]]] == crowded).all())


def test_learned_centres_route_training_queries_better(space: Space) -> None:
    before = k_means(space.places(), 0)
    after = learned_over(space, before, 0)

    def loss(lists: Lists) -> float:
        pairs = of_lists(space.pairs, lists.of_label, len(lists.centres))
        return float(routing_loss(space.train, lists.centres, pairs, 0.05))

    assert loss(after) < loss(before)
