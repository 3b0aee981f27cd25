"""The `umpteen` command: how it begins and ends, the options its verbs share, and how they speak.

Heavy modules load inside the verbs and functions, so that `umpteen --help` answers at once.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from umpteen.errors import BadInput, LostProcess, Stopped, UmpteenError
from umpteen.model.changes import visible
from umpteen.model.watch import Watch as Watch
from umpteen.model.watch import duration as duration
from umpteen.parallel.allocator import keep_freed_memory as keep_freed_memory
from umpteen.version import __version__

if TYPE_CHECKING:
    from umpteen.evaluation.report import Report


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="umpteen")
def cli() -> None:
    """umpteen finds, for a text, the right few out of umpteen labels.

    Start with `umpteen demo`, or with `umpteen fit` on a file of your own. DATA is a file or folder of texts
    and labels, or the name of a bundled dataset (wordnet-nouns); MODEL is a folder that training left.
    """


def main(command: click.Command = cli, name: str = "umpteen") -> None:
    """Runs a command; an error the user can mend is one line on stderr and exit code 2."""
    keep_freed_memory()
    try:
        for argument in sys.argv[1:]:  # of bytes that are not UTF-8 Python makes surrogates, which nobody can write
            if any("\ud800" <= character <= "\udfff" for character in argument):
                raise BadInput(f"the argument '{argument[:200]}' is not UTF-8; convert it, or rename the file")
        command(prog_name=name, standalone_mode=False)
    except click.ClickException as misuse:
        misuse.show(told := io.StringIO())
        _say_lines(told.getvalue())
        sys.exit(misuse.exit_code)
    except click.Abort:  # Ctrl-C where nothing is there to save
        sys.exit(130)
    except Stopped as stopped:
        if not stopped.told_elsewhere:
            say(stopped, err=True)
        sys.exit(128 + stopped.signal)
    except (MemoryError, RuntimeError) as problem:
        from umpteen.parallel.world import is_out_of_memory

        if not is_out_of_memory(problem):
            raise  # any other error is ours, and goes on with its traceback
        reason = str(problem).partition("\n")[0][:200] or type(problem).__name__
        advice = "`umpteen plan` tells what a run needs and suggests settings that fit"
        _tell(f"out of memory ({reason}); {advice}")
        sys.exit(1)
    except UmpteenError as error:
        if not error.told_elsewhere:
            _tell(str(error))
        sys.exit(1 if isinstance(error, LostProcess) else 2)  # a lost process is nobody's mistake


def _tell(error: str) -> None:
    rank = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
    speaker = "" if rank == "0" else f"process {rank}: "  # which of torchrun's, unless it is the first
    say("error: ", fg="red", bold=True, nl=False, err=True)
    _say_lines(f"{speaker}{error}")


def _say_lines(text: str) -> None:
    for line in text.rstrip("\n").split("\n"):
        say(line, err=True)


F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
MODEL = click.argument("model", type=PATH)
DATA = click.argument("source", metavar="DATA")
DATA_OF_MODEL = click.option(
    "--data", "source", required=True, help="The dataset folder or bundled name the model was trained on."
)
DATA_OF_RECIPE = click.option("--data", "source", help="Dataset folder or bundled name; overrides data.source.")
NO_RANKER = click.option("--no-ranker", is_flag=True, help="The dual encoder alone, if the model has a ranker.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
option = partial(click.option, show_default=True)


def columns_of_a_file(command: F) -> F:
    """--text, --labels and --separator."""
    for name, help_ in (
        ("--separator", "What stands between several labels in one cell."),
        ("--labels", "Of a file: the column of labels."),
        ("--text", "Of a file: the column of texts, several with +."),
    ):
        command = click.option(name, help=f"{help_}  [default: made out, and told]")(command)
    return command


def settings(text: str) -> Callable[[F], F]:
    """--set, as often as wanted."""
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=text)


def say(line: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Prints a line, which may hold anybody's data; JSON for machines needs no such care."""
    click.secho(visible(line), err=err, nl=nl, **style)


def say_json(answer: Mapping[str, Any]) -> None:
    """Prints what a machine asked for."""
    click.echo(json.dumps(answer, ensure_ascii=False))


def tell(as_json: bool, answer: Mapping[str, Any], *lines: str) -> None:
    """Prints the answer for machines; for people these lines, or else the answer, name by name."""
    if as_json:
        say_json(answer)
        return
    for line in lines or (f"{name.replace('_', ' '):<20}{shown(value)}" for name, value in answer.items()):
        say(line)


def shown(value: Any) -> str:
    """Numbers by four digits that count, several values beside each other."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {shown(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return " to ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else "unknown" if value is None else str(value)


SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")


def show_table(
    columns: Mapping[str, Iterable[str]], *, title: str | None = None, words: Sequence[str] | None = None
) -> None:
    """Prints a table: words, which are anybody's data, to the left, figures to the right.

    The first column has words, unless the columns that have are named. A column without a title never breaks.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    words = list(columns)[:1] if words is None else words
    made = Table(title=title and escape(visible(title)), title_justify="left")
    for name in columns:
        made.add_column(name, justify="left" if name in words else "right", no_wrap=not name)
    for row in zip(*columns.values(), strict=True):
        cells = zip(columns, row, strict=True)
        made.add_row(*(escape(visible(cell)) if name in words else cell for name, cell in cells))
    console = Console(file=sys.stdout, highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 120)
    console.print(made)


def figures(metrics: Sequence[Mapping[str, float]], name: str) -> list[str]:
    """One metric of each, a dash where it is missing, the best of them in bold."""
    values = [one.get(name) for one in metrics]
    best = max((value for value in values if value is not None), default=None)
    return ["–" if one is None else f"[bold]{one:.2f}[/bold]" if one == best else f"{one:.2f}" for one in values]


def show_metrics(reports: "Mapping[str, Report]", metrics: Sequence[str] = SHOWN, *, title: str | None = None) -> None:
    """One row per method, one column per metric, the best of each column in bold, with half its 95 % interval."""

    def column(metric: str) -> Iterable[str]:
        values = figures([report.metrics for report in reports.values()], metric)
        for value, report in zip(values, reports.values(), strict=True):
            low, high = report.intervals.get(metric, (None, None))
            yield value if low is None or high is None else f"{value} ±{(high - low) / 2:.2f}"

    there = [metric for metric in metrics if all(metric in report.metrics for report in reports.values())]
    show_table({"": reports, **{metric: column(metric) for metric in there}}, title=title)


def show_differences(
    found: Mapping[str, Mapping[str, Mapping[str, Any]]], metrics: Sequence[str] = SHOWN, *, title: str
) -> None:
    """One row per method: by how many percent points it differs, over the 95 % interval of that."""

    def shown(difference: Mapping[str, Any]) -> str:
        low, high = difference["interval"]
        return f"{difference['value']:+.2f}\n{low:+.1f}…{high:+.1f}"

    there = [metric for metric in metrics if all(metric in pair for pair in found.values())]
    columns = {metric: [shown(pair[metric]) for pair in found.values()] for metric in there}
    show_table({"": found, **columns}, title=f"{title}: percent points and their 95 % intervals")
