"""The paper's O(·) formulas for a step's memory and time, with constants fitted to what was measured.

    bytes   ≈ fixed + m · tokens of a micro-batch + b · (B + L) d
    seconds ≈ T · tokens of all texts + o · micro-batches + f · B L d

Without a gradient cache all texts are one micro-batch. The loss alone gives b and f, which vanish beside a transformer;
the steps give the rest, by least squares of the relative errors.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls


class Step(NamedTuple):
    cached: bool
    vector_numbers: int  # (B + L) d
    products: int  # B L d
    tokens: int
    micro_batches: int
    micro_batch_tokens: int
    bytes: float
    seconds: float


class Loss(NamedTuple):
    """What happens between the vectors and the replay: vectors, their gradients, the tiles of scores."""

    vector_numbers: int
    products: int
    bytes: float
    seconds: float


class Ratios(NamedTuple):
    """Predicted ÷ measured."""

    memory: float
    time: float


def fit(steps: Sequence[Step], losses: Sequence[Loss]) -> tuple[dict[str, Any], list[Ratios]]:
    """The constants, for steps with a gradient cache beside those without, and what they predict for each step."""
    tiles, per_number = _constants([[1.0, loss.vector_numbers] for loss in losses], [loss.bytes for loss in losses])
    (per_product,) = _constants([[loss.products] for loss in losses], [loss.seconds for loss in losses])
    constants: dict[str, Any] = {
        "bytes_a_vector_number": per_number,
        "megabytes_of_tiles": tiles / 1e6,
        "seconds_a_billion_products": per_product * 1e9,
    }
    predicted: dict[Step, Ratios] = {}
    for name, cached in (("cached", True), ("plain", False)):
        chosen = [step for step in steps if step.cached == cached]
        if not chosen:
            continue
        memory = np.maximum([step.bytes for step in chosen], 1.0)
        seconds = np.array([step.seconds for step in chosen])
        vectors = per_number * np.array([step.vector_numbers for step in chosen])
        products = per_product * np.array([step.products for step in chosen])
        sizes = [[1.0, step.micro_batch_tokens] for step in chosen]
        work = [[step.tokens, step.micro_batches] if cached else [step.tokens] for step in chosen]
        fixed, per_token = _constants(sizes, memory - vectors)
        times = _constants(work, seconds - products)
        ratios = [
            (np.array(sizes) @ [fixed, per_token] + vectors) / memory,
            (np.array(work) @ times + products) / seconds,
        ]
        predicted |= zip(chosen, map(Ratios, *(part.tolist() for part in ratios)), strict=True)
        constants[name] = {
            "fixed_gb": fixed / 1e9,
            "kilobytes_a_token": per_token / 1e3,
            "milliseconds_a_token": times[0] * 1e3,
            "milliseconds_a_micro_batch": times[1] * 1e3 if cached else None,
            "memory_error": float(np.abs(ratios[0] - 1).mean()),
            "time_error": float(np.abs(ratios[1] - 1).mean()),
        }
    return constants, [predicted[step] for step in steps]


def _constants(sizes: Sequence[Sequence[float]], measured: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """The constants ≥ 0 that make the relative errors smallest, in the sense of least squares."""
    weights = 1 / np.maximum(np.abs(np.asarray(measured, dtype=np.float64)), 1e-12)
    matrix = np.asarray(sizes, dtype=np.float64) * weights[:, None]
    scale = np.abs(matrix).max(0)  # so that bytes and billions weigh the same in the arithmetic
    found, _ = nnls(matrix / scale, np.sign(measured))
    return [float(value) for value in found / scale]
