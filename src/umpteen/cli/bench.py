"""`umpteen bench`: speed and memory, both sides of each comparison in one run."""

import json
from typing import Any

import click


@click.group()
def bench() -> None:
    """Measure speed and memory as ratios."""


@bench.command()
@click.option("--labels", default=131_072, show_default=True)
@click.option("--dimension", default=384, show_default=True)
@click.option("--repeats", default=5, show_default=True, help="Alternating runs; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def losses(labels: int, dimension: int, repeats: int, as_json: bool) -> None:
    """Streaming objectives against the dense autograd formulas of the paper: time, memory, error."""
    from umpteen.bench.losses import run

    _print(run(labels=labels, dimension=dimension, repeats=repeats), as_json)


@bench.command()
@click.option("--documents", default=500_000, show_default=True)
@click.option("--words", default=200, show_default=True, help="Words in a document.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def prepare(documents: int, words: int, as_json: bool) -> None:
    """Reading and tokenising generated documents: peak memory, and one kill with resume."""
    from umpteen.bench.prepare import run
    from umpteen.cli.console import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(documents=documents, words=words, progress=watch)
    _print(outcome, as_json)


def _print(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(outcome))
        return
    for key, value in outcome.items():
        if not isinstance(value, list):
            click.echo(f"{key}: {value}")
    for result in outcome.get("results", []):
        click.echo(
            "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in result.items()
            )
        )
