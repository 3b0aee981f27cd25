"""The `umpteen` command: how it begins and ends, the options its verbs share, and how they speak.

Heavy modules load inside the verbs and functions, so that `umpteen --help` answers at once.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from umpteen import __version__
from umpteen.errors import BadInput, LostProcess, Stopped, UmpteenError
from umpteen.model.changes import visible
from umpteen.model.watch import Watch as Watch
from umpteen.model.watch import duration as duration
from umpteen.parallel.allocator import keep_freed_memory as keep_freed_memory


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
        _tell(f"out of memory ({reason}); `umpteen plan` tells what a run needs and suggests settings that fit")
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
MODEL = click.Argument(["model"], type=PATH)
DATA = click.Argument(["source"], metavar="DATA")
RECIPE = click.Argument(["recipe"])
DATA_OF_RECIPE = click.Option(["--data", "source"], help="Dataset folder or bundled name; overrides data.source.")
JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object.")
NO_RANKER = click.option("--no-ranker", is_flag=True, help="The dual encoder alone, if the model has a ranker.")
option = partial(click.option, show_default=True)


def verb(
    group: click.Group, *first: click.Parameter, last: Sequence[click.Parameter] = (JSON,), name: str | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """A command whose own options, decorators below this one, stand between the parameters it shares with others."""

    def add(function: Callable[..., None]) -> click.Command:
        command = group.command(name, params=list(first))(function)
        command.params.extend(last)
        return command

    return add


def file_columns(command: F) -> F:
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
