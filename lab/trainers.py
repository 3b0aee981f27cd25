"""In sentence-transformers' own trainer: its losses beside ours, on the same pairs, for the same number of steps.

Each loss has a learning rate of its own, found on validation with seed 0: a step more or less is no better. Test is
looked at once a run. The model is MiniLM or, with `--encoder static`, a StaticEmbedding that starts from MiniLM's token
table; one tower for queries and labels. A batch of a table is as many pairs for ours as for theirs, of which ours
encodes each text once. One of MiniLM is small, and as many queries: theirs with a positive each, ours with all of them.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import is_training_available
from tokenizers import Tokenizer

from lab.choosing import Place, climb
from lab.comparison import Outcomes, finish_runs, written
from lab.cutting import cut
from lab.dots import Dots, Value
from lab.experiment import Conclusion, Job, Setup, chosen, claim_better
from lab.training import DEFAULT_DATA, percents
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.data.labels import Split
from umpteen.encoders.folder import DEFAULT_MODEL, locate
from umpteen.errors import BadInput
from umpteen.evaluation.report import Evaluator
from umpteen.search.exact import top_k
from umpteen.sentence_transformers import DecoupledSoftmaxLoss, MultiLabelCollator, QueryBatchSampler

MNRL, CACHED_MNRL = "MultipleNegativesRanking", "CachedMultipleNegativesRanking"
OURS, CACHED_OURS, ALL_OURS = "DecoupledSoftmax", "DecoupledSoftmax, cached", "DecoupledSoftmax, all labels"
METRICS = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100")


@dataclass(frozen=True)
class Design:
    """What one size consists of; without numbers, all of the dataset."""

    steps: int
    pairs: int  # a batch, or queries; of cached losses, and those marked so, LARGER times as many
    layers: int  # of MiniLM's six, from below; 0: its token table alone, a StaticEmbedding
    learning_rate: float  # at which the search begins
    tokens: int  # of a text
    queries: int | None = None
    labels: int | None = None


LARGER, AT_ONCE = 4, 32  # texts that a cached loss holds activations of
LARGER_MNRL, LARGER_OURS = f"{MNRL}, ×{LARGER}", f"{OURS}, ×{LARGER}"
FACTOR, MOST = 3.0, 8  # between two learning rates, and trials of a loss
DESIGNS = {
    "minilm": {
        "tiny": Design(2, 8, 1, 1e-4, 16, 100, 50),
        "small": Design(50, 16, 2, 6e-4, 32, 4000, 2000),
        "paper": Design(1000, 64, 6, 1e-4, 128),
    },
    "static": {
        "tiny": Design(2, 8, 0, 1e-2, 16, 100, 50),
        "small": Design(100, 256, 0, 1e-2, 48, 4000, 2000),
        "paper": Design(300, 256, 0, 1e-2, 128),
    },
}


class Way(NamedTuple):
    """A loss, the batches it is given, and how many times the usual size."""

    loss: Callable[[SentenceTransformer], Any]
    sampler: Any  # of pairs; None: a row is a query with the list of its positives
    larger: int = 1


def ways(design: Design, labels: Sequence[str] = ()) -> dict[str, Way]:
    """The losses that are compared; for a table, of which all labels cost little, ours also against all of them."""
    apart = BatchSamplers.NO_DUPLICATES_HASHED  # as their documentation recommends for these losses
    if design.layers:
        return {
            MNRL: Way(MultipleNegativesRankingLoss, apart),
            OURS: Way(DecoupledSoftmaxLoss, None),
            CACHED_MNRL: Way(lambda m: CachedMultipleNegativesRankingLoss(m, mini_batch_size=AT_ONCE), apart, LARGER),
            CACHED_OURS: Way(lambda m: DecoupledSoftmaxLoss(m, mini_batch_size=AT_ONCE), None, LARGER),
        }
    plain = {MNRL: Way(MultipleNegativesRankingLoss, apart), OURS: Way(DecoupledSoftmaxLoss, QueryBatchSampler)}
    # Their cached loss refuses a table, which has no activations to spare: the plain one computes the same.
    return {
        **plain,
        LARGER_MNRL: plain[MNRL]._replace(larger=LARGER),
        LARGER_OURS: plain[OURS]._replace(larger=LARGER),
        ALL_OURS: Way(lambda model: DecoupledSoftmaxLoss(model, labels=labels), QueryBatchSampler),
    }


def begin(setup: Setup) -> Job:
    """Their loss and ours, each plain and cached."""
    if not is_training_available():
        raise BadInput("trainers needs datasets and accelerate: pip install 'umpteen[sentence-transformers]'")
    design = chosen("encoder", setup.encoder or "minilm", DESIGNS)[setup.size]
    whole = open_dataset(setup.source or DEFAULT_DATA)
    if whole.test is None:
        raise BadInput(f"{whole.name} has no test split; the lab's figures need one")
    dataset = whole if design.queries is None or design.labels is None else cut(whole, design.queries, design.labels)
    if dataset.validation is None:
        dataset = dataset.with_validation(0.1, 0)
    data = {"name": whole.name, "fingerprint": dataset.fingerprint, "labels": len(dataset.labels)}

    def make(variant: str, seed: int) -> dict[str, Any]:
        assert dataset.test is not None
        rate, settled = chosen_rate(setup, dataset, design, variant)
        setup.progress(f"{variant}, seed {seed}", 0, 1)
        model, seconds = trained(dataset, design, variant, seed, rate)
        found = report(model, dataset, dataset.test)
        return {**found, "learning rate": rate, "settled": settled, "train_seconds": round(seconds, 1)}

    rows = {name: "pairs" if way.sampler else "queries" for name, way in ways(design).items()}
    settings = {"size": setup.size, "data": data, "rows": rows, "larger": LARGER, "factor": FACTOR, **asdict(design)}
    return Job(settings, list(ways(design)), make, conclude, data=whole.name)


def chosen_rate(setup: Setup, dataset: Dataset, design: Design, variant: str) -> tuple[float, bool]:
    """The learning rate that validation prefers with seed 0, and whether both its neighbours were tried."""

    def rate_at(place: Place) -> float:
        return float(f"{design.learning_rate * FACTOR ** place[0]:.3g}")

    def value_at(place: Place) -> float:
        def make(trial: str, seed: int) -> dict[str, Any]:
            assert dataset.validation is not None
            model, _ = trained(dataset, design, variant, seed, rate_at(place))
            return {"validation": report(model, dataset, dataset.validation)["nDCG@5"]}

        trial = f"{variant}, learning rate {rate_at(place):g}"
        [outcome] = finish_runs(setup.output / "trials", [(trial, 0)], make, setup.notice, what="trial")
        return float(outcome["validation"])

    if setup.size == "tiny":
        return design.learning_rate, False
    best, settled = climb(value_at, 1, MOST)
    return rate_at(best), settled


def trained(
    dataset: Dataset, design: Design, variant: str, seed: int, learning_rate: float
) -> tuple[SentenceTransformer, float]:
    """A model and the seconds its steps took."""
    from datasets import Dataset as Table
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    model = started(design)
    query, label = positives(dataset.train)
    texts, names = list(dataset.train.texts), list(dataset.labels.texts)
    way = ways(design, names)[variant]
    positive: list[Any] = [names[row] for row in label]
    if way.sampler is None:
        starts = np.flatnonzero(np.diff(query, prepend=-1))
        query, positive = query[starts], [positive[a:b] for a, b in pairwise([*starts, len(positive)])]
    rows = Table.from_dict({"anchor": [texts[row] for row in query], "positive": positive})
    with tempfile.TemporaryDirectory(prefix="umpteen-trainer-") as place:
        arguments = SentenceTransformerTrainingArguments(
            place,
            max_steps=design.steps,
            per_device_train_batch_size=design.pairs * way.larger,
            learning_rate=learning_rate,
            warmup_steps=0.1,
            batch_sampler=way.sampler or BatchSamplers.BATCH_SAMPLER,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=seed,
        )
        collator: Any = MultiLabelCollator(model.preprocess) if way.sampler is None else None
        loss = way.loss(model)
        trainer = SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss, data_collator=collator)
        began = time.monotonic()
        trainer.train()
    return model.eval(), time.monotonic() - began


def started(design: Design) -> SentenceTransformer:
    """The lower layers of MiniLM, or its token table."""
    model = SentenceTransformer(str(locate(DEFAULT_MODEL)), device="cpu")
    inner: Any = model[0].auto_model
    if not design.layers:
        tokenizer = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
        tokenizer.no_padding()
        tokenizer.enable_truncation(design.tokens)
        table = inner.embeddings.word_embeddings.weight.detach().clone()
        return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu")
    model.max_seq_length = design.tokens
    inner.encoder.layer = inner.encoder.layer[: design.layers]
    inner.config.num_hidden_layers = design.layers
    return model


def positives(split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs that training may learn from."""
    matrix = split.relevance.without(split.filtered).matrix.copy()
    matrix.eliminate_zeros()
    return np.repeat(np.arange(len(split)), np.diff(matrix.indptr)), matrix.indices.astype(np.int64)


