"""`umpteen data` and `umpteen recipe`: datasets described and converted; the settings that ship."""

from functools import partial
from pathlib import Path

import click

from umpteen.cli.main import DATA, PATH, Watch, cli, option, say, settings, tell, verb


@cli.group()
def data() -> None:
    """Describe and convert datasets."""


@verb(data, DATA)
def describe(source: str, as_json: bool) -> None:
    """Print sizes, label frequencies, lengths, and what is suspicious in DATA."""
    from umpteen.data import describe as describing
    from umpteen.encoders.towers import tokens_beyond

    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        described = describing.describe(dataset)
        cut = described["tokens_cut"] = tokens_beyond(dataset.train.texts)
    beyond = f"{cut['share']:.1%} beyond max_length = {cut['max_length']}"
    last = f'tokens      {beyond}; "auto", which fit takes, keeps all of 99 texts in 100'
    tell(as_json, described, *describing.lines_of(described), last)


@verb(data, DATA, click.Argument(["folder"], type=PATH), last=())
@option("--to", "form", type=click.Choice(["jsonl", "hugging-face"]), default="jsonl", help="What to write.")
def convert(source: str, folder: Path, form: str) -> None:
    """Write DATA, of any known format, into FOLDER as jsonl files that people can read and edit.

    Or as a DatasetDict of Hugging Face's `datasets`, for its load_from_disk.
    """
    from umpteen.data.dataset import write_native
    from umpteen.errors import BadInput
    from umpteen.files.storage import atomic_folder, can_hold

    if not can_hold(folder):
        raise BadInput(f"{folder} exists and is not empty; give another folder")
    with Watch() as watch:
        dataset = watch.open_dataset(source)
        if form == "jsonl":
            write_native(dataset, folder, progress=partial(watch, "writing"))
        else:
            with atomic_folder(folder) as partly:
                dataset.to_hugging_face().save_to_disk(partly)
    say(f"wrote {folder}: {len(dataset.labels):,} labels, {len(dataset.train):,} training queries")


@cli.group()
def recipe() -> None:
    """List and show recipes."""


@verb(recipe, name="list")
def list_recipes(as_json: bool) -> None:
    """Name the recipes that ship with umpteen, grouped by what they are, with their first line."""
    from umpteen.config import recipes

    groups, width = recipes.grouped(), max(map(len, recipes.names()))
    lines = [[group, *(f"  {name:<{width}}  {about}" for name, about in own.items())] for group, own in groups.items()]
    tell(as_json, groups, *(line for group in lines for line in group))


@recipe.command()
@click.argument("name")
@settings("Override a setting.")
def show(name: str, overrides: tuple[str, ...]) -> None:
    """Print a complete recipe, every key explained: umpteen recipe show NAME > mine.toml."""
    from itertools import takewhile

    from umpteen.config import recipes

    lines = recipes.path_of(name).read_text(encoding="utf-8").splitlines()
    written = recipes.to_toml(recipes.resolve(name, overrides)).rstrip("\n").split("\n")
    for line in [*takewhile(lambda line: line.startswith("#"), lines), *written]:
        say(line)
