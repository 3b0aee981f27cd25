"""SIGINT and SIGTERM ask a run to stop, and so does the death of its launcher: it ends its step, saves and leaves."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: do not wait for the step
        self.signal = number


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Listens while the block runs, then puts the old handlers back; outside the main thread nothing can listen."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    old = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def end_with_launcher() -> None:
    """Sends this process SIGTERM when the one that started it has ended, be it by SIGKILL: no run goes on unseen."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()
