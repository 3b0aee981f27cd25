"""A model's calibration, from its fit on held-out texts to what it says of an answer.

calibration.json: curves as knots and coefficients, thresholds, rules, how it was fitted, and its figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from umpteen.calibration.curves import BINS, CROSS_FOLDS, HeldOut, TextCurves, choose, cross_fitted, reliability_of
from umpteen.errors import BadInput, DamagedModel
from umpteen.search.ranking import Ranking

Floats = NDArray[np.float32]
Counts = NDArray[np.int64]
FILE = "calibration.json"
FORMAT_VERSION = 2
Reading = Literal["clipped", "sigmoid"]  # of scores as probabilities
SAID = {"clipped": "the score, cut to between 0 and 1", "sigmoid": "1 ÷ (1 + exp(−score))"}
HEADLINE = 5  # the best labels of a text that the one figure is about: as many as `predict` shows
DEPTHS = (1, HEADLINE, 100)
PRECISIONS = (0.5, 0.7, 0.8, 0.9, 0.95)
CONFIDENCE = 0.9  # that a threshold keeps its precision on new texts
FINEST = 500  # precisions that are tried, up to 1
LEAST_GIVEN, MORE_GIVEN = 30, 1.05  # labels that the strictest threshold to try gives, and how many times more the next
STARTS, PER_START = 5, 14  # the tests may begin at so many thresholds, one in so many: each gives twice as many labels
USUAL_COVERAGE = 0.9
MOST_LABELS = (1, 2, 3, 5, 10, 20, 50)  # tried for the rule of F1, beside no limit


class PrecisionStep(NamedTuple):
    """From this threshold on, this share of the labels given is right, with the calibration's confidence."""

    precision: float
    threshold: float
    given: int
    reached: float  # the precision on the held-out texts themselves
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

    def given(self, probabilities: Floats) -> NDArray[np.bool_]:
        """Which of a text's labels are given; the last axis is its labels, best first."""
        given: NDArray[np.bool_] = probabilities >= np.float32(self.least)
        if self.at_most is not None:
            given[..., self.at_most :] = False
        return given


