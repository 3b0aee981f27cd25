"""The `umpteen` command. Heavy modules load inside the verbs, so that `umpteen --help` answers at once."""

import io
import os
import sys

import click

from umpteen.cli import compare, data, demo, doctor, evaluate, labels, parts, predict, serve, train
from umpteen.cli.console import keep_freed_memory, say
from umpteen.errors import BadInput, LostProcess, Stopped, UmpteenError
from umpteen.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="umpteen")
def cli() -> None:
    """umpteen finds, for a text, the right few out of umpteen labels.

    Start with `umpteen demo`. DATA is a dataset folder or the name of a bundled one (wordnet-nouns);
    MODEL is a folder that training left.
    """


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(umpteen completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "umpteen", "_UMPTEEN_COMPLETE").source())


for verb in (
    demo.demo,
    data.data,
    train.plan,
    train.train,
    train.tune,
    train.curves,
    evaluate.evaluate,
    compare.compare,
    predict.predict,
    parts.calibrate,
    serve.serve,
    labels.labels,
    parts.index,
    evaluate.verify,
    evaluate.negatives,
    parts.ranker,
    data.recipe,
    doctor.doctor,
):
    cli.add_command(verb)


def main(command: click.Command = cli, name: str = "umpteen") -> None:
    """Runs a command; an error the user can mend is one line on stderr and exit code 2."""
    keep_freed_memory()
    try:
        _refuse_other_encodings(sys.argv[1:])
        command(prog_name=name, standalone_mode=False)
    except click.ClickException as misuse:
        misuse.show(told := io.StringIO())
        for line in told.getvalue().splitlines():
            say(line, err=True)
        sys.exit(misuse.exit_code)
    except click.Abort:  # Ctrl-C where nothing is there to save
        sys.exit(130)
    except Stopped as stopped:
        if not stopped.told_elsewhere:
            say(stopped, err=True)
        sys.exit(128 + stopped.signal)
    except (MemoryError, RuntimeError) as problem:
        _tell_out_of_memory(problem)
        sys.exit(1)
    except UmpteenError as error:
        if not error.told_elsewhere:
            _tell(str(error))
        sys.exit(1 if isinstance(error, LostProcess) else 2)  # a lost process is nobody's mistake


def _tell_out_of_memory(problem: MemoryError | RuntimeError) -> None:
    """One line if that is what it is; any other error is ours, and goes on with its traceback."""
    from umpteen.parallel.world import is_out_of_memory

    if not is_out_of_memory(problem):
        raise problem
    reason = str(problem).partition("\n")[0][:200] or type(problem).__name__
    advice = "`umpteen plan` tells what a run needs and suggests settings that fit"
    _tell(f"out of memory ({reason}); {advice}")


def _tell(error: str) -> None:
    rank = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
    speaker = "" if rank == "0" else f"process {rank}: "  # which of torchrun's, unless it is the first
    say("error: ", fg="red", bold=True, nl=False, err=True)
    for line in f"{speaker}{error}".split("\n"):
        say(line, err=True)


def _refuse_other_encodings(arguments: list[str]) -> None:
    """Python stands in surrogates for bytes that are not UTF-8, and no library below can write them."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise BadInput(f"the argument '{argument[:200]}' is not UTF-8; convert it, or rename the file")
