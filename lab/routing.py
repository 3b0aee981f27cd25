"""A search learned with the encoder (the paper's future work): lists of labels whose choice is trained, beside HNSW.

Labels lie in balanced lists; a query is compared with the lists' centres, then with the labels of the best lists.
Centres are those of k-means over the label vectors (what IVF of FAISS does), or learned by the recipe's objective one
level up: a list is right for a query if one of its right labels lies there. They are learned over finished towers, or
along with them from the first step on, and after every epoch labels move to the list that their texts and their
training queries point to.

What is judged is the search alone: the share of the labels of exact search, of the same towers, that is found, against
the share of vectors that is compared, centres included. Test queries, of which nothing is chosen.
"""

import math
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lab.comparison import Outcomes, written
from lab.experiment import Conclusion, Job, Setup, claim_better
from lab.figures import Curve, Lines
from lab.training import TINY, Design, Steps, Trained, Workbench
from umpteen.encoders.encoder import encode_tokens, normalised, tokens_for
from umpteen.objectives import Pairs, Scores, Targets, decoupled_softmax
from umpteen.search.exact import top_k
from umpteen.search.faiss import HNSW, FaissIndex
from umpteen.search.index import Effort, LiveVectors
from umpteen.training.build import Run, build_run
from umpteen.training.step import pairs_of

GRAPH, LISTS, AFTERWARDS, ALONG = "HNSW", "lists", "routing, afterwards", "routing, along"
VARIANTS = (GRAPH, LISTS, AFTERWARDS, ALONG)
WANTED = 10  # labels of exact search to be found
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.4)  # of all labels, that may be compared
ENOUGH = (0.95, 0.99)  # recall
ROUNDS, BATCH, EPOCHS, RATE = 10, 512, 5, 3e-3  # of k-means; of learning over finished towers
ADDED = 1000
DESIGNS = {
    "tiny": Design(TINY.queries, TINY.labels, (*TINY.settings, "training.epochs=1")),
    "small": Design(20_000, 1_000_000, ("encoder.query.bigrams=0", "training.batch_size=512", "training.epochs=3")),
    "paper": Design(),
}


class Space(NamedTuple):
    """The vectors of one pair of towers, and which label is right for which training query."""

    labels: Tensor  # [L, d]
    train: Tensor  # [n, d]
    test: Tensor  # [T, d]
    pairs: Pairs  # of training queries and labels

    def places(self) -> Tensor:
        """Where each label belongs by its text and by the training queries it has, half and half."""  # [L, d]
        sums = torch.zeros_like(self.labels).index_add_(0, self.pairs.label, self.train[self.pairs.query])
        return normalised(normalised(self.labels) + normalised(sums))


class Lists(NamedTuple):
    centres: Tensor  # [C, d]
    of_label: Tensor  # int64 [L]


def begin(setup: Setup) -> Job:
    """The same towers searched in four ways; those of the last have learned with their lists."""
    bench = Workbench(setup, dict.fromkeys(VARIANTS, ()), DESIGNS)

    @lru_cache(maxsize=1)
    def plainly(seed: int) -> tuple[Space, dict[str, Any]]:
        trained = bench.train(LISTS, seed)  # of which the graph and the routing afterwards are searches, too
        return space_of(trained.run), trained.metrics()

    def make(variant: str, seed: int) -> dict[str, Any]:
        if variant == ALONG:
            trained, learned = trained_along(bench, seed)
            return found_by(variant, space_of(trained.run), seed, learned) | trained.metrics()
        space, metrics = plainly(seed)
        return found_by(variant, space, seed) | metrics

    return Job(bench.settings, list(VARIANTS), make, conclude, data=bench.name)


def found_by(variant: str, space: Space, seed: int, learned: Lists | None = None) -> dict[str, Any]:
    """Recall against the share of vectors compared; processor seconds of building and of a thousand labels more."""
    exact = torch.from_numpy(top_k(space.test, space.labels, WANTED).rows.astype(np.int64))
    newcomers = normalised(space.labels[:ADDED] + space.labels[-ADDED:])
    began = time.process_time()
    if variant == GRAPH:
        index = FaissIndex.over(HNSW, LiveVectors(space.labels), Effort(WANTED, WANTED, WANTED))
        built = time.process_time()
        compared, recalls = graph_curve(index, space.test, exact)
        before = time.process_time()
        index._index.add(index._padded(newcomers.numpy()))
    else:
        lists = learned or k_means(space.labels, seed)
        if variant == AFTERWARDS:
            lists = learned_over(space, lists, seed)
        built = time.process_time()
        compared, recalls = lists_curve(lists, space, exact)
        before = time.process_time()
        (newcomers @ normalised(lists.centres).T).argmax(1)
    added = time.process_time() - before
    shares = {f"compared at {enough:g}": share_at(enough, compared, recalls) for enough in ENOUGH}
    curve = np.interp(SHARES, compared, recalls).round(4).tolist()
    return {"recall": curve, **shares, "build_seconds": round(built - began, 2), "add_seconds": round(added, 4)}


