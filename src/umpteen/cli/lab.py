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
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1), help="Repetitions.")
@click.option(
    "--encoder",
    type=click.Choice(["minilm", "static", "random"]),
    help="What to train: MiniLM, a bag of its word pieces, or MiniLM's shape at random.  [default: the size's own]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for results.json and the figure.  [default: runs/lab/NAME-SIZE]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run_experiment(name: str, size: str, seeds: int, encoder: str | None, output: Path | None, as_json: bool) -> None:
    """Run the experiment NAME; a stopped one goes on after its last finished run."""
    from umpteen.cli.console import Watch
    from umpteen.lab import experiment

    chosen = experiment(name)
    folder = output or Path("runs/lab") / "-".join(part for part in (name, size, encoder) if part)
    with Watch(quiet=as_json) as watch:
        outcome = chosen(size, folder, seeds=seeds, encoder=encoder, notice=watch.notice, progress=watch)
    if as_json:
        click.echo(json.dumps(outcome))
    else:
        click.echo(outcome["summary"])
        click.echo(f"{folder}/results.json has the numbers")
