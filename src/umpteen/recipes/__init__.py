"""The recipes that ship with umpteen, and how a name or a file becomes a configuration."""

import difflib
import json
from pathlib import Path

from umpteen.config import RunConfig
from umpteen.errors import BadInput
from umpteen.recipe_file import read_config

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The shipped recipes by name."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def path_of(recipe: str) -> Path:
    """The file of a recipe given by name or by path."""
    written = Path(recipe)
    if written.suffix == ".toml" or written.exists():
        return written
    shipped = FOLDER / f"{recipe}.toml"
    if shipped.exists():
        return shipped
    nearest = difflib.get_close_matches(recipe, names(), n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "`umpteen recipe list` names those that ship with umpteen"
    raise BadInput(f"there is no recipe {recipe}; {hint}")


def resolve(recipe: str, overrides: tuple[str, ...] = (), source: str | None = None) -> RunConfig:
    """A recipe by name or path with overrides and a dataset applied."""
    if source is not None:
        overrides = (*overrides, f"data.source={json.dumps(source)}")  # as TOML, so that a folder may be called 2024
    return read_config(path_of(recipe), overrides)
