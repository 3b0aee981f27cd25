"""Benchmark: a service under mixed load for minutes, its labels changed every second. Every answer is checked.

A label that was added must be found from its acknowledgement on, with its text; one that was retired must never appear
again; a key that nobody gave must not appear at all. The memory of the service is watched meanwhile.
"""

import asyncio
import json
import random
import re
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.child_service import ChildService, umpteen_serve
from benchmarks.load import Connection, connect, request_bytes
from benchmarks.serve import static_model
from umpteen.data.dataset import open_dataset
from umpteen.errors import BadInput
from umpteen.files.progress import Progress
from umpteen.model.classifier import Classifier

DATASET = "wordnet-nouns"
TOKEN = "of-the-soak"
FLAT = 0.01  # of the memory: what it may grow by and still be flat
_SETTLED = 0.25  # of the time; until then caches fill
_KEPT = 20  # added labels that are there at the same time


def run(
    minutes: float = 10.0,
    model: Path | None = None,
    *,
    clients: int = 8,
    seconds_between_changes: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """failed: requests without a good answer; wrong_keys: answers that showed what was not there, or not what was.

    memory_mb: at the start, after a quarter of the time, at the end; memory_growth_mb: by a line through what came
    after that quarter; flat: whether that is less than a hundredth. `model` is changed, if one is given.
    """
    if minutes <= 0 or clients < 1 or seconds_between_changes <= 0:
        raise BadInput("the benchmark needs minutes, clients and seconds between changes of more than 0")
    dataset = open_dataset(DATASET)
    split = dataset.test or dataset.train
    texts = [split.texts[row] for row in range(min(1000, len(split.texts)))]
    with TemporaryDirectory(prefix="umpteen-soak-") as scratch:
        model = static_model(Path(scratch, "model"), dataset.labels) if model is None else model
        labels = Classifier.load(model).labels
        known = dict(zip(labels.keys, labels.texts, strict=True))
        with umpteen_serve(model, "--no-log", token=TOKEN) as service:
            soak = Soak(service, known, texts, minutes * 60, seed)
            asyncio.run(soak.run(clients, seconds_between_changes, progress or (lambda name, done, total: None)))
    return {"benchmark": "soak", "minutes": minutes, "clients": clients, "labels": len(known), **soak.outcome()}


class Soak:
    """What was sent, what must be there, and what was seen instead."""

    def __init__(
        self, service: ChildService, known: dict[str, str], texts: list[str], seconds: float, seed: int
    ) -> None:
        self._service = service
        self._known = known  # by key; never changed here
        self._texts = texts
        self._seconds = seconds
        self._random = random.Random(seed)
        self._added: dict[str, str] = {}  # acknowledged, by key
        self._unsure: set[str] = set()  # a change of theirs is on its way
        self._requests: dict[str, int] = {}
        self._failed: list[str] = []
        self._wrong: list[str] = []
        self._memory: list[tuple[float, float]] = []  # seconds, MB
        self._latencies: list[float] = []
        self._changes = 0
        self._began = 0.0

    async def run(self, clients: int, between: float, tell: Progress) -> None:
        connections = await connect(self._service.port, clients + 1)
        self._began = time.perf_counter()
        asking = [asyncio.create_task(self._ask(connection)) for connection in connections[1:]]
        await asyncio.gather(self._change(connections[0], between), self._watch(tell), *asking)
        for connection in connections:
            connection.close()

    def outcome(self) -> dict[str, Any]:
        seconds, memory = np.array(self._memory).T
        settled = seconds >= _SETTLED * self._seconds
        settled[-2:] = True
        slope = float(np.polyfit(seconds[settled], memory[settled], 1)[0])
        growth = slope * float(seconds[settled][-1] - seconds[settled][0])
        ordered = sorted(self._latencies)
        return {
            "requests": sum(self._requests.values()),
            "requests_by_kind": self._requests,
            "requests_per_second": sum(self._requests.values()) / self._seconds,
            "changes": self._changes,
            "failed": len(self._failed),
            "failures": self._failed[:5],
            "wrong_keys": len(self._wrong),
            "wrong": self._wrong[:5],
            "memory_mb": [float(memory[0]), float(memory[settled][0]), float(memory[-1])],
            "memory_growth_mb": growth,
            "flat": growth <= FLAT * float(memory[settled][0]),
            "p99_ms": ordered[int(0.99 * len(ordered))] * 1000 if ordered else None,
        }

    @property
    def _over(self) -> bool:
        return time.perf_counter() - self._began >= self._seconds

    async def _ask(self, connection: Connection) -> None:
        """Texts one at a time, some together, some that are added labels; now and then what else there is to ask."""
        while not self._over:
            kind = self._random.choices(["text", "texts", "added", "labels", "model"], [60, 10, 25, 3, 2])[0]
            if kind == "added" and self._added:
                await self._ask_for_added(connection)
            elif kind == "texts":
                await self._predict(connection, kind, self._random.choices(self._texts, k=8))
            elif kind in ("labels", "model"):
                path = "/labels?search=dog&count=20" if kind == "labels" else "/model"
                await self._sent(connection, kind, request_bytes(path, method="GET"))
            else:
                await self._predict(connection, "text", [self._random.choice(self._texts)])

    async def _ask_for_added(self, connection: Connection) -> None:
        """A label's own text: the label must be among the best, unless something happened to it meanwhile."""
        key, text = self._random.choice(list(self._added.items()))
        unsure = key in self._unsure
        answers = await self._predict(connection, "added", [text])
        stayed = not unsure and key not in self._unsure and self._added.get(key) == text
        if answers is not None and stayed and answers[0].get(key) != text:
            shown = answers[0].get(key)
            self._wrong.append(f"{key} ({text!r}) is there and was not found, or with another text: {shown!r}")

    async def _predict(self, connection: Connection, kind: str, texts: list[str]) -> list[dict[str, str]] | None:
        """Texts of the labels of each answer by key, every one checked; None if the request failed."""
        before, unsure = dict(self._added), set(self._unsure)
        body = await self._sent(connection, kind, request_bytes("/predict", json.dumps({"texts": texts, "k": 5})))
        if body is None:
            return None
        allowed = unsure | self._unsure | before.keys() | self._added.keys()
        answers = []
        for result in json.loads(body)["results"]:
            found = {label["key"]: label["text"] for label in result["labels"]}
            for key, text in found.items():
                if self._known.get(key, text if key in allowed else None) != text:
                    self._wrong.append(f"{key!r} with the text {text!r} is not there")
            answers.append(found)
        return answers

    async def _change(self, connection: Connection, between: float) -> None:
        """A label more each time, and from the twentieth on one less; some of them get another text on their way."""
        number = 0
        while not self._over:
            await asyncio.sleep(between)
            number += 1
            if number % 3 == 0 and self._added:
                key = self._random.choice(list(self._added))
                await self._edited(connection, "PATCH", key, f"renamed label {number} of the soak")
            elif len(self._added) < _KEPT:
                await self._edited(connection, "POST", f"soak-{number}", f"added label {number} of the soak")
            else:
                await self._edited(connection, "DELETE", next(iter(self._added)), None)

    async def _edited(self, connection: Connection, method: str, key: str, text: str | None) -> None:
        content: Any = {"text": text}
        path = f"/labels/{key}"
        if method == "POST":
            path, content = "/labels", {"labels": [{"key": key, "text": text}]}
        headers = [f"Authorization: Bearer {TOKEN}"]
        body = "" if text is None else json.dumps(content)
        self._unsure.add(key)
        answer = await self._sent(connection, method, request_bytes(path, body, method=method, headers=headers))
        if answer is None:
            return  # it may have happened or not; `unsure` for ever
        self._changes += 1
        if text is None:
            self._added.pop(key, None)
        else:
            self._added[key] = text
        self._unsure.discard(key)

    async def _sent(self, connection: Connection, kind: str, request: bytes) -> bytes | None:
        """The body of a good answer."""
        answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        connection.send(request, lambda status, body: answered.set_result((status, body)))
        status, body = await answered
        self._requests[kind] = self._requests.get(kind, 0) + 1
        self._latencies.append(time.perf_counter() - began)
        if status == 200:
            return body
        self._failed.append(f"{kind}: {status} {body[:200].decode(errors='replace')}")
        return None

    async def _watch(self, tell: Progress) -> None:
        while not self._over:
            passed = time.perf_counter() - self._began
            self._memory.append((passed, memory_mb(self._service.process.pid)))
            tell("soaking, seconds", int(passed), int(self._seconds))
            await asyncio.sleep(min(1.0, self._seconds / 10))
        self._memory.append((self._seconds, memory_mb(self._service.process.pid)))


def memory_mb(process: int) -> float:
    """What a process and those it has started, to the last, hold of the machine's memory."""
    parents: dict[int, int] = {}
    held: dict[int, float] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended
            about = dict(re.findall(r"^(Pid|PPid|VmRSS):\s+(\d+)", status.read_text(), flags=re.M))
            parents[int(about["Pid"])] = int(about["PPid"])
            held[int(about["Pid"])] = int(about.get("VmRSS", 0)) / 1024
    family = {process}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(held.get(one, 0.0) for one in family)
