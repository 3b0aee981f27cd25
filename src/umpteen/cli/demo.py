"""`umpteen demo`: a real model on real data, beside what one would have used instead, in a few minutes."""

import sys
from pathlib import Path

from umpteen.cli.main import PATH, Watch, cli, option, say, show_metrics

DATA, RECIPE = "wordnet-nouns", "wordnet-nouns-mixed"
# Found on validation: `umpteen train wordnet-nouns-mixed`, then `umpteen rerank fit … --set sparse=false`.
MEMORY = {"neighbours": 10, "similarity": 0.05, "weight": 0.3}
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
        dataset = open_dataset(DATA)
        assert dataset.test is not None
        train_queries, test_queries, labels = len(dataset.train), len(dataset.test), len(dataset.labels)
        watch.notice(f"          {train_queries:,} training and {test_queries:,} test queries, {labels:,} labels")
        encoder = train(config, output=output, overwrite=True, observer=watch, progress=watch)
        near = {name: MEMORY[name] for name in ("neighbours", "similarity")}
        settings = RankerSettings.of({"sparse": False, **near})
        fit_ranker(output, dataset, settings, weight=MEMORY["weight"], progress=watch)
        classifier = Classifier.load(output)
        watch.notice("evaluating on test, beside popularity and tf-idf nearest neighbours …")
        evaluator = Evaluator(dataset, dataset.test)
        width, filtered = max(evaluator.at), dataset.test.filtered.matrix
        train_matrix = dataset.train.relevance.matrix
        known = TfidfNeighbours(dataset.train.texts, train_matrix)
        neighbours = known.rank(dataset.test.texts, width, excluding=filtered)
        reports = {
            "popularity": evaluator.report(popularity(train_matrix, len(dataset.test), width, excluding=filtered)),
            "tf-idf neighbours": evaluator.report(neighbours),
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
    calibrate = f"{command} calibrate {output} --data {DATA} --folds 3"
    say(f"with probabilities (trains three more, a few minutes): {calibrate}")
