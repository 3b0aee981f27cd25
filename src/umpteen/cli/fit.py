"""`umpteen fit` and `umpteen demo`: from a file, or from nothing, to a model in one command."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import DATA, PATH, Watch, cli, file_columns, option, say, say_json, verb
from umpteen.cli.tables import show_metrics


@verb(cli, DATA)
@option("--minutes", type=click.FloatRange(0, min_open=True), default=10.0, help="About how long it may take.")
@option("--trials", type=click.IntRange(1), default=20, help="At most so many settings are tried.")
@file_columns
@option("--seed", type=click.IntRange(0), default=0, help="Of the split and of training.")
@click.option("--from", "teacher", type=PATH, help="A model whose examples (umpteen learn) are trained on, too.")
@click.option("--output", type=PATH, help="Model folder to make.  [default: runs/NAME, after the data]")
@click.option("--overwrite", is_flag=True, help="Replace the model that is there, at the end.")
@click.option("--recipe-out", type=PATH, help="Also write the recipe that was chosen.")
def fit(
    source: str, teacher: Path | None, output: Path | None, recipe_out: Path | None, as_json: bool, **asked: Any
) -> None:
    """Find the best model for DATA: try settings on validation, fit the best on all of train, rank, calibrate."""
    from umpteen.config.recipes import to_toml
    from umpteen.data.dataset import ASKED, with_asked
    from umpteen.files.storage import write_atomically
    from umpteen.model.correcting import with_examples
    from umpteen.model.fit import fit_data

    source = with_asked(source, {name: asked.pop(name) for name in ASKED})
    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        place = output or Path("runs", dataset.name)
        if teacher is not None:
            source, count = with_examples(dataset, teacher, place)
            watch.notice(f"{count:,} texts that {teacher} has learnt are in train; the data with them is {source}")
        found = fit_data(source, place, **asked, observer=watch)
    if recipe_out is not None:
        write_atomically(recipe_out, to_toml(found.recipe))
    if as_json:
        reports = {name: report.to_dict() for name, report in found.reports.items()}
        say_json({"model": str(place), "split": found.split, "reports": reports, "trials": found.trials})
        return
    chosen = ", on which settings were chosen" if found.split == "validation" else ""
    texts = f"{found.reports['umpteen'].queries:,} texts"
    show_metrics(found.reports, title=f"{found.split}, {texts}{chosen}: % ± half the 95 % interval")
    command = Path(sys.argv[0]) if Path(sys.argv[0]).name == "umpteen" else Path("umpteen")
    there = shlex.quote(str(place))
    say(f"saved {place}; try:  {command} predict {there} 'your text'")
    say(f"a service and a page:  {command} serve {there} --open")
    if found.split == "test":
        say(f"beside other systems:  {command} compare {shlex.quote(source)}")


DEMO, RECIPE = "wordnet-nouns", "wordnet-nouns-mixed"
# Found on validation: `umpteen train wordnet-nouns-mixed`, then `umpteen rerank fit … --set sparse=false`.
RANKER, WEIGHT = {"sparse": False, "neighbours": 10, "similarity": 0.05}, 0.3
SAMPLES = (
    "husky: a strong dog with a thick coat, bred to pull sledges over snow",
    "mandolin player: a person who plays a small stringed instrument",
    "sourdough: bread raised by fermented dough kept from an earlier baking",
)


@cli.command()
@option("--output", type=PATH, default=Path("runs/demo"), help="Model folder.")
def demo(output: Path) -> None:
    """Train on the bundled WordNet nouns, compare on test, and answer three texts."""
    from umpteen.config.recipes import resolve
    from umpteen.data.dataset import open_dataset
    from umpteen.encoders.folder import locate
    from umpteen.evaluation.baselines import TfidfNeighbours, popularity
    from umpteen.evaluation.report import Evaluator
    from umpteen.model.classifier import Classifier
    from umpteen.model.evaluate import evaluate_model
    from umpteen.model.rerank import fit_ranker
    from umpteen.model.train import train
    from umpteen.rerank.features import RankerSettings

    # Settings and epochs were chosen on validation; this is the final fit, on all of train.
    config = resolve(RECIPE, ("data.fit_on=train+validation",))
    with Watch() as watch:
        watch.notice("dataset   wordnet-nouns, bundled (WordNet 3.0): a noun and its definition → its broader concepts")
        start = config.encoder.query.reading()[0].start
        watch.notice(f"encoder   word pieces and a frozen {start}, loaded from {locate(start)}")
        dataset = open_dataset(DEMO)
        assert dataset.test is not None
        train_queries, test_queries, labels = len(dataset.train), len(dataset.test), len(dataset.labels)
        watch.notice(f"          {train_queries:,} training and {test_queries:,} test queries, {labels:,} labels")
        encoder = train(config, output=output, overwrite=True, observers=[watch])
        fit_ranker(output, dataset, RankerSettings.of(RANKER), weight=WEIGHT, progress=watch)
        classifier = Classifier.load(output)
        watch.notice("evaluating on test, beside popularity and tf-idf nearest neighbours …")
        evaluator = Evaluator(dataset, dataset.test)
        width = max(evaluator.at)
        reports = {
            "popularity": evaluator.report(popularity(dataset.train, dataset.test, width)),
            "tf-idf neighbours": evaluator.report(TfidfNeighbours(dataset.train).rank(dataset.test, width)),
            "umpteen, dual encoder": evaluate_model(encoder, dataset)[0],
            "umpteen, with memory": evaluate_model(classifier, dataset)[0],
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
    say(f"your own texts and labels:  {command} fit FILE.csv")
    say(f"with probabilities (trains three more, a few minutes): {command} calibrate {output} --data {DEMO} --folds 3")
