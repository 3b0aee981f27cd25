"""Short measurements on this machine: micro-batches of real texts, tiles of scores, the optimizer, search and report.

What is measured is what a step does, with the run's own objects, at the sizes of the run where these take a moment and
at smaller ones otherwise. The weights are not the same afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.batches import draw_positives
from umpteen.data.labels import Relevance
from umpteen.encoders.encode import micro_batches
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.rows import row_tables
from umpteen.evaluation.evaluate import Evaluator
from umpteen.files.progress import Advance
from umpteen.objectives.scores import Scores, even_tile
from umpteen.objectives.targets import Pairs, Targets
from umpteen.parallel.meter import Meter, Seconds, timed
from umpteen.parallel.world import World
from umpteen.plan.workload import Workload
from umpteen.search.exact import top_k
from umpteen.search.ranking import Ranking
from umpteen.training.build import Run
from umpteen.training.inputs import DistinctTexts
from umpteen.training.optimizer import clip_gradients_
from umpteen.training.step import StepSettings


def median_seconds(measured: Sequence[Seconds]) -> Seconds:
    """The middle one of several measurements, of each clock."""
    middle: Seconds = np.median(np.stack(measured), axis=0)
    return middle


class MicroBatchCost(NamedTuple):
    """Of one micro-batch: seconds, and bytes beyond what is there before."""

    encode: Seconds  # forward, without a graph
    graph: Seconds  # forward, with a graph
    backward: Seconds
    encode_bytes: float
    graph_bytes: float  # held until the backward pass
    replay_bytes: float  # at most, with the graph, without the weights' gradients

    @property
    def clock(self) -> float:
        """Seconds of everything that was measured."""
        return float(self.encode[0] + self.graph[0] + self.backward[0])


@dataclass(frozen=True)
class Line:
    """Costs [n] measured at two sizes, the smaller first, or at one if there was nothing smaller to measure."""

    points: Sequence[tuple[int, NDArray[np.float64]]]

    @property
    def size(self) -> int:
        """The larger of the sizes."""
        return self.points[-1][0]

    def at(self, size: float) -> NDArray[np.float64]:
        """On the line through both points; in proportion to one, or where noise lets the line fall."""
        (smaller, low), (larger, high) = self.points[0], self.points[-1]
        proportional = high * (size / larger)
        if smaller == larger:
            return proportional
        slope = (high - low) / (larger - smaller)
        return np.where(slope < 0, proportional, np.maximum(high + slope * (size - larger), 0))


@dataclass(frozen=True)
class TowerCosts:
    """What micro-batches cost a tower: a line over padded tokens for each measured length of texts."""

    lines: Sequence[tuple[int, Line]]  # by rising length
    gradient_bytes: int  # of its weights
    kept: float = 0.0  # what the allocator keeps of other micro-batches, as a share of the largest one's bytes

    def of(self, texts: int, longest: int) -> MicroBatchCost:
        """The cost of a micro-batch; between two measured lengths, between theirs."""
        tokens = texts * max(longest, 1)
        lengths = [length for length, _ in self.lines]
        place = float(np.interp(longest, lengths, np.arange(len(lengths))))
        low = min(int(place), len(lengths) - 1)
        high = min(low + 1, len(lengths) - 1)
        below, above = (self.lines[at][1].at(tokens) for at in (low, high))
        return unpacked(below + (above - below) * (place - low))


def packed(cost: MicroBatchCost) -> NDArray[np.float64]:
    """One cost as numbers in a row [9], ready for a line."""
    return np.concatenate([cost.encode, cost.graph, cost.backward, cost[3:]])


def unpacked(numbers: NDArray[np.float64]) -> MicroBatchCost:
    """The cost that `packed` made numbers of."""
    return MicroBatchCost(numbers[0:2], numbers[2:4], numbers[4:6], *map(float, numbers[6:]))


RUN_SECONDS = 5.0  # a micro-batch that would take longer is measured in part
REPEAT_SECONDS = 2.0  # what takes less is measured more than once
TOWER_REPEATS = 9
SHAPES = 4  # micro-batches of a tour
POOL = 4096  # vectors kept of a measured micro-batch


def measure_tower(
    encoder: Encoder, texts: DistinctTexts, token_budget: int, meter: Meter, tell: Callable[[], None]
) -> tuple[TowerCosts, Tensor]:
    """What micro-batches cost an encoder, and some vectors it made; the weights keep their gradients."""
    every = micro_batches(texts.lengths, token_budget)
    # By falling length: the first, a middle and a late one, as the last is a remainder; all if there are few.
    parts = every if len(every) <= 3 else [every[0], every[len(every) // 2], every[-2]]
    bench = Bench(encoder, texts, meter, fresh_gradients=len(every) == 1)
    bench.once(parts[0][:8])  # libraries load, threads start
    lines: dict[int, Line] = {}
    for part in parts:
        longest = int(texts.lengths[part[0]])
        if longest not in lines:  # the first of a length is a full one
            lines[longest] = _line(bench, part, max(longest, 1))
        tell()
    spread = np.unique(np.linspace(0, len(every) - 1, SHAPES).astype(int))
    kept = bench.kept_by_a_tour([every[place] for place in spread]) if len(every) > 1 else 0.0
    return TowerCosts(sorted(lines.items()), bench.gradient_bytes(), kept), torch.cat(bench.vectors)


def _line(bench: "Bench", part: NDArray[np.int64], longest: int) -> Line:
    """A micro-batch measured at a quarter of its texts, then whole or as much of it as takes a moment."""
    few = part[: max(1, len(part) // 4)]
    smaller = bench.measure(few)
    most = part[: max(len(few), int(RUN_SECONDS * len(few) / smaller.clock))]
    points = [(len(few) * longest, packed(smaller))]
    if len(most) > len(few):
        points.append((len(most) * longest, packed(bench.measure(most))))
    return Line(points)


class Bench:
    """Encodes micro-batches with one encoder and measures it."""

    def __init__(self, encoder: Encoder, texts: DistinctTexts, meter: Meter, *, fresh_gradients: bool) -> None:
        self._encoder = encoder
        self._texts = texts
        self._meter = meter
        # Where several micro-batches add up their gradients, a backward pass finds those of others there.
        self._fresh_gradients = fresh_gradients
        self.vectors: list[Tensor] = []

    def measure(self, rows: NDArray[np.int64]) -> MicroBatchCost:
        """The cost of a micro-batch of these texts: bytes of one run, and seconds of the middle one of several."""
        first = self.once(rows, settled=True)
        runs = [first]
        while len(runs) <= TOWER_REPEATS and sum(run.clock for run in runs) < REPEAT_SECONDS:
            runs.append(self.once(rows))
        again = runs[1:] or runs
        return first._replace(
            encode=median_seconds([run.encode for run in again]),
            graph=median_seconds([run.graph for run in again]),
            backward=median_seconds([run.backward for run in again]),
        )

    def once(self, rows: NDArray[np.int64], *, settled: bool = False) -> MicroBatchCost:
        """Seconds of one run; its bytes only if memory is settled before, which costs time."""
        meter, device = self._meter, self._meter.device
        if self._fresh_gradients:
            self._encoder.zero_grad(set_to_none=True)
        for table in row_tables(self._encoder).values():
            table.forget_gradients()  # no micro-batch adds to another's
        vectors = next(self._encoder.parameters()).new_zeros(len(rows), self._encoder.dimension)
        positions = torch.arange(len(rows), device=device)
        before = meter.settle() if settled else 0
        with torch.no_grad():
            encode = timed(lambda: vectors.index_copy_(0, positions, self._forward(rows)), device)
        encode_bytes = meter.peak() - before
        if settled:
            self.vectors.append(vectors[torch.randperm(len(rows), device=device)[:POOL]])
        before, gradients = meter.settle() if settled else 0, self.gradient_bytes()
        made: list[Tensor] = []
        graph = timed(lambda: made.append(self._forward(rows)), device)
        graph_bytes = meter.held() - before
        backward = timed(lambda: made.pop().backward(vectors[positions]), device)  # type: ignore[no-untyped-call]
        replay_bytes = meter.peak() - before - (self.gradient_bytes() - gradients)
        return MicroBatchCost(encode, graph, backward, encode_bytes, graph_bytes, replay_bytes)

    def kept_by_a_tour(self, parts: Sequence[NDArray[np.int64]]) -> float:
        """What micro-batches of many shapes leave in the heap, as a share of what the first needs alone.

        Freed blocks of one shape seldom fit the next, so a whole step comes to hold more than its largest micro-batch.
        """
        before = self._meter.settle()
        self.once(parts[0])
        alone = self._meter.peak() - before
        before = self._meter.settle()
        for part in (*parts, parts[0]):
            self.once(part)
        return max(0.0, (self._meter.peak() - before) / max(alone, 1) - 1)

    def gradient_bytes(self) -> int:
        """Of the weights that have a gradient, and of all rows of a table."""
        dense = sum(weight.grad.nbytes for weight in self._encoder.parameters() if weight.grad is not None)
        return dense + sum(table.weight.nbytes for table in row_tables(self._encoder).values())

    def _forward(self, rows: NDArray[np.int64]) -> Tensor:
        ids, offsets = self._texts.fetch(rows)
        return self._encoder(ids.to(self._meter.device), offsets.to(self._meter.device))


LABELS = (2048, 8192)  # whose tiles of scores are measured
QUERIES_SEARCHED = 2048
REPEATS = 5
COPIES_TO_SAVE = 2  # of the weights, when training/loop.py writes the best ones so far


@dataclass(frozen=True)
class EvaluationCosts:
    """What comes after the vectors of an evaluation."""

    search: Seconds  # a score
    search_bytes: int
    report: Seconds
    report_bytes: int


@dataclass(frozen=True)
class Calibration:
    """What was measured: all that a prediction needs besides the work."""

    building: int  # bytes held at most before the first step
    base: int  # bytes held throughout: program, data, weights
    towers: Sequence[TowerCosts]  # the queries' and the labels', or the one that is shared
    state_bytes: int  # the optimizer's
    saving_bytes: int  # copies of the weights made to write them
    vector_bytes: int  # of one
    finding: Seconds  # the distinct texts of a step
    optimizer: Seconds
    loss: Line  # over labels: seconds [2], and bytes beyond the labels' vectors and gradients
    batch_size: int  # of that loss
    tile: int
    evaluation: EvaluationCosts | None = None


def calibrate(
    run: Run,
    settings: StepSettings,
    workload: Workload,
    rows: NDArray[np.int64],
    *,
    meter: Meter,
    building: int,
    foreign: int = 0,
    tell: Advance = lambda done, total: None,
) -> Calibration:
    """Measures the run's parts with a batch of these queries; `foreign` bytes are the planner's, not the run's."""
    run.towers.train()
    play = workload.in_play(rows)
    finding = _middle(lambda: workload.in_play(rows), meter)
    encoders = [run.towers.query, run.towers.label][: len(play.encoded)]
    done, total = iter(range(1, 100)), 3 * len(encoders) + 3
    measured = [
        measure_tower(encoder, texts, settings.token_budget, meter, lambda: tell(next(done), total))
        for encoder, texts in zip(encoders, play.encoded, strict=True)
    ]
    optimizer = _update(run, settings, meter)
    state = [tensor for state in run.optimizer.state.values() for tensor in state.values()]
    state_bytes = sum(tensor.nbytes for tensor in state)
    run.optimizer.zero_grad(set_to_none=True)
    run.optimizer.state.clear()
    del state
    tell(next(done), total)
    queries, labels = measured[0][1], measured[-1][1]
    loss = _loss(run, settings, rows, queries, labels, meter)
    tell(next(done), total)
    evaluation = _evaluation(run.evaluator, queries, labels, len(run.data.labels), meter) if run.evaluator else None
    tell(total, total)
    towers, on_cpu = [costs for costs, _ in measured], meter.device.type == "cpu"
    vector_bytes = queries.element_size() * run.towers.dimension
    del queries, labels, measured
    return Calibration(
        building=building,
        base=meter.settle() - foreign,
        towers=towers,
        state_bytes=state_bytes,
        saving_bytes=COPIES_TO_SAVE * sum(weight.nbytes for weight in run.towers.parameters()) if on_cpu else 0,
        vector_bytes=vector_bytes,
        finding=finding,
        optimizer=optimizer,
        loss=loss,
        batch_size=len(rows),
        tile=min(settings.tile or even_tile(len(rows), loss.size), loss.size),
        evaluation=evaluation,
    )


