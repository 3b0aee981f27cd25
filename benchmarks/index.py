"""Benchmark: HNSW against exact search, one query at a time on one thread, and how long added labels take.

Label vectors are drawn around real ones: each is the vector of a wordnet-nouns label, as the static encoder of MiniLM's
token table gives it (length 1), plus Gaussian noise whose length is `noise` on average; lengths stay as they fall. The
queries are wordnet-nouns' test texts through the same encoder.
"""

import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.turns import Turns
from umpteen.data.dataset import open_dataset
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.static import StaticEncoder
from umpteen.errors import BadInput
from umpteen.files.progress import Progress
from umpteen.model.catalogue import LiveCatalogue
from umpteen.model.changes import Add, Store
from umpteen.model.labels import LiveLabels
from umpteen.parallel.world import undivided
from umpteen.search.certificate import interval, tune
from umpteen.search.faiss import HNSW, FaissIndex, faiss_library
from umpteen.search.index import Effort, ExactIndex, Indexed, LiveVectors

DATA, MODEL = "wordnet-nouns", "all-MiniLM-L6-v2"
K = 10


def run(
    *,
    labels: int = 500_000,
    noise: float = 0.5,
    recall: float = 0.99,
    added: int = 1000,
    queries: int = 1000,
    timed: int = 20,
    turns: int = 5,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """recall_at_10: of HNSW, on the half of the queries that it was not tuned on.
    speed_ratio: seconds a query of exact search (the faster of a BLAS product and FAISS's flat index) ÷ HNSW's, in
    turns; the median of the turns. The index is the saved one, opened again and mapped.
    add_1000_seconds: for `added` labels: their version on disk, flushed, and the index told; not their encoding.
    """
    if min(labels, added, timed, turns) < 1 or queries < 2 or noise < 0:
        raise BadInput("the benchmark needs labels, added labels, timed queries and turns of 1 or more, and 2 queries")
    tell = progress or (lambda name, done, total: None)
    real, asked = _real_vectors(queries, seed)
    drawn = drawn_around(real, labels + added, noise, seed)
    base, new = torch.from_numpy(drawn[:labels]), drawn[labels:]
    with TemporaryDirectory(prefix="umpteen-index-", dir=folder) as scratch:
        begun = time.perf_counter()
        built = FaissIndex.over(HNSW, LiveVectors(base), Effort(1, 1, 1), lambda *done: tell("building", *done))
        build_seconds = time.perf_counter() - begun
        tell("tuning", 0, 1)
        tuned = tune(built, asked, K, recall, seed=seed)
        settings = built.save(Path(scratch))
        size = sum(path.stat().st_size for path in Path(scratch).iterdir())
        del built
        begun = time.perf_counter()
        over = Indexed("", 0, (), LiveVectors(base))
        index = FaissIndex.open(Path(scratch), settings, over, np.arange(labels), np.arange(0))
        open_seconds = time.perf_counter() - begun
        tell("timing", 0, 1)
        exact = ExactIndex(LiveVectors(base))
        sides = {
            "hnsw": _one_by_one(lambda query: index.search(query, K), asked, timed),
            "blas": _one_by_one(lambda query: exact.search(query, K), asked, timed),
            "faiss_flat": _one_by_one(_flat(base), asked, timed),
        }
        with undivided():
            for side in sides.values():
                side()
            taken = Turns(sides, turns)
        del sides["faiss_flat"]  # a copy of all vectors
        add_seconds = _add_seconds(Path(scratch, "model.db"), index, base, new)
        with undivided():
            after = Turns({"hnsw": sides["hnsw"]}, turns)
    faster = min(("blas", "faiss_flat"), key=taken.seconds.__getitem__)
    low, high = interval(tuned.recalls)
    return {
        "benchmark": "index",
        "torch": torch.__version__,
        "labels": labels,
        "dimension": int(base.shape[1]),
        "noise": noise,
        "lengths": [float(value) for value in np.quantile(np.linalg.norm(drawn[:labels], axis=1), (0, 0.5, 1))],
        "recall_at_10": float(tuned.recalls.mean()),
        "recall_interval": [low, high],
        "certifying_queries": len(tuned.recalls),
        "effort": tuned.effort._asdict(),
        "speed_ratio": taken.ratio(faster, "hnsw"),
        "exact": faster,
        "queries_per_second": {name: timed / seconds for name, seconds in taken.seconds.items()},
        "queries_per_second_after_adding": timed / after.seconds["hnsw"],
        "add_1000_seconds": add_seconds,
        "added": added,
        "build_seconds": build_seconds,
        "build_threads": torch.get_num_threads(),
        "open_seconds": open_seconds,
        "index_megabytes": size / 1e6,
        "exact_megabytes": base.numel() * 4 / 1e6,
    }


def drawn_around(real: Tensor, count: int, noise: float, seed: int) -> NDArray[np.float32]:
    """Vectors that are a real one each, chosen by chance, plus noise of this length on average."""  # [count, d]
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((count, real.shape[1]), dtype=np.float32)
    drawn *= np.float32(noise / real.shape[1] ** 0.5)
    drawn += real.numpy()[rng.integers(len(real), size=count)]
    return drawn


def _real_vectors(queries: int, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of real labels, and of real texts as queries."""
    dataset = open_dataset(DATA)
    assert dataset.test is not None
    encoder = StaticEncoder.from_token_table(MODEL).eval()
    texts = dataset.test.texts
    rows = np.random.default_rng(seed).choice(len(texts), min(queries, len(texts)), replace=False)
    asked = encode_texts(encoder, [texts[int(row)] for row in rows])
    return encode_texts(encoder, dataset.labels.texts).float(), asked.float()


def _one_by_one(search: Callable[[Tensor], object], queries: Tensor, count: int) -> Callable[[], object]:
    """Searches for the next queries of all, one after the other: the same few would stay in the processor's caches."""
    following = cycle([query[None] for query in queries])
    return lambda: [search(next(following)) for _ in range(count)]


def _flat(base: Tensor) -> Callable[[Tensor], object]:
    """FAISS's own exact search, without a word of ours around it."""
    library = faiss_library()
    library.omp_set_num_threads(1)
    flat = library.IndexFlatIP(base.shape[1])
    flat.add(base.numpy())
    return lambda query: flat.search(query.numpy(), K)


def _add_seconds(model: Path, index: FaissIndex, base: Tensor, new: NDArray[np.float32]) -> float:
    """Seconds until new labels are on disk for good and found, their vectors being known."""
    keys = [f"L{row}" for row in range(len(base))]
    labels = LiveLabels(LabelCatalogue(keys, keys))
    catalogue = LiveCatalogue(labels, base, Store.create(model, "", 0))
    texts = [f"new label {place}" for place in range(len(new))]
    changes = [Add(f"new-{place}", text) for place, text in enumerate(texts)]
    begun = time.perf_counter()
    catalogue.change(changes, lambda asked: new[: len(asked)])
    rows = catalogue.since(0)
    index.tell(catalogue.indexed(), rows)
    seconds = time.perf_counter() - begun
    found = index.search(new[:10], 1).rows[:, 0]
    assert (found >= len(base)).all() or np.isin(found, rows).any()
    return seconds
