"""All checks of one recipe, in order, each told in a line: later ones use what earlier ones found, or are skipped.

The last two ask whether loss and gradients are the same by the step, by the naive formula, and on two processes: all in
float64 without dropout, in several micro-batches and tiles, on a slice of the user's own data.
"""

import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from umpteen import __version__
from umpteen.config.settings import BankPool, RunConfig, StaticTower, TextTower, TransformerTower
from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.data.labels import EpochSampler, Relevance
from umpteen.data.prepared import cache_folder
from umpteen.data.tokens import TokenTable
from umpteen.encoders.backbone import require
from umpteen.encoders.encoder import Encoder, tokens_now
from umpteen.encoders.folder import DEFAULT_MODEL, locate
from umpteen.encoders.rows import row_tables
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers, with_lengths
from umpteen.errors import BadConfig, UmpteenError, known
from umpteen.files.progress import Progress, silent
from umpteen.objectives.losses import build_objective
from umpteen.objectives.reference import REFERENCE
from umpteen.parallel.children import run_in_world
from umpteen.parallel.meter import free_memory
from umpteen.parallel.world import Shard, World, cores, undivided
from umpteen.training.build import build_optimizer, pick_device
from umpteen.training.negatives.mined import Bank
from umpteen.training.step import TrainingData, TrainingStep

SPARE_LABELS = 32  # beyond the k of SoftTop-k: some may be filtered
QUERIES, LABELS = 32, 500
TOKENS = 1024  # of queries and labels together, for a transformer: its whole graph in float64 takes seconds and memory
STATIC_TOKENS = 16 * TOKENS
LIMIT = 1e-8  # rounding in float64 stays a thousand times below it
SMALL = 1e-3  # of the largest gradient; what is smaller is judged as if it were this large
PARTS = 4  # micro-batches and tiles, at least
STEPS = 12  # after which a bank is looked at
BUCKETS = 1024  # of bigrams: more take memory, and compute the same
BYTES_A_WEIGHT = 100  # by rule of thumb: three times its 8 bytes in three processes, and a transformer's graph


class Skipped(UmpteenError):
    """The check cannot be made here; the message says why."""


class Sample(NamedTuple):
    """A slice of the data, small enough to compute a step of it in every way there is."""

    data: TrainingData
    catalogue: int  # labels of the dataset, most of them not in the sample

    def __str__(self) -> str:
        return f"{len(self.data.queries)} queries and {len(self.data.labels)} labels"


def draw_sample(dataset: Dataset, towers: Towers, *, seed: int, at_least: int) -> Sample:
    """Some queries with their positives and filtered labels, and others: fewer where texts are long, but at least so
    many labels, if the dataset has them."""
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
    return Sample(TrainingData(queries, labels.take(order), relevance, filtered), len(texts))


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
    totals = [each.total for each in found]
    if len(set(totals)) > 1:
        raise UmpteenError(f"the processes end with different gradients: their sums are {totals}")
    return f"loss {found[0].loss:.4f} of {sample}; one and two processes {max(found)}"


def exact_towers(config: RunConfig, sample: Sample) -> Towers:
    """The recipe's towers at their start, in float64 and without dropout."""

    def exact(tower: TextTower) -> TextTower:
        fewer = {"bigrams": min(tower.bigrams, BUCKETS)} if isinstance(tower, StaticTower) else {}
        whole = {"precision": "float32"} if isinstance(tower, TransformerTower) else {}
        return tower.model_copy(update=fewer | whole)

    towers = Towers.build(config.encoder.each(exact), config.seed, Shard(World(), sample.catalogue))
    towers.start(config.encoder, sample.data.queries, sample.data.labels)
    return towers.double().eval()


def with_kept_vectors(config: RunConfig, sample: Sample) -> str:
    """How near a bank's gradients come to the exact ones after some steps on the sample, by direction and length."""
    assert isinstance(config.pool, BankPool)
    with undivided():
        towers, queries = exact_towers(config, sample), np.arange(len(sample.data.queries))
        step, shard = step_of(config, towers, sample, World()), Shard(World(), len(sample.data.labels))
        bank = step.pool = Bank(towers, sample.data, shard, config.pool, step.config, step.objective)
        bank.prepare(0)
        for number in range(STEPS):
            step.optimizer.zero_grad(set_to_none=True)
            step.gradients(queries[number % min(PARTS, len(queries)) :: PARTS], step=number, seed=config.seed)
            step.optimizer.step()
        towers.zero_grad(set_to_none=True)
        outcome = step.gradients(queries, step=STEPS, seed=config.seed)
        ours, step.pool = _taken_gradients(towers), None
        step.gradients(queries, step=STEPS, seed=config.seed)
        exact = _taken_gradients(towers)
    found = []
    for tower, words in (("query.", "one tower" if towers.shared else "queries"), ("label_tower.", "labels")):
        names = [name for name in exact if name.startswith(tower)]
        if names:
            mine, right = (torch.cat([each[name].flatten() for name in names]) for each in (ours, exact))
            length = float(mine.norm() / right.norm())
            found.append(f"{words}: cosine {float(cosine_similarity(mine, right, 0)):.3f}, {length:.2f} times as long")
    share, age = outcome.replay["replayed"], outcome.pool["staleness"]
    return f"after {STEPS} steps, {share:.0%} of {sample} encoded, {age:.1f} steps old; {'; '.join(found)}"


