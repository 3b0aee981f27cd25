"""How likely a true label is to have been written down: rare ones are missed more often, so their hits count more."""

import math

import numpy as np
from numpy.typing import NDArray

# A and B as the field uses them; a figure is only comparable with others that used the same two.
USUAL = (0.55, 1.5)


def inverse_propensities(
    label_counts: NDArray[np.integer], queries: int, a: float = USUAL[0], b: float = USUAL[1]
) -> NDArray[np.float64]:
    """1/p_l = 1 + C (N_l + B)^−A with C = (log N − 1)(B + 1)^A; N_l of the N training queries have label l."""
    # With fewer than 3 queries C would be negative and rare labels would count less, not more.
    c = max(0.0, math.log(max(1, queries)) - 1) * (b + 1) ** a
    inverse: NDArray[np.float64] = 1 + c * (label_counts.astype(np.float64) + b) ** -a
    return inverse
