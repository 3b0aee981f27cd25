"""Tables on the terminal: any, metrics of methods, and by how much methods differ."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from umpteen.model.changes import visible

if TYPE_CHECKING:
    from umpteen.evaluation.report import Report

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")


def show_table(columns: Mapping[str, Iterable[str]], *, title: str = "", words: Sequence[str] = ()) -> None:
    """Prints a table: words, which are anybody's data, to the left, figures to the right.

    The first column has words, unless the columns that have are named. A column without a title never breaks.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    words = words or list(columns)[:1]
    made = Table(title=escape(visible(title)), title_justify="left")
    for name in columns:
        made.add_column(name, justify="left" if name in words else "right", no_wrap=not name)
    for row in zip(*columns.values(), strict=True):
        cells = zip(columns, row, strict=True)
        made.add_row(*(escape(visible(cell)) if name in words else cell for name, cell in cells))
    Console(file=sys.stdout, highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 120).print(made)


def figures(metrics: Sequence[Mapping[str, float]], name: str) -> list[str]:
    """One metric of each, a dash where it is missing, the best of them in bold."""
    values = [one.get(name) for one in metrics]
    best = max((value for value in values if value is not None), default=None)
    return ["–" if one is None else f"[bold]{one:.2f}[/bold]" if one == best else f"{one:.2f}" for one in values]


def show_metrics(reports: "Mapping[str, Report]", metrics: Sequence[str] = SHOWN, *, title: str = "") -> None:
    """One row per method, one column per metric, the best of each column in bold, with half its 95 % interval."""

    def column(metric: str) -> Iterable[str]:
        values = figures([report.metrics for report in reports.values()], metric)
        for value, report in zip(values, reports.values(), strict=True):
            low, high = report.intervals.get(metric, (None, None))
            yield value if low is None or high is None else f"{value} ±{(high - low) / 2:.2f}"

    there = [metric for metric in metrics if all(metric in report.metrics for report in reports.values())]
    show_table({"": reports, **{metric: column(metric) for metric in there}}, title=title)


def show_differences(found: Mapping[str, Mapping[str, Any]], metrics: Sequence[str] = SHOWN, *, title: str) -> None:
    """One row per method: by how many percent points it differs, over the 95 % interval of that."""

    def shown(difference: Mapping[str, Any]) -> str:
        low, high = difference["interval"]
        return f"{difference['value']:+.2f}\n{low:+.1f}…{high:+.1f}"

    there = [metric for metric in metrics if all(metric in pair for pair in found.values())]
    columns = {metric: [shown(pair[metric]) for pair in found.values()] for metric in there}
    show_table({"": found, **columns}, title=f"{title}: percent points and their 95 % intervals")
