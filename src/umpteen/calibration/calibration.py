"""A model's calibration, from its fit on held-out texts to what it says of an answer.

calibration.json: curves as knots and coefficients, thresholds, rules, how it was fitted, and its figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from umpteen.calibration.curves import BINS, CROSS_FOLDS, HeldOut, TextCurves, choose, cross_fitted, reliability_of
from umpteen.calibration.thresholds import (
    PrecisionStep,
    Rule,
    precision_steps,
    rule_for_coverage,
    rule_for_f1,
    threshold_for,
)
from umpteen.errors import BadInput, DamagedModel
from umpteen.evaluation.metrics import f1_of
from umpteen.search.ranking import Ranking

Reading = Literal["clipped", "sigmoid"]
SAID = {"clipped": "the score, cut to between 0 and 1", "sigmoid": "1 ÷ (1 + exp(−score))"}


def reading_of(scores: NDArray[np.floating]) -> Reading:
    """Scores of vectors of length 1, with a ranker or not, stay within 1; larger ones are taken for logits."""
    return "clipped" if np.abs(scores[np.isfinite(scores)]).max(initial=0) <= 1.001 else "sigmoid"


def raw_probabilities(scores: NDArray[np.floating], reading: Reading) -> NDArray[np.float64]:
    """The scores read as probabilities."""
    scores = scores.astype(np.float64)
    return np.asarray(np.clip(scores, 0, 1) if reading == "clipped" else expit(scores))


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


HEADLINE = 5  # the best labels of a text that the one figure is about: as many as `predict` shows
DEPTHS = (1, HEADLINE, 100)
PRECISIONS = (0.5, 0.7, 0.8, 0.9, 0.95)


def figures_of(held_out: HeldOut, probabilities: NDArray[np.float32], raw: Reading) -> dict[str, Any]:
    """Calibration error, Brier score and log loss, calibrated and raw, over the best labels of each text."""
    by_depth = {}
    width = held_out.scores.shape[1]
    for depth in sorted({min(depth, width) for depth in DEPTHS}):
        there = held_out.real[:, :depth]
        right = held_out.right[:, :depth][there]
        before = raw_probabilities(held_out.scores[:, :depth][there], raw)
        by_depth[str(depth)] = {
            "calibrated": reliability_of(probabilities[:, :depth][there], right).to_dict(),
            "raw": reliability_of(before, right).to_dict(),
        }
    headline = by_depth[str(min(HEADLINE, width))]
    return {
        "ece": headline["calibrated"]["ece"],
        "ece_raw": headline["raw"]["ece"],
        "over": f"the best {min(HEADLINE, width)} labels of {len(held_out):,} texts, {BINS} bins of equally many pairs",
        "raw": SAID[raw],
        "by_depth": by_depth,
    }


def evaluate_calibration(calibration: Calibration, ranking: Ranking, truth: csr_array) -> dict[str, Any]:
    """The calibration of a model on a split, from its ranking and the truth; pairs to ignore are in neither.

    All texts count, those without right labels, too.
    """
    held_out = HeldOut.of(ranking, truth)
    probabilities = calibration.probabilities(ranking.scores)
    precisions = []
    for wanted in PRECISIONS:
        try:
            line = calibration.line(precision=wanted)
        except BadInput:
            continue  # more than the model can
        found = f1_of(ranking, line.given(probabilities), truth)
        precisions.append(
            {
                "wanted": wanted,
                "threshold": line.least,
                "reached": found.precision,
                "given": round(found.labels_per_text * len(ranking)),
                "recall": found.recall,
            }
        )
    rules = {
        name: f1_of(ranking, calibration.line(rule=name).given(probabilities), truth)._asdict()
        for name in calibration.rules
    }
    return {
        **figures_of(held_out, probabilities, calibration.raw),
        "precision": precisions,
        "rules": rules,
        "held_out": calibration.origin,
    }


def fit_calibration(
    held_out: HeldOut,
    origin: dict[str, Any],
    *,
    coverage: float | None = None,
    seed: int = 0,
) -> tuple[Calibration, NDArray[np.float32]]:
    """The calibration with the least log loss, and the probabilities its figures come from.

    These are cross-fitted: each text's are given by curves fitted on the texts of other folds.
    """
    held_out.require_enough()
    folds = held_out.folds(min(CROSS_FOLDS, len(held_out)), seed)
    choice, tried = choose(held_out, folds)
    probabilities = cross_fitted(held_out, folds, choice)
    raw = reading_of(held_out.scores)
    figures = {**figures_of(held_out, probabilities, raw), "log_loss_of_curves": tried}
    calibration = Calibration(
        TextCurves.fit(held_out, choice),
        precision_steps(held_out, probabilities),
        {
            "f1": rule_for_f1(held_out, probabilities),
            "coverage": rule_for_coverage(held_out, probabilities, coverage),
        },
        depth=held_out.scores.shape[1],
        raw=raw,
        origin=origin,
        figures=figures,
    )
    return calibration, probabilities
