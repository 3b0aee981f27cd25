"""Evaluates a model on a split: encodes, searches all labels, drops filtered pairs, computes the metrics.

The same code evaluates validation during training and test at the end.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from umpteen.data.dataset import Dataset, Split
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.encoders.encode import encode_tokens
from umpteen.encoders.encoder import Encoder
from umpteen.errors import BadConfig, BadInput
from umpteen.evaluation.metrics import USUAL, Terms, inverse_propensities, metric_terms
from umpteen.evaluation.report import USUAL_KS, Report, evaluate, scored_part
from umpteen.parallel.world import Shard, World
from umpteen.rerank.ranker import Ranker
from umpteen.search.exact import top_k
from umpteen.search.ranking import Ranking


class Evaluator:
    """One split, and what its metrics are computed with: the k, the propensities, the training set's counts."""

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        *,
        at: tuple[int, ...] = USUAL_KS,
        a: float = USUAL[0],
        b: float = USUAL[1],
        as_published: bool = False,
    ) -> None:
        train = _whole_train(dataset)
        self.split = split
        self.at = tuple(k for k in at if k <= len(dataset.labels)) or (1,)
        self._counts = train.relevance.label_counts()
        self._train_queries = len(train)
        self._a, self._b, self._as_published = a, b, as_published
        self._tokens: dict[str, TokenTable] = {}

    def require(self, metric: str) -> None:
        """Refuses a metric that the reports will not have."""
        there = [f"{name}@{k}" for name in ("P", "nDCG", "R", "PSP", "PSnDCG") for k in self.at]
        if metric not in there:
            raise BadConfig(f"evaluation.metric = {metric!r}: there is {', '.join(there)}")

    def require_positives(self) -> None:
        """Refuses a split in which there is nothing to find."""
        if self.split.relevance.without(self.split.filtered).pairs == 0:
            raise BadInput(f"none of the {len(self.split):,} validation queries has a label; hold out more of train")

    def rank(
        self,
        encoder: Encoder,
        label_vectors: Tensor,
        *,
        token_budget: int | None = None,
        shard: Shard | None = None,
        ranker: Ranker | None = None,
        hidden: NDArray[np.int64] | None = None,
        at_least: int = 1,
    ) -> Ranking:
        """The best labels of each query of the split, filtered pairs and hidden label rows left out.

        As many as the largest k, or `at_least` if that is more.

        With a shard of the labels, processes share the queries to encode and the labels to search.
        A ranker, if there is one, puts the first labels in order.
        """
        tokenizer = encoder.tokenizer
        if tokenizer.fingerprint not in self._tokens:
            self._tokens[tokenizer.fingerprint] = tokenise(self.split.texts, tokenizer)
        tokens = self._tokens[tokenizer.fingerprint]
        queries = Shard(World() if shard is None else shard.world, len(tokens))
        own = tokens if len(queries) == len(tokens) else tokens.take(np.arange(queries.start, queries.stop))
        vectors = queries.gather(encode_tokens(encoder, own, token_budget=token_budget))
        wanted = max(*self.at, at_least)
        width = max(wanted, ranker.settings.candidates if ranker else 1)
        filtered = self.split.filtered.matrix
        dense = top_k(vectors, label_vectors, width, shard=shard, excluding=filtered, hidden=hidden)
        if ranker is None:
            return dense
        return ranker.rerank(self.split.texts, vectors.cpu().numpy(), dense).head(wanted)

    def report(self, ranking: Ranking, *, bootstrap: int = 1000) -> Report:
        """The metrics of a ranking of the split's queries, with 95 % intervals unless bootstrap is 0."""
        return evaluate(
            ranking,
            self.split.relevance.matrix,
            filtered=self.split.filtered.matrix,
            label_counts=self._counts,
            train_queries=self._train_queries,
            ks=self.at,
            a=self._a,
            b=self._b,
            bootstrap=bootstrap,
            as_published=self._as_published,
        )

    def terms(self, ranking: Ranking) -> dict[str, Terms]:
        """The metrics of a ranking query by query, for paired comparisons with another ranking of the split."""
        scored, truth, _ = scored_part(
            ranking, self.split.relevance.matrix, self.split.filtered.matrix, as_published=self._as_published
        )
        inverse = inverse_propensities(self._counts, self._train_queries, self._a, self._b)
        return metric_terms(scored, truth, inverse, self.at)


def _whole_train(dataset: Dataset) -> Split:
    """Propensities and deciles count the training set as it was before validation was taken from it."""
    return dataset.with_validation_in_train().train if dataset.validation_was_taken else dataset.train
