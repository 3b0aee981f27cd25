"""The kinds of indexes, one row each; an engine is loaded when its kind is asked for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from umpteen.errors import BadInput
from umpteen.search.engine import Engine, ExactEngine


def _faiss(kind: str) -> Engine:
    from umpteen.search.faiss import FaissEngine

    return FaissEngine(kind)


def _milvus() -> Engine:
    from umpteen.search.milvus_index import MilvusEngine

    return MilvusEngine()


KINDS: dict[str, Callable[[], Engine]] = {
    "exact": ExactEngine,
    **{kind: partial(_faiss, kind) for kind in ("faiss-flat", "faiss-hnsw", "faiss-ivfpq", "faiss-sq")},
    "milvus": _milvus,
}


def forget(folder: Path, about: dict[str, Any]) -> str | None:
    """Removes what lies elsewhere of an index that is gone; of a kind that nobody knows here, nothing does."""
    kind = str(about.get("kind"))
    return engine_of(kind).forget(folder, about) if kind in KINDS else None


def engine_of(kind: str) -> Engine:
    """The engine of this kind, or an error that lists those there are."""
    if kind not in KINDS:
        raise BadInput(f"{kind!r} is no kind of index; there are {', '.join(KINDS)}")
    return KINDS[kind]()
