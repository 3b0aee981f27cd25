"""`umpteen plan`."""

from typing import TYPE_CHECKING

import click

from umpteen.cli.saying import say

if TYPE_CHECKING:
    from umpteen.planning.plan import Plan

PART_NAMES = {
    "encode_queries": "encode queries",
    "encode_labels": "encode labels",
    "loss": "loss and its gradient",
    "replay": "replay",
    "optimizer": "optimizer",
}


@click.command()
@click.argument("recipe")
@click.option("--data", "source", help="Dataset folder or bundled name; overrides data.source.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting, e.g. training.batch_size=256."
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="What a process may hold; by default what this machine has available, shared by the processes.",
)
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="Processes that share the labels."
)
@click.option("--verify", "verified", is_flag=True, help="Then run 20 steps and compare; nothing is written.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    recipe: str,
    source: str | None,
    overrides: tuple[str, ...],
    memory: float | None,
    processes: int,
    verified: bool,
    as_json: bool,
) -> None:
    """Tell what training by RECIPE will cost here, before it starts: memory, time, and where it goes."""
    import json

    from umpteen.cli.allocator import keep_freed_memory
    from umpteen.cli.console import Watch
    from umpteen.planning.planner import make_plan
    from umpteen.recipes import resolve

    config = resolve(recipe, overrides, source)
    with Watch(quiet=as_json) as watch:
        found = make_plan(
            config,
            memory_gb=memory,
            processes=processes,
            verified=verified,
            progress=watch,
            at_start=keep_freed_memory,
        )
    if as_json:
        click.echo(json.dumps(found.to_dict()))
    else:
        _show(found)
    if not found.fits:
        say("warning: ", fg="yellow", bold=True, nl=False, err=True)
        say(found.advice(), err=True)


def _show(plan: "Plan") -> None:
    from rich.table import Table

    from umpteen.cli.console import duration, show

    prediction, step = plan.prediction, float(plan.prediction.step[0])
    each = "" if plan.processes == 1 else f" in each of {plan.processes} processes, their communication left out"
    largest = max(prediction.memory, key=lambda phase: prediction.memory[phase])
    made = Table(title=f"predicted{each}", title_justify="left", show_header=False)
    made.add_column("", no_wrap=True)
    made.add_column("", justify="right")
    made.add_column("")
    made.add_row(
        "peak memory", f"{prediction.peak / 1e9:.2f} GB", f"phase: {largest}; {plan.memory / 1e9:.2f} GB there"
    )
    made.add_row("a step", f"{step:.3g} s", "", end_section=True)
    for part, seconds in prediction.seconds.items():
        made.add_row(PART_NAMES[part], f"{seconds[0]:.3g} s", f"{seconds[0] / step:.0%}")
    made.add_section()
    made.add_row("an epoch", duration(step * plan.steps_per_epoch), f"{plan.steps_per_epoch:,} steps")
    if plan.evaluations:
        made.add_row(
            "an evaluation", f"{prediction.evaluation[0]:.3g} s", f"{plan.evaluations:,} of them, one more to save"
        )
    made.add_row("the run", duration(plan.seconds_total), f"{plan.steps:,} steps")
    show(made)
    if plan.measured is not None:
        ratios = plan.ratios()
        say(
            f"measured: {plan.measured.memory / 1e9:.2f} GB, {plan.measured.step[0]:.3g} s a step; predicted ÷ "
            f"measured: memory {ratios['memory_ratio']:.2f}, time {ratios['time_ratio']:.2f} "
            f"(processor time {ratios['processor_time_ratio']:.2f})"
        )
