"""Hashed pairs stay inside their text, and their buckets never change: saved models depend on them."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from umpteen.encoders.static import bigram_buckets

SIXTY_FOUR_BITS = 2**64 - 1


def documented_bucket(left: int, right: int, buckets: int) -> int:
    bits = left << 32 | right
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & SIXTY_FOUR_BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & SIXTY_FOUR_BITS
    bits ^= bits >> 31
    return (bits & 2**63 - 1) % buckets


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 2**20), max_size=6), max_size=6),
    buckets=st.integers(1, 10**6),
)
def test_buckets_are_those_of_the_documented_mix_text_by_text(texts: list[list[int]], buckets: int) -> None:
    ids = torch.tensor([token for text in texts for token in text], dtype=torch.int64)
    offsets = torch.tensor([0, *map(len, texts)]).cumsum(0)
    found, found_offsets = bigram_buckets(ids, offsets, buckets)
    expected = [[documented_bucket(*pair, buckets) for pair in pairwise(text)] for text in texts]
    assert found.tolist() == [bucket for text in expected for bucket in text]
    assert found_offsets.tolist() == torch.tensor([0, *map(len, expected)]).cumsum(0).tolist()


def test_order_matters() -> None:
    offsets = torch.tensor([0, 2, 4])
    (forwards, backwards), _ = bigram_buckets(torch.tensor([7, 9, 9, 7]), offsets, 2**40)
    assert forwards != backwards


def test_pairs_spread_evenly_over_the_buckets() -> None:
    ids = torch.randint(2000, (200_000,), generator=torch.Generator().manual_seed(0))
    found, _ = bigram_buckets(ids, torch.tensor([0, len(ids)]), 100)
    shares = torch.bincount(found, minlength=100) / len(found)
    assert shares.min() > 0.009 and shares.max() < 0.011
