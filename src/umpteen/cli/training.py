"""`umpteen train` and `umpteen tune`."""

from pathlib import Path

import click


@click.command()
@click.argument("recipe")
@click.option("--data", "source", help="Dataset folder or bundled name; overrides data.source.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting, e.g. training.epochs=3."
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Model folder to make.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run; starts it where there is none.")
@click.option("--overwrite", is_flag=True, help="Discard an unfinished run; replace the model when training ends.")
@click.option("--from", "start_from", metavar="MODEL", help="Start from a trained model, on other data or more labels.")
@click.option("--quiet", is_flag=True, help="No progress; errors only.")
def train(
    recipe: str,
    source: str | None,
    overrides: tuple[str, ...],
    output: Path,
    resume: bool,
    overwrite: bool,
    start_from: str | None,
    quiet: bool,
) -> None:
    """Train a model by RECIPE: a TOML file, or the name of one that ships with umpteen."""
    from umpteen.cli.console import Watch, metrics_table, show
    from umpteen.recipes import resolve
    from umpteen.running import train as run

    config = resolve(recipe, overrides, source)
    with Watch(quiet=quiet) as watch:
        classifier = run(
            config,
            output=output,
            resume=resume,
            overwrite=overwrite,
            start_from=start_from,
            observer=watch,
            progress=watch,
        )
    if classifier.report is not None and not quiet:
        shown = [
            name
            for name in ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")
            if name in classifier.report.metrics
        ]
        show(metrics_table({"validation": classifier.report}, shown))
    if not quiet:
        click.echo(f"saved {output}; try: umpteen predict {output} 'your text'")


@click.command()
@click.argument("recipe")
@click.option(
    "--try", "choices", multiple=True, required=True, metavar="KEY=V1,V2,…", help="Values to try; repeat for a grid."
)
@click.option("--data", "source", help="Dataset folder or bundled name; overrides data.source.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting for all trials.")
@click.option("--trials", type=int, help="Draw this many points of the grid instead of all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which points are drawn.")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="A .jsonl file: one line a trial, resumable."
)
@click.option("--json", "as_json", is_flag=True, help="Print the trials as one JSON object.")
def tune(
    recipe: str,
    choices: tuple[str, ...],
    source: str | None,
    overrides: tuple[str, ...],
    trials: int | None,
    seed: int,
    output: Path,
    as_json: bool,
) -> None:
    """Try settings of RECIPE and rank them by its metric on validation; test data is never scored."""
    import json

    from umpteen.cli.console import Watch, show, trials_table
    from umpteen.recipes import resolve
    from umpteen.tuning import grid
    from umpteen.tuning import tune as run

    points = [(*overrides, *point) for point in grid(choices, trials, seed)]
    configs = [resolve(recipe, point, source) for point in points]
    metric = configs[0].evaluation.metric
    with Watch(quiet=as_json) as watch:
        results = run(list(zip(points, configs, strict=True)), output, notice=watch.notice, progress=watch)
    if as_json:
        click.echo(json.dumps({"metric": metric, "results": results}))
    else:
        show(trials_table(results, metric))
