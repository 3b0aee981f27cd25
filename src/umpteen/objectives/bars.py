"""The bars, each of one pass over the labels: log-sum-exp, the sum of softplus, and SoftTop-k's threshold, exact."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import count
from math import log, sqrt
from typing import Self

import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from umpteen.errors import BadInput
from umpteen.parallel.world import World


class LogSumExp:
    """log Σ_j exp(s_ij), −∞ where no label is left; its gradient is exp(s_ij − value_i)."""

    sharpness = 1.0

    def __init__(self, like: Tensor, largest: float) -> None:
        # Small scores, as of normalised vectors, go into exp as they are; others relative to the largest so far.
        self.small = largest <= 30
        self.peak = like.new_full((len(like),), 0 if self.small else -torch.inf)  # [B] what exponents are relative to
        self.mass = like.new_zeros(len(like))  # [B] Σ exp(score − peak)
        self._value = torch.empty_like(self.mass)

    def fold(self, tile: Tensor) -> None:
        if self.small:
            self.mass += tile.exp_().sum(1)
            return
        self._raise(torch.maximum(self.peak, tile.amax(1)))
        tile.sub_(torch.where(self.peak == -torch.inf, 0, self.peak)[:, None])
        self.mass += drop_negligible_(tile).exp_().sum(1)

    def merge(self, other: Self) -> None:
        peak = torch.maximum(self.peak, other.peak)
        for each in (self, other):
            each._raise(peak)
        self.mass += other.mass

    def value(self, world: World) -> Tensor:
        self._value = world.gather(self.peak + self.mass.log()).logsumexp(0)
        return self._value

    def weigh(self, tile: Tensor) -> None:
        if not self.small:
            tile.sub_(torch.where(self._value == -torch.inf, torch.inf, self._value)[:, None])
            drop_negligible_(tile)
        tile.exp_()

    def factor(self) -> Tensor:
        value = self._value
        return torch.where(value == -torch.inf, 0, (-value).exp()) if self.small else torch.ones_like(value)

    def _raise(self, peak: Tensor) -> None:
        self.mass *= torch.where(self.peak == peak, 0, self.peak - peak).exp()  # −∞ − −∞ is not a number
        self.peak = peak


class SoftplusSum:
    """Σ_j log(1 + exp(s_ij)); its gradient is the logistic function of s_ij."""

    sharpness = 1.0

    def __init__(self, like: Tensor) -> None:
        self.total = like.new_zeros(len(like))  # [B]

    def fold(self, tile: Tensor) -> None:
        self.total += torch.logaddexp(drop_negligible_(tile), tile.new_zeros(()), out=tile).sum(1)

    def merge(self, other: Self) -> None:
        self.total += other.total

    def value(self, world: World) -> Tensor:
        return world.sum_(self.total.clone())

    def weigh(self, tile: Tensor) -> None:
        drop_negligible_(tile).sigmoid_()

    def factor(self) -> Tensor:
        return torch.ones_like(self.total)


def drop_negligible_(exponents: Tensor) -> Tensor:
    """Exponents whose exponential is next to nothing become −∞, in place.

    Denormal numbers, and products that turn into them, slow the matrix products of x86 down severalfold.
    """
    return torch.threshold_(exponents, -negligible(exponents.dtype), -torch.inf)


def negligible(dtype: torch.dtype) -> float:
    """An x whose exp(−x) is next to nothing, and far from denormal."""
    return 60.0 if dtype == torch.float32 else 600.0


KEPT_PER_K = 32  # M/k
GROUP = 32  # neighbouring labels asked together whether any of them is above the floor


# Of each query the M best scores are kept, M a multiple of k, and of the rest, the tail, only power sums. Σσ = k keeps
# the tail so far below the threshold t that u = exp(score − t) ≤ 1/(M/k − 1) there, where a polynomial in u of a few
# terms is σ to the last digit. R queries, T labels in a tile, m̂ power sums.
class BestAndTail:
    """The M best scores of each query and the power sums Σ exp(m · (score − floor)), m = 1 … m̂, of all others."""

    def __init__(self, like: Tensor, k: Tensor, in_play: Tensor) -> None:
        self.k, self.in_play = k, in_play  # [R]
        self.kept = min(KEPT_PER_K * int(k.max()), int(in_play.max()))  # M
        self.best = like.new_full((len(k), self.kept), -torch.inf)  # [R, M]
        self.floor = like.new_full((len(k),), -torch.inf)  # [R] the M-th best score when last they competed
        self.series = torch.tensor(_series(like.dtype), dtype=torch.float64, device=like.device)  # [2, m̂]
        self.powers = self.series.new_zeros(len(k), self.series.shape[1])  # [R, m̂]
        self._rivals: list[Tensor] = []  # scores above the floor that have yet to compete, padded with −∞
        self._scratch = like.new_empty(0)

    def fold(self, tile: Tensor) -> None:
        """Take a tile of scores [R, T] in, and overwrite it."""
        if ragged := tile.shape[1] % GROUP:
            tile = pad(tile, (0, GROUP - ragged), value=-torch.inf)
        rows, columns, scores = self._above_floor(tile)
        if 4 * len(rows) > tile.numel():
            self._rivals.append(tile.clone())
            tile.fill_(-torch.inf)
        elif len(rows):
            counts = torch.bincount(rows, minlength=len(tile))
            place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
            rivals = tile.new_full((len(tile), int(counts.max())), -torch.inf)
            rivals[rows, place] = scores
            tile[rows, columns] = -torch.inf
            self._rivals.append(rivals)
        self._add_to_tail(tile)
        if sum(rivals.shape[1] for rivals in self._rivals) >= self.kept:
            self._compete()

    def merge(self, other: Self) -> None:
        """Take in what the other has remembered of the same queries' other labels."""
        floor = torch.maximum(self.floor, other.floor)
        for each in (self, other):
            each._raise_floor(floor)
        self.powers += other.powers
        self._rivals += [other.best, *other._rivals]
        self._compete()

    def settle(self) -> None:
        """All labels have been seen: let the last scores compete, and order the best."""
        self._compete()
        self.best = self.best.double().sort(descending=True).values

    def leaders(self, width: int) -> Tensor:
        """The best few scores of each query, best first, −∞ where this process has no more."""  # [R, width]
        return pad(self.best[:, :width], (0, max(width - self.kept, 0)), value=-torch.inf)

    def balance(self, threshold: Tensor, members: Tensor) -> Tensor:
        """What this process's labels bring to each side of the balance at some threshold.

        `members` [R] of its best scores are among the query's top k over all processes. The four rows are: log of what
        these lack of 1 each, Σ (1 − σ); log of what all others have, Σ σ; how the first rises with the threshold; and
        how the second falls.
        """  # [4, R]
        is_top = torch.arange(self.kept, device=threshold.device) < members[:, None]
        distance = self.best - threshold[:, None]
        logs = logsigmoid(torch.where(is_top, -distance, distance))  # of 1 − σ in the top k, of σ below
        lacking = logs.masked_fill(~is_top, -torch.inf).logsumexp(1)
        gap = self.floor.double() - threshold
        terms = self.powers * gap.exp()[:, None] ** torch.arange(self.powers.shape[1], device=gap.device)
        tail, tail_slope = (terms @ self.series.T).unbind(1)  # Σσ and Σσ' of the tail, both ÷ e^gap
        having = torch.logaddexp(logs.masked_fill(is_top, -torch.inf).logsumexp(1), gap + tail.log())
        some_lacking, some_having = (log.masked_fill(log == -torch.inf, 0) for log in (lacking, having))
        shares = (logs - torch.where(is_top, some_lacking[:, None], some_having[:, None])).exp() * -logs.expm1()
        having_slope = (shares * ~is_top).sum(1) + (gap - some_having).exp() * tail_slope
        return torch.stack([lacking, having, (shares * is_top).sum(1), having_slope])

    def _above_floor(self, tile: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and scores of all that is above its query's floor, row by row; NaN counts as above."""
        groups = tile.view(len(tile), tile.shape[1] // GROUP, GROUP)
        rows, group = torch.le(groups.amax(2), self.floor[:, None]).logical_not_().nonzero(as_tuple=True)
        scores = groups[rows, group]
        which, member = torch.le(scores, self.floor[rows, None]).logical_not_().nonzero(as_tuple=True)
        return rows[which], group[which] * GROUP + member, scores[which, member]

    def _compete(self) -> None:
        """Let waiting scores compete for the M places; the losers join the tail."""
        if self._rivals:
            everyone = torch.cat([self.best, *self._rivals], dim=1)
            losers = everyone.topk(everyone.shape[1] - self.kept, largest=False, sorted=False).values
            self.best, self._rivals = everyone.topk(self.kept, sorted=False).values, []
            self._raise_floor(self.best.amin(1))
            self._add_to_tail(losers)

    def _raise_floor(self, floor: Tensor) -> None:
        rise = torch.where(self.floor == -torch.inf, torch.inf, floor - self.floor).double()
        self.powers *= (-rise[:, None] * torch.arange(1, self.powers.shape[1] + 1, device=floor.device)).exp()
        self.floor = floor

    def _add_to_tail(self, scores: Tensor) -> None:
        """Add the powers of these scores, none above the floor, to the sums; the scores are overwritten."""
        if self.kept >= int(self.in_play.max()):
            return  # all scores are kept
        half = self.powers.shape[1] // 2
        scores.sub_(torch.where(self.floor == -torch.inf, 0, self.floor)[:, None])
        torch.threshold_(scores, log(torch.finfo(scores.dtype).tiny) / half, -torch.inf)  # no power may be denormal
        if self._scratch.numel() < half * scores.numel():
            self._scratch = scores.new_empty(half * scores.numel())
        powers = self._scratch[: half * scores.numel()].view(len(scores), half, -1)
        torch.exp(scores, out=powers[:, 0])
        for order in range(1, half):
            torch.mul(powers[:, order - 1], powers[:, 0], out=powers[:, order])
        products = torch.bmm(powers, powers.transpose(1, 2)).double()  # [R, m̂/2, m̂/2]
        self.powers[:, 0] += powers[:, 0].sum(1)
        self.powers[:, 1::2] += products.diagonal(dim1=1, dim2=2)  # even powers
        self.powers[:, 2::2] += products.diagonal(1, dim1=1, dim2=2)  # odd powers from the third on


@cache
def _series(dtype: torch.dtype) -> list[list[float]]:
    """Coefficients c, c' with σ = Σ c_m u^m and σ' = Σ c'_m u^m to the dtype's last digit for every u of the tail.

    Fitted at Chebyshev's points, where the error falls by 126 with each term: 4 terms in float32, 8 in float64. The
    power series u − u² + u³ − … would need 6 and 12.
    """
    reach = 1 / (KEPT_PER_K - 1)
    gain = 1 + 2 / reach + sqrt((1 + 2 / reach) ** 2 - 1)
    terms = next(terms for terms in count(2, 2) if terms * gain**-terms < torch.finfo(dtype).eps)

    def fitted(power: int) -> list[float]:
        fit = Chebyshev.interpolate(lambda u: (1 + u) ** -power, terms - 1, domain=[0, reach])
        return [float(coefficient) for coefficient in fit.convert(kind=Polynomial).coef]

    return [fitted(1), fitted(2)]  # of σ/u = 1/(1 + u) and of σ'/u = 1/(1 + u)²


NEWTON_STEPS = 64  # a bound, not a cost: about five are taken
CLOSE = 1e-8  # a Newton step this short, relative to 1 + |t|, leaves an error of about its square


# What is solved is log(what the top k lack of k) = log(what all others have): as a function of the threshold its
# slope is never far from 1, not even across a gap in the scores, where Σσ itself is flat. One gather tells every
# process who the top k are, then each step of Newton's takes one gather of four numbers a query; all groups of
# queries share them. R queries, N processes, W leaders.
def solve(groups: Sequence[BestAndTail], world: World) -> tuple[Tensor, Tensor]:
    """The thresholds of all groups' queries, rounded as the gradient will see them, and log Σσ' there (float64 [R])."""
    dtype = groups[0].best.dtype
    for group in groups:
        group.settle()
    members, first, last, following = _find_leaders(groups, world, dtype)
    k = torch.cat([group.k for group in groups]).double()
    in_play = torch.cat([group.in_play for group in groups]).double()
    low = following - k.log()  # (k + 1) σ(following − t) ≤ Σσ = k
    high = first + (in_play / k - 1).log()  # k = Σσ ≤ in_play · σ(first − t)
    threshold = ((last + following) / 2).clamp(low, high)
    for _ in range(NEWTON_STEPS):
        lacking, having, rise, fall = _balance(groups, threshold, members, world)
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
    lacking, having, rise, fall = _balance(groups, threshold, members, world)
    return threshold, torch.logaddexp(lacking + rise.log(), having + fall.log())


def _balance(groups: Sequence[BestAndTail], threshold: Tensor, members: Tensor, world: World) -> Tensor:
    """Log of what the top k lack, log of what the others have, and their slopes, over all processes."""  # [4, R]
    sizes = [len(group.k) for group in groups]
    parts = zip(groups, torch.split(threshold, sizes), torch.split(members, sizes), strict=True)
    own = [group.balance(at, count) for group, at, count in parts]
    logs, slopes = world.gather(torch.cat(own, dim=1)).tensor_split(2, dim=1)  # each [N, 2, R]
    total = logs.logsumexp(0)
    weights = (logs - total.masked_fill(total == -torch.inf, 0)).exp()
    return torch.cat([total, (weights * slopes).sum(0)])


def _find_leaders(groups: Sequence[BestAndTail], world: World, dtype: torch.dtype) -> list[Tensor]:
    """How many of each query's top k are this process's, the best score, the k-th and the one after it, each [R].

    Of equal scores the lower process's come first.
    """
    widths = [int(group.k.max()) + 1 for group in groups]
    own = [group.leaders(width).to(dtype) for group, width in zip(groups, widths, strict=True)]
    gathered = world.gather(torch.cat([best.flatten() for best in own]))  # [N, Σ R · W]
    found, parts = [], torch.split(gathered, [best.numel() for best in own], dim=1)
    for group, width, everyone in zip(groups, widths, parts, strict=True):
        best = everyone.view(world.size, len(group.k), width).transpose(0, 1).reshape(len(group.k), -1)
        best, order = best.double().sort(dim=1, descending=True, stable=True)
        in_top = torch.arange(best.shape[1], device=best.device) < group.k[:, None]
        members = ((order // width == world.rank) & in_top).sum(1)
        last, following = best.gather(1, torch.stack([group.k - 1, group.k], dim=1)).unbind(1)
        found.append((members, best[:, 0], last, following))
    return [torch.cat(each) for each in zip(*found, strict=True)]


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
        k = torch.full_like(in_play, k) if isinstance(k, int) else torch.as_tensor(k, device=in_play.device)
        if k.shape != in_play.shape or k.is_floating_point() or bool((k < 0).any()):
            raise BadInput(f"k must be {len(in_play):,} whole numbers, one per query, none of them negative")
        k = k.to(in_play.dtype)
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
