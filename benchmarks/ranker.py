"""Benchmark: a ranker's look at 100 candidates of one text, through its own features and through rows of labels."""

import time
from statistics import median
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.ranker import Ranker

CANDIDATES = 100


def run(labels: int = 600, weights: int = 6_000, texts: int = 50, words: int = 40, seed: int = 0) -> dict[str, Any]:
    """ms_a_text and ms_by_rows: medians over texts, in turns; ratio: of the two. error: of their margins."""
    chance = np.random.default_rng(seed)
    vocabulary = np.array([f"word{number}" for number in range(20_000)])
    # Words are drawn as they are in real texts: a few of them often.
    share = 1 / np.arange(1, len(vocabulary) + 1)
    known = [" ".join(chance.choice(vocabulary, words, p=share / share.sum())) for _ in range(3_000)]
    features = TextFeatures.fit(known, RankerSettings(memory=False))
    columns = np.stack([np.sort(chance.choice(len(features), weights, replace=False)) for _ in range(labels)])
    values = chance.normal(size=columns.size).astype(np.float32)
    starts = np.arange(labels + 1) * weights
    by_label: csr_array = csr_array((values, columns.ravel(), starts), shape=(labels, len(features)))
    intercepts = np.zeros(labels, dtype=np.float32)
    counts = np.full(labels, 5, dtype=np.int64)
    settings = RankerSettings(memory=False)
    ranker = Ranker(features, csr_array(by_label.T.tocsr()), intercepts, counts, settings, weight=0.5)
    ours, theirs, errors = [], [], []
    for text in known[:texts]:
        rows = chance.permutation(labels)[:CANDIDATES].astype(np.int32)[None]
        began = time.perf_counter()
        margins = ranker.margins([text], rows)[0]
        between = time.perf_counter()
        copied = by_label[rows[0]] @ features.transform([text]).toarray()[0]
        ended = time.perf_counter()
        ours.append(between - began)
        theirs.append(ended - between)
        errors.append(float(np.abs(margins - copied).max()))
    return {
        "labels": labels,
        "weights_a_label": weights,
        "ms_a_text": round(1000 * median(ours), 3),
        "ms_by_rows": round(1000 * median(theirs), 3),
        "ratio": round(median(ours) / median(theirs), 3),
        "error": max(errors),
    }
