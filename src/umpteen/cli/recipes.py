"""`umpteen recipe`: the settings that ship with umpteen."""

import click

from umpteen.cli.saying import say


@click.group()
def recipe() -> None:
    """List and show recipes."""


@recipe.command("list")
def list_recipes() -> None:
    """Name the recipes that ship with umpteen, with their first line."""
    from umpteen import recipes

    names = recipes.names()
    for name in names:
        first = recipes.path_of(name).read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        say(f"{name:<{max(map(len, names))}}  {first}")


@recipe.command()
@click.argument("name")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting.")
def show(name: str, overrides: tuple[str, ...]) -> None:
    """Print a complete recipe, every key explained: umpteen recipe show NAME > mine.toml."""
    from umpteen import recipes
    from umpteen.recipe_file import to_toml

    path = recipes.path_of(name)
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        say(line)
    for line in to_toml(recipes.resolve(name, overrides)).rstrip("\n").split("\n"):
        say(line)
