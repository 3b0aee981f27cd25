"""From measurements and work to seconds and bytes, and to the largest settings that fit a memory: arithmetic alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from umpteen.objectives.scores import even_tile
from umpteen.parallel.meter import Seconds
from umpteen.plan.measure import Calibration, MicroBatchCost, TowerCosts
from umpteen.plan.workload import EvaluationWork, StepWork, TowerWork

PARTS = ("encode_queries", "encode_labels", "loss", "replay", "optimizer")
SAVING = "saving"


# From measurements and work to seconds and bytes: arithmetic alone.
#
# Memory follows a step through its phases: what each holds at most beyond what is always there, as training/step.py and
# training/gradient_cache.py allocate it. Communication between processes is not in it.
class Sizes(NamedTuple):
    """The settings that trade memory against speed."""

    batch_size: int
    token_budget: int
    tile: int | None


@dataclass(frozen=True)
class Prediction:
    """Of the process that takes longest, and of the one that needs most."""

    seconds: dict[str, Seconds]  # of a step, by part
    evaluation: Seconds
    memory: dict[str, int]  # bytes at most held, by phase

    @property
    def step(self) -> Seconds:
        return _total(self.seconds.values())

    @property
    def peak(self) -> int:
        return max(self.memory.values())


def predict(
    batches: Sequence[Sequence[StepWork]],  # of some steps, each process's part
    evaluation: Sequence[EvaluationWork],
    calibration: Calibration,
    sizes: Sizes,
    *,
    replay_fraction: float | None = None,
) -> Prediction:
    """What a step and an evaluation take; a step waits for the process that takes longest."""
    steps = [
        max(
            (step_seconds(work, calibration, sizes, replay_fraction=replay_fraction) for work in processes),
            key=lambda parts: float(_total(parts.values())[0]),
        )
        for processes in batches
    ]
    evaluations = [evaluation_seconds(work, calibration, sizes) for work in evaluation]
    return Prediction(
        {part: _total(step[part] for step in steps) / len(steps) for part in PARTS},
        max(evaluations, key=lambda seconds: float(seconds[0]), default=np.zeros(2)),
        memory(batches, evaluation, calibration, sizes, thinned=replay_fraction is not None),
    )


def memory(
    batches: Sequence[Sequence[StepWork]],
    evaluation: Sequence[EvaluationWork],
    calibration: Calibration,
    sizes: Sizes,
    *,
    thinned: bool = False,
) -> dict[str, int]:
    """Bytes at most held in each phase, by the process that needs most."""
    works = [work for processes in batches for work in processes]
    found = [step_memory(work, calibration, sizes, thinned=thinned) for work in works]
    found += [evaluation_memory(work, calibration, sizes) for work in evaluation]
    phases = dict.fromkeys(phase for each in found for phase in each)
    return {phase: max(each.get(phase, 0) for each in found) for phase in phases}


@dataclass(frozen=True)
class MicroBatches:
    """A tower's micro-batches by their costs, and how many cost the same."""

    tower: TowerCosts
    work: TowerWork
    costs: Sequence[tuple[MicroBatchCost, int]]

    @classmethod
    def of(cls, tower: TowerCosts, work: TowerWork, token_budget: int) -> Self:
        shapes = work.micro_batches(token_budget)
        return cls(tower, work, [(tower.of(*shape), count) for shape, count in shapes.items()])

    @property
    def only(self) -> MicroBatchCost | None:
        """The cost of a single micro-batch, which keeps its graph and is not encoded a second time."""
        return self.costs[0][0] if [count for _, count in self.costs] == [1] else None

    def seconds(self, what: Callable[[MicroBatchCost], Seconds]) -> Seconds:
        """Of all of them."""
        return _total(what(cost) * count for cost, count in self.costs)

    def most(self, what: Callable[[MicroBatchCost], float]) -> float:
        """Of any of them."""
        return max((what(cost) for cost, _ in self.costs), default=0)


def _towers(work: StepWork, calibration: Calibration, sizes: Sizes) -> list[MicroBatches]:
    pairs = zip(calibration.towers, work.towers, strict=True)
    return [MicroBatches.of(tower, texts, sizes.token_budget) for tower, texts in pairs]


def step_seconds(
    work: StepWork, calibration: Calibration, sizes: Sizes, *, replay_fraction: float | None = None
) -> dict[str, Seconds]:
    """Seconds of one process's part of a step."""
    queries, labels, replay = calibration.finding, np.zeros(2), np.zeros(2)
    for tower in _towers(work, calibration, sizes):
        of_queries = tower.work.of_queries
        if tower.only:
            encode, again = tower.only.graph, tower.only.backward
        else:
            share = 1.0 if replay_fraction is None else of_queries + (1 - of_queries) * replay_fraction
            encode = tower.seconds(lambda cost: cost.encode)
            again = tower.seconds(lambda cost: cost.graph + cost.backward) * share
        queries = queries + encode * of_queries
        labels = labels + encode * (1 - of_queries)
        replay = replay + again
    loss = calibration.loss.at(work.labels)[:2]
    return dict(zip(PARTS, (queries, labels, loss, replay, calibration.optimizer), strict=True))