def _middle(work: Callable[[], object], meter: Meter) -> Seconds:
    return median_seconds([timed(work, meter.device) for _ in range(REPEATS)])


def _update(run: Run, settings: StepSettings, meter: Meter) -> Seconds:
    """Clipping and an update of all weights, with the gradients that are there."""

    def give_rows_gradients() -> None:  # an update takes them away
        for table in row_tables(run.towers).values():
            rows = torch.arange(table.shard.start, table.shard.stop, device=meter.device)
            table.forget_gradients()
            table(rows).backward(torch.zeros_like(table.weight))

    def update() -> Seconds:
        give_rows_gradients()
        return timed(update_once, meter.device)

    def update_once() -> None:
        clip_gradients_(run.optimizer, settings.clip_norm or float("inf"), World())
        run.optimizer.step()

    update()  # makes the optimizer's state
    return median_seconds([update() for _ in range(REPEATS)])


def _loss(
    run: Run, settings: StepSettings, rows: NDArray[np.int64], queries: Tensor, labels: Tensor, meter: Meter
) -> Line:
    """Loss and gradients at the vectors, at two numbers of labels."""
    counts = sorted({min(count, len(run.data.labels)) for count in LABELS})
    return Line(
        [
            (count, _loss_of(run, settings, rows, _drawn(queries, len(rows)), _drawn(labels, count), meter))
            for count in counts
        ]
    )


