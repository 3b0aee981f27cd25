"""The paper's experiments, one module each; a name leads to its module only when it is asked for.

`lab.experiment` says what an experiment consists of.
"""

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, cast

from umpteen.errors import BadInput

if TYPE_CHECKING:
    from lab.experiment import Begin

EXPERIMENTS = {
    "memorisation": (
        "lab.memorisation",
        "random text pairs at growing numbers: in-batch against hard negatives",
    ),
    "token-star": ("lab.token_star", "one word of the query names the right label among five (section 4.1)"),
    "gradients": ("lab.gradients", "how hard right labels are pulled through training, query by query"),
    "losses": ("lab.losses", "BCE, softmax, decoupled softmax, SoftTop-5, SoftTop-100: who wins at which k"),
    "negatives": ("lab.negatives", "pool of competing labels: its size against accuracy and time"),
    "freshness": ("lab.freshness", "stale shortlist against fresh cache at equal numbers of negatives"),
    "bank": ("lab.bank", "all labels by kept vectors: labels encoded a step against accuracy and time"),
    "routing": ("lab.routing", "lists of labels whose choice is learned with the towers, beside k-means and HNSW"),
    "scores": ("lab.scores", "precision against recall, and how positives and negatives part"),
    "deciles": ("lab.deciles", "by label frequency: dual encoders against the one-vs-all classifier"),
    "similarity": ("lab.similarity", "gain over the classifier by similarity of labels, all and rare ones"),
    "seeds": ("lab.seeds", "decoupled softmax against softmax over repeated seeds: what is chance"),
    "ranker": ("lab.ranker", "with and without the sparse tf-idf ranker over the first 100 labels"),
    "parts": ("lab.parts", "parts of towers, n-grams and memory: each alone, together, left out"),
    "propensity": ("lab.propensity", "a dial for rare labels on the scores, chosen on validation"),
    "new-labels": ("lab.new_labels", "labels held out of training and added by text, beside BM25 and MiniLM"),
    "review": ("lab.review", "texts to correct: least certain answers first, against any order"),
    "trainers": ("lab.trainers", "in sentence-transformers' own trainer: its losses beside ours, steps alike"),
    "generation": ("lab.generation", "texts generated with retrieved tags: InfoNCE, decoupled softmax, none"),
}


def named(name: str) -> "Begin":
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        nearest = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]}?" if nearest else "`python -m lab list` names them"
        raise BadInput(f"there is no experiment {name}; {hint}")
    module, _ = EXPERIMENTS[name]
    return cast("Begin", import_module(module).begin)
