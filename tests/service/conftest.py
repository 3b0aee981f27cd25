"""One tiny model for all tests of the service that change nothing, and a fresh copy for those that do."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from service_cases import tiny_model
from starlette.testclient import TestClient

from umpteen.model.classifier import Classifier
from umpteen.service.app import create_app
from umpteen.service.settings import ServiceSettings


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that is only copied: nobody opens it, because SQLite's -wal and -shm come and go beside one in use."""
    return tiny_model(tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="session")
def shared_model(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(written, tmp_path_factory.mktemp("service") / "model"))


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


@pytest.fixture(scope="session")
def client_of(shared_model: Path) -> Iterator[Callable[[ServiceSettings], TestClient]]:
    """A service with these settings that runs for the whole session: for requests that change nothing."""
    with ExitStack() as stack:

        @cache
        def client(settings: ServiceSettings) -> TestClient:
            app = create_app(Classifier.load(shared_model), settings)
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield client


@pytest.fixture
def client(client_of: Callable[[ServiceSettings], TestClient]) -> TestClient:
    return client_of(ServiceSettings())
