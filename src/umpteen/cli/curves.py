"""`umpteen curves`: how runs went on validation, as a figure."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from umpteen.cli.saying import say

if TYPE_CHECKING:
    from umpteen.curves import Clock

UNITS = {"step": 1, "seconds": 60, "processor_seconds": 60}
NAMES = {"step": "step", "seconds": "minutes of training", "processor_seconds": "processor minutes of training"}


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--metric", default="nDCG@5", show_default=True)
@click.option("--against", "clock", type=click.Choice(list(NAMES)), default="seconds", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Where to draw: writes OUTPUT.svg and OUTPUT.png.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def curves(runs: tuple[Path, ...], metric: str, clock: "Clock", output: Path | None, as_json: bool) -> None:
    """Show the validation METRIC of RUNS, finished or under way, through their training."""
    from umpteen.curves import validation_course
    from umpteen.figures import Curve, draw_curves

    courses = {
        run.name: [(place / UNITS[clock], value) for place, value in validation_course(run, metric, clock)]
        for run in runs
    }
    if as_json:
        results = [{"run": name, "course": course} for name, course in courses.items()]
        click.echo(json.dumps({"metric": metric, "against": NAMES[clock], "results": results}))
    else:
        for name, course in courses.items():
            say(name, bold=True)
            for place, value in course:
                say(f"  {NAMES[clock]} {place:10,.1f}   {metric} {value:6.2f}")
    if output is not None:
        draw_curves(
            output,
            {
                name: Curve([place for place, _ in course], [value for _, value in course])
                for name, course in courses.items()
            },
            title=f"{metric} on validation",
            x=NAMES[clock],
            y=f"{metric} (%)",
            notice=lambda message: say(message, err=True),
        )
