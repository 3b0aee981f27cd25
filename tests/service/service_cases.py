"""A tiny model behind a service, in process: with its start and its end, and without a socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response
from numpy.typing import NDArray

from tiny import tiny_tokenizer
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput
from umpteen.model.classifier import Classifier
from umpteen.service.app import create_app
from umpteen.service.service import Service
from umpteen.service.settings import ServiceSettings

LABELS = {"L1": "fish", "L2": "tax law", "L3": "library", "ключ": "図書館 — book", "L5": "dog and tree"}
TOKEN = "a-token-for-tests"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
PATIENCE = 120.0  # seconds; only what hangs takes so long
EDITABLE = ServiceSettings(token=TOKEN, timeout=PATIENCE, lock_timeout=PATIENCE)

Result = TypeVar("Result")


def tiny_model(folder: Path) -> Path:
    """A model folder with five labels, each the best answer to its own text."""
    tower = StaticEncoder.random(tiny_tokenizer(folder / "tokenizer"), 16, seed=0)
    classifier = Classifier.build(Towers(tower).eval(), LabelCatalogue(LABELS.keys(), LABELS.values()))
    classifier.save(folder / "model")
    return folder / "model"


class Running(NamedTuple):
    """A service that has started."""

    client: AsyncClient
    app: FastAPI

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    async def ask(self, text: str, **more: Any) -> Response:
        return await self.client.post("/predict", json={"text": text, **more})

    async def keys(self, text: str, **more: Any) -> list[str]:
        """The keys of an answer, which must be one."""
        answer = await self.ask(text, **more)
        assert answer.status_code == 200, answer.text
        return [label["key"] for label in answer.json()["results"][0]["labels"]]

    async def until_waiting(self, texts: int) -> None:
        """Returns once so many texts wait for a batch."""
        await until(lambda: self.service.batcher.waiting_texts == texts)


@asynccontextmanager
async def running(model: Path | Classifier, settings: ServiceSettings | None = None) -> AsyncIterator[Running]:
    classifier = model if isinstance(model, Classifier) else Classifier.load(model)
    app = create_app(classifier, settings or ServiceSettings(timeout=PATIENCE))
    transport = ASGITransport(app)
    async with app.router.lifespan_context(app), AsyncClient(transport=transport, base_url="http://service") as client:
        yield Running(client, app)


def in_service(
    model: Path | Classifier,
    work: Callable[[Running], Awaitable[Result]],
    settings: ServiceSettings | None = None,
) -> Result:
    """What the work returns, done while the service runs."""

    async def whole() -> Result:
        async with running(model, settings) as service:
            return await work(service)

    return asyncio.run(whole())


async def until(claim: Callable[[], bool]) -> None:
    """Returns once it is true."""
    async with asyncio.timeout(PATIENCE):
        while not claim():
            await asyncio.sleep(0.002)


async def answered(service: Running, texts: list[str]) -> None:
    """Asks until there is an answer in time, which a slow machine may not have at once."""
    while (answer := await service.client.post("/predict", json={"texts": texts})).status_code != 200:
        assert error_of(answer) == (504, "timeout")


def error_of(response: Any) -> tuple[int, str]:
    """Status and code of a refusal, whose form is checked."""
    error = response.json()["error"]
    assert isinstance(error["reason"], str) and error["reason"]
    assert set(error) <= {"code", "reason", "field"}
    return response.status_code, error["code"]


class Line(NamedTuple):
    least: float
    at_most: int | None = None


class HalfCertain:
    """A calibration: probabilities are the scores moved into 0 to 1; the rule gives two labels."""

    def probabilities(self, scores: NDArray[np.floating]) -> NDArray[np.float32]:
        return ((scores + 1) / 2).astype(np.float32)

    def threshold_for_precision(self, precision: float) -> float:
        if precision > 0.95:
            raise BadInput(f"a precision of {precision} is out of reach; 0.95 is the best there is")
        return 0.99

    def line(
        self, *, min_probability: float | None = None, precision: float | None = None, rule: str | None = None
    ) -> Line:
        reached = 0.0 if precision is None else self.threshold_for_precision(precision)
        return Line(max(reached, min_probability or 0.0), None if rule is None else 2)
