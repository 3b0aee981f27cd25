"""A model's calibration: probabilities from scores, thresholds for a precision, rules for how many labels to give.

calibration.json: curves as knots and coefficients, thresholds, rules, how it was fitted, and its figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.calibration.raw import Reading
from umpteen.calibration.text_curves import TextCurves
from umpteen.calibration.thresholds import PrecisionStep, Rule, threshold_for
from umpteen.errors import BadInput, DamagedModel

FILE = "calibration.json"
FORMAT_VERSION = 1


class Line(NamedTuple):
    """A label is given if it is at least so probable, and among the first of its text."""

    least: float
    at_most: int | None = None  # labels a text; None: all

    def given(self, probabilities: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which of a text's labels are given; the last axis is its labels, best first."""
        given: NDArray[np.bool_] = probabilities >= np.float32(self.least)
        if self.at_most is not None:
            given[..., self.at_most :] = False
        return given


@dataclass(frozen=True)
class Calibration:
    """What was learnt from held-out texts."""

    curves: TextCurves
    steps: list[PrecisionStep]  # precision and threshold, rising
    rules: dict[str, Rule]  # "f1": the greatest micro F1; "coverage": the smallest sets that hold the wanted share
    depth: int  # labels of a text that were looked at
    raw: Reading = "clipped"
    origin: dict[str, Any] = field(default_factory=dict)  # which texts, how many
    figures: dict[str, Any] = field(default_factory=dict)  # on them, from curves fitted on the others of them

    def probabilities(self, scores: NDArray[np.floating]) -> NDArray[np.float32]:
        """The probability of each label to be right; the last axis is a text's labels, best first; −inf → 0."""
        return self.curves(scores)

    def threshold_for_precision(self, precision: float) -> float:
        """The probability from which on labels reach this precision; if none does, the best reachable is named."""
        return threshold_for(self.steps, precision).threshold

    def rule(self, name: str) -> Rule:
        """The rule of that name."""
        if name not in self.rules:
            raise BadInput(f"there is no rule {name!r}; there is {' and '.join(self.rules)}")
        return self.rules[name]

    def line(
        self, *, min_probability: float | None = None, precision: float | None = None, rule: str | None = None
    ) -> Line:
        """Where the line is drawn between labels that are given and those that are not; all that is asked for holds."""
        if min_probability is not None and not 0 <= min_probability <= 1:
            raise BadInput(f"min_probability is {min_probability}; it must lie between 0 and 1")
        least = [0.0 if min_probability is None else min_probability]
        if precision is not None:
            least.append(self.threshold_for_precision(precision))
        if rule is None:
            return Line(max(least))
        chosen = self.rule(rule)
        return Line(max(*least, chosen.threshold), chosen.at_most)

    def save(self, folder: Path) -> None:
        """calibration.json in an existing folder."""
        content = {
            "format_version": FORMAT_VERSION,
            "held_out": self.origin,
            "figures": self.figures,
            "rules": {name: rule.to_dict() for name, rule in self.rules.items()},
            "depth": self.depth,
            "raw": self.raw,
            "curves": self.curves.to_dict(),
            "precision": [step._asdict() for step in self.steps],
        }
        lines = [f"{json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in content.items()]
        (folder / FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Calibration:
        """What `save` wrote."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format_version"] != FORMAT_VERSION:
                raise BadInput(f"format version {content['format_version']!r} found, {FORMAT_VERSION} expected")
            return cls(
                TextCurves.from_dict(content["curves"]),
                [PrecisionStep(**_numbers(step)) for step in content["precision"]],
                {name: Rule(**_numbers(rule)) for name, rule in content["rules"].items()},
                depth=int(content["depth"]),
                raw=content["raw"],
                origin=content["held_out"],
                figures=content["figures"],
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, BadInput) as error:
            raise DamagedModel(f"{path}: cannot be read ({error}); calibrate the model again") from error


def _numbers(content: dict[str, Any]) -> dict[str, Any]:
    for name, value in content.items():
        if not isinstance(value, int if name in ("at_most", "given") else int | float):
            raise BadInput(f"{name} = {value!r} is no such number")
    return content
