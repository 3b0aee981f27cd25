"""Adjacent token pairs, hashed into a fixed number of buckets: word order without a second vocabulary."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def bigram_buckets(ids: Tensor, offsets: Tensor, buckets: int) -> tuple[Tensor, Tensor]:
    """The buckets of each text's adjacent pairs, ragged like its tokens; a pair never spans two texts.

    The bucket is a part of the saved format: the 64 bits (left << 32 | right) through the finaliser of splitmix64,
    then the lowest 63 of them modulo `buckets`.
    """
    starts = torch.zeros(len(ids) + 1, dtype=torch.bool, device=ids.device)
    starts[offsets] = True
    inside = ~starts[1:-1]  # [T-1]: token i+1 stands in the same text as token i
    mixed = _mix(ids[:-1][inside] << 32 | ids[1:][inside])
    lengths = (offsets.diff() - 1).clamp_min(0)
    return (mixed & 0x7FFF_FFFF_FFFF_FFFF) % buckets, pad(lengths.cumsum(0), (1, 0))


def _mix(bits: Tensor) -> Tensor:
    """splitmix64's finaliser; products wrap around at 64 bits, which int64 does as well as uint64."""
    bits = (bits ^ _shifted(bits, 30)) * (0xBF58_476D_1CE4_E5B9 - 2**64)
    bits = (bits ^ _shifted(bits, 27)) * (0x94D0_49BB_1331_11EB - 2**64)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A logical shift to the right: int64's own would draw the sign in."""
    return bits >> by & ((1 << 64 - by) - 1)
