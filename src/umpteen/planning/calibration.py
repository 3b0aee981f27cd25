"""Short measurements on this machine: micro-batches of real texts, tiles of scores, the optimizer, search and report.

What is measured is what a step does, with the run's own objects, at the sizes of the run where these take a moment and
at smaller ones otherwise. The weights are not the same afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.assemble import Run
from umpteen.data.batches import draw_positives
from umpteen.data.relevance import Relevance
from umpteen.encoders.row_table import row_tables
from umpteen.judge import Judge
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs, Targets
from umpteen.objectives.tiles import even_tile
from umpteen.parallel.world import World
from umpteen.planning.costs import Line, TowerCosts, median_seconds
from umpteen.planning.meter import Meter, Seconds, timed
from umpteen.planning.tower_costs import measure_tower
from umpteen.planning.workload import Workload
from umpteen.retrieval.exact import top_k
from umpteen.retrieval.ranking import Ranking
from umpteen.training.row_optimizer import clip_gradients_
from umpteen.training.step import StepSettings

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
    tell: Callable[[int, int], None] = lambda done, total: None,
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
    evaluation = _evaluation(run.judge, queries, labels, len(run.data.labels), meter) if run.judge else None
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


def _evaluation(judge: Judge, queries: Tensor, labels: Tensor, count: int, meter: Meter) -> EvaluationCosts:
    """Search for some queries among some labels, and the report of a ranking as large as the split's."""
    best, split = max(judge.at), len(judge.split)
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
    report = timed(lambda: judge.report(ranking, bootstrap=0), meter.device)
    report_bytes = meter.peak() - before
    return EvaluationCosts(search, search_bytes, report, report_bytes)
