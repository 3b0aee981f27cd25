"""`umpteen doctor`: is everything in order here, before hours go into it?"""

import sys
from typing import TYPE_CHECKING

import click

from umpteen.cli.console import say, visible
from umpteen.cli.demo import RECIPE

if TYPE_CHECKING:
    from rich.table import Table

    from umpteen.doctor.checks import Check

COLOURS = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


@click.command()
@click.argument("recipe", default=RECIPE)
@click.option("--data", "source", help="Dataset folder or bundled name; overrides data.source.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting, e.g. objective.name=softmax."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(recipe: str, source: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the installation, this machine, and that RECIPE computes what it should; the demo's if left out.

    Exit code 1 if anything fails.
    """
    import json
    from dataclasses import asdict

    from umpteen.cli.console import Watch, show
    from umpteen.config.recipes import resolve
    from umpteen.doctor.examination import examine

    config = resolve(recipe, overrides, source)
    with Watch(quiet=as_json) as watch:
        checks = list(examine(config, lambda name, done, total: watch("checking", done, total, name)))
    failed = [check.name for check in checks if check.status == "failed"]
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        show(_table(checks))
        say(f"failed: {', '.join(failed)}" if failed else "all is well")
    sys.exit(1 if failed else 0)


def _table(checks: "list[Check]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    made = Table("", "check", "what was found")
    made.add_column("s", justify="right")
    for check in checks:
        status = Text(check.status, style=COLOURS[check.status])
        made.add_row(
            status, check.name, Text(visible(check.detail)), f"{check.seconds:.1f}"
        )  # a detail may hold brackets
    return made
