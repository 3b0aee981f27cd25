"""`umpteen ranker`: a second look at the first labels, added to a trained model."""

import json
from functools import partial
from pathlib import Path

import click

from umpteen.cli.saying import say


@click.group()
def ranker() -> None:
    """Add a sparse ranker to a trained model, or remove it (docs/ranker.md)."""


@ranker.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", "source", required=True, help="The dataset folder or bundled name the model was trained on.")
@click.option("--weight", type=click.FloatRange(0, 1), help="Of the ranker's score.  [default: chosen on validation]")
@click.option("--rare", type=click.FloatRange(0), help="Head start of rare labels.  [default: chosen on validation]")
@click.option("--candidates", type=click.IntRange(1), help="Labels of a text to put in order.  [default: 100]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting, e.g. cost=3 or words=[1,3].")
@click.option("--jobs", type=click.IntRange(1), help="Processes that fit labels.  [default: one for each core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fit(
    model: Path,
    source: str,
    weight: float | None,
    rare: float | None,
    candidates: int | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
) -> None:
    """Fit a ranker on what MODEL was trained on and put it into the model folder; a killed fit goes on."""
    from umpteen.cli.console import Watch
    from umpteen.data.dataset import open_dataset
    from umpteen.parallel.world import cores
    from umpteen.ranker.settings import RankerSettings
    from umpteen.recipe_file import with_overrides
    from umpteen.reranking import fit_ranker

    asked = {} if candidates is None else {"candidates": candidates}
    settings = RankerSettings.of(with_overrides({}, overrides) | asked)
    with Watch(quiet=as_json) as watch:
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        fitted, trials = fit_ranker(
            model, dataset, settings, weight=weight, rare=rare, jobs=jobs or cores(), progress=watch
        )
    if as_json:
        course = [trial._asdict() for trial in trials]
        click.echo(json.dumps({"model": str(model), "data": dataset.name, **fitted.describe(), "trials": course}))
        return
    for trial in trials:
        if trial.weight == 0 or (trial.weight, trial.rare) == (fitted.weight, fitted.rare):
            figures = "  ".join(f"{name} {value:.2f}" for name, value in trial.metrics.items())
            say(f"validation, weight {trial.weight:g}, rare {trial.rare:g}: {figures}")
    say(f"{model} has a ranker of {fitted.weights.nnz:,} weights; it counts {fitted.weight:g}")


@ranker.command()
@click.argument("model", type=click.Path(path_type=Path))
def remove(model: Path) -> None:
    """Take the ranker out of MODEL."""
    from umpteen.reranking import remove_ranker

    remove_ranker(model)
    say(f"{model} ranks with its dual encoder alone")
