"""What goes with the losses: batches of queries with many positives, and the figures of a model on such queries."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from sentence_transformers import SparseEncoder
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.nn.functional import normalize

from umpteen.errors import BadInput
from umpteen.evaluation.report import evaluate
from umpteen.functional import Positives, as_pairs
from umpteen.search.exact import top_k


@dataclass
class MultiLabelCollator(BaseDataCollator):  # type: ignore[misc]
    """Batches of queries with lists of positives: `MultiLabelCollator(model.preprocess)`.

    The first column holds the query, the second its positives, further ones negatives, each a text or a list of them.
    The distinct labels of a batch become one column, and `label` the pairs that are right.
    """

    valid_label_columns: list[str] = field(default_factory=list)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        about = {name: features[0][name] for name in ("dataset_name",) if name in features[0]}
        query, positive, *negatives = (name for name in features[0] if name not in about)
        places: dict[str, int] = {}
        pairs = [
            (row, places.setdefault(text, len(places)))
            for row, example in enumerate(features)
            for text in _listed(example[positive])
        ]
        wrong = (text for example in features for name in negatives for text in _listed(example[name]))
        if not (texts := list(dict.fromkeys(chain(places, wrong)))):
            raise BadInput(f"none of {len(features)} rows has a text in {positive!r}; give each query its positives")
        return {
            **super().__call__([{**about, query: example[query]} for example in features]),
            **super().__call__([{**about, positive: text} for text in texts]),
            "label": torch.tensor(pairs, dtype=torch.int64).view(-1, 2),
        }

    def maybe_warn_about_column_order(self, column_names: list[str]) -> None:
        """Nothing: columns are given one at a time here."""


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [text for text in value or () if text is not None]


_LOOK_AHEAD = 64  # queries among which one is sought whose pairs fit into a batch


class QueryBatchSampler(DefaultBatchSampler):  # type: ignore[misc]
    """Batches of pairs in which a query's pairs stand together: give the class as `batch_sampler`.

    All batches but the last are full, so that devices can share them out; a query with more pairs than a batch has
    room for is divided, and so is one where no other fills the last places.
    """

    def __init__(self, dataset: Any, batch_size: int, drop_last: bool, *args: Any, **others: Any) -> None:
        super().__init__(dataset, batch_size, drop_last, *args, **others)
        groups: dict[str, list[int]] = defaultdict(list)
        for row, text in enumerate(dataset[dataset.column_names[0]]):
            groups[text].append(row)
        self._groups, self._rows = list(groups.values()), len(dataset)

    def __iter__(self) -> Iterator[list[int]]:
        if self.generator is not None and self.seed is not None:
            self.generator.manual_seed(self.seed + self.epoch)
        waiting = deque(self._groups[at] for at in torch.randperm(len(self._groups), generator=self.generator).tolist())
        batch: list[int] = []
        while waiting:
            room = self.batch_size - len(batch)
            at = next((at for at, group in enumerate(islice(waiting, _LOOK_AHEAD)) if len(group) <= room), 0)
            group = waiting[at]
            del waiting[at]
            batch += group[:room]
            if len(group) > room:
                waiting.appendleft(group[room:])
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        return self._rows // self.batch_size if self.drop_last else -(-self._rows // self.batch_size)


class MultiLabelEvaluator(BaseEvaluator):  # type: ignore[misc]
    """P, nDCG and R at k of ranking all labels for each query, shares from 0 to 1; with `train` PSP and PSnDCG, too.

    `positives`: the positions of each query's labels, or any other form that `umpteen.functional` takes. `train`: the
    same of the training queries, for how frequent each label is there. Queries without positives are left out.
    """

    def __init__(
        self,
        queries: Sequence[str],
        labels: Sequence[str],
        positives: Positives,
        *,
        train: Positives | None = None,
        ks: Sequence[int] = (1, 3, 5),
        batch_size: int = 32,
        name: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queries, self.labels, self.batch_size, self.name = list(queries), list(labels), batch_size, name
        self.ks = [k for k in ks if 1 <= k <= len(labels)]
        if not self.ks:
            raise BadInput(f"ks {tuple(ks)}: there are {len(labels):,} labels; give a k from 1 to that")
        self.primary_metric = f"nDCG@{max(self.ks)}"
        self._truth = _matrix(positives, (len(queries), len(labels)))
        size = 0 if train is None else train.shape[0] if hasattr(train, "shape") else len(train)
        self._train = None if train is None else _matrix(train, (size, len(labels)))

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        if (similarity := str(model.similarity_fn_name)) not in ("cosine", "dot"):
            raise BadInput(f"the model compares by {similarity}; set model.similarity_fn_name to cosine or dot")
        how = {"batch_size": self.batch_size, "show_progress_bar": False, "convert_to_tensor": True}
        if isinstance(model, SparseEncoder):
            how["convert_to_sparse_tensor"] = False
        queries, labels = model.encode_query(self.queries, **how), model.encode_document(self.labels, **how)
        if similarity == "cosine":
            queries, labels = normalize(queries), normalize(labels)
        train = self._truth if self._train is None else self._train
        counts = np.bincount(train.indices, minlength=len(self.labels))
        asked: dict[str, Any] = {"label_counts": counts, "train_queries": train.shape[0], "ks": self.ks}
        ranking = top_k(queries.float(), labels.float(), max(self.ks))
        found = evaluate(ranking, self._truth, bootstrap=0, **asked).metrics
        known = {name: value / 100 for name, value in found.items() if self._train is not None or "PS" not in name}
        metrics: dict[str, float] = self.prefix_name_to_metrics(known, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics


def _matrix(positives: Positives, shape: tuple[int, int]) -> csr_array:
    query, label = as_pairs(positives, shape)[0]
    return csr_array((np.ones(len(query), np.float32), (query.numpy(), label.numpy())), shape=shape)