def report(model: SentenceTransformer, dataset: Dataset, split: Split) -> dict[str, Any]:
    """The metrics of ranking all labels for each query of a split."""
    evaluator = Evaluator(dataset, split)
    asked, labels = (
        torch.as_tensor(model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False))
        for texts in (split.texts, dataset.labels.texts)
    )
    ranking = top_k(asked, labels, max(evaluator.at), excluding=split.filtered.matrix)
    return percents(evaluator.report(ranking, bootstrap=0))


def conclude(outcomes: Outcomes) -> Conclusion:
    """Ours first, plain against plain and cached against cached."""
    paper = "no figure: the paper has no loss of this trainer, but 86.78 against 80.05 for softmax (EURLex-4K, P@1)"
    claims = [
        claim_better(outcomes, f"{ours} is better than {theirs} at {metric}", ours, theirs, metric, paper=paper)
        for ours, theirs in ((OURS, MNRL), (CACHED_OURS, CACHED_MNRL), (LARGER_OURS, LARGER_MNRL), (ALL_OURS, MNRL))
        if ours in outcomes.variants
        for metric in ("P@1", "P@5")
    ]
    if not all(run["settled"] for run in outcomes):
        claims = [replace(claim, verdict="undecided") for claim in claims]
    seconds = "; ".join(f"{v} {written(outcomes.mean(v, 'train_seconds'))} s" for v in outcomes.variants)
    best = "; ".join(f"{metric}: {outcomes.best(metric)}" for metric in ("P@1", "P@5", "R@10"))
    metrics = [metric for metric in METRICS if all(metric in run for run in outcomes)]
    return Conclusion(
        claims,
        outcomes.table([*metrics, "learning rate", "train_seconds"]),
        summary=(
            f"Highest means (number of seeds: {outcomes.seeds}): {best}. The same data and steps in "
            "sentence-transformers' trainer, from layers of MiniLM or its token table; a learning rate for each by "
            "validation. The paper trains softmax and decoupled softmax in a trainer of its own, against all labels. "
            f"Training took {seconds}."
        ),
        title="sentence-transformers' trainer, its losses and ours: figures on test with 95 % intervals",
        panels=[
            Dots({v: Value(**outcomes.mean(v, metric)) for v in outcomes.variants}, x=f"{metric} (%)")
            for metric in metrics
        ],
    )