def step_memory(work: StepWork, calibration: Calibration, sizes: Sizes, *, thinned: bool = False) -> dict[str, int]:
    """Bytes that one process holds at most in each phase of a step."""
    always = calibration.base + calibration.state_bytes
    vector = calibration.vector_bytes
    towers = _towers(work, calibration, sizes)
    held, encoding = 0.0, 0.0
    for tower in towers:
        held += len(tower.work.lengths) * vector
        encoding = max(encoding, held + tower.most(lambda cost: cost.encode_bytes))
        held += _graph_bytes(tower)
        encoding = max(encoding, held)
    gradients = work.labels * vector * (2 if work.labels_are_copied else 1)
    loss = held + gradients + _loss_bytes(work, calibration, sizes)
    held += (work.label_texts + work.queries) * vector  # gradients at the vectors wait for their replay
    replay = 0.0
    for tower in towers:
        held += tower.tower.gradient_bytes - _graph_bytes(tower)
        replay = max(replay, held + tower.most(lambda cost: cost.replay_bytes) * (1 + tower.tower.kept))
    weights = sum(tower.tower.gradient_bytes for tower in towers)
    phases = {"encoding": encoding, "loss": loss, "replay": replay, "optimizer": weights * (2 if thinned else 1)}
    return {"building": calibration.building, **{name: int(always + extra) for name, extra in phases.items()}}


def _graph_bytes(tower: MicroBatches) -> float:
    """What waits for the backward pass while the loss is computed."""
    return tower.only.graph_bytes if tower.only else 0


def _loss_bytes(work: StepWork, calibration: Calibration, sizes: Sizes) -> float:
    """What scores need, proportional to the queries and to the numbers each has in its vector and in a tile."""
    tile = min(sizes.tile or even_tile(work.queries, work.labels), max(work.labels, 1))
    numbers = calibration.vector_bytes // 4
    growth = work.queries * (tile + numbers) / (calibration.batch_size * (calibration.tile + numbers))
    return float(calibration.loss.at(calibration.loss.size)[2]) * growth


def evaluation_seconds(work: EvaluationWork, calibration: Calibration, sizes: Sizes) -> Seconds:
    """Seconds of one process's part of an evaluation."""
    costs = calibration.evaluation
    assert costs is not None
    encode = _total(towers.seconds(lambda cost: cost.encode) for towers in _evaluated(work, calibration, sizes))
    return encode + costs.search * (work.all_queries * len(work.labels.lengths)) + costs.report


def evaluation_memory(work: EvaluationWork, calibration: Calibration, sizes: Sizes) -> dict[str, int]:
    """Bytes held at most in an evaluation and in saving what is best so far; the weights' gradients are still there."""
    costs = calibration.evaluation
    assert costs is not None
    weights = sum(tower.gradient_bytes for tower in calibration.towers)
    vectors = (work.all_queries + len(work.labels.lengths)) * calibration.vector_bytes
    micro_batch = max(tower.most(lambda cost: cost.encode_bytes) for tower in _evaluated(work, calibration, sizes))
    ranking = work.all_queries * work.best * (8 + 4 + 4)  # keys, rows and scores
    most = max(micro_batch, costs.search_bytes + ranking, costs.report_bytes + ranking)
    always = calibration.base + calibration.state_bytes + weights
    return {"evaluation": int(always + vectors + most), SAVING: always + calibration.saving_bytes}


def _evaluated(work: EvaluationWork, calibration: Calibration, sizes: Sizes) -> list[MicroBatches]:
    sides = (calibration.towers[0], work.queries), (calibration.towers[-1], work.labels)
    return [MicroBatches.of(tower, texts, sizes.token_budget) for tower, texts in sides]


def _total(seconds: Iterable[Seconds]) -> Seconds:
    return sum(seconds, np.zeros(2))


SMALLEST_TILE = 64


def largest_that_fit(
    sizes: Sizes, peak: Callable[[Sizes], int], memory: int, *, usual_tile: int, longest: int
) -> Sizes | None:
    """The settings that lose least and whose peak fits the memory; None if there are none.

    The batch is part of what is learnt; tile and token budget only cost time. No budget is below the longest text,
    which has a micro-batch of its own anyway. `usual_tile` is the one that is chosen where none is set.
    """
    smallest = min(longest, sizes.token_budget)
    for batch_size in _halves(sizes.batch_size, 1):
        found = []
        for tile in _tiles(sizes.tile, usual_tile):

            def fits(budget: int, batch_size: int = batch_size, tile: int | None = tile) -> bool:
                return peak(Sizes(batch_size, budget, tile)) <= memory

            if fits(smallest):
                found.append(Sizes(batch_size, _largest(fits, smallest, sizes.token_budget), tile))
        if found:
            return max(found, key=lambda each: each.token_budget)  # of equals the first, with the largest tile
    return None


def _tiles(tile: int | None, usual: int) -> Iterator[int | None]:
    yield tile
    yield from _halves((tile or usual) // 2, SMALLEST_TILE)


def _halves(number: int, smallest: int) -> Iterator[int]:
    while number >= smallest:
        yield number
        number //= 2


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from low, which fits, to high that fits."""
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
