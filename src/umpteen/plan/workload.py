"""What each process has to do in a step and in an evaluation: its micro-batches, exactly, from the real tokens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.data.tokens import TokenTable
from umpteen.encoders.encode import micro_batches
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World
from umpteen.training.inputs import InPlay, TextsInPlay


class MicroBatch(NamedTuple):
    """So many texts, each padded to the longest of them."""

    texts: int
    longest: int


@dataclass(frozen=True)
class TowerWork:
    """The distinct texts a tower encodes, by their lengths."""

    lengths: NDArray[np.int64]
    of_queries: float = 0.0  # share of their tokens; the others are labels'

    def micro_batches(self, token_budget: int) -> Counter[MicroBatch]:
        """How many micro-batches of each shape the texts fill."""
        return Counter(
            MicroBatch(len(part), int(self.lengths[part[0]])) for part in micro_batches(self.lengths, token_budget)
        )


@dataclass(frozen=True)
class StepWork:
    """One process's part of a step."""

    towers: Sequence[TowerWork]  # one if shared
    queries: int  # the whole batch, whose vectors every process gets
    labels: int  # of this process
    label_texts: int  # distinct ones
    own_queries: int = 0  # of this process; 0 stands for all of them

    @property
    def labels_are_copied(self) -> bool:
        """Whether some labels share a text: then vectors and gradients of labels stand beside those of texts."""
        return self.label_texts < self.labels


@dataclass(frozen=True)
class EvaluationWork:
    """One process's part of an evaluation, where every label is encoded, distinct or not."""

    queries: TowerWork  # this process's share
    labels: TowerWork
    all_queries: int
    best: int  # labels kept of each query


class Workload:
    """The work of all processes."""

    def __init__(
        self,
        queries: TokenTable,
        labels: TokenTable,
        *,
        shared: bool,
        processes: int = 1,
        validation: TokenTable | None = None,
        best: int = 1,
    ) -> None:
        self.worlds = [World(rank, processes) for rank in range(processes)]
        self._labels = labels
        self._shared = shared
        self._validation = validation
        self._best = best
        shards = [Shard(world, len(labels)) for world in self.worlds]
        self._texts = [
            TextsInPlay(queries, labels.take(np.arange(shard.start, shard.stop)), shared=shared) for shard in shards
        ]

    def in_play(self, rows: NDArray[np.int64], rank: int = 0) -> InPlay:
        """The texts of a process in a step over these queries."""
        return self._texts[rank].in_play(rows[Shard(self.worlds[rank], len(rows)).rows])

    def step(self, rows: NDArray[np.int64]) -> list[StepWork]:
        """Each process's part of a step over these queries."""
        return [self._step(rows, rank) for rank in range(len(self.worlds))]

    def _step(self, rows: NDArray[np.int64], rank: int) -> StepWork:
        play = self.in_play(rows, rank)
        labels = len(Shard(self.worlds[rank], len(self._labels)))
        texts = labels if isinstance(play.labels, slice) else int(play.labels.max()) + 1
        if self._shared:
            (everything,) = play.encoded
            tokens = max(int(everything.lengths.sum()), 1)
            towers = [TowerWork(everything.lengths, float(everything.lengths[texts:].sum() / tokens))]
        else:
            towers = [TowerWork(play.encoded[0].lengths, 1.0), TowerWork(play.encoded[1].lengths)]
        return StepWork(towers, len(rows), labels, texts, len(Shard(self.worlds[rank], len(rows))))

    def evaluation(self) -> list[EvaluationWork]:
        """Each process's part of an evaluation; none where there is nothing to evaluate."""
        if self._validation is None:
            return []
        return [
            EvaluationWork(
                TowerWork(self._validation.lengths[Shard(world, len(self._validation)).rows], 1.0),
                TowerWork(self._labels.lengths[Shard(world, len(self._labels)).rows]),
                len(self._validation),
                self._best,
            )
            for world in self.worlds
        ]
