"""The vectors go with the scores, at once: no circle of references keeps them until the garbage collector comes by."""

import gc
import weakref

import pytest
import torch

from umpteen.objectives import Pairs, Scores, Targets, decoupled_softmax, one_vs_all, soft_top_k, softmax

OBJECTIVES = {
    "softmax": softmax,
    "decoupled_softmax": decoupled_softmax,
    "one_vs_all": one_vs_all,
    "soft_top_k": lambda scores, targets: soft_top_k(scores, targets, 2, 2.0),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_vectors_are_freed_when_the_loss_is_gone(objective: str) -> None:
    queries, labels = torch.randn(3, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    positives = Pairs(torch.arange(3), torch.arange(3))
    gc.disable()
    try:
        scores = Scores(queries, labels, temperature=0.1, tile=4)
        tiles = weakref.ref(scores._tiles)
        loss = OBJECTIVES[objective](scores, Targets(positives, positives, 3))
        loss.backward()
        del scores, loss
        assert tiles() is None
    finally:
        gc.enable()