@dataclass(frozen=True)
class Calibration:
    """What was learnt from held-out texts."""

    curves: TextCurves
    steps: list[PrecisionStep]  # precision and threshold, rising; none, if none can be promised
    confidence: float  # in each of them
    rules: dict[str, Rule]  # "f1": the greatest micro F1; "coverage": the smallest sets that hold the wanted share
    depth: int  # labels of a text that were looked at
    raw: Reading
    origin: dict[str, Any]  # which texts, how many
    figures: dict[str, Any]  # on them, from curves fitted on the others of them

    def probabilities(self, scores: NDArray[np.floating]) -> Floats:
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
            least.append(self.step(precision).threshold)
        if rule is None:
            return Line(max(least))
        if rule not in self.rules:
            raise BadInput(f"there is no rule {rule!r}; there is {' and '.join(self.rules)}")
        return Line(max(*least, self.rules[rule].threshold), self.rules[rule].at_most)

    def step(self, precision: float) -> PrecisionStep:
        """The lowest threshold that promises this precision; if none does, the best promise is named."""
        if not 0 < precision <= 1:
            raise BadInput(f"precision is {precision}; it must lie between 0 and 1")
        for step in self.steps:
            if step.precision >= precision:
                return step
        best = "no other can, either"
        if self.steps:
            least, found = self.steps[-1].precision, 100 * self.steps[-1].recall
            best = f"{least:g} can, and finds {found:.1f} % of the right labels"
        after = f"with {100 * self.confidence:g} % confidence after {self.origin.get('texts', 0):,} held-out texts"
        advice = "ask for less, or calibrate on more texts or with less --confidence"
        raise BadInput(f"a precision of {precision:g} cannot be promised {after}; {best}: {advice}")

    def usual_steps(self) -> dict[float, PrecisionStep]:
        """Those of usual precisions that can be promised."""
        best = self.steps[-1].precision if self.steps else 0
        return {wanted: self.step(wanted) for wanted in PRECISIONS if wanted <= best}

    def describe(self) -> dict[str, Any]:
        """For the part's mark and the model card."""
        promised = {f"{wanted:g}": round(step.threshold, 4) for wanted, step in self.usual_steps().items()}
        told = {name: self.figures[name] for name in ("ece", "ece_raw")}
        return {"held_out": self.origin, **told, "confidence": self.confidence, "thresholds_of_precisions": promised}

    def save(self, folder: Path) -> None:
        content = {
            "format_version": FORMAT_VERSION,
            "held_out": self.origin,
            "figures": self.figures,
            "rules": {name: rule._asdict() for name, rule in self.rules.items()},
            "depth": self.depth,
            "raw": self.raw,
            "confidence": self.confidence,
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
                float(content["confidence"]),
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


def figures_of(held_out: HeldOut, probabilities: Floats, raw: Reading) -> dict[str, Any]:
    """Calibration error, Brier score and log loss over the best labels of each text, at several depths: of the
    calibrated probabilities, and of the raw scores read as such."""
    width = held_out.scores.shape[1]
    by_depth = {}
    for depth in sorted({min(depth, width) for depth in DEPTHS}):
        there = held_out.real[:, :depth]
        right, scores = held_out.right[:, :depth][there], held_out.scores[:, :depth][there].astype(np.float64)
        read = np.clip(scores, 0, 1) if raw == "clipped" else scipy.special.expit(scores)
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


def evaluate_calibration(calibration: Calibration, ranking: Ranking, truth: scipy.sparse.csr_array) -> dict[str, Any]:
    """The calibration of a model on a split, from its ranking and the truth; pairs to ignore are in neither.

    All texts count, those without right labels, too.
    """
    from umpteen.evaluation.report import F1, f1_of

    probabilities = calibration.probabilities(ranking.scores)

    def worth(line: Line) -> F1:
        return f1_of(ranking, line.given(probabilities), truth)

    precisions = []
    for wanted, step in calibration.usual_steps().items():
        found = worth(Line(step.threshold))
        reached = {"reached": found.precision, "recall": found.recall}
        given = round(found.labels_per_text * len(ranking))
        precisions.append({"wanted": wanted, "threshold": step.threshold, "given": given, **reached})
    rules = {name: worth(calibration.line(rule=name))._asdict() for name in calibration.rules}
    figures = figures_of(HeldOut.of(ranking, truth), probabilities, calibration.raw)
    promised = {"confidence": calibration.confidence, "precision": precisions}
    return {**figures, **promised, "rules": rules, "held_out": calibration.origin}


def fit_calibration(
    held_out: HeldOut, origin: dict[str, Any], *, coverage: float | None = None, confidence: float = CONFIDENCE
) -> Calibration:
    """The calibration with the least log loss.

    Its figures are cross-fitted: each text's probabilities are given by curves fitted on the texts of other folds.
    """
    pairs, right = int(held_out.real.sum()), int(held_out.right.sum())
    if len(held_out) < 2 or right in (0, pairs):
        given = f"{len(held_out):,} held-out texts, for which {right:,} of {pairs:,} labels found are right"
        raise BadInput(f"{given}, are too few to calibrate on: right and wrong ones are needed; hold out more")
    folds = held_out.folds(min(CROSS_FOLDS, len(held_out)))
    choice, tried = choose(held_out, folds)
    probabilities = cross_fitted(held_out, folds, choice)
    # Scores of vectors of length 1, with a ranker or not, stay within 1; larger ones are taken for logits.
    raw: Reading = "clipped" if np.abs(held_out.scores[held_out.real]).max(initial=0) <= 1.001 else "sigmoid"
    by_coverage = rule_for_coverage(held_out, probabilities, coverage)
    curves, depth = TextCurves.fit(held_out, choice), held_out.scores.shape[1]
    steps = precision_steps(held_out, curves(held_out.scores), confidence)  # of the very order that it will answer in
    origin = {**origin, "texts": len(held_out), "labels_per_text": depth}
    figures = {**figures_of(held_out, probabilities, raw), "log_loss_of_curves": tried}
    rules = {"f1": rule_for_f1(held_out, probabilities), "coverage": by_coverage}
    return Calibration(curves, steps, confidence, rules, depth, raw, origin, figures)


def precision_steps(held_out: HeldOut, probabilities: Floats, confidence: float = CONFIDENCE) -> list[PrecisionStep]:
    """The lowest threshold for every precision that can be promised with this confidence, both rising.

    A threshold promises a precision if such texts would hardly be drawn where it had less. Thresholds are tested from
    the strictest down: one that passes hands its share of the doubt on, one that fails loses it; so the last to pass
    keeps its promise as often as the confidence says (docs/how-to/calibrate.md).
    """
    if not 0 < confidence < 1:
        raise BadInput(f"confidence is {confidence}; it must lie between 0 and 1")
    thresholds, given, hits = _at_least(held_out, probabilities)
    least = min(LEAST_GIVEN, int(given[0]))
    wanted = least * MORE_GIVEN ** np.arange(1 + int(np.log(given[0] / least) / np.log(MORE_GIVEN)))
    tried = len(given) - 1 - np.searchsorted(given[::-1], np.minimum(wanted, given[0]))  # the strictest that give them
    starts = range(0, len(tried), PER_START)[:STARTS]
    precisions = np.arange(1, FINEST) / FINEST
    share, chosen = np.zeros(len(precisions)), np.full(len(precisions), -1)
    for place, at in enumerate(tried.tolist()):
        share += (1 - confidence) / len(starts) if place in starts else 0
        passes = _doubts(held_out, probabilities >= thresholds[at], precisions) <= share
        share[~passes], chosen[passes] = 0, at
    reached, recall = hits / given, hits / max(1, int(held_out.positives.sum()))
    greatest = {at: precision for precision, at in zip(precisions.tolist(), chosen.tolist(), strict=True) if at >= 0}
    return [
        PrecisionStep(precision, float(thresholds[at]), int(given[at]), float(reached[at]), float(recall[at]))
        for at, precision in greatest.items()
    ]


def _doubts(held_out: HeldOut, reached: NDArray[np.bool_], precisions: NDArray[np.float64]) -> NDArray[np.float64]:
    """How probable it is at most to be so often right if the labels that reach a threshold have less precision."""
    given, hits = (reached & held_out.real).sum(1), (reached & held_out.right).sum(1)  # [N]
    wrong = precisions * (given @ given) / given.sum()  # of one more text, as large as that of the usual label
    surplus = hits.sum() - precisions * given.sum() - wrong
    squares = hits @ hits - 2 * precisions * (given @ hits) + precisions**2 * (given @ given) + wrong**2
    return np.asarray(scipy.special.ndtr(-surplus / np.sqrt(squares)))


def rule_for_f1(held_out: HeldOut, probabilities: Floats) -> Rule:
    """The threshold and the most labels a text that together have the greatest micro F1."""
    width = held_out.scores.shape[1]
    rules = []
    for most in (width, *(most for most in MOST_LABELS if most < width)):
        thresholds, given, hits = _at_least(held_out, probabilities, most)
        at = int((2 * hits / (given + held_out.positives.sum())).argmax())
        rules.append(_rule(held_out, thresholds[at], most, int(given[at]), int(hits[at])))
    return max(rules, key=lambda rule: rule.micro_f1)  # of equals the first


def rule_for_coverage(held_out: HeldOut, probabilities: Floats, share: float | None) -> Rule:
    """The smallest label sets that together hold this share of all right labels; without one, 0.9 or what there is."""
    if share is not None and not 0 < share < 1:
        raise BadInput(f"coverage is {share}; it must lie between 0 and 1")
    width = held_out.scores.shape[1]
    thresholds, given, hits = _at_least(held_out, probabilities)
    recall = hits / max(1, int(held_out.positives.sum()))  # falls as thresholds rise
    reachable = float(recall[0])
    if share is not None and share > reachable:
        found = f"hold {np.floor(1000 * reachable) / 1000:g} of the right ones"
        first = f"the first {width} labels of the held-out texts"
        raise BadInput(f"a coverage of {share:g} cannot be reached: {first} {found}")
    at = int(np.flatnonzero(recall >= min(USUAL_COVERAGE if share is None else share, reachable))[-1])
    return _rule(held_out, thresholds[at], width, int(given[at]), int(hits[at]))


def _rule(held_out: HeldOut, threshold: np.float32, most: int, given: int, hits: int) -> Rule:
    positives = int(held_out.positives.sum())
    f1, recall = 2 * hits / (given + positives), hits / max(1, positives)
    return Rule(float(threshold), most, f1, hits / given, recall, labels_per_text=given / len(held_out))


def _at_least(held_out: HeldOut, probabilities: Floats, most: int | None = None) -> tuple[Floats, Counts, Counts]:
    """Every probability among the first `most` labels of the texts, rising; how many reach it; how many are right."""
    there = held_out.real[:, :most]
    values, right = probabilities[:, :most][there], held_out.right[:, :most][there]
    order = np.argsort(values, kind="stable")
    values, right = values[order], right[order]
    first = np.flatnonzero(np.diff(values, prepend=-np.inf) > 0)
    return values[first], len(values) - first, right.sum() - np.concatenate([[0], np.cumsum(right)])[first]
