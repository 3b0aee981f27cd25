"""`umpteen index`: how a model finds its labels, with a certificate of what that costs and misses."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.saying import say

if TYPE_CHECKING:
    from umpteen.cli.console import Watch
    from umpteen.model.index_build import Sample

KINDS = ["exact", "faiss-flat", "faiss-hnsw", "faiss-ivfpq", "faiss-sq", "milvus"]

MODEL = click.argument("model", type=click.Path(path_type=Path))
QUERIES = click.option(
    "--queries", type=click.Path(path_type=Path), help="A .txt, .jsonl, .csv or .tsv file of typical texts."
)
DATA = click.option("--data", "source", help="A dataset folder or bundled name whose training texts are typical.")
SAMPLE = click.option(
    "--sample", default=1000, show_default=True, type=click.IntRange(2), help="Texts to take: half tune, half certify."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def index() -> None:
    """Build, show or remove the index that MODEL finds its labels with (docs/how-to/choose-an-index.md)."""


@index.command()
@MODEL
@click.option("--kind", type=click.Choice(KINDS), required=True)
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.99,
    show_default=True,
    help="The share of the k best labels that must be found.",
)
@click.option("--k", type=click.IntRange(1), help="Of how many labels.  [default: 10, or the ranker's candidates]")
@QUERIES
@DATA
@SAMPLE
@click.option(
    "--uri",
    help="Milvus: a cluster's address, or a folder ending in .db; set UMPTEEN_MILVUS_URI, too.  [default: in MODEL]",
)
@JSON
def build(
    model: Path,
    kind: str,
    recall: float,
    k: int | None,
    queries: Path | None,
    source: str | None,
    sample: int,
    uri: str | None,
    as_json: bool,
) -> None:
    """Build an index, tune it until its recall holds, and put it into MODEL with its certificate.

    Without --queries or --data, the labels' own texts are the queries. If the recall cannot be reached, nothing changes
    and the exit code is 2. A cluster's token is read from UMPTEEN_MILVUS_TOKEN.
    """
    from umpteen.cli.console import Watch
    from umpteen.model.index_build import build_index

    with Watch(quiet=as_json) as watch:
        texts = _sample(queries, source, sample, watch)
        certificate = build_index(model, kind, recall=recall, k=k, sample=texts, uri=uri, progress=watch)
    _tell(model, certificate.to_dict(), as_json)


@index.command()
@MODEL
@JSON
def show(model: Path, as_json: bool) -> None:
    """Print the certificate of MODEL's index."""
    from umpteen.model.index import certificate_of

    certificate = certificate_of(model)
    if certificate is not None:
        _tell(model, certificate.to_dict(), as_json)
    elif as_json:
        click.echo(json.dumps({"model": str(model), "kind": "exact"}))
    else:
        say(f"{model} has no index: it searches exactly")


@index.command()
@MODEL
@QUERIES
@DATA
@SAMPLE
@JSON
def sync(model: Path, queries: Path | None, source: str | None, sample: int, as_json: bool) -> None:
    """Take labels that have changed since the index was built into it.

    Until then they are searched exactly beside it. Milvus is told of them; other kinds are built again.
    """
    from umpteen.cli.console import Watch
    from umpteen.model.index_build import sync_index

    with Watch(quiet=as_json) as watch:
        rows = sync_index(model, sample=_sample(queries, source, sample, watch), progress=watch)
    if as_json:
        click.echo(json.dumps({"model": str(model), "rows": rows}))
    else:
        say(f"{rows:,} labels had changed; the index of {model} holds them now" if rows else "nothing to do")


@index.command()
@MODEL
def remove(model: Path) -> None:
    """Go back to exact search."""
    from umpteen.model.index import remove_index

    left_behind = remove_index(model)
    if left_behind is not None:
        say(left_behind, err=True)
    say(f"{model} searches exactly")


def _sample(queries: Path | None, source: str | None, count: int, watch: "Watch") -> "Sample | int":
    """The texts that were asked for, or how many of the labels' own."""
    from umpteen.errors import BadInput
    from umpteen.model.index_build import of_dataset, of_file

    if queries is not None and source is not None:
        raise BadInput("--queries and --data both name the texts to tune on; give one of them")
    if queries is not None:
        return of_file(queries, count)
    if source is not None:
        from umpteen.data.dataset import open_dataset

        return of_dataset(open_dataset(source, progress=partial(watch, "reading")), count)
    return count


def _tell(model: Path, certificate: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"model": str(model), **certificate}, ensure_ascii=False))
        return
    low, high = certificate["recall_interval"]
    speed, size = certificate["queries_per_second"], certificate["bytes"]
    effort = ", ".join(f"{name} {value:,}" for name, value in certificate["effort"].items())
    lines = {
        f"recall@{certificate['k']}": f"{certificate['recall']:.4f} ({low:.4f} to {high:.4f}); "
        f"asked for {certificate['target']:g}",
        "queries a second": f"{speed['index']:,.0f}; exact {speed['exact']:,.0f} (one thread, one query at a time)",
        "size": f"{_megabytes(size['index'])}; exact {_megabytes(size['exact'])}",
        "effort": effort,
        "measured on": f"{certificate['queries']:,} queries: {certificate['sample']}",
        "tuned on": f"{certificate['queries_tuned_on']:,} others",
        "labels": f"{certificate['labels']:,} × {certificate['dimension']}, version {certificate['catalogue_version']}",
        "built in": f"{certificate['build_seconds']:,.1f} s",
    }
    say(f"{model} searches with {certificate['kind']}")
    for name, value in lines.items():
        say(f"  {name:<18}{value}")


def _megabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:,.1f} MB"
