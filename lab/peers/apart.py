"""Peers with requirements of their own: one fit in their own environment, files in, a ranking out."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.sparse import csr_array

from lab.peers.environment import Environment
from umpteen.compare.methods import Outcome, Unavailable
from umpteen.data.dataset import Split
from umpteen.data.texts import Texts
from umpteen.encoders.folder import DEFAULT_MODEL, locate
from umpteen.search.ranking import Ranking

PECOS, OMIKUJI, SENTENCE_TRANSFORMERS = "libpecos==1.2.8", "omikuji==0.5.2", "sentence-transformers[train]>=6,<7"
_NUMERIC = ("numpy<2", "scipy<1.14", "scikit-learn<1.6")
# XR-Linear does without the rest of what the package asks for; XR-Transformer needs an optimizer that later
# releases of transformers no longer have.
ENVIRONMENTS = {
    "xr-linear": Environment("pecos-1.2.8", _NUMERIC, (PECOS,)),
    "xr-transformer": Environment(
        "pecos-1.2.8-transformer", (*_NUMERIC, "torch==2.13.0", "transformers<4.46", "sentencepiece"), (PECOS,)
    ),
    "bonsai": Environment("omikuji-0.5", ("numpy", "scipy", "scikit-learn", "cffi"), (OMIKUJI,)),
    "mnrl": Environment("sentence-transformers-6", ("torch==2.13.0", SENTENCE_TRANSFORMERS), ()),
}
_WORKERS = {"bonsai": "omikuji_worker.py", "mnrl": "mnrl_worker.py"}  # the others' is PECOS's
_STARTED = ("xr-transformer", "mnrl")  # from a pretrained encoder


def fit(
    method: str, train: Split, asked: Split, settings: dict[str, Any], k: int, labels: Texts | None = None
) -> Outcome:
    """Fits on one split and ranks the k best labels for each query of another, filtered pairs left out of both."""
    if method == "xr-transformer":
        settings = {"threshold": 0.1, "ngrams": 2, **settings}
    if method in _STARTED:
        settings = {**settings, "start": str(locate(DEFAULT_MODEL).resolve())}
    threads = torch.get_num_threads()
    excluded = asked.filtered.matrix
    width = min(k + int(np.diff(excluded.indptr).max(initial=0)), train.relevance.labels)
    job = {"method": method, "settings": settings, "k": width, "threads": threads}
    with tempfile.TemporaryDirectory(prefix="umpteen-peer-") as place:
        folder = Path(place)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        _write_texts(folder / "train.jsonl", train.texts)
        _write_texts(folder / "queries.jsonl", asked.texts)
        if labels is not None:
            _write_texts(folder / "labels.jsonl", labels)
        scipy.sparse.save_npz(folder / "relevance.npz", _positives(train))
        figures = _run(ENVIRONMENTS[method], _WORKERS.get(method, "pecos_worker.py"), folder)
        found = Ranking.load(folder / "ranking.npz", width)
    ranking = found.without(excluded).head(k)
    return Outcome(ranking, figures["train_seconds"], figures["predict_seconds"], figures["parameters"])


def _run(environment: Environment, worker: str, folder: Path) -> dict[str, Any]:
    # Isolated: nothing that lies beside the worker may stand in for a module of theirs.
    command = [str(environment.interpreter), "-I", str(Path(__file__).with_name(worker)), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise Unavailable(f"{environment.interpreter}: {problem.strerror}; remove {environment.folder}") from None
    lines = [line for line in (done.stdout if not done.returncode else done.stderr).splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing"
    if done.returncode:
        ended = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
        raise Unavailable(f"its process {ended}, and last said: {last[:200]}")
    try:
        figures: dict[str, Any] = json.loads(last)
        _ = figures["train_seconds"], figures["predict_seconds"], figures["parameters"]
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"its process ended without figures: {last[:200]}; remove {environment.folder}") from None
    return figures


def _positives(train: Split) -> csr_array:
    """1 for every pair that training may learn from: what has weight 0 is relevant, but not to be pulled."""
    matrix = train.relevance.without(train.filtered).matrix.copy()
    matrix.eliminate_zeros()
    matrix.data[:] = 1
    return matrix


def _write_texts(path: Path, texts: Texts) -> None:
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps(text) + "\n")
