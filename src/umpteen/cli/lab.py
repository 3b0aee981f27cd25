"""`umpteen lab`: the paper's experiments, one command each."""

import json
from pathlib import Path

import click


@click.group()
def lab() -> None:
    """Put the paper's claims to the test."""


@lab.command("list")
def list_experiments() -> None:
    """Name the experiments."""
    from umpteen.lab import EXPERIMENTS

    for name, (_, summary) in EXPERIMENTS.items():
        click.echo(f"{name}  {summary}")


@lab.command("run")
@click.argument("name")
@click.option("--size", type=click.Choice(["tiny", "small", "paper"]), default="small", show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for results.json and the figure.  [default: runs/lab/NAME]",
)
@click.option("--seeds", default=3, show_default=True, help="Repetitions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run_experiment(name: str, size: str, output: Path | None, seeds: int, as_json: bool) -> None:
    """Run the experiment NAME; a stopped one goes on where it was."""
    from umpteen.cli.console import Watch
    from umpteen.lab import experiment

    with Watch(quiet=as_json) as watch:
        outcome = experiment(name)(size, output or Path("runs/lab") / name, seeds=seeds, notice=watch.notice)
    if as_json:
        click.echo(json.dumps(outcome))
    else:
        click.echo(outcome["summary"])
