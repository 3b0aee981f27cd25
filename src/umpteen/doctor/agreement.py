"""Whether loss and gradients of a recipe are the same by the step, by the naive formula, and on two processes.

All in float64 without dropout, in several micro-batches and tiles, on a slice of the user's own data.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.config.settings import RunConfig, StaticTower, TextTower, TransformerTower
from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import EpochSampler, Relevance
from umpteen.data.tokens import TokenTable
from umpteen.encoders.encoder import Encoder, tokens_now
from umpteen.encoders.rows import row_tables
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput
from umpteen.objectives.losses import build_objective
from umpteen.objectives.reference import formula
from umpteen.parallel.children import run_in_world
from umpteen.parallel.meter import Meter
from umpteen.parallel.world import Shard, World, undivided
from umpteen.training.build import build_optimizer
from umpteen.training.inputs import TrainingData
from umpteen.training.step import TrainingStep

QUERIES, LABELS = 32, 500
TOKENS = 1024  # of queries and labels together, for a transformer: its whole graph in float64 takes seconds and memory
STATIC_TOKENS = 16 * TOKENS
LIMIT = 1e-8  # rounding in float64 stays a thousand times below it
SMALL = 1e-3  # of the largest gradient; what is smaller is judged as if it were this large
PARTS = 4  # micro-batches and tiles, at least
BUCKETS = 1024  # of bigrams: more take memory, and compute the same
BYTES_A_WEIGHT = 100  # by rule of thumb: three times its 8 bytes in three processes, and a transformer's graph


class Failed(Exception):
    """Something is not as it should be; the message says what, and what to do."""


class Skipped(Exception):
    """The check cannot be made here; the message says why."""


class Sample(NamedTuple):
    """A slice of the data, small enough to compute a step of it in every way there is."""

    data: TrainingData
    catalogue: int  # labels of the dataset, most of them not in the sample

    def __str__(self) -> str:
        return f"{len(self.data.queries)} queries and {len(self.data.labels)} labels"


def draw_sample(dataset: Dataset, towers: Towers, *, seed: int, at_least: int) -> Sample:
    """Some queries with their positives and filtered labels, and others as negatives; fewer where texts are long.

    At least so many labels, if the dataset has them, however long they are.
    """
    static = isinstance(towers.query, StaticEncoder) and isinstance(towers.label, StaticEncoder)
    tokens = STATIC_TOKENS if static else TOKENS
    split, texts = dataset.train, dataset.labels.texts
    rows = EpochSampler(split.relevance.without(split.filtered), QUERIES, seed=seed).rows(0, 0)
    queries = tokens_now(towers.query, [split.texts[row] for row in rows])
    kept = max(1, _fitting(queries, tokens // 2))
    queries, some = queries.take(np.arange(kept)), split.take(rows[:kept])

    candidates = _wanted_labels(some, max(LABELS, at_least), seed)
    labels = tokens_now(towers.label, [texts[row] for row in candidates], candidates)
    count = max(at_least, _fitting(labels, tokens - int(queries.lengths.sum())))
    order = np.argsort(candidates[:count])
    chosen = candidates[:count][order]
    relevance, filtered = (Relevance(pairs.matrix[:, chosen]) for pairs in (some.relevance, some.filtered))
    data = TrainingData(queries, labels.take(order), relevance, filtered)
    return Sample(data, len(texts))


def _wanted_labels(split: Split, count: int, seed: int) -> NDArray[np.int64]:
    """Label rows, the most wanted first: a positive of each query, a filtered one, the next ones, then any others."""
    matrices = [split.relevance.matrix, split.filtered.matrix]
    places = [np.arange(pairs.nnz) - np.repeat(pairs.indptr[:-1], np.diff(pairs.indptr)) for pairs in matrices]
    wanted = np.concatenate([pairs.indices for pairs in matrices])[np.argsort(np.concatenate(places), kind="stable")]
    labels = split.relevance.labels
    others = np.random.default_rng(seed).choice(labels, min(labels, count), replace=False)
    distinct, first = np.unique(np.concatenate([wanted, others]), return_index=True)
    return np.asarray(distinct[np.argsort(first)][:count], dtype=np.int64)


def _fitting(table: TokenTable, tokens: int) -> int:
    """How many of the first rows have no more tokens than that together."""
    return int(np.searchsorted(np.cumsum(table.lengths), tokens, side="right"))


class Outcome(NamedTuple):
    """The loss of the sample, and what it leaves on every weight."""

    loss: float
    gradients: dict[str, Tensor]


class Difference(NamedTuple):
    size: float  # relative
    place: str
    loss: float
    total: float  # of all gradients: the same on all processes, to the bit

    def __str__(self) -> str:
        return f"agree to {max(self.size, 1e-16):.0e} (limit {LIMIT:.0e})"


def available_memory() -> int | None:
    """Bytes that this process could come to hold, where the system says so."""
    try:
        return Meter(torch.device("cpu")).available()
    except BadInput:
        return None


def with_naive_formula(config: RunConfig, sample: Sample) -> str:
    """The step gives the loss and the gradients of the formula, differentiated in one graph."""
    with undivided():  # small operations; threads would wait for each other, for long on a busy machine
        towers = exact_towers(config, sample)
        ours, theirs = by_step(config, towers, sample, World()), by_formula(config, towers, sample)
    found = difference(ours, theirs)
    _judge(found, f"the loss is {ours.loss:.10g} by the step and {theirs.loss:.10g} by the formula")
    return f"loss {found.loss:.4f} of {sample}; {config.objective.name} and the naive formula {found}"


def on_two_processes(config: RunConfig, sample: Sample) -> str:
    """Two processes that share the labels give the loss and the gradients of one."""
    found = run_in_world(2, _together_and_alone, config, sample, seconds=600)
    for each in found:
        _judge(each, f"the loss is {each.loss:.10g} on two processes")
    if len({each.total for each in found}) > 1:
        raise Failed(f"the processes end with different gradients: their sums are {[each.total for each in found]}")
    return f"loss {found[0].loss:.4f} of {sample}; one and two processes {max(found)}"


def exact_towers(config: RunConfig, sample: Sample) -> Towers:
    """The recipe's towers at their start, in float64 and without dropout."""

    def exact(tower: TextTower) -> TextTower:
        if isinstance(tower, TransformerTower):
            return tower.model_copy(update={"precision": "float32"})
        if isinstance(tower, StaticTower):
            return tower.model_copy(update={"bigrams": min(tower.bigrams, BUCKETS)})
        return tower

    towers = Towers.build(config.encoder.each(exact), config.seed, Shard(World(), sample.catalogue))
    towers.start(config.encoder, sample.data.queries, sample.data.labels)
    return towers.double().eval()


