"""Micro-batches of real texts through a tower, as the gradient cache sends them: how long, and how much memory."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umpteen.encoders.encoder import Encoder
from umpteen.encoders.row_table import row_tables
from umpteen.encoding import micro_batches
from umpteen.planning.costs import Line, MicroBatchCost, TowerCosts, median_seconds, packed
from umpteen.planning.meter import Meter, timed
from umpteen.training.texts_in_play import DistinctTexts

RUN_SECONDS = 5.0  # a micro-batch that would take longer is measured in part
REPEAT_SECONDS = 2.0  # what takes less is measured more than once
REPEATS = 9
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
        while len(runs) <= REPEATS and sum(run.clock for run in runs) < REPEAT_SECONDS:
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
