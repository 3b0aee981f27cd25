"""Run by sentence-transformers' own environment: fine-tunes a model with its trainer and ranks labels by their texts.

job.json · train.jsonl, queries.jsonl, labels.jsonl (one JSON string a line) · relevance.npz  →  ranking.npz.
MultipleNegativesRankingLoss, one pair for each positive.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.training_args import BatchSamplers


def main(folder: Path) -> None:
    """Does the job of one folder."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    texts, queries, labels = (_texts(folder / f"{name}.jsonl") for name in ("train", "queries", "labels"))
    relevance = sparse.csr_matrix(sparse.load_npz(folder / "relevance.npz"))
    settings, k = job["settings"], job["k"]
    torch.set_num_threads(job["threads"])
    began = time.monotonic()
    query = np.repeat(np.arange(len(texts)), np.diff(relevance.indptr))
    pairs = Dataset.from_dict(
        {"anchor": [texts[row] for row in query], "positive": [labels[row] for row in relevance.indices]}
    )
    model = SentenceTransformer(settings["start"], device="cpu")
    with tempfile.TemporaryDirectory() as place:
        arguments = SentenceTransformerTrainingArguments(
            place,
            num_train_epochs=settings["epochs"],
            learning_rate=settings["learning_rate"],
            per_device_train_batch_size=64,
            warmup_steps=0.1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
            batch_sampler=BatchSamplers.NO_DUPLICATES,
        )
        loss = MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(model=model, args=arguments, train_dataset=pairs, loss=loss).train()
    trained = time.monotonic()
    known, asked = (
        torch.as_tensor(model.encode(some, normalize_embeddings=True, show_progress_bar=False))
        for some in (labels, queries)
    )
    best = (asked @ known.T).topk(min(k, len(labels)))
    starts = np.arange(len(queries) + 1) * best.indices.shape[1]
    scores = best.values.numpy().ravel() + 2  # above 0, so that every score is stored
    found = sparse.csr_matrix((scores, best.indices.numpy().ravel(), starts), shape=(len(queries), len(labels)))
    sparse.save_npz(folder / "ranking.npz", found)
    figures = {
        "train_seconds": trained - began,
        "predict_seconds": time.monotonic() - trained,
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }
    print(json.dumps(figures))


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
