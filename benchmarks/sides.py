"""Sides of a comparison, each in a process of its own: they take turns, and the memory of one is not the others'."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from umpteen.errors import BadInput

Measure = Callable[[], Any]


class Side:
    """A process that calls `prepare(*arguments)` once, and what that returns whenever it is asked to measure.

    Both are pickled, so `prepare` stands at the top of a module.
    """

    def __init__(self, prepare: Callable[..., Measure], *arguments: Any) -> None:
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([prepare.__module__])
        self._connection, self._other_end = processes.Pipe()
        self._process = processes.Process(target=_serve, args=(self._other_end, prepare, arguments), daemon=True)

    def __enter__(self) -> "Side":
        self._process.start()
        self._other_end.close()
        return self

    def measure(self) -> Any:
        self._connection.send("again")
        try:
            return self._connection.recv()
        except EOFError:
            raise BadInput("a benchmark process ended early; is there enough memory for this size?") from None

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(connection: Connection, prepare: Callable[..., Measure], arguments: tuple[Any, ...]) -> None:
    measure = prepare(*arguments)
    while connection.recv():
        connection.send(measure())
