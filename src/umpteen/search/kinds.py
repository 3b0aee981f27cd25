"""The kinds of indexes, one row each; a library is loaded when a kind of its is asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from umpteen.errors import BadInput
from umpteen.search.engine import ExactIndex, LabelIndex


def _faiss() -> type[LabelIndex]:
    from umpteen.search.faiss import FaissIndex

    return FaissIndex


def _milvus() -> type[LabelIndex]:
    from umpteen.search.milvus_index import MilvusIndex

    return MilvusIndex


KINDS: dict[str, Callable[[], type[LabelIndex]]] = {
    "exact": lambda: ExactIndex,
    **dict.fromkeys(("faiss-flat", "faiss-hnsw", "faiss-ivfpq", "faiss-sq"), _faiss),
    "milvus": _milvus,
}


def forget(folder: Path, about: dict[str, Any]) -> str | None:
    """Removes what lies elsewhere of an index that is gone; of a kind that nobody knows here, nothing does."""
    kind = str(about.get("kind"))
    return class_of(kind).forget(folder, about) if kind in KINDS else None


def class_of(kind: str) -> type[LabelIndex]:
    """The class of indexes of this kind, or an error that lists those there are."""
    if kind not in KINDS:
        raise BadInput(f"{kind!r} is no kind of index; there are {', '.join(KINDS)}")
    return KINDS[kind]()
