"""The same answers: the same labels in the same order, with the same numbers to rounding.

The bits of a score depend on where in memory the vectors lie and on how many texts are scored at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from umpteen.model.classifier import Prediction

ROUNDING = 1e-5


def same_answers(found: Sequence[Sequence[Prediction]], expected: Sequence[Sequence[Prediction]]) -> None:
    """Two predictions for the same texts."""
    ours, theirs = (
        [[(one.key, one.text, one.score, one.probability) for one in labels] for labels in answers]
        for answers in (found, expected)
    )
    same_numbers(ours, theirs)


def same_numbers(found: Any, expected: Any) -> None:
    """Two structures as JSON has them: floats agree to rounding, everything else exactly."""
    if isinstance(expected, float | np.floating):
        assert found == pytest.approx(expected, rel=ROUNDING, abs=ROUNDING)
    elif isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for name in expected:
            same_numbers(found[name], expected[name])
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same_numbers(one, other)
    else:
        assert found == expected
