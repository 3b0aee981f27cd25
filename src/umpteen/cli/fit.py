"""`umpteen fit`: from a file to the best model, in one command."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import DATA, JSON, PATH, Watch, cli, columns_of_a_file, option, say, say_json, show_metrics


@cli.command()
@DATA
@option("--minutes", type=click.FloatRange(0, min_open=True), default=10.0, help="About how long it may take.")
@option("--trials", type=click.IntRange(1), default=20, help="At most so many settings are tried.")
@columns_of_a_file
@option("--seed", type=click.IntRange(0), default=0, help="Of the split and of training.")
@click.option("--from", "teacher", type=PATH, help="A model whose examples (umpteen learn) are trained on, too.")
@click.option("--output", type=PATH, help="Model folder to make.  [default: runs/NAME, after the data]")
@click.option("--overwrite", is_flag=True, help="Replace the model that is there, at the end.")
@click.option("--recipe-out", type=PATH, help="Also write the recipe that was chosen.")
@JSON
def fit(
    source: str, teacher: Path | None, output: Path | None, recipe_out: Path | None, as_json: bool, **asked: Any
) -> None:
    """Find the best model for DATA: try settings on validation, fit the best on all of train, rank, calibrate."""
    from umpteen.config.recipes import to_toml
    from umpteen.data.dataset import with_asked
    from umpteen.files.storage import write_atomically
    from umpteen.model.correcting import with_examples
    from umpteen.model.fit import fit_data

    source = with_asked(source, {name: asked.pop(name) for name in ("text", "labels", "separator")})
    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        place = output or Path("runs", dataset.name)
        if teacher is not None:
            source, count = with_examples(dataset, teacher, place)
            watch.notice(f"{count:,} texts that {teacher} has learnt are in train; the data with them is {source}")
        found = fit_data(source, place, **asked, observer=watch, progress=watch)
    if recipe_out is not None:
        write_atomically(recipe_out, to_toml(found.recipe))
    if as_json:
        reports = {name: report.to_dict() for name, report in found.reports.items()}
        say_json({"model": str(place), "split": found.split, "reports": reports, "trials": found.trials})
        return
    chosen = ", on which settings were chosen" if found.split == "validation" else ""
    show_metrics(found.reports, title=f"{found.split}{chosen}: % ± half the 95 % interval")
    command = Path(sys.argv[0]) if Path(sys.argv[0]).name == "umpteen" else Path("umpteen")
    there = shlex.quote(str(place))
    say(f"saved {place}; try:  {command} predict {there} 'your text'")
    say(f"a service and a page:  {command} serve {there} --open")
    if found.split == "test":
        say(f"beside other systems:  {command} compare {shlex.quote(source)}")
