"""SoftTop-k's threshold, exact and in one pass over the labels: the bar and its gradient.

B queries, T labels in a tile. Inside, scores are already multiplied by alpha.
"""

import math
from typing import Self

import torch
from torch import Tensor

from umpteen.errors import BadInput
from umpteen.objectives.balance import solve
from umpteen.objectives.bars import drop_negligible_, negligible
from umpteen.objectives.best_and_tail import BestAndTail
from umpteen.parallel.world import World


class SoftThreshold:
    """The t_i with Σ_j σ(alpha · (s_ij − t_i)) = k_i; its gradient is σ'(alpha · (s_ij − t_i)) ÷ the sum of these.

    A query whose k is 0, or not below the number of labels it has in play, has no threshold: −∞ stands for it.
    """

    def __init__(self, like: Tensor, k: int | Tensor, alpha: float, in_play: Tensor) -> None:
        if not (alpha > 0 and math.isfinite(alpha)):
            raise BadInput(f"alpha {alpha} is not a positive number")
        self.sharpness = alpha
        self._threshold = like.new_full((len(like),), -torch.inf)  # [B] of alpha · score
        self._log_slope = torch.zeros_like(self._threshold)  # [B] log Σ_j σ'
        self._groups: list[tuple[Tensor, BestAndTail]] = []  # queries that keep the same number of scores
        k = _one_for_each(k, in_play)
        # One large k must not make every query keep many scores: those between the same powers of 2 form a group.
        power = torch.where((k > 0) & (k < in_play), k.double().log2().ceil(), -1)
        for each in torch.unique(power):
            if each >= 0:
                rows = torch.where(power == each)[0]
                self._groups.append((rows, BestAndTail(like, k[rows], in_play[rows])))

    def fold(self, tile: Tensor) -> None:
        for rows, group in self._groups:
            group.fold(tile if len(rows) == len(tile) else tile[rows])

    def merge(self, other: Self) -> None:
        for (_, group), (_, same_queries) in zip(self._groups, other._groups, strict=True):
            group.merge(same_queries)

    def value(self, world: World) -> Tensor:
        if self._groups:
            rows = torch.cat([rows for rows, _ in self._groups])
            threshold, log_slope = solve([group for _, group in self._groups], world)
            self._threshold[rows] = threshold.to(self._threshold)
            self._log_slope[rows] = log_slope.to(self._log_slope)
        self._groups = []  # the scores they kept are no longer needed
        return self._threshold / self.sharpness

    def weigh(self, tile: Tensor) -> None:
        # σ'(x) = p(1 − p) with p = σ(−|x|): where σ is nearly 1, σ(1 − σ) would lose its digits.
        threshold = torch.where(self._threshold == -torch.inf, torch.inf, self._threshold)
        tile.sub_(threshold[:, None]).abs_()
        torch.sub(self._lift()[:, None], tile, out=tile)
        drop_negligible_(tile).sigmoid_()
        tile.addcmul_(tile, tile, value=-1)

    def factor(self) -> Tensor:
        return torch.where(self._threshold == -torch.inf, 0, (-self._log_slope - self._lift()).exp())

    def _lift(self) -> Tensor:
        """What to add to −|x| [B]: in a gap so wide that all σ' are next to nothing they are e^−|x|, up to a factor."""
        return (-self._log_slope - negligible(self._log_slope.dtype) / 2).clamp(min=0)


def _one_for_each(k: int | Tensor, in_play: Tensor) -> Tensor:
    if isinstance(k, int):
        if k < 1:
            raise BadInput(f"k is {k}; the soft top k needs 1 or more")
        if len(in_play) and k >= (fewest := int(in_play.min())):
            raise BadInput(f"k is {k:,} but a query has {fewest:,} labels in play; choose a smaller k")
        return torch.full_like(in_play, k)
    if k.shape != in_play.shape or k.is_floating_point() or bool((k < 0).any()):
        raise BadInput(f"k must be {len(in_play):,} whole numbers, one per query, none of them negative")
    return k.to(in_play)
