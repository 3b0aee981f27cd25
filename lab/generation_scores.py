"""ROUGE of generated texts, text by text, and differences between two ways of making them on the same texts.

Values are F-measures from 0 to 100, of lower-case words without stemming, as the library rouge-score counts them.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.comparison import Figures, over_seeds, verdict
from umpteen.errors import BadInput
from umpteen.evaluation.metrics import Terms, bootstrap_intervals, paired_difference

MEASURES = {"ROUGE-1": "rouge1", "ROUGE-3": "rouge3", "ROUGE-L": "rougeL"}


def require_rouge() -> None:
    """Refuses to begin what could not be judged in the end."""
    if find_spec("rouge_score") is None:
        raise BadInput("generation is judged with rouge-score, which is not here: pip install 'umpteen[generation]'")


def rouge(wanted: Sequence[str], generated: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Every measure of every text."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(MEASURES.values()), use_stemmer=False)
    scores = [scorer.score(target, prediction) for target, prediction in zip(wanted, generated, strict=True)]
    return {name: np.array([100 * score[key].fmeasure for score in scores]) for name, key in MEASURES.items()}


def mean_over_texts(values: NDArray[np.float64]) -> Figures:
    """The mean over seeds and texts, and its 95 % interval from texts drawn again."""  # values [seeds, texts]
    terms = _terms(values)
    low, high = bootstrap_intervals({"mean": terms})["mean"]
    return {"mean": round(terms.value, 3), "interval": [round(low, 3), round(high, 3)]}


def difference_over_texts(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Figures:
    """Ours − theirs on the same texts, with two 95 % intervals: what other texts, what other seeds could have given."""
    found = paired_difference(_terms(ours), _terms(theirs))  # both are [seeds, texts]
    return {
        "mean": round(found.value, 3),
        "interval": [round(end, 3) for end in found.interval],
        "interval_over_seeds": over_seeds((ours - theirs).mean(1).tolist())["interval"],
    }


def judged(difference: Mapping[str, Any]) -> str:
    """Confirmed or refuted where both intervals lie on the same side of 0; one seed decides nothing."""
    verdicts = {verdict(difference["interval"]), verdict(difference["interval_over_seeds"])}
    return verdicts.pop() if len(verdicts) == 1 else "undecided"


def _terms(values: NDArray[np.float64]) -> Terms:
    return Terms(values.mean(0), np.ones(values.shape[1]))
