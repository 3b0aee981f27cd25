"""ROUGE of generated texts, text by text.

Values are F-measures from 0 to 100, of lower-case words without stemming, as the library rouge-score counts them.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from umpteen.errors import BadInput

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