def share_at(enough: float, compared: NDArray[np.float64], recalls: NDArray[np.float64]) -> float:
    """The percentage of vectors that has to be compared for a recall; 100 if nothing less reaches it."""
    return round(100 * float(np.interp(enough, recalls, compared, right=1.0)), 3)


def lists_curve(lists: Lists, space: Space, exact: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares compared when the best lists are opened one after another, and the mean recall at each."""
    sizes = torch.bincount(lists.of_label, minlength=len(lists.centres))
    costs = []
    for queries, wanted in zip(torch.split(space.test, 1024), torch.split(exact, 1024), strict=True):
        order = (queries @ normalised(lists.centres).T).argsort(1, descending=True)
        reached = torch.empty_like(order).scatter_(1, order, sizes[order].cumsum(1))  # labels compared, list included
        costs.append(reached.gather(1, lists.of_label[wanted]))
    every = np.sort(torch.cat(costs).double().add(len(lists.centres)).div(len(space.labels)).numpy().ravel())
    return every, np.arange(1, len(every) + 1) / len(every)


def graph_curve(index: FaissIndex, queries: Tensor, exact: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same of HNSW, by the vectors it says it compared."""
    import faiss

    compared, recalls = [], []
    library: Any = faiss.cvar
    statistics, count = library.hnsw_stats, len(index.labels)
    for breadth in Effort.doubling(WANTED, min(count, 4096)):
        statistics.reset()
        rows = torch.from_numpy(index.candidates(queries, Effort(WANTED, breadth, WANTED)))
        compared.append(statistics.ndis / len(queries) / count)
        recalls.append(float((exact[:, :, None] == rows[:, None, :]).any(2).double().mean()))
    return np.array(compared), np.maximum.accumulate(recalls)


def k_means(vectors: Tensor, seed: int) -> Lists:
    """Balanced lists around centres of directions."""
    generator = torch.Generator().manual_seed(seed)
    count = max(2, int(math.sqrt(len(vectors))))
    centres = vectors[torch.randperm(len(vectors), generator=generator)[:count]].clone()
    for _ in range(ROUNDS):
        of_label = balanced(vectors, centres)
        centres = normalised(torch.zeros_like(centres).index_add_(0, of_label, vectors))
    return Lists(centres, balanced(vectors, centres))


def balanced(vectors: Tensor, centres: Tensor) -> Tensor:
    """Each vector's best list that has room for it: at most twice the mean, kept for those that score highest there."""
    scores = vectors @ normalised(centres).T  # [L, C]
    room = torch.full((len(centres),), math.ceil(2 * len(vectors) / len(centres)))
    chosen, free = torch.empty(len(vectors), dtype=torch.int64), torch.arange(len(vectors))
    while len(free):
        score, best = scores[free].max(1)
        order = score.argsort(descending=True, stable=True)
        order = order[best[order].argsort(stable=True)]  # by list, and in a list by score
        wanted = torch.bincount(best, minlength=len(centres))
        place = torch.arange(len(free)) - (wanted.cumsum(0) - wanted)[best[order]]
        inside = place < room[best[order]]
        chosen[free[order[inside]]] = best[order[inside]]
        room -= torch.minimum(wanted, room)
        scores[:, room == 0] = -torch.inf
        free = free[order[~inside]]
    return chosen


def of_lists(pairs: Pairs, of_label: Tensor, count: int) -> Pairs:
    """Pairs of queries and the lists of their labels, each once."""
    distinct = torch.unique(pairs.query * count + of_label[pairs.label])
    return Pairs(distinct // count, distinct % count)


def routing_loss(queries: Tensor, centres: Tensor, pairs: Pairs, temperature: float) -> Tensor:
    """Decoupled softmax over lists."""
    scores = Scores(queries, normalised(centres), temperature=temperature)
    return decoupled_softmax(scores, Targets(pairs, pairs, len(queries)))


def learned_over(space: Space, lists: Lists, seed: int, temperature: float = 0.05) -> Lists:
    """Centres learned over finished vectors; labels move between epochs."""
    centres, of_label, places = nn.Parameter(lists.centres.clone()), lists.of_label, space.places()
    optimizer = torch.optim.AdamW([centres], lr=RATE, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.searchsorted(space.pairs.query, torch.arange(len(space.train) + 1))
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(space.train), generator=generator), BATCH):
            counts = starts[rows + 1] - starts[rows]
            query = torch.repeat_interleave(torch.arange(len(rows)), counts)
            first = torch.repeat_interleave(starts[rows] - counts.cumsum(0) + counts, counts)
            label = space.pairs.label[first + torch.arange(len(query))]
            optimizer.zero_grad()
            pairs = of_lists(Pairs(query, label), of_label, len(centres))
            torch.autograd.backward([routing_loss(space.train[rows], centres, pairs, temperature)])
            optimizer.step()
        of_label = balanced(places, centres.detach())
    return Lists(centres.detach(), of_label)


class Routed(nn.Module):
    """An objective, and the same one level up: the lists are chosen by centres that it learns."""

    def __init__(self, objective: Any, lists: Lists, temperature: float) -> None:
        super().__init__()
        self.centres = nn.Parameter(lists.centres.clone())
        self.of_label = lists.of_label
        self._objective = objective
        self._temperature = temperature

    def forward(self, scores: Scores, targets: Targets) -> Tensor:
        pairs = of_lists(targets.pulled, self.of_label, len(self.centres))
        queries, _ = scores._vectors
        loss: Tensor = self._objective(scores, targets)
        return loss + routing_loss(queries, self.centres, pairs, self._temperature)


class Moving(Steps):
    """Moves labels between lists after every epoch."""

    routed: Routed | None = None
    epoch = 0  # steps

    def stepped(self, record: dict[str, Any]) -> None:
        super().stepped(record)
        if self.routed is not None and self.run is not None and record["step"] % self.epoch == 0:
            vectors = space_of(self.run, with_test=False)
            self.routed.of_label = balanced(vectors.places(), self.routed.centres.detach())


def trained_along(bench: Workbench, seed: int) -> tuple[Trained, Lists]:
    """Towers and lists that learn together, from the lists of the towers as they start; the weights of the end."""
    config, watcher = bench.config(ALONG, seed), Moving(f"{ALONG}, seed {seed}", bench.setup.progress)
    run = build_run(config, workspace=None, observer=watcher)
    lists = k_means(space_of(run, with_test=False).places(), seed)
    routed = Routed(run.step.objective, lists, config.objective.temperature)
    rate = config.optimizer.learning_rate
    run.step.optimizer.add_param_group({"params": [routed.centres], "lr": rate, "peak": rate, "weight_decay": 0.0})
    loop = replace(run.loop, step=replace(run.step, objective=routed), evaluate=None)
    watcher.run, watcher.routed, watcher.epoch = run, routed, run.sampler.batches_per_epoch
    state = loop.run()
    run.towers.eval()
    return Trained(run, config, state, watcher.records), Lists(routed.centres.detach(), routed.of_label)


def space_of(run: Run, *, with_test: bool = True) -> Space:
    """The vectors of a finished or unfinished run."""
    rows = np.arange(len(run.dataset.train))
    tower, test = run.towers.query, torch.empty(0, run.towers.query.dimension)
    if with_test:
        assert run.dataset.test is not None
        test = encode_tokens(tower, tokens_for(tower, run.dataset.test.texts))
    return Space(
        encode_tokens(run.towers.label, run.data.labels),
        encode_tokens(tower, run.data.queries.take(rows)),
        test,
        pairs_of(run.data.relevance.take(rows), torch.device("cpu")),
    )


def conclude(outcomes: Outcomes) -> Conclusion:
    """How much each has to compare, and what learning along costs the towers."""
    asked = "named as future work: a search structure that is learned with the encoder"
    claims = [
        claim_better(
            outcomes,
            f"{better} compares fewer vectors than {worse} at {enough:.0%} of exact search's labels",
            worse,  # the one above is the one that compares more
            better,
            f"compared at {enough:g}",
            paper=asked,
            unit=" %",
        )
        for enough in ENOUGH
        for better, worse in ((AFTERWARDS, LISTS), (ALONG, LISTS), (ALONG, AFTERWARDS), (ALONG, GRAPH))
    ]
    claims.append(
        claim_better(
            outcomes, "learning the lists along helps the towers themselves", ALONG, LISTS, "nDCG@5", paper=asked
        )
    )
    measures = [
        *(f"compared at {enough:g}" for enough in ENOUGH),
        "nDCG@5",
        "P@1",
        "R@10",
        "build_seconds",
        "add_seconds",
    ]
    words = "; ".join(
        f"{name}: {written(outcomes.mean(name, f'compared at {ENOUGH[0]:g}'), ' %')}" for name in outcomes.variants
    )
    return Conclusion(
        claims,
        outcomes.table(measures),
        summary=(
            f"Share of all label vectors compared to find {ENOUGH[0]:.0%} of the {WANTED} best: {words}. Lists as many "
            "as the root of the labels, at most twice as long as the mean; a comparison with a centre counts as one "
            "with a label, and HNSW's are those FAISS counts. The paper searches exactly and leaves this for later."
        ),
        title=f"Labels of exact search found against vectors compared (first {WANTED})",
        panels=[
            Lines(
                {name: Curve(SHARES, np.array(outcomes.values(name, "recall"))) for name in outcomes.variants},
                x="share of label vectors compared",
                y=f"recall of the {WANTED} best",
                log_x=True,
            )
        ],
    )
