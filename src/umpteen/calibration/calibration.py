"""A model's calibration, from its fit on held-out texts to what it says of an answer.

calibration.json: curves as knots and coefficients, thresholds, rules, how it was fitted, and its figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from umpteen.calibration.curves import BINS, CROSS_FOLDS, HeldOut, TextCurves, choose, cross_fitted, reliability_of
from umpteen.errors import BadInput, DamagedModel
from umpteen.evaluation.report import F1, f1_of
from umpteen.search.ranking import Ranking

FILE = "calibration.json"
FORMAT_VERSION = 1
Reading = Literal["clipped", "sigmoid"]  # of scores as probabilities
SAID = {"clipped": "the score, cut to between 0 and 1", "sigmoid": "1 ÷ (1 + exp(−score))"}
HEADLINE = 5  # the best labels of a text that the one figure is about: as many as `predict` shows
DEPTHS = (1, HEADLINE, 100)
PRECISIONS = (0.5, 0.7, 0.8, 0.9, 0.95)
LEAST_GIVEN = 30  # labels; a precision that fewer show is luck
FINEST = 0.002  # two thresholds whose precisions are nearer to each other are as good as one
USUAL_COVERAGE = 0.9
MOST_LABELS = (1, 2, 3, 5, 10, 20, 50)  # tried for the rule of F1, beside no limit


class PrecisionStep(NamedTuple):
    """From this threshold on, this share of the labels given was right."""

    precision: float
    threshold: float
    given: int
    recall: float  # of all right labels, found or not


class Rule(NamedTuple):
    """A text gets the labels that reach the threshold, the best `at_most` of them; what that gave on held-out texts."""

    threshold: float
    at_most: int
    micro_f1: float
    precision: float
    recall: float
    labels_per_text: float


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
    raw: Reading
    origin: dict[str, Any]  # which texts, how many
    figures: dict[str, Any]  # on them, from curves fitted on the others of them

    def probabilities(self, scores: NDArray[np.floating]) -> NDArray[np.float32]:
        """The probability of each label to be right; the last axis is a text's labels, best first; −inf → 0."""
        return self.curves(scores)

    def line(
        self, *, min_probability: float | None = None, precision: float | None = None, rule: str | None = None
    ) -> Line:
        """Where the line is drawn between labels that are given and those that are not; all that is asked for holds."""
        if min_probability is not None and not 0 <= min_probability <= 1:
            raise BadInput(f"min_probability is {min_probability}; it must lie between 0 and 1")
        least = [0.0 if min_probability is None else min_probability]
        if precision is not None:
            least.append(threshold_for(self.steps, precision).threshold)
        if rule is None:
            return Line(max(least))
        if rule not in self.rules:
            raise BadInput(f"there is no rule {rule!r}; there is {' and '.join(self.rules)}")
        return Line(max(*least, self.rules[rule].threshold), self.rules[rule].at_most)

    def save(self, folder: Path) -> None:
        content = {
            "format_version": FORMAT_VERSION,
            "held_out": self.origin,
            "figures": self.figures,
            "rules": {name: rule._asdict() for name, rule in self.rules.items()},
            "depth": self.depth,
            "raw": self.raw,
            "curves": self.curves.to_dict(),
            "precision": [step._asdict() for step in self.steps],
        }
        lines = [f"{json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in content.items()]
        (folder / FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Calibration:
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


def figures_of(held_out: HeldOut, probabilities: NDArray[np.float32], raw: Reading) -> dict[str, Any]:
    """Calibration error, Brier score and log loss over the best labels of each text, at several depths: of the
    calibrated probabilities, and of the raw scores read as such."""
    width = held_out.scores.shape[1]
    by_depth = {}
    for depth in sorted({min(depth, width) for depth in DEPTHS}):
        there = held_out.real[:, :depth]
        right, scores = held_out.right[:, :depth][there], held_out.scores[:, :depth][there].astype(np.float64)
        read = np.clip(scores, 0, 1) if raw == "clipped" else expit(scores)
        sides: dict[str, NDArray[Any]] = {"calibrated": probabilities[:, :depth][there], "raw": read}
        by_depth[str(depth)] = {side: reliability_of(values, right) for side, values in sides.items()}
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
    probabilities = calibration.probabilities(ranking.scores)

    def worth(line: Line) -> F1:
        return f1_of(ranking, line.given(probabilities), truth)

    precisions = []
    for wanted in PRECISIONS:
        if wanted <= calibration.steps[-1].precision:  # else it is more than the model can
            line = calibration.line(precision=wanted)
            found = worth(line)
            reached = {"reached": found.precision, "recall": found.recall}
            given = round(found.labels_per_text * len(ranking))
            precisions.append({"wanted": wanted, "threshold": line.least, "given": given, **reached})
    rules = {name: worth(calibration.line(rule=name))._asdict() for name in calibration.rules}
    figures = figures_of(HeldOut.of(ranking, truth), probabilities, calibration.raw)
    return {**figures, "precision": precisions, "rules": rules, "held_out": calibration.origin}


def fit_calibration(held_out: HeldOut, origin: dict[str, Any], *, coverage: float | None = None) -> Calibration:
    """The calibration with the least log loss.

    Its figures are cross-fitted: each text's probabilities are given by curves fitted on the texts of other folds.
    """
    pairs, right = int(held_out.real.sum()), int(held_out.right.sum())
    if len(held_out) < 2 or right in (0, pairs):
        raise BadInput(
            f"{len(held_out):,} held-out texts, for which {right:,} of {pairs:,} labels found are right, are too few "
            "to calibrate on: right and wrong ones are needed; hold out more"
        )
    folds = held_out.folds(min(CROSS_FOLDS, len(held_out)))
    choice, tried = choose(held_out, folds)
    probabilities = cross_fitted(held_out, folds, choice)
    # Scores of vectors of length 1, with a ranker or not, stay within 1; larger ones are taken for logits.
    largest = np.abs(held_out.scores[held_out.real]).max(initial=0)
    raw: Reading = "clipped" if largest <= 1.001 else "sigmoid"
    steps, f1 = precision_steps(held_out, probabilities), rule_for_f1(held_out, probabilities)
    rules = {"f1": f1, "coverage": rule_for_coverage(held_out, probabilities, coverage)}
    curves, depth = TextCurves.fit(held_out, choice), held_out.scores.shape[1]
    origin = {**origin, "texts": len(held_out), "labels_per_text": depth}
    figures = {**figures_of(held_out, probabilities, raw), "log_loss_of_curves": tried}
    return Calibration(curves, steps, rules, depth, raw, origin, figures)


def precision_steps(held_out: HeldOut, probabilities: NDArray[np.float32]) -> list[PrecisionStep]:
    """The lowest threshold for every precision that can be reached, both rising."""
    thresholds, given, hits = _at_least(held_out, probabilities)
    positives = max(1, int(held_out.positives.sum()))
    enough = given >= min(LEAST_GIVEN, given[0])
    steps: list[PrecisionStep] = []
    for threshold, count, found in zip(thresholds[enough], given[enough], hits[enough], strict=True):
        precision = float(found / count)
        if not steps or precision >= steps[-1].precision + FINEST:
            steps.append(PrecisionStep(precision, float(threshold), int(count), float(found / positives)))
    return steps


def threshold_for(steps: list[PrecisionStep], precision: float) -> PrecisionStep:
    """The lowest threshold that reached this precision on held-out texts; if none did, the best reachable is named."""
    if not 0 < precision <= 1:
        raise BadInput(f"precision is {precision}; it must lie between 0 and 1")
    for step in steps:
        if step.precision >= precision:
            return step
    best = steps[-1]
    raise BadInput(
        f"a precision of {precision:g} was not reached on held-out texts; the best reachable is "
        f"{np.floor(best.precision * 1000) / 1000:g}, which gives {100 * best.recall:.1f} % of the right labels"
    )


def rule_for_f1(held_out: HeldOut, probabilities: NDArray[np.float32]) -> Rule:
    """The threshold and the most labels a text that together have the greatest micro F1."""
    width = held_out.scores.shape[1]
    rules = []
    for most in (width, *(most for most in MOST_LABELS if most < width)):
        thresholds, given, hits = _at_least(held_out, probabilities, most)
        at = int((2 * hits / (given + held_out.positives.sum())).argmax())
        rules.append(_rule(held_out, thresholds[at], most, int(given[at]), int(hits[at])))
    return max(rules, key=lambda rule: rule.micro_f1)  # of equals the first


def rule_for_coverage(held_out: HeldOut, probabilities: NDArray[np.float32], share: float | None) -> Rule:
    """The smallest label sets that together hold this share of all right labels; without one, 0.9 or what there is."""
    if share is not None and not 0 < share < 1:
        raise BadInput(f"coverage is {share}; it must lie between 0 and 1")
    width = held_out.scores.shape[1]
    thresholds, given, hits = _at_least(held_out, probabilities)
    recall = hits / max(1, int(held_out.positives.sum()))  # falls as thresholds rise
    reachable = float(recall[0])
    if share is not None and share > reachable:
        raise BadInput(
            f"a coverage of {share:g} cannot be reached: the first {width} labels of the held-out texts hold "
            f"{np.floor(1000 * reachable) / 1000:g} of the right ones"
        )
    at = int(np.flatnonzero(recall >= min(USUAL_COVERAGE if share is None else share, reachable))[-1])
    return _rule(held_out, thresholds[at], width, int(given[at]), int(hits[at]))


def _rule(held_out: HeldOut, threshold: np.float32, most: int, given: int, hits: int) -> Rule:
    positives = int(held_out.positives.sum())
    f1, recall = 2 * hits / (given + positives), hits / max(1, positives)
    return Rule(float(threshold), most, f1, hits / given, recall, labels_per_text=given / len(held_out))


def _at_least(
    held_out: HeldOut, probabilities: NDArray[np.float32], most: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Every probability among the first `most` labels of the texts, rising; how many reach it; how many are right."""
    there = held_out.real[:, :most]
    values, right = probabilities[:, :most][there], held_out.right[:, :most][there]
    order = np.argsort(values, kind="stable")
    values, right = values[order], right[order]
    first = np.flatnonzero(np.diff(values, prepend=-np.inf) > 0)
    hits = right.sum() - np.concatenate([[0], np.cumsum(right)])[first]
    return values[first], len(values) - first, hits
