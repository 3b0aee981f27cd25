"""Shows long work to people: bars with ETA on a terminal or in a notebook, a line now and then elsewhere."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from umpteen.model.changes import visible
from umpteen.training.observer import Observer

if TYPE_CHECKING:
    from umpteen.data.dataset import Dataset


def duration(seconds: float) -> str:
    """For people: hours if there are any, minutes, seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_SECONDS_BETWEEN_LINES = 10.0


class Watch(Observer):
    """Draws every long piece of work of one call on stderr; a context manager, and a training observer."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._draws = (self.console.is_terminal or self.console.is_jupyter) and not quiet
        how_far = TextColumn("{task.description}"), BarColumn(bar_width=10), MofNCompleteColumn()
        and_then = TextColumn("ETA"), TimeRemainingColumn(compact=True), TextColumn("{task.fields[note]}")
        self._progress = Progress(*how_far, *and_then, console=self.console, disable=not self._draws)
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._last_line = time.monotonic()
        self._steps = 0

    def __enter__(self) -> "Watch":
        self._progress.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._progress.stop()

    def __call__(self, work: str, done: int, total: int, note: str = "") -> None:
        if self._quiet:
            return
        if self._draws:
            if work not in self._tasks:
                self._tasks[work] = self._progress.add_task(work, total=total, note=note)
            self._progress.update(self._tasks[work], completed=done, total=total, note=note)
            return
        now = time.monotonic()
        start, first = self._began.get(work, (now, done))
        if done <= first:  # it begins, or does so again
            start, first = self._began[work] = now, done
        if now - self._last_line >= _SECONDS_BETWEEN_LINES or (done >= total and now - start > 1):
            self._last_line = now
            remaining = (now - start) / max(1, done - first) * (total - done)
            self.notice(f"{work} {done:,}/{total:,}  ETA {duration(remaining)}  {note}".rstrip())

    def open_dataset(self, source: str) -> "Dataset":
        """The dataset of this folder or name, while people see how far it is read."""
        from umpteen.data.dataset import open_dataset

        dataset = open_dataset(source, progress=partial(self, "reading"))
        for guess in dataset.told:
            self.notice(f"{dataset.name}: {guess}")
        return dataset

    def started(self, config: object, step: int, steps: int) -> None:
        self._steps = steps
        self._began.pop("training", None)  # a command may train several models, one after the other
        if "training" in self._tasks:
            self._progress.reset(self._tasks["training"])
        self("training", step, steps)

    def stepped(self, record: dict[str, Any]) -> None:
        note = f"loss {record['loss']:.3f}  {record['queries_per_second']:,.0f} queries/s"
        self("training", record["step"], self._steps, note)

    def evaluated(self, record: dict[str, Any]) -> None:
        shown = [name for name in ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100") if name in record["metrics"]]
        figures = "  ".join(f"{name} {record['metrics'][name]:.2f}" for name in shown)
        self.notice(f"validation after step {record['step']:,}: {figures}{'  (best)' if record['best'] else ''}")

    def notice(self, message: str) -> None:
        if not self._quiet:
            self.console.print(visible(message), markup=False, soft_wrap=True)
