"""How the commands speak: lines and JSON, progress bars with ETA, tables of metrics. Light: rich loads late."""

import ctypes
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from umpteen.model.changes import UNSEEN

if TYPE_CHECKING:
    from rich.table import Table

    from umpteen.data.dataset import Dataset
    from umpteen.evaluation.report import Report

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them (malloc.h)
KEPT = 1 << 30  # bytes that may lie unused at the end of the heap
LARGEST = 1 << 28  # bytes; what is larger, such as a million labels' vectors, is given back as before


# Freed memory stays with the process, ready for the next micro-batch.
#
# glibc gives large blocks back at once, and the kernel hands them out again page by page, zeroed: a quarter of a static
# training step went into that, and up to a tenth of a transformer's, the more the larger its micro-batches.
def keep_freed_memory() -> bool:
    """Whether it will be so: not without glibc, and not where the environment has settings of its own."""
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc, not Linux
        return False
    larger = mallopt(MMAP_THRESHOLD, LARGEST) or mallopt(MMAP_THRESHOLD, LARGEST >> 3)  # older ones allow 32 MB
    return bool(larger) and bool(mallopt(TRIM_THRESHOLD, KEPT))


_UNSEEN = re.compile(rf"[{UNSEEN}\ud800-\udfff]")


def visible(text: object) -> str:
    """The text in one line that a terminal only shows: characters that would steer it stand as escapes."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def say(line: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Prints a line, which may hold anybody's data; JSON for machines needs no such care."""
    click.secho(visible(line), err=err, nl=nl, **style)


def say_json(answer: Mapping[str, Any]) -> None:
    """Prints what a machine asked for."""
    click.echo(json.dumps(answer, ensure_ascii=False))


def show(*renderables: Any) -> None:
    """Prints tables to stdout."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 120)
    for renderable in renderables:
        console.print(renderable)


def duration(seconds: float) -> str:
    """For people: hours if there are any, minutes, seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_SECONDS_BETWEEN_LINES = 10.0


class Watch:
    """Draws every long piece of work of one command; a context manager, and a training observer.

    Bars with ETA on a terminal, a line now and then elsewhere; on stderr, so that stdout can be piped.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._draws = self.console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self._draws,
        )
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._last_line = time.monotonic()
        self._steps = 0

    def __enter__(self) -> "Watch":
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None:
        """Progress of a named piece of work."""
        if self._quiet:
            return
        if self._draws:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total, note=note)
            self._progress.update(self._tasks[name], completed=done, total=total, note=note)
            return
        now = time.monotonic()
        start, first = self._began.setdefault(name, (now, done))
        if now - self._last_line >= _SECONDS_BETWEEN_LINES or (done >= total and now - start > 1):
            self._last_line = now
            remaining = (now - start) / max(1, done - first) * (total - done)
            self.notice(f"{name} {done:,}/{total:,}  ETA {duration(remaining)}  {note}".rstrip())

    def open_dataset(self, source: str) -> "Dataset":
        """The dataset of this folder or name, while people see how far it is read."""
        from umpteen.data.dataset import open_dataset

        return open_dataset(source, progress=partial(self, "reading"))

    def started(self, step: int, steps: int) -> None:
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


SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")


def table(columns: Mapping[str, Iterable[str]], *, title: str | None = None) -> "Table":
    """Names, which are anybody's data, to the left, figures to the right; a column without a title never breaks."""
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=title and escape(visible(title)), title_justify="left")
    for place, name in enumerate(columns):
        made.add_column(name, justify="right" if place else "left", no_wrap=not name)
    for first, *figures in zip(*columns.values(), strict=True):
        made.add_row(escape(visible(first)), *figures)
    return made


def figures(metrics: Iterable[Mapping[str, float]], name: str) -> list[str]:
    """One metric of each, a dash where it is missing."""
    return [f"{one[name]:.2f}" if name in one else "–" for one in metrics]


def best_in_bold(metrics: Sequence[Mapping[str, float]], name: str) -> list[str]:
    """One metric of each, the best of them marked."""
    best = max(one[name] for one in metrics)
    return [f"[bold]{one[name]:.2f}[/bold]" if one[name] == best else f"{one[name]:.2f}" for one in metrics]


def metrics_table(
    reports: "Mapping[str, Report]", metrics: Sequence[str] = SHOWN, *, title: str | None = None
) -> "Table":
    """One row per method, one column per metric, the best of each column in bold, with half its 95 % interval."""

    def column(metric: str) -> Iterable[str]:
        values = best_in_bold([report.metrics for report in reports.values()], metric)
        for value, report in zip(values, reports.values(), strict=True):
            low, high = report.intervals.get(metric, (None, None))
            yield value if low is None or high is None else f"{value} ±{(high - low) / 2:.2f}"

    there = [metric for metric in metrics if all(metric in report.metrics for report in reports.values())]
    return table({"": reports, **{metric: column(metric) for metric in there}}, title=title)


def differences_table(
    found: Mapping[str, Mapping[str, Mapping[str, Any]]], metrics: Sequence[str] = SHOWN, *, title: str
) -> "Table":
    """One row per method: by how many percent points it differs, over the 95 % interval of that."""

    def shown(difference: Mapping[str, Any]) -> str:
        low, high = difference["interval"]
        return f"{difference['value']:+.2f}\n{low:+.1f}…{high:+.1f}"

    there = [metric for metric in metrics if all(metric in pair for pair in found.values())]
    columns = {metric: [shown(pair[metric]) for pair in found.values()] for metric in there}
    return table({"": found, **columns}, title=f"{title}: percent points and their 95 % intervals")
