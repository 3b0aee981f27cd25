"""Settings that fit a memory, and none larger does."""

import pytest
from planning_cases import costs, work

from umpteen.plan.plan import Sizes, largest_that_fit, predict


def peak(sizes: Sizes) -> int:
    """Of a batch of so many queries with short texts."""
    given = work(evaluated=0)
    return predict(costs(), given._replace(queries=given.queries[: sizes.batch_size]), sizes).peak


def suggested(sizes: Sizes, limit: int) -> Sizes | None:
    return largest_that_fit(sizes, peak, limit, usual_tile=512, longest=4)


@pytest.mark.parametrize("spared", [100, 300])
def test_the_token_budget_gives_way_and_is_the_largest_that_fits(spared: int) -> None:
    sizes = Sizes(4, 24, 4)
    limit = peak(sizes) - spared
    found = suggested(sizes, limit)
    assert found is not None and (found.batch_size, found.tile) == (4, 4)
    assert peak(found) <= limit < peak(found._replace(token_budget=found.token_budget + 1))


def test_a_tile_that_was_set_too_large_gives_way_before_the_token_budget() -> None:
    def mostly_tile(sizes: Sizes) -> int:
        return sizes.token_budget + 10 * (sizes.tile or 512)

    found = largest_that_fit(Sizes(4, 1000, 4096), mostly_tile, 12_000, usual_tile=512, longest=4)
    assert found == Sizes(4, 1000, 1024)


def test_the_batch_gives_way_last() -> None:
    def mostly_batch(sizes: Sizes) -> int:
        return 10 * sizes.batch_size + sizes.token_budget + (sizes.tile or 512)

    found = largest_that_fit(Sizes(1000, 64, None), mostly_batch, 5100, usual_tile=512, longest=4)
    assert found == Sizes(500, 36, 64)


def test_what_fits_stays_as_it_is() -> None:
    sizes = Sizes(4, 24, 4)
    assert suggested(sizes, peak(sizes)) == sizes


def test_where_nothing_fits_nothing_is_suggested() -> None:
    assert suggested(Sizes(4, 24, 4), 1000) is None


def test_a_budget_below_the_longest_text_stays() -> None:
    assert suggested(Sizes(4, 3, None), peak(Sizes(4, 3, None))) == Sizes(4, 3, None)
