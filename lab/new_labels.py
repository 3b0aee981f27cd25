"""Labels that training never saw: a tenth of them is held out with all their pairs, and added by text afterwards.

The paper says that dual encoders generalise to new labels by their texts, and doesn't measure it. Here R@10 counts the
unseen labels of test queries among the first 10 of all labels, seen ones included, with the head start that a model
gives to labels that came after training, beside BM25 over the label texts and the untrained MiniLM. Neither the unseen
labels' texts nor their pairs are in training or validation; to choose between trained encoders and between head starts,
further labels are held out and asked of validation queries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lab.bm25 import bm25
from lab.comparison import Outcomes, written
from lab.cutting import with_labels
from lab.dots import Dots, Value
from lab.experiment import Claim, Conclusion, Job, Setup
from lab.training import DESIGNS, Design, Steps, Workbench, train
from umpteen.config.settings import TransformerTower
from umpteen.data.dataset import Dataset, Split, open_dataset, write_native
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput
from umpteen.model.live import TEMPERATURES
from umpteen.search.exact import top_k
from umpteen.search.ranking import SPARE, Ranking, contains

SHARE = 0.1  # of the labels that have a query in test
AT = 10
VALIDATION = 0.1  # of the training queries, where the dataset brings none of its own
LEVEL, CHOSEN = ", without a head start", ", head start from validation"
MULTIPLES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)  # head starts to choose from, in temperatures
PRICE = 3.0  # points of R@10 on seen labels that a head start may cost on validation
UNSEEN, SEEN, REHEARSED = f"R@{AT} on unseen", f"R@{AT} on seen", f"R@{AT} on rehearsed"

BM25, UNTRAINED = "BM25", "MiniLM, untrained"
SHARED = ("encoder.towers=shared", "encoder.label=none", "encoder.query.bigrams=0")
TRAINED: dict[str, tuple[str, ...]] = {
    "the dataset's recipe": (),
    "static, one shared tower": SHARED,
    # The recipe wordnet-nouns-shared; its rate was chosen on validation of wordnet-nouns (0.0005 to 0.02, seed 100).
    "static, one shared tower, rate 0.01": (*SHARED, "optimizer.learning_rate=0.01"),
}
# A bag of word pieces and a frozen MiniLM with a learned map; little is learned where little may be forgotten.
_SUM = ("encoder.query.kind=sum", "encoder.query.dropout=0.0", "encoder.query.static.dropout=0.3")
_BOTH = (*_SUM, "encoder.query.frozen.dropout=0.1")
_ONE = ("encoder.towers=shared", "encoder.label=none")
MIXED: dict[str, tuple[str, ...]] = {
    "bag + frozen": (*_BOTH, "encoder.label.static.bigrams=0"),
    "bag + frozen, label queries": (*_BOTH, "encoder.label.static.bigrams=0", "data.label_queries=0.1"),
    "bag + frozen, one shared tower": (*_ONE, *_BOTH),
    "bag + frozen, one shared tower, label queries": (*_ONE, *_BOTH, "data.label_queries=0.1"),
    "frozen": ("encoder.query.kind=frozen", "encoder.query.dropout=0.1", "optimizer.learning_rate=0.001"),
    "frozen, one shared tower": (*_ONE, "encoder.query.kind=frozen", "optimizer.learning_rate=0.001"),
}
FINE_TUNED: dict[str, tuple[str, ...]] = {  # for the size paper only: the most expensive one
    "MiniLM, one shared tower, 120 steps": (
        *SHARED,
        "encoder.query.kind=transformer",
        "encoder.query.max_length=48",
        "encoder.query.dropout=0.0",
        "objective.temperature=0.05",
        "objective.positives_per_query=1",
        "optimizer.learning_rate=1e-4",
        "pool.name=batch",
        "training.batch_size=96",
        "training.steps=120",
        "training.token_budget=4096",
        "evaluation.every_epochs=0",
    )
}


@dataclass(frozen=True)
class HeldOut:
    """A dataset for training without the unseen and the rehearsed labels, and what is asked about either."""

    train: Dataset
    catalogue: LabelCatalogue  # of all labels
    test: Split
    unseen: NDArray[np.int64]  # label rows, asked of test
    validation: Split
    rehearsed: NDArray[np.int64]  # label rows, asked of validation


def begin(setup: Setup) -> Job:
    """The dataset's recipe, shared towers, BM25 and the untrained MiniLM on the same held-out labels."""
    more = {"tiny": {}, "small": MIXED, "paper": MIXED | FINE_TUNED}[setup.size]
    bench = Workbench(setup, TRAINED | more, DESIGNS | {"small": Design(4000, 2000, ("training.batch_size=256",))})
    dataset = open_dataset(bench.source)
    hold_out(dataset, SHARE, 0)  # refuses what cannot be split before anything is trained

    def make(variant: str, seed: int) -> dict[str, Any]:
        parts = hold_out(dataset, SHARE, seed)
        search, lift = _search(bench, variant, seed, parts)
        seen = np.setdiff1d(np.arange(len(parts.catalogue)), [*parts.unseen, *parts.rehearsed])
        on_test, on_validation = search(parts.test), search(parts.validation)

        def of_test(multiple: float, end: str = "") -> dict[str, float]:
            raised = lift(on_test, multiple)
            return {
                f"{UNSEEN}{end}": recall(raised, parts.test, parts.unseen),
                f"{SEEN}{end}": recall(raised, parts.test, seen),
            }

        rehearsals = {multiple: lift(on_validation, multiple) for multiple in MULTIPLES}
        kept = {multiple: recall(found, parts.validation, seen) for multiple, found in rehearsals.items()}
        multiple = max(multiple for multiple in MULTIPLES if kept[multiple] >= kept[0.0] - PRICE)
        return {
            **of_test(TEMPERATURES),
            REHEARSED: recall(rehearsals[TEMPERATURES], parts.validation, parts.rehearsed),
            **of_test(0.0, LEVEL),
            **of_test(multiple, CHOSEN),
            "head start, in temperatures": multiple,
            "unseen labels": len(parts.unseen),
        }

    variants = [*bench.variants, BM25, *([UNTRAINED] if setup.size != "tiny" else [])]
    return Job(bench.settings | {"held_out": SHARE}, variants, make, conclude, data=bench.name)


