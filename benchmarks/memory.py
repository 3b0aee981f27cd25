"""Neighbours among many remembered texts: halves mapped from the folder, a copy of them in float32, an index.

Made-up vectors of length 1 around random centres. Each side has a process of its own; seconds are the processor's, on
one thread, the least of some turns.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch.nn.functional import normalize

from benchmarks.sides import Measure, Side
from umpteen.rerank.memory import Memory
from umpteen.search.certificate import recalls
from umpteen.search.exact import top_k
from umpteen.search.index import LiveVectors, exact_search
from umpteen.search.ranking import Ranking

NEIGHBOURS, MANY, FEW, AT_A_TIME, A_CENTRE = 20, 100, 25, 50_000, 50


def write(folder: Path, texts: int, dimension: int) -> None:
    """A memory of texts that have one label each."""
    chance = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(max(1, texts // A_CENTRE), dimension, generator=chance))
    vectors = torch.empty(texts, dimension, dtype=torch.float16)
    for some in torch.split(vectors, AT_A_TIME):
        own = centres[torch.randint(len(centres), (len(some),), generator=chance)]
        some.copy_(normalize(own + 0.9 * normalize(torch.randn(len(some), dimension, generator=chance))))
    labels = csr_array((np.ones(texts, np.float32), np.zeros(texts, np.int32), np.arange(texts + 1)), (texts, 1))
    Memory(vectors.numpy(), labels).save(folder)


def mapped(folder: Path) -> Measure:
    memory = Memory.load(folder, 1)
    return _measuring(memory, lambda queries: memory.nearest(queries, NEIGHBOURS))


def copied(folder: Path) -> Measure:
    memory = Memory.load(folder, 1)
    vectors = torch.from_numpy(memory.vectors).float()
    return _measuring(memory, lambda queries: top_k(queries, vectors, NEIGHBOURS))


def indexed(folder: Path) -> Measure:
    """The index that a large memory has; how long it took to build is told with every turn."""
    torch.set_num_threads(1)
    begun = time.process_time()
    memory = Memory.load(folder, 1).with_index(NEIGHBOURS)
    took = time.process_time() - begun
    assert memory.index is not None, "FAISS is not installed, or finds too few"
    measure = _measuring(memory, lambda queries: memory.nearest(queries, NEIGHBOURS))
    return lambda: {**measure(), "build_seconds": took}


def _queries(memory: Memory, count: int, seed: int) -> torch.Tensor:
    """Near remembered texts, none of which they are."""
    chance = torch.Generator().manual_seed(seed)
    near = torch.from_numpy(memory.vectors)[torch.randint(len(memory.vectors), (count,), generator=chance)].float()
    return normalize(near + 0.5 * normalize(torch.randn(near.shape, generator=chance)))


def _measuring(memory: Memory, search: Callable[[torch.Tensor], Ranking]) -> Measure:
    torch.set_num_threads(1)
    queries = _queries(memory, MANY, seed=1)
    expected = exact_search(queries[:FEW], LiveVectors(memory.vectors), NEIGHBOURS)

    def measure() -> dict[str, Any]:
        found = {}
        for name, some in (("one", queries[:1]), ("many", queries)):
            begun = time.process_time()
            ranking = search(some)
            found[name] = 1000 * (time.process_time() - begun)
        same = float(recalls(Ranking(ranking.rows[:FEW], ranking.scores[:FEW], ranking.labels), expected).mean())
        lines = Path("/proc/self/status").read_text().splitlines()
        own = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
        return {**found, "megabytes": own / 1024, "same": same}

    return measure


def run(*, texts: int, dimension: int, repeats: int, index: bool = False) -> dict[str, Any]:
    """Milliseconds of the processor for one query and for many, megabytes that are the process's own, and the share of
    the neighbours found."""
    outcome: dict[str, Any] = {"texts": texts, "dimension": dimension, "many": MANY}
    with TemporaryDirectory() as made:
        write(Path(made), texts, dimension)
        with ExitStack() as running:
            sides = {"mapped_halves": Side(mapped, Path(made)), "copy_in_float32": Side(copied, Path(made))}
            sides |= {"index": Side(indexed, Path(made))} if index else {}
            for side in sides.values():
                running.enter_context(side)
            turns = [{name: side.measure() for name, side in sides.items()} for _ in range(repeats)]
    for name in sides:
        found = [turn[name] for turn in turns]
        outcome[name] = {
            "ms_for_one": round(min(one["one"] for one in found), 2),
            "ms_for_many": round(min(one["many"] for one in found), 1),
            "own_megabytes": round(max(one["megabytes"] for one in found)),
            "neighbours_found": round(min(one["same"] for one in found), 3),
        } | ({"build_seconds": round(found[0]["build_seconds"])} if "build_seconds" in found[0] else {})
    return outcome
