"""The largest settings that fit a memory: the tile gives way first, then the token budget, at last the batch."""

from collections.abc import Callable, Iterator

from umpteen.planning.prediction import Sizes

SMALLEST_TILE = 64


def largest_that_fit(
    sizes: Sizes, peak: Callable[[Sizes], int], memory: int, *, usual_tile: int, longest: int
) -> Sizes | None:
    """The settings that lose least and whose peak fits the memory; None if there are none.

    The batch is part of what is learnt; tile and token budget only cost time. No budget is below the longest text,
    which has a micro-batch of its own anyway. `usual_tile` is the one that is chosen where none is set.
    """
    smallest = min(longest, sizes.token_budget)
    for batch_size in _halves(sizes.batch_size, 1):
        found = []
        for tile in _tiles(sizes.tile, usual_tile):

            def fits(budget: int, batch_size: int = batch_size, tile: int | None = tile) -> bool:
                return peak(Sizes(batch_size, budget, tile)) <= memory

            if fits(smallest):
                found.append(Sizes(batch_size, _largest(fits, smallest, sizes.token_budget), tile))
        if found:
            return max(found, key=lambda each: each.token_budget)  # of equals the first, with the largest tile
    return None


def _tiles(tile: int | None, usual: int) -> Iterator[int | None]:
    yield tile
    yield from _halves((tile or usual) // 2, SMALLEST_TILE)


def _halves(number: int, smallest: int) -> Iterator[int]:
    while number >= smallest:
        yield number
        number //= 2


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from low, which fits, to high that fits."""
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
