"""Every test has its own cache, computes on one thread, and stays off the network."""

import os
from collections.abc import Iterator

import pytest

# Before anything imports torch; the processes that tests start inherit them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RES_OPTIONS", "attempts:0")  # processes that meet look up names, seconds without a network
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # and complain about it


@pytest.fixture(autouse=True, scope="session")
def no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For fixtures that live longer than a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMPTEEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMPTEEN_CACHE", str(tmp_path_factory.mktemp("cache")))
