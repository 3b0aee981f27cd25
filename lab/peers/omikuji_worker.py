"""Run by Omikuji's own interpreter: reads a job folder, fits Bonsai × 3, writes its ranking, prints one JSON line.

job.json · train.jsonl, queries.jsonl (one JSON string a line) · relevance.npz  →  ranking.npz. Bonsai's shape (wide,
unbalanced, shallow trees) is the one Annif documents for it.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from sklearn.feature_extraction.text import TfidfVectorizer

BEAM = 20


def main(folder: Path) -> None:
    """Does the job of one folder."""
    import omikuji

    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    texts, queries = _texts(folder / "train.jsonl"), _texts(folder / "queries.jsonl")
    relevance = sparse.csr_matrix(sparse.load_npz(folder / "relevance.npz"))
    settings, k = job["settings"], job["k"]
    began = time.monotonic()
    kept = 2 if len(texts) > 1000 else 1
    vectorizer = TfidfVectorizer(ngram_range=(1, settings["ngrams"]), sublinear_tf=True, min_df=kept, dtype=np.float32)
    features = sparse.csr_matrix(vectorizer.fit_transform(texts))
    how = omikuji.Model.default_hyper_param()
    how.cluster_balanced, how.cluster_k, how.max_depth, how.n_trees = False, 100, 3, 3
    how.linear_weight_threshold = settings["threshold"]
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "train.txt"
        _write(written, features, relevance)
        model = omikuji.Model.train_on_data(str(written), how, job["threads"])
        model.save(f"{place}/model")
        weights = sum(path.stat().st_size for path in Path(place, "model").rglob("*") if path.is_file()) // 8
    trained = time.monotonic()
    asked = sparse.csr_matrix(vectorizer.transform(queries))
    found = sparse.lil_matrix((len(queries), relevance.shape[1]), dtype=np.float32)
    for row in range(asked.shape[0]):
        pairs = list(zip(asked[row].indices.tolist(), asked[row].data.tolist(), strict=True))
        for label, score in model.predict(pairs, beam_size=BEAM, top_k=min(k, relevance.shape[1])):
            found[row, label] = score + 1e-9  # a score of 0 is a score
    sparse.save_npz(folder / "ranking.npz", sparse.csr_matrix(found))
    # Weights are counted by what they take on disk: a feature and a number, 8 bytes.
    figures = {"train_seconds": trained - began, "predict_seconds": time.monotonic() - trained, "parameters": weights}
    print(json.dumps(figures))


def _write(path: Path, features: Any, relevance: Any) -> None:
    """The text format of the extreme classification repository; a row without words or labels teaches nothing."""
    rows = np.flatnonzero((np.diff(features.indptr) > 0) & (np.diff(relevance.indptr) > 0))
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{len(rows)} {features.shape[1]} {relevance.shape[1]}\n")
        for row in rows.tolist():
            labels = ",".join(map(str, relevance[row].indices.tolist()))
            here = features[row]
            pairs = sorted(zip(here.indices.tolist(), here.data.tolist(), strict=True))
            file.write(f"{labels} {' '.join(f'{column}:{value:.6g}' for column, value in pairs)}\n")


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
