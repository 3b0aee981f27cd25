"""The options that several commands have, each defined once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
MODEL = click.argument("model", type=PATH)
DATA = click.argument("source", metavar="DATA")
DATA_OF_MODEL = click.option(
    "--data", "source", required=True, help="The dataset folder or bundled name the model was trained on."
)
DATA_OF_RECIPE = click.option("--data", "source", help="Dataset folder or bundled name; overrides data.source.")
NO_RANKER = click.option("--no-ranker", is_flag=True, help="The dual encoder alone, if the model has a ranker.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def settings(text: str) -> Callable[[F], F]:
    """--set, as often as wanted."""
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=text)
