"""A FAISS index over labels that change: its candidates get exact scores from the labels' own vectors.

What was added or changed since it was built is searched exactly beside it, so a change is cheap and never missed;
removed and changed rows are hidden in it. Building it again takes them in.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.errors import DamagedModel, NotSaved, installed
from umpteen.files.progress import Advance, silent
from umpteen.search.index import Built, Effort, Indexed, LabelIndex, LiveVectors, Overlay, Rows
from umpteen.search.ranking import NO_LABEL, Ranking, Vectors, as_floats

FLAT, HNSW, IVFPQ, SQ = "faiss-flat", "faiss-hnsw", "faiss-ivfpq", "faiss-sq"

_NEIGHBOURS = 32  # M of HNSW
_CARE = 200  # efConstruction of HNSW
_BITS = 8
_NUMBERS_A_CODE = 4  # of a vector, in each byte of IVF-PQ
_TRAINING_VECTORS_A_LIST = 64
_WIDEST = 16_384  # efSearch
_STEPS = 4  # of it that are tried in a doubling
_MOST_RESCORED = 4096
_WIDTH = 16  # FAISS is several times faster where halves come in such groups

STRUCTURE = "index.faiss"
_AT_A_TIME = 65_536


# FAISS's structures, each built, searched and stored alike; positions count the vectors in the order they came.
# All compare by inner product, whatever the lengths of the vectors. In a graph of largest inner products every path
# leads to the longest vectors, and others are out of reach; so the neighbours of HNSW are near by direction, and a
# search walks among them by inner product.
def faiss_library() -> Any:
    """The library, if it is installed."""
    return installed("faiss", "FAISS is not installed; `pip install umpteen[faiss]`, or use the exact index")


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
    # Lists share directions, whatever the lengths: FAISS keeps the centres of inner-product lists at length 1.
    bits = max(1, min(_BITS, count.bit_length() - 1))
    largest = max(1, dimension // _NUMBERS_A_CODE)
    codes = max(size for size in range(1, largest + 1) if dimension % size == 0)
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(dimension), dimension, Effort.lists_of(count), codes, bits, product)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    return index


class FaissIndex(LabelIndex):
    """FAISS holds the labels as they were when it was built, in the order of their rows, in one file."""

    def __init__(self, kind: str, index: Any, effort: Effort, held: Rows, labels: LiveVectors, changed: Rows) -> None:
        self.kind, self.effort, self.labels = kind, effort, labels
        self._faiss = faiss_library()
        self._index, self._rows = index, held
        self._state = self._seen(labels, changed)

    @classmethod
    @contextmanager
    def build(cls, kind: str, folder: Path, now: Indexed, uri: str | None, progress: Advance) -> Iterator[Built]:
        yield cls.over(kind, now.vectors, Effort(1, 1, 1), progress), {}

    @classmethod
    def over(cls, kind: str, labels: LiveVectors, effort: Effort, progress: Advance = silent) -> "FaissIndex":
        """An index of this kind over the labels as they are now."""
        faiss, count = faiss_library(), labels.count()
        empty, held = _empty(faiss, kind, count, labels.dimension), np.flatnonzero(labels.active)
        made = cls(kind, empty, effort, held, labels, np.empty(0, dtype=np.int64))
        made._threads(count)

        def parts() -> Iterator[NDArray[np.float32]]:
            for start in range(0, count, _AT_A_TIME):
                yield labels.of(held[start : start + _AT_A_TIME])

        if not made._index.is_trained:
            wanted = max(20_000, _TRAINING_VECTORS_A_LIST * Effort.lists_of(count)) if kind == IVFPQ else 100_000
            made._index.train(made._padded(labels.of(held[:: max(1, count // wanted)])))  # spread evenly over all
        done, longest = 0, np.float32(1e-30)
        for part in parts():
            if kind == HNSW:
                lengths = np.maximum(np.linalg.norm(part, axis=1), np.float32(1e-30))[:, None]
                part, longest = part / lengths, max(longest, lengths.max())
            made._index.add(made._padded(part))
            done += len(part)
            progress(done, count)
        if kind == HNSW:
            storage = faiss.downcast_index(made._index.storage)
            storage.reset()
            for part in parts():
                storage.add(made._padded(part / longest))  # halves hold no numbers beyond 65,504
        return made

    def search(self, queries: Vectors, k: int) -> Ranking:
        overlay, visible = self._state
        queries = overlay.labels.asked(queries, k)
        return overlay.best(queries, self.candidates(queries, self.effort.for_k(k), visible), k)

    def candidates(self, queries: Vectors, effort: Effort, visible: NDArray[np.uint8] | None = None) -> Rows:
        faiss = self._faiss
        self._threads(len(queries))
        asked: dict[str, Any] = {} if visible is None else {"sel": faiss.IDSelectorBitmap(visible)}
        if self.kind == HNSW:
            parameters = faiss.SearchParametersHNSW(efSearch=max(effort.breadth, effort.rescored), **asked)
        elif self.kind == IVFPQ:
            parameters = faiss.IVFPQSearchParameters(nprobe=min(effort.breadth, int(self._index.nlist)), **asked)
        else:
            parameters = faiss.SearchParameters(**asked) if asked else None
        count = min(effort.rescored, len(self._rows))
        _, positions = self._index.search(self._padded(as_floats(queries)), count, params=parameters)
        return np.where(positions == NO_LABEL, NO_LABEL, self._rows[positions])

    def efforts(self, k: int) -> list[Effort]:
        count, few = len(self._rows), Effort.with_spare(k)
        if self.kind == HNSW:
            return [Effort(k, width, few) for width in Effort.doubling(max(16, k), min(count, _WIDEST), steps=_STEPS)]
        more = [few, *Effort.doubling(2 * few, min(count, max(_MOST_RESCORED, 2 * few)))]
        if self.kind == IVFPQ:
            return [Effort(k, lists, some) for lists in Effort.doubling(1, int(self._index.nlist)) for some in more]
        return [Effort(k, 0, few)] if self.kind == FLAT else [Effort(k, 0, some) for some in more]

    def tell(self, now: Indexed, changed: Rows) -> None:
        super().tell(now, changed)
        self._state = self._seen(now.vectors, np.union1d(self._state[0].changed, changed))

    def _seen(self, labels: LiveVectors, changed: Rows) -> tuple[Overlay, NDArray[np.uint8] | None]:
        """What one search sees, whatever is told meanwhile: also a bit for each position that counts; None: all do."""
        gone = np.isin(self._rows, changed)
        return Overlay(labels, changed), np.packbits(~gone, bitorder="little") if gone.any() else None

    def save(self, folder: Path) -> dict[str, Any]:
        path = folder / STRUCTURE
        try:
            self._faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            reason = str(error).rpartition(": ")[2].strip()
            raise NotSaved(f"{path}: FAISS could not write it: {reason}; the index there was is untouched") from error
        return super().save(folder)

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any], now: Indexed, held: Rows, changed: Rows) -> "FaissIndex":
        """Mapped where FAISS can, so that several processes share one copy."""
        faiss, kind, path = faiss_library(), about["kind"], folder / STRUCTURE
        mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)  # since FAISS 1.11
        advice = "build the index again, or remove it"
        try:  # whatever other file it names would have to lie beside it
            index = faiss.read_index(str(path), mapped | faiss.IO_FLAG_READ_ONLY | faiss.IO_FLAG_ONDISK_SAME_DIR)
        except RuntimeError as error:
            raise DamagedModel(f"{path}: FAISS cannot read it ({str(error).splitlines()[0]}); {advice}") from error
        if type(index) is not type(_empty(faiss, kind, 1, _WIDTH)):
            raise DamagedModel(f"{path}: is a {type(index).__name__}, no {kind}; {advice}")
        if index.ntotal != len(held):
            both = f"{index.ntotal:,} vectors but there were {len(held):,} labels"
            raise DamagedModel(f"the index holds {both}; build it again")
        return cls(kind, index, Effort(**about["effort"]), held, now.vectors, changed)

    def _padded(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        missing = self._index.d - vectors.shape[1]
        return np.ascontiguousarray(np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors, dtype=np.float32)

    def _threads(self, work: int) -> None:
        """As many as torch has, one without it, and never more than there are queries: waiting for each other costs."""
        most = getattr(sys.modules.get("torch"), "get_num_threads", lambda: 1)()
        self._faiss.omp_set_num_threads(max(1, min(most, work)))
