"""Run by PECOS's own interpreter: reads a job folder, fits one model, writes its ranking, prints one JSON line.

job.json · train.jsonl, queries.jsonl (one JSON string a line) · relevance.npz  →  ranking.npz. Nothing of umpteen is
imported here: that environment does not have it.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from sklearn.feature_extraction.text import TfidfVectorizer

BEAM = 20  # nodes kept on each level while the tree of labels is searched; PECOS's 10 loses 1.5 points of R@100

SHARES = (1.0, 4 / 3, 2.0)  # of XR-Transformer's steps on each level of the tree: 600, 800 and 1,200 are published


def main(folder: Path) -> None:
    """Does the job of one folder."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    texts, queries = _texts(folder / "train.jsonl"), _texts(folder / "queries.jsonl")
    relevance = sparse.csr_matrix(sparse.load_npz(folder / "relevance.npz"), dtype=np.float32)
    fits: dict[str, Callable[..., tuple[Any, dict[str, Any]]]]
    fits = {"xr-linear": xr_linear, "xr-transformer": xr_transformer}
    fit = fits[job["method"]]
    scores, figures = fit(texts, relevance, queries, k=job["k"], threads=job["threads"], **job["settings"])
    sparse.save_npz(folder / "ranking.npz", sparse.csr_matrix(scores, dtype=np.float32))
    print(json.dumps(figures))


def xr_linear(
    texts: list[str],
    relevance: Any,
    queries: list[str],
    *,
    k: int,
    threads: int,
    threshold: float,
    ngrams: int,
    seed: int,
) -> tuple[Any, dict[str, Any]]:
    """A tree of sparse linear classifiers over tf-idf, with PECOS's usual settings but for the two that are tried."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    began = time.monotonic()
    vectorizer, features = _vectorised(texts, ngrams)
    embedded = LabelEmbeddingFactory.create(relevance, features, method="pifa")
    tree = Indexer.gen(embedded, seed=seed, threads=threads)
    model = XLinearModel.train(features, relevance, C=tree, threshold=threshold, threads=threads)
    trained = time.monotonic()
    asked = _sorted(vectorizer.transform(queries))
    scores = model.predict(asked, only_topk=k, beam_size=BEAM, threads=threads)
    return scores, _figures(began, trained, _weights(model))


def xr_transformer(
    texts: list[str],
    relevance: Any,
    queries: list[str],
    *,
    k: int,
    threads: int,
    threshold: float,
    ngrams: int,
    learning_rate: float,
    steps: int,
    start: str,
    seed: int,
) -> tuple[Any, dict[str, Any]]:
    """One transformer fine-tuned down the tree of labels, then linear classifiers over tf-idf and its vectors.

    With the settings that its authors published for EURLex-4K but for the encoder and what is tried.
    """
    import torch
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xtransformer.matcher import TransformerMatcher
    from pecos.xmc.xtransformer.model import XTransformer
    from pecos.xmc.xtransformer.module import MLProblemWithText

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    began = time.monotonic()
    vectorizer, features = _vectorised(texts, ngrams)
    embedded = LabelEmbeddingFactory.pifa(relevance, features)
    tree = Indexer.gen(
        embedded, nr_splits=16, min_codes=16, max_leaf_size=16, spherical=True, seed=seed, threads=threads
    )
    settings = XTransformer.TrainParams.from_dict({}, recursive=True)
    settings.ranker_params.hlm_args.model_chain.threshold = threshold
    settings.matcher_params_chain = [
        TransformerMatcher.TrainParams(
            model_shortcut=start,
            learning_rate=learning_rate,
            max_steps=round(steps * SHARES[min(level, len(SHARES) - 1)]),
            warmup_steps=min(100, steps // 6),
            batch_size=32,
            batch_gen_workers=threads,  # none end in a division by 0
            negative_sampling="tfn+man",
            loss_function="weighted-squared-hinge",
            bootstrap_method="weighted-linear",
            max_active_matching_labels=1000,
        )
        for level in range(len(tree))
    ]
    asking = XTransformer.PredParams.from_dict({}, recursive=True)
    asking.matcher_params_chain = TransformerMatcher.PredParams(
        only_topk=5, post_processor="l3-hinge", ensemble_method="concat-only", truncate_length=_length(texts, start)
    )
    problem = MLProblemWithText(texts, relevance, X_feat=features)
    model = XTransformer.train(
        problem, clustering=tree, train_params=settings, pred_params=asking, beam_size=BEAM, threads=threads
    )
    trained = time.monotonic()
    asked = _sorted(vectorizer.transform(queries))
    scores = model.predict(
        queries, X_feat=asked, only_topk=k, beam_size=BEAM, batch_gen_workers=threads, threads=threads
    )
    encoder = sum(weight.numel() for weight in model.text_encoder.text_encoder.parameters())
    return scores, _figures(began, trained, encoder + _weights(model.concat_model))


def _length(texts: list[str], start: str) -> int:
    """Tokens of 99 texts in 100, to which PECOS pads all of them: 128 as ever would take three times as long."""
    from transformers import AutoTokenizer

    lengths = [len(ids) for ids in AutoTokenizer.from_pretrained(start)(texts[:: -(-len(texts) // 5000)])["input_ids"]]
    return int(min(128, 8 * -(-np.percentile(lengths, 99) // 8)))


def _vectorised(texts: list[str], ngrams: int) -> tuple[Any, Any]:
    # Words in lower case and without punctuation, rare ones dropped: 2.6 points of P@1 over PECOS's own tf-idf.
    kept = 2 if len(texts) > 1000 else 1
    vectorizer = TfidfVectorizer(ngram_range=(1, ngrams), sublinear_tf=True, min_df=kept, dtype=np.float32)
    return vectorizer, _sorted(vectorizer.fit_transform(texts))


def _sorted(features: Any) -> Any:
    """As PECOS wants them, which XR-Transformer finds out after its first level."""
    matrix = sparse.csr_matrix(features)
    matrix.sort_indices()
    return matrix


def _weights(model: Any) -> int:
    """Weights that pruning has left, over all levels of the tree."""
    return sum(int(level.W.nnz) for level in model.model.model_chain)


def _figures(began: float, trained: float, parameters: int) -> dict[str, Any]:
    return {
        "train_seconds": trained - began,
        "predict_seconds": time.monotonic() - trained,
        "parameters": parameters,
    }


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    logging.disable(logging.INFO)
    main(Path(sys.argv[1]))
