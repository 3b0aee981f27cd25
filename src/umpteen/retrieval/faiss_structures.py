"""FAISS's structures, each built, searched and stored alike; positions count the vectors in the order they came.

All compare by inner product, whatever the lengths of the vectors. In a graph of largest inner products every path leads
to the longest vectors, and others are out of reach; so the neighbours of HNSW are near by direction, and a search walks
among them by inner product.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.retrieval.effort import Effort, doubling, with_spare

FLAT, HNSW, IVFPQ, SQ = "faiss-flat", "faiss-hnsw", "faiss-ivfpq", "faiss-sq"
KINDS = (FLAT, HNSW, IVFPQ, SQ)

_NEIGHBOURS = 32  # M of HNSW
_CARE = 200  # efConstruction of HNSW
_BITS = 8
_NUMBERS_A_CODE = 4  # of a vector, in each byte of IVF-PQ
_TRAINING_VECTORS_A_LIST = 64
_WIDEST = 16_384  # efSearch
_STEPS = 4  # of it that are tried in a doubling
_MOST_RESCORED = 4096
_WIDTH = 16  # FAISS is several times faster where halves come in such groups

Vectors = NDArray[np.float32]
Parts = Callable[[], Iterator[Vectors]]
Progress = Callable[[int, int], None]


def faiss_library() -> Any:
    """The library, if it is installed."""
    try:
        import faiss
    except ImportError:
        raise BadInput("FAISS is not installed; `pip install umpteen[faiss]`, or use the exact index") from None
    return faiss


class Structure:
    """One FAISS index."""

    def __init__(self, kind: str, index: Any) -> None:
        self.kind = kind
        self._faiss = faiss_library()
        self._index = index

    @classmethod
    def build(
        cls, kind: str, vectors: Parts, count: int, dimension: int, progress: Progress | None = None
    ) -> "Structure":
        """Holds all vectors; `vectors` gives them from the beginning, part by part, whenever it is called."""
        faiss = faiss_library()
        made = cls(kind, _empty(faiss, kind, count, dimension))
        made._threads(count)
        if not made._index.is_trained:
            made._index.train(made._padded(_sample(vectors(), count, _training_size(kind, count))))
        done, longest = 0, np.float32(1e-30)
        for part in vectors():
            if kind == HNSW:
                lengths = np.maximum(np.linalg.norm(part, axis=1), np.float32(1e-30))[:, None]
                part, longest = part / lengths, max(longest, lengths.max())
            made._index.add(made._padded(part))
            done += len(part)
            if progress is not None:
                progress(done, count)
        if kind == HNSW:
            storage = faiss.downcast_index(made._index.storage)
            storage.reset()
            for part in vectors():
                storage.add(made._padded(part / longest))  # halves hold no numbers beyond 65,504
        return made

    def search(self, queries: Vectors, effort: Effort, visible: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Positions of the candidates for each query, as many as the effort says, best first; −1 where none is left."""
        faiss = self._faiss
        self._threads(len(queries))
        asked: dict[str, Any] = {}
        if visible is not None:
            bits = np.packbits(visible, bitorder="little")
            asked["sel"] = faiss.IDSelectorBitmap(bits)
        if self.kind == HNSW:
            asked["efSearch"] = max(effort.breadth, effort.rescored)
            parameters = faiss.SearchParametersHNSW(**asked)
        elif self.kind == IVFPQ:
            asked["nprobe"] = min(effort.breadth, int(self._index.nlist))
            parameters = faiss.IVFPQSearchParameters(**asked)
        else:
            parameters = faiss.SearchParameters(**asked) if asked else None
        count = min(effort.rescored, int(self._index.ntotal))
        _, positions = self._index.search(self._padded(queries), count, params=parameters)
        found: NDArray[np.int64] = positions
        return found

    def efforts(self, k: int) -> list[Effort]:
        """What can be tried, the least first."""
        count = len(self)
        few = with_spare(k)
        if self.kind == HNSW:
            return [Effort(k, breadth, few) for breadth in doubling(max(16, k), min(count, _WIDEST), steps=_STEPS)]
        more = [few, *doubling(2 * few, min(count, max(_MOST_RESCORED, 2 * few)))]
        if self.kind == IVFPQ:
            lists = int(self._index.nlist)
            return [Effort(k, breadth, some) for breadth in doubling(1, lists) for some in more]
        return [Effort(k, 0, few)] if self.kind == FLAT else [Effort(k, 0, some) for some in more]

    def save(self, path: Path) -> None:
        try:
            self._faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            reason = str(error).rpartition(": ")[2].strip()
            raise NotSaved(f"{path}: FAISS could not write it: {reason}; the index there was is untouched") from error

    @classmethod
    def load(cls, kind: str, path: Path) -> "Structure":
        """Mapped where FAISS can, so that several processes share one copy."""
        faiss = faiss_library()
        mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)  # since FAISS 1.11
        try:  # whatever other file it names would have to lie beside it
            index = faiss.read_index(str(path), mapped | faiss.IO_FLAG_READ_ONLY | faiss.IO_FLAG_ONDISK_SAME_DIR)
        except RuntimeError as error:
            raise DamagedModel(
                f"{path}: FAISS cannot read it ({str(error).splitlines()[0]}); build the index again, or remove it"
            ) from error
        if type(index) is not type(_empty(faiss, kind, 1, _WIDTH)):
            raise DamagedModel(f"{path}: is a {type(index).__name__}, no {kind}; build the index again, or remove it")
        return cls(kind, index)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def _padded(self, vectors: Vectors) -> Vectors:
        missing = self._index.d - vectors.shape[1]
        return np.ascontiguousarray(np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors, dtype=np.float32)

    def _threads(self, work: int) -> None:
        """As many as torch has, and never more than there are queries: waiting for each other costs more."""
        self._faiss.omp_set_num_threads(max(1, min(torch.get_num_threads(), work)))


def _empty(faiss: Any, kind: str, count: int, dimension: int) -> Any:
    product = faiss.METRIC_INNER_PRODUCT
    if kind == FLAT:
        return faiss.IndexFlatIP(dimension)
    if kind == SQ:
        return faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_8bit, product)
    if kind == HNSW:
        wide = -(-dimension // _WIDTH) * _WIDTH
        index = faiss.IndexHNSWSQ(wide, faiss.ScalarQuantizer.QT_fp16, _NEIGHBOURS, product)
        index.hnsw.efConstruction = _CARE
        return index
    if kind == IVFPQ:
        # Lists share directions, whatever the lengths: FAISS keeps the centres of inner-product lists at length 1.
        bits = max(1, min(_BITS, count.bit_length() - 1))
        largest = max(1, dimension // _NUMBERS_A_CODE)
        codes = max(size for size in range(1, largest + 1) if dimension % size == 0)
        index = faiss.IndexIVFPQ(faiss.IndexFlatIP(dimension), dimension, _lists(count), codes, bits, product)
        index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
        return index
    raise BadInput(f"{kind!r} is no kind of FAISS index; there are {', '.join(KINDS)}")


def _lists(count: int) -> int:
    return max(1, min(int(4 * math.sqrt(count)), count // 32))


def _training_size(kind: str, count: int) -> int:
    return max(20_000, _TRAINING_VECTORS_A_LIST * _lists(count)) if kind == IVFPQ else 100_000


def _sample(parts: Iterator[Vectors], count: int, wanted: int) -> Vectors:
    """Some of the vectors, spread evenly over all."""
    step = max(1, count // wanted)
    found, start = [], 0
    for part in parts:
        found.append(part[-start % step :: step])
        start += len(part)
    return np.ascontiguousarray(np.concatenate(found))
