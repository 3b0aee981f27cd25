"""`umpteen demo` and `umpteen doctor`: a first real model in a few minutes, and whether everything is in order here."""

import sys
from pathlib import Path

import click

from umpteen.cli.main import (
    DATA_OF_RECIPE,
    JSON,
    PATH,
    Watch,
    cli,
    option,
    say,
    say_json,
    settings,
    show_metrics,
    show_table,
)

RECIPE = "wordnet-nouns"
SAMPLES = (
    "husky: a strong dog with a thick coat, bred to pull sledges over snow",
    "mandolin player: a person who plucks the strings of a small lute-like instrument",
    "sourdough: bread raised by fermented dough kept from an earlier baking",
)


@cli.command()
@option("--output", type=PATH, default=Path("runs/demo"), help="Model folder.")
def demo(output: Path) -> None:
    """Train on the bundled WordNet nouns, compare on test, and answer three texts."""
    from umpteen.config.recipes import resolve
    from umpteen.data.dataset import open_dataset
    from umpteen.encoders.folder import locate
    from umpteen.evaluation.baselines import popularity, tfidf_neighbours
    from umpteen.evaluation.report import Evaluator
    from umpteen.model.evaluate import evaluate_model
    from umpteen.model.train import train

    # Settings and epochs were chosen on validation; this is the final fit, on all of train.
    config = resolve(RECIPE, ("data.fit_on=train+validation",))
    with Watch() as watch:
        watch.notice("dataset   wordnet-nouns, bundled (WordNet 3.0): a noun and its definition → its broader concepts")
        start = config.encoder.query.start
        watch.notice(f"encoder   word pieces of {start}, loaded from {locate(start)}")
        dataset = open_dataset(RECIPE)
        assert dataset.test is not None
        train_queries, test_queries, labels = len(dataset.train), len(dataset.test), len(dataset.labels)
        watch.notice(f"          {train_queries:,} training and {test_queries:,} test queries, {labels:,} labels")
        classifier = train(config, output=output, overwrite=True, observer=watch, progress=watch)
        watch.notice("evaluating on test, beside popularity and tf-idf nearest neighbours …")
        evaluator = Evaluator(dataset, dataset.test)
        width, filtered = max(evaluator.at), dataset.test.filtered.matrix
        train_matrix = dataset.train.relevance.matrix
        neighbours = tfidf_neighbours(dataset.train.texts, train_matrix, dataset.test.texts, width, excluding=filtered)
        reports = {
            "popularity": evaluator.report(popularity(train_matrix, len(dataset.test), width, excluding=filtered)),
            "tf-idf neighbours": evaluator.report(neighbours),
            "umpteen": evaluate_model(classifier, dataset)[0],
        }
    show_metrics(reports, title="wordnet-nouns, test, filtered: % ± half the 95 % interval")
    for text, found in zip(SAMPLES, classifier.predict(list(SAMPLES), 5), strict=True):
        say()
        say(text, bold=True)
        for label in found:
            say(f"  {label.score:6.3f}  {label.text}")
    command = Path(sys.argv[0]) if Path(sys.argv[0]).name == "umpteen" else Path("umpteen")
    say()
    say(f"saved {output}; ask it yourself: {command} predict {output} 'your text'")
    say(f"open its page:  {command} serve {output} --open")
    calibrate = f"{command} calibrate {output} --data {RECIPE} --folds 3"
    say(f"with probabilities (trains three more, a few minutes): {calibrate}")


COLOURS = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


@cli.command()
@click.argument("recipe", default=RECIPE)
@DATA_OF_RECIPE
@settings("Override a setting, e.g. objective.name=softmax.")
@JSON
def doctor(recipe: str, source: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the installation, this machine, and that RECIPE computes what it should; the demo's if left out.

    Exit code 1 if anything fails.
    """
    from umpteen.config.recipes import resolve
    from umpteen.doctor.checks import examine

    config = resolve(recipe, overrides, source)
    with Watch(quiet=as_json) as watch:
        checks = list(examine(config, lambda name, done, total: watch("checking", done, total, name)))
    failed = [check.name for check in checks if check.status == "failed"]
    if as_json:
        say_json({"ok": not failed, "checks": [vars(check) for check in checks]})
    else:
        columns = {
            "": [f"[{COLOURS[check.status]}]{check.status}[/]" for check in checks],
            "check": [check.name for check in checks],
            "what was found": [check.detail for check in checks],
            "s": [f"{check.seconds:.1f}" for check in checks],
        }
        show_table(columns, words=("check", "what was found"))
        say(f"failed: {', '.join(failed)}" if failed else "all is well")
    sys.exit(1 if failed else 0)
