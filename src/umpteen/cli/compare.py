"""`umpteen compare`: ours beside what users run today, on the same data, with the same care."""

from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import DATA, JSON, PATH, Watch, best_in_bold, cli, say, say_json, show_differences, show_table

PEERS = "popularity, tfidf-knn; from umpteen's repository also xr-linear, xr-transformer"
STATIC = "wordnet-nouns"  # the recipe whose settings also serve data without a recipe of their own


@cli.command()
@DATA
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
    "--output", type=PATH, help="Keeps trials, models, results.json, index.html.  [default: runs/compare/DATASET]"
)
@JSON
def compare(
    source: str,
    recipes: tuple[str, ...],
    ranker: bool,
    peers: str,
    trials: int,
    output: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Compare recipes with popularity, tf-idf neighbours and PECOS on DATA; the same command goes on when stopped."""
    from umpteen.compare.comparison import compare as run
    from umpteen.compare.comparison import make_task
    from umpteen.compare.methods import available_peers, our_methods
    from umpteen.compare.page import short_number, shown_metrics
    from umpteen.config.recipes import names, resolve

    wanted = [] if peers == "none" else [name.strip() for name in peers.split(",") if name.strip()]
    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        has_own = dataset.name in names()
        chosen = recipes or ((dataset.name,) if has_own else (STATIC,))
        first = resolve(chosen[0].removesuffix("+ranker"), (), source).evaluation
        propensity = (first.propensity_a, first.propensity_b)
        task = make_task(source, dataset, propensity=propensity, **asked)
        label = None if recipes or has_own else "static"
        ours = our_methods(chosen, ranker=ranker, notice=watch.notice, observer=watch, progress=watch, label=label)
        theirs, skipped = available_peers(wanted, watch.notice)
        folder = output or Path("runs/compare") / dataset.name
        outcome = run(
            task, [*theirs, *ours], trials=trials, output=folder, notice=watch.notice, progress=watch, skipped=skipped
        )
    if as_json:
        say_json(outcome)
        return
    results = outcome["results"]
    metrics = [result["metrics"] for result in results]
    columns = {
        "": [result["method"] for result in results],
        **{metric: best_in_bold(metrics, metric) for metric in shown_metrics(outcome)},
        "train s": [f"{result['train_seconds']:.1f}" for result in results],
        "parameters": [short_number(result["parameters"]) for result in results],
    }
    differences = {result["method"]: result["differences"] for result in results if result["differences"]}
    show_table(columns, title=f"{outcome['dataset']}, test: %, and what it took")
    show_differences(differences, title=f"each minus {outcome['reference']}, paired")
    for skip in outcome["skipped"]:
        say(f"left out: {skip['method']}: {skip['reason']}")
    say(f"{folder / 'index.html'} shows this with figures; {folder / 'results.json'} has every number")
