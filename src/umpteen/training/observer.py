"""Who watches a run: the log for machines always, a progress bar or TensorBoard where wanted."""

import json
from pathlib import Path
from typing import Any, Protocol

from umpteen.errors import BadConfig, NotSaved
from umpteen.files.storage import write_atomically


class Observer(Protocol):
    """Hears of every step and evaluation; must not change anything."""

    def started(self, step: int, steps: int) -> None: ...
    def stepped(self, record: dict[str, Any]) -> None: ...
    def evaluated(self, record: dict[str, Any]) -> None: ...
    def notice(self, message: str) -> None: ...


class Silence:
    """Watches nothing."""

    def started(self, step: int, steps: int) -> None: ...
    def stepped(self, record: dict[str, Any]) -> None: ...
    def evaluated(self, record: dict[str, Any]) -> None: ...
    def notice(self, message: str) -> None: ...


class MetricsLog(Silence):
    """Appends each record to metrics.jsonl; a resumed run first drops the lines after its checkpoint."""

    def __init__(self, path: Path, *, log_every: int = 1) -> None:
        self._path = path
        self._every = log_every

    def started(self, step: int, steps: int) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        kept = [line for line in lines if _step_of(line) <= step]
        write_atomically(self._path, "".join(f"{line}\n" for line in kept))

    def stepped(self, record: dict[str, Any]) -> None:
        if record["step"] % self._every == 0:
            self._append(record)

    def evaluated(self, record: dict[str, Any]) -> None:
        self._append(record)

    def _append(self, record: dict[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")
        except OSError as problem:
            raise NotSaved(
                f"{self._path}: could not be written: {problem.strerror}; --resume goes on from the last checkpoint"
            ) from problem


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line cut short by a kill is dropped


class TensorBoard(Silence):
    """Scalars for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise BadConfig(
                f"training.tensorboard = true: pip install 'umpteen[tensorboard]' first ({missing})"
            ) from None

        self._writer: Any = SummaryWriter(str(folder))

    def stepped(self, record: dict[str, Any]) -> None:
        for name in ("loss", "learning_rate", "gradient_norm"):
            self._writer.add_scalar(f"train/{name}", record[name], record["step"])

    def evaluated(self, record: dict[str, Any]) -> None:
        for name, value in record["metrics"].items():
            self._writer.add_scalar(f"validation/{name}", value, record["step"])
        self._writer.flush()
