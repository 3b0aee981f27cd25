"""`umpteen negatives`: which mined negatives are probably right after all."""

import json
from functools import partial
from pathlib import Path

import click

from umpteen.cli.saying import say


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", metavar="DATA")
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="train", show_default=True)
@click.option("--shortlist", default=100, show_default=True, help="Labels mined per query.")
@click.option(
    "--margin",
    default=0.0,
    show_default=True,
    help="Suspected is what scores above a query's best positive less this.",
)
@click.option("--top", default=20, show_default=True, help="Labels in the table.")
@click.option("--output", type=click.Path(path_type=Path), help="Every suspect as a line of JSON, with its texts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def negatives(
    model: Path,
    source: str,
    split: str,
    shortlist: int,
    margin: float,
    top: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Mine hard negatives with MODEL on DATA and list those that are probably unlabelled positives."""
    from rich.table import Table

    from umpteen.audit import audit_negatives
    from umpteen.classifier import Classifier
    from umpteen.cli.console import Watch, cell, show
    from umpteen.data.dataset import open_dataset
    from umpteen.storage import write_atomically

    with Watch(quiet=as_json) as watch:
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        classifier = Classifier.load(model, index=False)
        found = audit_negatives(
            classifier, dataset, split, shortlist=shortlist, margin=margin, progress=partial(watch, "mining")
        )
    if output is not None:
        write_atomically(output, "".join(f"{line}\n" for line in found.lines()))
    summary, labels = found.summary(), found.most_frequent(top)
    if as_json:
        given = {"model": str(model), "data": dataset.name, "split": split, "shortlist": shortlist, "margin": margin}
        click.echo(json.dumps({**given, **summary, "labels": labels}, ensure_ascii=False))
        return
    table = Table(title="Labels most often suspected of missing")
    for name in ("suspected", "given"):
        table.add_column(name, justify="right")
    table.add_column("label")
    for label in labels:
        table.add_row(f"{label['suspected']:,}", f"{label['given']:,}", cell(f"{label['text']}  [{label['key']}]"))
    show(table)
    less = f" less {margin:g}" if margin else ""
    say(
        f"{summary['suspects']:,} of {summary['mined']:,} mined negatives ({summary['suspect_percent']} %) score above "
        f"their query's best positive{less}; {summary['queries_with_suspects']:,} of {summary['queries']:,} queries "
        "have one"
    )
    if output is not None:
        say(f"all of them, with their texts: {output}")
    elif summary["suspects"]:
        say("--output FILE.jsonl lists them all; pool.margin keeps them out of training (docs/negatives.md)")