def hold_out(dataset: Dataset, share: float, seed: int) -> HeldOut:
    """A share of the labels that test asks for leaves training with all its pairs, and half as many to rehearse it."""
    dataset = dataset.with_validation(VALIDATION, seed)
    assert dataset.test is not None and dataset.validation is not None
    random = np.random.default_rng([seed, 1])
    unseen = _draw(dataset.name, "test", dataset.test, share, random)
    rehearsed = _draw(dataset.name, "validation", dataset.validation, share / 2, random, besides=unseen)
    kept = np.setdiff1d(np.arange(len(dataset.labels)), [*unseen, *rehearsed])
    keys, texts = dataset.labels.keys, dataset.labels.texts
    train = Dataset.of(
        dataset.name,
        LabelCatalogue([keys[row] for row in kept], [texts[int(row)] for row in kept]),
        _without(dataset.train, kept),
        _without(dataset.validation, kept),
    )
    return HeldOut(train, dataset.labels, dataset.test, unseen, dataset.validation, rehearsed)


def _draw(
    name: str, of: str, split: Split, share: float, random: np.random.Generator, besides: ArrayLike = ()
) -> NDArray[np.int64]:
    asked = np.setdiff1d(np.flatnonzero(split.relevance.without(split.filtered).label_counts()), besides)
    count = round(share * len(asked))
    if not 0 < count < len(asked):
        raise BadInput(
            f"{share:.0%} of the {len(asked):,} labels of {name}'s {of} queries are {count}: the held-out set must not "
            "be empty, nor hold them all; use a larger dataset"
        )
    return np.sort(random.choice(asked, count, replace=False))


def _without(split: Split, kept: NDArray[np.int64]) -> Split:
    """Queries whose every label is held out go, too: they would be training data of no label."""
    relevance = with_labels(split.relevance, kept)
    rows = np.flatnonzero(np.diff(relevance.matrix.indptr))
    return Split(split.texts.take(rows), relevance.take(rows), with_labels(split.filtered, kept).take(rows))


