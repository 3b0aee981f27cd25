"""Where SoftTop-k's threshold lies, from what every process remembers of its own labels.

What is solved is log(what the top k lack of k) = log(what all others have): as a function of the threshold its slope is
never far from 1, not even across a gap in the scores, where Σσ itself is flat. One gather tells every process who the
top k are, then each step of Newton's takes one gather of four numbers a query; all groups of queries share them.

R queries, N processes, W leaders.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from umpteen.objectives.best_and_tail import BestAndTail
from umpteen.parallel.world import World

NEWTON_STEPS = 64  # a bound, not a cost: about five are taken
CLOSE = 1e-8  # a Newton step this short, relative to 1 + |t|, leaves an error of about its square


class Leaders(NamedTuple):
    """What the best scores of all processes say about each query's top k [R]."""

    members: Tensor  # how many of the top k are this process's
    first: Tensor  # the best score,
    last: Tensor  # the k-th best,
    next: Tensor  # and the one after it


def solve(groups: Sequence[BestAndTail], world: World) -> tuple[Tensor, Tensor]:
    """The thresholds of all groups' queries, rounded as the gradient will see them, and log Σσ' there (float64 [R])."""
    dtype = groups[0].best.dtype
    for group in groups:
        group.settle()
    leaders = _find_leaders(groups, world, dtype)
    k = torch.cat([group.k for group in groups]).double()
    in_play = torch.cat([group.in_play for group in groups]).double()
    low = leaders.next - k.log()  # (k + 1) σ(next − t) ≤ Σσ = k
    high = leaders.first + (in_play / k - 1).log()  # k = Σσ ≤ in_play · σ(first − t)
    threshold = ((leaders.last + leaders.next) / 2).clamp(low, high)
    for _ in range(NEWTON_STEPS):
        lacking, having, rise, fall = _balance(groups, threshold, leaders.members, world)
        excess = lacking - having
        low, high = torch.where(excess < 0, threshold, low), torch.where(excess > 0, threshold, high)
        moved = threshold - excess / (rise + fall)
        strayed = (moved < low) | (moved > high)
        moved = torch.where(strayed, (low + high) / 2, moved)
        close = torch.where(strayed, 1e-15, CLOSE)
        settled = (moved - threshold).abs() <= close * (1 + threshold.abs())
        threshold = moved
        if bool((settled | threshold.isnan()).all()):
            break
    threshold = threshold.to(dtype).double()
    lacking, having, rise, fall = _balance(groups, threshold, leaders.members, world)
    return threshold, torch.logaddexp(lacking + rise.log(), having + fall.log())


def _balance(groups: Sequence[BestAndTail], threshold: Tensor, members: Tensor, world: World) -> Tensor:
    """Log of what the top k lack, log of what the others have, and their slopes, over all processes."""  # [4, R]
    sizes = [len(group.k) for group in groups]
    own = [
        group.balance(at, count)
        for group, at, count in zip(groups, torch.split(threshold, sizes), torch.split(members, sizes), strict=True)
    ]
    logs, slopes = world.gather(torch.cat(own, dim=1)).tensor_split(2, dim=1)  # each [N, 2, R]
    total = logs.logsumexp(0)
    weights = (logs - total.masked_fill(total == -torch.inf, 0)).exp()
    return torch.cat([total, (weights * slopes).sum(0)])


def _find_leaders(groups: Sequence[BestAndTail], world: World, dtype: torch.dtype) -> Leaders:
    """The top k of each query among all processes' best; of equal scores the lower process's come first."""
    widths = [int(group.k.max()) + 1 for group in groups]
    own = [group.leaders(width).to(dtype) for group, width in zip(groups, widths, strict=True)]
    gathered = world.gather(torch.cat([best.flatten() for best in own]))  # [N, Σ R · W]
    found = []
    for group, width, everyone in zip(
        groups, widths, torch.split(gathered, [best.numel() for best in own], dim=1), strict=True
    ):
        best = everyone.view(world.size, len(group.k), width).transpose(0, 1).reshape(len(group.k), -1)
        best, order = best.double().sort(dim=1, descending=True, stable=True)
        in_top = torch.arange(best.shape[1], device=best.device) < group.k[:, None]
        members = ((order // width == world.rank) & in_top).sum(1)
        last, following = best.gather(1, torch.stack([group.k - 1, group.k], dim=1)).unbind(1)
        found.append(Leaders(members, best[:, 0], last, following))
    return Leaders(*map(torch.cat, zip(*found, strict=True)))
