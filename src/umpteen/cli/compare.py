"""`umpteen compare`: ours beside what users run today, on the same data, with the same care."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.saying import say

if TYPE_CHECKING:
    from rich.table import Table

PEERS = "popularity, tfidf-knn; from umpteen's repository also xr-linear, xr-transformer"
STATIC = "wordnet-nouns"  # the recipe whose settings also serve data without a recipe of their own


@click.command()
@click.argument("source", metavar="DATA")
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    help="Ours: a recipe's name or file, NAME+ranker with a sparse ranker; repeat.  [default: the data's, or static]",
)
@click.option("--ranker", is_flag=True, help="Also each recipe with a sparse ranker on top.")
@click.option("--peers", default="popularity,tfidf-knn,xr-linear", show_default=True, help=f"Out of {PEERS}; or none.")
@click.option("--trials", type=click.IntRange(1), default=4, show_default=True, help="Settings tried a method.")
@click.option("--metric", default="nDCG@5", show_default=True, help="Chooses the settings, on validation.")
@click.option("--validation", type=click.FloatRange(0, 1, True, True), default=0.1, show_default=True, help="Of train.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the split, the draws, training.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Keeps trials, models, results.json, index.html.  [default: runs/compare/DATASET]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    source: str,
    recipes: tuple[str, ...],
    ranker: bool,
    peers: str,
    trials: int,
    metric: str,
    validation: float,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare recipes with popularity, tf-idf neighbours and PECOS on DATA; the same command goes on when stopped."""
    from umpteen.cli.console import Watch, differences_table, show
    from umpteen.compare.comparison import compare as run
    from umpteen.compare.comparison import make_task
    from umpteen.compare.ours import available_peers, our_methods
    from umpteen.config.recipes import names, resolve
    from umpteen.data.dataset import open_dataset

    wanted = [] if peers == "none" else [name.strip() for name in peers.split(",") if name.strip()]
    with Watch(quiet=as_json) as watch:
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        chosen = recipes or ((dataset.name,) if dataset.name in names() else (STATIC,))
        first = resolve(chosen[0].removesuffix("+ranker"), (), source).evaluation
        task = make_task(
            source,
            dataset,
            metric=metric,
            seed=seed,
            fraction=validation,
            propensity=(first.propensity_a, first.propensity_b),
        )
        ours = our_methods(
            chosen,
            ranker=ranker,
            notice=watch.notice,
            observer=watch,
            progress=watch,
            label="static" if not recipes and dataset.name not in names() else None,
        )
        theirs, skipped = available_peers(wanted, watch.notice)
        folder = output or Path("runs/compare") / dataset.name
        outcome = run(
            task,
            [*theirs, *ours],
            trials=trials,
            output=folder,
            notice=watch.notice,
            progress=watch,
            skipped=skipped,
        )
    if as_json:
        click.echo(json.dumps(outcome))
        return
    differences = {result["method"]: result["differences"] for result in outcome["results"] if result["differences"]}
    show(_table(outcome), differences_table(differences, title=f"each minus {outcome['reference']}, paired"))
    for skip in outcome["skipped"]:
        say(f"left out: {skip['method']}: {skip['reason']}")
    say(f"{folder / 'index.html'} shows this with figures; {folder / 'results.json'} has every number")


def _table(outcome: dict[str, Any]) -> "Table":
    from rich.table import Table

    from umpteen.cli.console import cell
    from umpteen.compare.page import short_number, shown_metrics

    metrics = shown_metrics(outcome)
    made = Table(title=f"{cell(outcome['dataset'])}, test: %, and what it took", title_justify="left")
    made.add_column("", no_wrap=True)
    for name in (*metrics, "train s", "parameters"):
        made.add_column(name, justify="right")
    best = {metric: max(result["metrics"][metric] for result in outcome["results"]) for metric in metrics}
    for result in outcome["results"]:
        figures = [f"{result['metrics'][metric]:.2f}" for metric in metrics]
        marked = [
            f"[bold]{figure}[/bold]" if result["metrics"][metric] == best[metric] else figure
            for metric, figure in zip(metrics, figures, strict=True)
        ]
        made.add_row(
            cell(result["method"]), *marked, f"{result['train_seconds']:.1f}", short_number(result["parameters"])
        )
    return made
