"""`umpteen train` and `umpteen tune`."""

import os
import sys
from pathlib import Path

import click

from umpteen.cli.saying import say

LAUNCHED = "TORCHELASTIC_RUN_ID"  # what torch's launcher tells every process it starts


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
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="Processes of this machine to share it."
)
@click.option(
    "--restarts", type=click.IntRange(0), default=0, show_default=True, help="How often to go on when a process ends."
)
@click.option("--quiet", is_flag=True, help="No progress; errors only.")
def train(
    recipe: str,
    source: str | None,
    overrides: tuple[str, ...],
    output: Path,
    resume: bool,
    overwrite: bool,
    start_from: str | None,
    processes: int,
    restarts: int,
    quiet: bool,
) -> None:
    """Train a model by RECIPE: a TOML file, or the name of one that ships with umpteen."""
    from umpteen.training.signals import end_with_launcher

    if LAUNCHED in os.environ:
        end_with_launcher()  # before anything that takes time
    from umpteen.assemble import pick_device
    from umpteen.classifier import Classifier
    from umpteen.cli.console import Watch, metrics_table, show
    from umpteen.parallel.world import join_world, launch
    from umpteen.recipes import resolve
    from umpteen.running import WORK, is_complete, started_by_this_launch, train_in, workspace_of
    from umpteen.storage import is_begun

    config = resolve(recipe, overrides, source)
    device = pick_device(config.training.device)
    if processes > 1 or restarts:
        _check_launch(processes, device.type)
        # What stands in the way is told once, not by each process.
        is_complete(output, is_begun(workspace_of(output), WORK), resume=resume, overwrite=overwrite)
        flags = {"--resume": resume, "--overwrite": overwrite, "--quiet": quiet}
        values = [("--data", source), ("--from", start_from), *(("--set", override) for override in overrides)]
        arguments = ["train", recipe, "--output", str(output), *(flag for flag, given in flags.items() if given)]
        arguments += [part for name, value in values if value is not None for part in (name, value)]
        sys.exit(launch(processes, arguments, restarts=restarts))
    with join_world(device) as world, Watch(quiet=quiet or not world.is_first) as watch:
        if world.gather_objects(started_by_this_launch(workspace_of(output)))[0]:
            resume, overwrite = True, False  # this process stands in the place of one that ended
        train_in(
            world,
            config,
            output=output,
            resume=resume,
            overwrite=overwrite,
            start_from=start_from,
            observer=watch,
            progress=watch,
        )
    if quiet or not world.is_first:
        return
    report = Classifier.load(output).report
    if report is not None:
        show(metrics_table({"validation": report}))
    say(f"saved {output}; try: umpteen predict {output} 'your text'")


def _check_launch(processes: int, device: str) -> None:
    import torch

    from umpteen.errors import BadInput
    from umpteen.parallel.world import cores

    if LAUNCHED in os.environ:
        raise BadInput(
            "--processes and --restarts start processes, and so does torchrun; leave them out under torchrun"
        )
    if device == "cuda" and processes > torch.cuda.device_count():
        raise BadInput(f"--processes {processes}: this machine has {torch.cuda.device_count()} GPUs, one per process")
    if device == "cpu" and processes > cores():
        say(f"warning: {processes} processes share {cores()} cores, which is slower than as many of each", err=True)


@click.command()
@click.argument("recipe")
@click.option(
    "--try",
    "choices",
    multiple=True,
    metavar="KEY=V1,V2,…",
    help="Values to try; repeat for a grid.  [default: values around the recipe's learning rate and temperature]",
)
@click.option("--data", "source", help="Dataset folder or bundled name; overrides data.source.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting for all trials.")
@click.option("--trials", type=click.IntRange(1), help="Draw this many points of the grid instead of all.")
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
    from umpteen.tuning import grid, usual_choices
    from umpteen.tuning import tune as run

    tried = choices or usual_choices(resolve(recipe, overrides, source))
    points = [(*overrides, *point) for point in grid(tried, trials, seed, own_first=not choices)]
    configs = [resolve(recipe, point, source) for point in points]
    metric = configs[0].evaluation.metric
    with Watch(quiet=as_json) as watch:
        results = run(list(zip(points, configs, strict=True)), output, notice=watch.notice, progress=watch)
    if as_json:
        click.echo(json.dumps({"metric": metric, "results": results}))
    else:
        show(trials_table(results, metric))