def _loss_of(
    run: Run, settings: StepSettings, rows: NDArray[np.int64], queries: Tensor, labels: Tensor, meter: Meter
) -> NDArray[np.float64]:
    """Seconds [2], and bytes beyond the labels' gradients; the batch's own pairs, on fewer labels."""
    pulled = _pairs(run.data.relevance, rows, settings.positives_per_query, labels)
    relevant = _pairs(run.data.relevance, rows, None, labels)
    filtered = _pairs(run.data.filtered, rows, None, labels)
    targets = Targets(pulled, relevant, len(rows), reduction=settings.reduction)

    def backpropagate() -> None:
        queries.grad = labels.grad = None
        scores = Scores(queries, labels, temperature=settings.temperature, filtered=filtered, tile=settings.tile)
        run.objective(scores, targets).backward()  # type: ignore[no-untyped-call]

    backpropagate()
    queries.grad = labels.grad = None
    before = meter.settle()
    backpropagate()
    extra = meter.peak() - before - labels.nbytes
    return np.array([*_middle(backpropagate, meter), max(extra, 0)])


def _pairs(relevance: Relevance, rows: NDArray[np.int64], limit: int | None, labels: Tensor) -> Pairs:
    """The batch's pairs, with labels taken modulo the number there are here."""
    query, label, _ = draw_positives(relevance, rows, limit, np.random.default_rng(0))
    return Pairs(*(torch.from_numpy(part).to(labels.device) for part in (query, label % len(labels))))


