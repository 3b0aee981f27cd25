"""What people see: progress bars with ETA on a terminal, a line now and then elsewhere, tables of metrics."""

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from umpteen.cli.saying import visible
from umpteen.evaluation.report import Report

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")
_SECONDS_BETWEEN_LINES = 10.0


def stderr() -> Console:
    """Everything but results goes to stderr, so that stdout can be piped."""
    return Console(stderr=True, highlight=False)


class Watch:
    """Draws every long piece of work of one command; a context manager, and a training observer."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = stderr()
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
            self.console.print(f"{cell(name)} {done:,}/{total:,}  ETA {duration(remaining)}  {cell(note)}".rstrip())

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


def duration(seconds: float) -> str:
    """For people: hours if there are any, minutes, seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def cell(text: object) -> str:
    """Anybody's data in a table: shown as it is, neither markup nor steering the terminal."""
    return escape(visible(text))


def metrics_table(reports: Mapping[str, Report], metrics: Sequence[str] = SHOWN, *, title: str | None = None) -> Table:
    """One row per method, one column per metric, the best of each column in bold, with half its 95 % interval."""
    metrics = [metric for metric in metrics if all(metric in report.metrics for report in reports.values())]
    table = Table(title=title and cell(title), title_justify="left")
    table.add_column("", no_wrap=True)
    for metric in metrics:
        table.add_column(metric, justify="right")
    best = {metric: max(report.metrics[metric] for report in reports.values()) for metric in metrics}
    for name, report in reports.items():
        table.add_row(cell(name), *(_cell(report, metric, best[metric]) for metric in metrics))
    return table


def _cell(report: Report, metric: str, best: float) -> str:
    value = report.metrics[metric]
    figure = f"[bold]{value:.2f}[/bold]" if value == best else f"{value:.2f}"
    interval = report.intervals.get(metric)
    return figure if interval is None else f"{figure} ±{(interval[1] - interval[0]) / 2:.2f}"


def differences_table(
    found: Mapping[str, Mapping[str, Mapping[str, Any]]], metrics: Sequence[str] = SHOWN, *, title: str
) -> Table:
    """One row per method: by how many percent points it differs, over the 95 % interval of that."""
    metrics = [metric for metric in metrics if all(metric in pair for pair in found.values())]
    table = Table(title=f"{cell(title)}: percent points and their 95 % intervals", title_justify="left")
    table.add_column("", no_wrap=True)
    for metric in metrics:
        table.add_column(metric, justify="right")
    for name, pair in found.items():
        cells = []
        for metric in metrics:
            low, high = pair[metric]["interval"]
            cells.append(f"{pair[metric]['value']:+.2f}\n{low:+.1f}…{high:+.1f}")
        table.add_row(cell(name), *cells)
    return table


def decile_table(report: Report) -> Table:
    """What labels of each frequency contribute to the precision; the contributions add up to it."""
    table = Table(title="by label frequency (decile 1: the most frequent labels)", title_justify="left")
    for column in report.deciles[0] if report.deciles else ():
        table.add_column(column.replace("_", " "), justify="right")
    for decile in report.deciles:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in decile.values()))
    return table


def origin_table(groups: Mapping[str, Mapping[str, Any]], metrics: Sequence[str] = SHOWN) -> Table:
    """Labels that were trained and those added or renamed since, each by the queries that have one of them."""
    metrics = [metric for metric in metrics if any(metric in group["metrics"] for group in groups.values())]
    table = Table(title="by origin (unseen: added or renamed since training; all labels compete)", title_justify="left")
    for column in ("", "labels", "queries", *metrics):
        table.add_column(column, justify="right" if column else "left")
    for name, group in groups.items():
        figures = [f"{group['metrics'][metric]:.2f}" if metric in group["metrics"] else "–" for metric in metrics]
        table.add_row(name, f"{group['labels']:,}", f"{group['queries']:,}", *figures)
    return table


def trials_table(results: list[dict[str, Any]], metric: str) -> Table:
    """The trials for people, best first."""
    names = [metric, *(name for name in ("P@1", "P@5", "PSP@5", "R@100") if name != metric)]
    made = Table()
    made.add_column("settings")
    for name in (*names, "best step", "s"):
        made.add_column(name, justify="right")
    for trial in results:
        figures = [f"{trial['metrics'][name]:.2f}" if name in trial["metrics"] else "–" for name in names]
        made.add_row(cell(" ".join(trial["settings"])), *figures, str(trial["best_step"]), str(trial["seconds"]))
    return made


def show(*renderables: Any) -> None:
    """Prints results to stdout."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 120)
    for renderable in renderables:
        console.print(renderable)