def by_step(config: RunConfig, towers: Towers, sample: Sample, world: World) -> Outcome:
    """As training computes it."""
    data, labels = sample.data, len(sample.data.labels)
    tokens = int(data.queries.lengths.sum() + data.labels.lengths.sum())
    own = {
        "token_budget": min(config.training.token_budget, -(-tokens // PARTS)),
        "tile": min(config.training.tile or labels, -(-labels // PARTS)),
        "replay_fraction": None,  # a sample of the gradients has the right mean, and no more
    }
    config = config.model_copy(update={"training": config.training.model_copy(update=own)})
    objective = build_objective(config.objective, labels)
    step = TrainingStep(towers, data, objective, build_optimizer(config, towers), config, world=world)
    loss = step.gradients(np.arange(len(data.queries)), step=0, seed=config.seed).loss
    return Outcome(loss, _taken_gradients(towers, world))


def by_formula(config: RunConfig, towers: Towers, sample: Sample) -> Outcome:
    """As the paper writes it, over all scores in one graph."""
    data, objective, rng = sample.data, config.objective, np.random.default_rng([config.seed, 0])
    queries, labels = _unpadded(towers.query, data.queries), _unpadded(towers.label, data.labels)
    rows, positives = np.arange(len(queries)), objective.positives_per_query
    targets, filtered = data.targets(rows, positives, objective.over_positives(), rng, device=queries.device)
    loss = queries.new_zeros(())
    for columns, of_score in towers.query.shares:
        scores = queries[:, columns] @ labels[:, columns].T / (objective.temperature * of_score)
        loss = loss + formula(objective.name)(scores, targets, filtered, **objective.arguments())
    loss.backward()  # type: ignore[no-untyped-call]
    return Outcome(float(loss.detach()), _taken_gradients(towers))


def _unpadded(encoder: Encoder, table: TokenTable) -> Tensor:
    """Texts of one length at a time, so that nothing is padded."""
    groups = [np.flatnonzero(table.lengths == length) for length in np.unique(table.lengths)]
    vectors = torch.cat([encoder(*table.batch(rows)) for rows in groups])
    return vectors[torch.from_numpy(np.argsort(np.concatenate(groups)))]


def _taken_gradients(towers: Towers, world: World | None = None) -> dict[str, Tensor]:
    """Every weight's gradient; of rows, each process has that of its own labels."""
    found = {name: weight.grad for name, weight in towers.named_parameters() if weight.grad is not None}
    towers.zero_grad(set_to_none=True)
    for name, table in row_tables(towers).items():
        found[name] = (world or World()).sum_(table.dense_gradient())
        table.forget_gradients()
    return found


def difference(ours: Outcome, theirs: Outcome) -> Difference:
    """The largest relative difference and where it is; infinite where a number is none."""
    total = math.fsum(float(gradient.sum()) for gradient in ours.gradients.values())
    largest = max((float(gradient.abs().max()) for gradient in theirs.gradients.values()), default=0.0)
    pairs = [("loss", torch.tensor(ours.loss), torch.tensor(theirs.loss), 0.0)]
    for name in ours.gradients.keys() | theirs.gradients.keys():
        mine, yours = (outcome.gradients.get(name, torch.zeros(())) for outcome in (ours, theirs))
        pairs.append((f"gradient of {name}", mine, yours, SMALL * largest))
    found = []
    for place, mine, yours, at_least in pairs:
        scale, size = max(float(yours.abs().max()), at_least), float((mine - yours).abs().max())
        relative = size / scale if scale else float(size > 0)
        found.append(Difference(relative if math.isfinite(size + scale) else math.inf, place, ours.loss, total))
    return max(found)


def _judge(found: Difference, losses: str) -> None:
    if found.size > LIMIT:
        what = losses if found.place == "loss" else f"the {found.place} is off by {found.size:.1e} of its size"
        raise Failed(f"{what}; nothing trained here can be trusted: please report it with `umpteen doctor --json`")


def _together_and_alone(world: World, config: RunConfig, sample: Sample) -> Difference:
    with undivided():
        towers = exact_towers(config, sample)
        return difference(by_step(config, towers, sample, world), by_step(config, towers, sample, World()))