def _drawn(pool: Tensor, count: int) -> Tensor:
    """So many vectors drawn from those there are, ready for gradients."""
    return pool[torch.randint(len(pool), (count,), device=pool.device)].detach().requires_grad_()


def _evaluation(evaluator: Evaluator, queries: Tensor, labels: Tensor, count: int, meter: Meter) -> EvaluationCosts:
    """Search for some queries among some labels, and the report of a ranking as large as the split's."""
    best, split = max(evaluator.at), len(evaluator.split)
    some_queries = _drawn(queries, min(split, QUERIES_SEARCHED)).detach()
    some_labels = _drawn(labels, max(min(count, LABELS[-1]), best)).detach()
    before = meter.settle()
    top_k(some_queries, some_labels, best)
    search_bytes = meter.peak() - before
    search = _middle(lambda: top_k(some_queries, some_labels, best), meter) / (len(some_queries) * len(some_labels))
    before = meter.settle()
    firsts = np.arange(split, dtype=np.int32)[:, None]
    rows = ((firsts + np.arange(best, dtype=np.int32)) % count).astype(np.int32)
    ranking = Ranking(rows, np.zeros(rows.shape, dtype=np.float32), count)
    report = timed(lambda: evaluator.report(ranking, bootstrap=0), meter.device)
    report_bytes = meter.peak() - before
    return EvaluationCosts(search, search_bytes, report, report_bytes)