def by_step(config: RunConfig, towers: Towers, sample: Sample, world: World) -> Outcome:
    """As training computes it, all labels encoded."""
    step = step_of(config, towers, sample, world)
    loss = step.gradients(np.arange(len(sample.data.queries)), step=0, seed=config.seed).loss
    return Outcome(loss, _taken_gradients(towers, world))


def step_of(config: RunConfig, towers: Towers, sample: Sample, world: World) -> TrainingStep:
    """The step of training, in several micro-batches and tiles."""
    data, labels = sample.data, len(sample.data.labels)
    tokens = int(data.queries.lengths.sum() + data.labels.lengths.sum())
    own = {
        "token_budget": min(config.training.token_budget, -(-tokens // PARTS)),
        "tile": min(config.training.tile or labels, -(-labels // PARTS)),
        "replay_fraction": None,  # a sample of the gradients has the right mean, and no more
        "half_labels": False,  # rounded vectors have a loss of their own
    }
    config = config.model_copy(update={"training": config.training.model_copy(update=own)})
    objective = build_objective(config.objective, labels)
    return TrainingStep(towers, data, objective, build_optimizer(config, towers), config, world=world)


def by_formula(config: RunConfig, towers: Towers, sample: Sample) -> Outcome:
    """As the paper writes it, over all scores in one graph."""
    data, objective, rng = sample.data, config.objective, np.random.default_rng([config.seed, 0])
    queries, labels = _unpadded(towers.query, data.queries), _unpadded(towers.label, data.labels)
    targets, filtered = data.targets(np.arange(len(queries)), objective, rng, queries.device)
    loss, formula = queries.new_zeros(()), known(REFERENCE, objective.name, f"no formula for {objective.name}")
    for columns, of_score in towers.query.shares:
        scores = queries[:, columns] @ labels[:, columns].T / (objective.temperature * of_score)
        loss = loss + formula(scores, targets, filtered, **objective.arguments())
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
        advice = "nothing trained here can be trusted: please report it with `umpteen doctor --json`"
        raise UmpteenError(f"{what}; {advice}")


def _together_and_alone(world: World, config: RunConfig, sample: Sample) -> Difference:
    with undivided():
        towers = exact_towers(config, sample)
        return difference(by_step(config, towers, sample, world), by_step(config, towers, sample, World()))


@dataclass(frozen=True)
class Check:
    name: str
    status: str  # ok, failed or skipped
    detail: str
    seconds: float


def look(name: str, check: Callable[[], str]) -> Check:
    """Makes the check, which returns what it saw or raises; whatever it raises is part of the finding."""
    began, status = time.monotonic(), "ok"
    try:
        detail = check()
    except Exception as problem:  # a doctor is for what nobody has foreseen
        status = "skipped" if isinstance(problem, Skipped) else "failed"
        detail = str(problem) if isinstance(problem, UmpteenError) else f"{type(problem).__name__}: {problem}"
    return Check(name, status, detail, round(time.monotonic() - began, 2))


def examine(config: RunConfig, progress: Progress = silent) -> Iterator[Check]:
    """Every check in order, as soon as it is made; progress hears the name of each before."""
    patient = Examination(config)
    every: dict[str, Callable[[], str]] = {
        "versions": versions,
        "devices": lambda: devices(pick_device(config.training.device)),
        "cache folder": cache,
        "bfloat16": partial(patient.half_precision, "bfloat16"),
        "float16": partial(patient.half_precision, "float16"),
        "data": patient.open_data,
        "start model": patient.start_model,
        "naive formula": lambda: with_naive_formula(patient.config, patient.sample),
        "two processes": lambda: on_two_processes(patient.config, patient.sample),
    }
    if config.pool.name == "bank":
        every["kept vectors"] = lambda: with_kept_vectors(patient.config, patient.sample)
    for number, (name, check) in enumerate(every.items()):
        progress(name, number, len(every))
        yield look(name, check)


class Examination:
    """What was found so far of a recipe."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._dataset: Dataset | None = None
        self._towers: Towers | None = None

    def half_precision(self, precision: str) -> str:
        """Whether the device computes in it, tried out; fails only if the recipe asks for what does not work."""
        encoder, device = self.config.encoder, pick_device(self.config.training.device).type
        try:
            require(precision, device)
        except BadConfig as refusal:
            readers = (*encoder.query.reading(), *encoder.label_tower.reading())
            if any(tower.model_dump().get("precision") == precision for tower in readers):
                raise
            return f"not usable here, and the recipe does not ask for it: {refusal}"
        return f"works on this {device}"

    def open_data(self) -> str:
        dataset = self._dataset = open_dataset(self.config.data.source)
        self.config = self.config.model_copy(update={"encoder": with_lengths(self.config.encoder, dataset)})
        return f"{dataset.name}: {len(dataset.train):,} training queries, {len(dataset.labels):,} labels"

    def start_model(self) -> str:
        encoder, found = self.config.encoder, dict[str, None]()
        for tower in (*encoder.query.reading(), *encoder.label_tower.reading()):
            random_weights = tower.model_dump().get("random_weights", False)
            folder = locate(tower.start, weights=not random_weights)
            verified = tower.start.removeprefix("sentence-transformers/") == DEFAULT_MODEL and not random_weights
            found[f"{tower.start} in {folder}{', checksum right' if verified else ''}"] = None
        labels = Shard(World(), len(self._dataset.labels) if self._dataset else 0)
        self._towers = Towers.build(encoder, self.config.seed, labels)
        return f"{'; '.join(found)}; gives {self._towers.describe()}"

    @cached_property
    def sample(self) -> Sample:
        if self._towers is None or self._dataset is None:
            raise Skipped(f"there is no {'data' if self._towers else 'start model'} to do it with")
        # Bigrams need little, since most of their buckets are left out.
        sizes = [weight.numel() for name, weight in self._towers.named_parameters() if not name.endswith("bigrams")]
        needed, free = BYTES_A_WEIGHT * sum(sizes), free_memory()
        if free is not None and free < needed:
            raise Skipped(f"needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
        k = self.config.objective.arguments().get("k", 0)
        at_least = SPARE_LABELS + (k if isinstance(k, int) else 0)
        return draw_sample(self._dataset, self._towers, seed=self.config.seed, at_least=at_least)


def versions() -> str:
    """The installed versions; whether they go together is what `pip check` tells, of all packages."""
    if torch.from_numpy(np.arange(3)).numpy().sum() != 3:  # a torch built for another numpy cannot even do this
        raise UmpteenError(f"torch {torch.__version__} and numpy {np.__version__} do not share memory; reinstall both")
    shown = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "tokenizers", "numpy"))
    return f"umpteen {__version__}, {shown}, python {platform.python_version()}"


def devices(chosen: torch.device) -> str:
    """Processors, memory and GPUs, and which of them the recipe uses."""
    found = [f"{cores()} CPU cores, of which torch uses {torch.get_num_threads()}"]
    if (free := free_memory()) is not None:
        found.append(f"{free / 1e9:.1f} GB of memory free")
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > cores():
        found.append(f"busy with other work (load {load:.1f})")
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        found.append(f"GPU {number}: {properties.name}, {properties.total_memory / 1e9:.0f} GB")
    if chosen.type == "cuda":
        product = torch.ones(256, 256, device=chosen) @ torch.ones(256, 256, device=chosen)
        if not bool((product == 256).all()):
            raise UmpteenError(f"{chosen} multiplies wrongly; check its driver and its torch")
    return f"{', '.join(found)}; the recipe trains on {chosen}"


def cache() -> str:
    """The cache folder takes a file and gives it back."""
    folder, content = cache_folder(), bytes(range(256)) * 4096  # a megabyte
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(content)
            file.seek(0)
            if file.read() != content:
                raise UmpteenError(f"{folder} gives back other bytes than were written; is the disk in order?")
        return f"{folder} can be written, {shutil.disk_usage(folder).free / 1e9:.1f} GB free"
    except OSError as problem:
        reason = f"{folder} cannot be written ({problem.strerror or problem})"
        raise UmpteenError(f"{reason}; free space or set UMPTEEN_CACHE to another folder") from None
