"""Every test has its own cache, computes on one thread, stays off the network, and sees no settings of the user."""

import gc
import itertools
import os
import shutil
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch; the processes that tests start inherit them.
for theirs in (
    "MKL_NUM_THREADS",
    "COLUMNS",
    "FORCE_COLOR",
    "NO_COLOR",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "UMPTEEN_TOKEN",
):
    os.environ.pop(theirs, None)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"
os.environ.setdefault("RES_OPTIONS", "attempts:0")  # processes that meet look up names, seconds without a network
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # and complain about it

# What tests write is flushed to the disk thousands of times; in memory, where there is room, nobody waits for it.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


LONG = (
    "test_launch",
    "test_docs_run",
    "test_notebook",
    "test_public_names",
    "test_workers",
    "test_deploy",
    "in_worlds",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest ones come first, so that no process waits for another at the end."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


def pytest_collection_finish() -> None:
    """What is imported by now stays: looking through half a million objects again takes longer than most tests."""
    gc.collect()
    gc.freeze()


# No test judges by a clock.
settings.register_profile("umpteen", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("umpteen")

# One server forks the processes of all tests, whichever needs one first: it imports once what any of them needs.
forkserver.set_forkserver_preload(
    [
        "torch._dynamo",  # a second, which torch's optimizers would take in every process
        "transformers.models.bert.modeling_bert",  # which transformers loads when a model asks for it
        "umpteen.encoders.frozen",
        "umpteen.encoders.transformer",
        "umpteen.model.train",
        "umpteen.cli.main",
        "umpteen.service.app",
        "benchmarks.crash",
        "umpteen.doctor.checks",
    ]
)
forkserver.set_forkserver_preload = lambda modules: None


CACHES = itertools.count()


@pytest.fixture(autouse=True, scope="session")
def no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For fixtures that live longer than a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMPTEEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is made when something goes into it: most tests have nothing to keep."""
    monkeypatch.setenv("UMPTEEN_CACHE", str(tmp_path_factory.getbasetemp() / "caches" / str(next(CACHES))))
