"""The page in a real browser: chromium, driven by Playwright.

Where chromium is missing these tests are skipped, or fail if UMPTEEN_BROWSER_TESTS is "required".
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from browser.serving import Running, write_model
from browser.watching import PATIENCE, Watched

NEEDED = "the browser tests need chromium: apt-get install chromium"
FLAGS = [
    "--no-sandbox",  # it refuses to run as root otherwise
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        if os.environ.get("UMPTEEN_BROWSER_TESTS") == "required":
            pytest.fail(NEEDED)
        pytest.skip(NEEDED)
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that is only copied: nobody opens it, because SQLite's -wal and -shm come and go beside one in use."""
    folder = tmp_path_factory.mktemp("browser") / "demo"
    write_model(folder)
    return folder


@pytest.fixture(scope="session")
def shared(browser: Browser, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose labels no test changes."""
    service = Running(Path(shutil.copytree(model, tmp_path_factory.mktemp("shared") / "demo")))
    yield service
    service.close()


@pytest.fixture
def service(browser: Browser, model: Path, tmp_path: Path) -> Iterator[Running]:
    """A service of the test's own."""
    service = Running(Path(shutil.copytree(model, tmp_path / "demo")))
    yield service
    service.close()


@pytest.fixture
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """Opens pages; after the test, none may have asked another host or logged an error that was not expected."""
    if "service" in request.fixturenames:
        request.getfixturevalue("service")  # first, so that it ends last: an open page asks on, and would find nobody
    watched = Watched(browser)
    yield watched
    watched.close()
    watched.check()
