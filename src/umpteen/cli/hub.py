"""`umpteen upload` and `umpteen download`: a model to the Hugging Face hub, and from there into a folder."""

from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import MODEL, PATH, cli, tell, verb

NAME = click.Argument(["name"], metavar="USER/MODEL")


@verb(cli, MODEL, NAME)
@click.option("--private/--public", default=None, help="Of a new repository.  [default: as the hub has it]")
@click.option("--revision", help="A branch, made if it is not there.  [default: main]")
@click.option("--message", "commit_message", help="Of the commit.  [default: which umpteen sent it]")
def upload(model: Path, name: str, as_json: bool, **asked: Any) -> None:
    """Send MODEL as it is now to the Hugging Face hub, in one commit, with a card that the hub understands.

    The token is HF_TOKEN, or that of `hf auth login`. Texts that people corrected go along, and training texts that
    the ranker keeps (docs/how-to/hub.md).
    """
    from umpteen.model.classifier import Classifier

    done = Classifier.load(model, index=False).push_to_hub(name, **asked)
    about = {"model": str(model), "name": name, "commit": done.oid, "url": done.commit_url}
    tell(as_json, about, f"sent {model}: {done.commit_url}")


@verb(cli, NAME)
@click.option("--output", type=PATH, required=True, help="Model folder to make.")
@click.option("--revision", help="A branch, a tag or a commit.  [default: main]")
def download(name: str, output: Path, revision: str | None, as_json: bool) -> None:
    """Write a model of the Hugging Face hub into a folder, every byte checked, or nothing at all.

    Without the hub, or with HF_HUB_OFFLINE=1, it is taken from the hub's cache, if that has it.
    """
    from umpteen.model.hub import download as fetch

    commit = fetch(name, output, revision=revision)
    said = f"{output} is {name} at {commit}; try: umpteen predict {output} 'your text'"
    tell(as_json, {"model": str(output), "name": name, "commit": commit}, said)