def _search(
    bench: Workbench, variant: str, seed: int, parts: HeldOut
) -> tuple[Callable[[Split], Ranking], Callable[[Ranking, float], Ranking]]:
    """How a variant finds labels for the queries of a split, and how it lifts those that it was not trained with by so
    many temperatures."""
    labels, wide = parts.catalogue.texts, min(AT + SPARE, len(parts.catalogue))
    if variant == BM25:
        return lambda split: bm25(list(labels), list(split.texts), AT, split.filtered.matrix), lambda found, _: found
    later = np.zeros(len(parts.catalogue), dtype=np.float32)  # stays 0 where nothing was trained
    if variant == UNTRAINED:
        tower = TransformerEncoder.load(TransformerTower().start, max_length=64)
        towers = Towers(tower, tower)
    else:
        folder = bench.setup.output / "data" / f"seed-{seed}"
        if not folder.exists():
            write_native(parts.train, folder)
        config = bench.config(variant, seed, source=str(folder))
        towers = train(config, Steps(f"{variant}, seed {seed}", bench.setup.progress)).run.towers
        later[[*parts.unseen, *parts.rehearsed]] = config.objective.temperature
    vectors = encode_texts(towers.label, labels)  # held-out ones among them

    def lift(found: Ranking, multiple: float) -> Ranking:
        return found.lifted(np.float32(multiple) * later, AT)

    return lambda s: top_k(encode_texts(towers.query, s.texts), vectors, wide, excluding=s.filtered.matrix), lift


def recall(ranking: Ranking, split: Split, labels: NDArray[np.int64]) -> float:
    """Mean share of a query's positives among these labels that is found, in percent; queries without any left out."""
    truth = split.relevance.without(split.filtered).matrix
    wanted = np.zeros(truth.shape[1], dtype=bool)
    wanted[labels] = True
    query = np.repeat(np.arange(len(ranking)), np.diff(truth.indptr))
    asked = np.bincount(query[wanted[truth.indices]], minlength=len(ranking))
    found = (contains(truth, ranking.rows) & wanted[ranking.rows]).sum(1)
    return round(100 * float(np.mean(found[asked > 0] / asked[asked > 0])), 3)


def conclude(outcomes: Outcomes) -> Conclusion:
    """The best trained encoder against each way to do without training."""
    trained = [variant for variant in outcomes.variants if variant not in (BM25, UNTRAINED)]
    best = outcomes.best(REHEARSED, among=trained)
    claims = [
        Claim.of(
            f"a trained dual encoder finds unseen labels by their text better than {rival}",
            "that dual encoders generalise to new labels is said, not measured",
            f"R@{AT} on unseen labels {written(outcomes.mean(best, UNSEEN))} for {best}; "
            f"{written(outcomes.mean(rival, UNSEEN))} for {rival}",
            outcomes.difference(best, rival, UNSEEN),
        )
        for rival in (BM25, UNTRAINED)
        if rival in outcomes.variants
    ]
    words = "; ".join(
        f"{variant} {written(outcomes.mean(variant, UNSEEN))} and {outcomes.mean(variant, SEEN)['mean']:.1f}"
        for variant in outcomes.variants
    )
    return Conclusion(
        claims,
        outcomes.table(
            [UNSEEN, SEEN, REHEARSED, *(f"{measure}{end}" for end in (LEVEL, CHOSEN) for measure in (UNSEEN, SEEN))]
        ),
        summary=(
            f"A tenth of the labels was held out of training with all its pairs (on average "
            f"{np.mean([run['unseen labels'] for run in outcomes]):.0f} labels, drawn by seed) and added by text "
            f"afterwards. R@{AT} among all labels, on unseen and on seen labels: {words}. The paper says that dual "
            f"encoders generalise to new labels and gives no figures. The trained encoder that stands for them, {best},"
            " was chosen on validation queries, by other labels held out in the same way. It finds "
            f"{outcomes.mean(best, UNSEEN)['mean']:.1f} with the head start that a model gives ({TEMPERATURES:g} "
            f"temperatures), {outcomes.mean(best, f'{UNSEEN}{CHOSEN}')['mean']:.1f} with the most that costs seen "
            f"labels no more than {PRICE:g} points on validation, and "
            f"{outcomes.mean(best, f'{UNSEEN}{LEVEL}')['mean']:.1f} without any."
        ),
        title=f"Labels that training never saw: R@{AT} among all labels, 95 % intervals over seeds",
        panels=[
            Dots({v: Value(**outcomes.mean(v, measure)) for v in outcomes.variants}, x=f"{measure} labels (%)")
            for measure in (UNSEEN, SEEN)
        ],
    )
