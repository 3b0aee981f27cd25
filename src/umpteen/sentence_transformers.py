"""Losses for queries with many positives, for sentence-transformers' own trainers, and what goes with them.

    loss = DecoupledSoftmaxLoss(model)  # where MultipleNegativesRankingLoss(model) stood

Texts of a batch that have the same tokens are one: a label that stands there twice is one label and is encoded once,
and all that the batch says about a query counts as its positives.
n queries, L labels, d dimensions, p pairs.
"""

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from sentence_transformers import SparseEncoder
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.losses import CachedLossMixin, has_static_embedding_input
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.util import all_gather, cos_sim, dot_score, get_rank, get_world_size, similarity_fct_name
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from umpteen import functional
from umpteen.errors import BadInput
from umpteen.evaluation.report import evaluate
from umpteen.functional import Positives, as_pairs
from umpteen.search.exact import top_k

Features = dict[str, Any]  # of one column, as the model takes them


class _Batch(NamedTuple):
    """A batch without its repetitions."""

    columns: list[tuple[Features, list[int] | None]]  # queries, then labels; whose vectors are taken, None: all
    pairs: Tensor  # [p, 2] what is right: place of the query, place of the label
    keys: Tensor  # [L, 2] which texts the labels are


class ManyPositivesLoss(CachedLossMixin, nn.Module):  # type: ignore[misc]
    """What the losses have in common: inputs are (anchor, positive), (anchor, positive, negative, …), or what
    `MultiLabelCollator` makes of lists of positives.

    `scale`, `similarity_fct` (`cos_sim` or `dot_score`) and `gather_across_devices` are those of
    MultipleNegativesRankingLoss, `mini_batch_size` that of its cached form: the memory of so many texts, at a second
    forward pass. With `labels`, the texts of all labels, positives compete with every one of them, not only with those
    in the batch: all are encoded anew in each step, and shared out over devices if these gather.
    """

    objective: Callable[..., Tensor]  # of queries, labels and positives, as `umpteen.functional` has it

    def __init__(
        self,
        model: Any,
        scale: float = 20.0,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        *,
        labels: Sequence[str] | None = None,
        label_prompt: str | None = None,
        mini_batch_size: int | None = None,
        gather_across_devices: bool = False,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__()
        if similarity_fct not in (cos_sim, dot_score):
            raise BadInput(f"similarity_fct {similarity_fct_name(similarity_fct)}: give cos_sim or dot_score")
        if not scale > 0:
            raise BadInput(f"scale {scale} is not above 0")
        if reduction not in ("mean", "sum"):
            raise BadInput(f"reduction {reduction!r}: give mean or sum, over a query's positives")
        if labels is not None and not len(labels):
            raise BadInput("labels is empty; give the texts of all labels, or leave it out for those of the batch")
        if mini_batch_size is not None and (mini_batch_size < 1 or has_static_embedding_input(model)):
            raise BadInput(f"mini_batch_size {mini_batch_size}: give 1 or more, or None for a model of StaticEmbedding")
        self.model, self.scale, self.similarity_fct, self.reduction = model, scale, similarity_fct, reduction
        self.gather_across_devices, self.label_prompt = gather_across_devices, label_prompt
        self.labels = None if labels is None else sorted(dict.fromkeys(labels), key=len)
        self.uses_gradient_cache = mini_batch_size is not None
        self.mini_batch_size = mini_batch_size  # type: ignore[assignment]
        self._shard: list[tuple[Features, list[bytes]]] = []  # this device's part of the labels, when first needed
        self._known: set[bytes] = set()

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        batch: Any = self._read(list(sentence_features), labels)
        columns = [features for features, _ in batch.columns]
        if self.uses_gradient_cache:
            return self.forward_cached(columns, batch)
        return self.calculate_loss([[self.model(features)["sentence_embedding"]] for features in columns], batch)

    def calculate_loss(self, reps: list[list[Tensor]], labels: Any = None, *, with_backward: bool = False) -> Tensor:
        """The loss of a batch from the vectors of its columns: the form that the gradient cache asks for."""
        batch: _Batch = labels
        columns = zip(map(torch.cat, reps), batch.columns, strict=True)
        queries, *others = (found if rows is None else found[rows] for found, (_, rows) in columns)
        labels, pairs = torch.cat(others), batch.pairs
        if self.gather_across_devices:
            labels, start = _gathered(labels, with_grad=True)
            keys, _ = _gathered(batch.keys.to(labels.device))
            firsts, places = _distinct([tuple(key) for key in keys.tolist()])
            labels = labels[firsts]
            pairs = torch.stack([pairs[:, 0], torch.tensor(places)[start + pairs[:, 1]]], 1)
        loss = self._loss(queries, labels, pairs)
        if with_backward:
            loss.backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
        return loss

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """For SpladeLoss and its like, which encode the columns themselves: only `labels` can tell what is right."""
        if labels is None or self.labels is not None or self.gather_across_devices:
            trainer = "give the trainer data_collator=MultiLabelCollator(model.preprocess)"
            own = "this loss neither labels nor gather_across_devices"
            raise BadInput(f"inside another loss only vectors are seen: {trainer}, and {own}")
        return self._loss(embeddings[0], torch.cat(embeddings[1:]), _told(labels))

    def _loss(self, queries: Tensor, labels: Tensor, pairs: Tensor) -> Tensor:
        if self.similarity_fct is cos_sim:
            queries, labels = normalize(queries), normalize(labels)
        return self.objective(queries, labels, pairs, temperature=1 / self.scale, reduction=self.reduction)

    def _read(self, columns: list[Features], told: Tensor | None) -> _Batch:
        if len(columns) < 2:
            raise BadInput(f"{len(columns)} column of texts was given; give queries, then labels")
        keys = [_keys(column) for column in columns]
        pairs = torch.arange(len(keys[0]))[:, None].repeat(1, 2) if told is None else _told(told).cpu()
        if self.labels is not None:
            self._tokenise(self.labels, columns[1])
            if not {keys[1][row] for row in pairs[:, 1].tolist()} <= self._known:
                unknown = f"a positive of the batch is none of the {len(self.labels):,} labels given to the loss"
                raise BadInput(f"{unknown}; add its text there, and give label_prompt if that column has a prompt")
            columns, keys = columns + [features for features, _ in self._shard], keys + [own for _, own in self._shard]
        asked, query_places = _distinct(keys[0])
        every = list(chain.from_iterable(keys[1:]))
        firsts, label_places = _distinct(every)
        starts = np.cumsum([0, *map(len, keys[1:])])
        kept, new = [_kept(columns[0], asked)], np.split(firsts, np.searchsorted(firsts, starts[1:-1]))
        for column, start, rows in zip(columns[1:], starts[:-1], new, strict=True):
            kept += [_kept(column, (rows - start).tolist())] if len(rows) else []
        at = torch.stack([torch.tensor(query_places)[pairs[:, 0]], torch.tensor(label_places)[pairs[:, 1]]], 1)
        names = torch.frombuffer(bytearray().join(every[row] for row in firsts), dtype=torch.int64).view(-1, 2)
        return _Batch(kept, torch.unique(at, dim=0), names)

    def _tokenise(self, texts: list[str], like: Features) -> None:
        """All labels, once: texts of about the same length together, this device's share of them kept."""
        if self._known:
            return
        rank, world = (get_rank(), get_world_size()) if self.gather_across_devices else (0, 1)
        task = {"task": like["task"]} if "task" in like else {}
        size = self.mini_batch_size or -(-len(texts) // world)
        for number, start in enumerate(range(0, len(texts), size)):
            features = self.model.preprocess(texts[start : start + size], prompt=self.label_prompt, **task) | task
            keys = _keys(features)
            self._known.update(keys)
            if number % world == rank:
                device = like["input_ids"].device
                moved = {name: part.to(device) if isinstance(part, Tensor) else part for name, part in features.items()}
                self._shard.append((moved, keys))

    def get_config_dict(self) -> dict[str, Any]:
        """For the model card."""
        plain = ("scale", "mini_batch_size", "gather_across_devices", "reduction")
        others = {"similarity_fct": similarity_fct_name(self.similarity_fct), "labels": len(self.labels or ())}
        return {name: getattr(self, name) for name in plain} | others


class DecoupledSoftmaxLoss(ManyPositivesLoss):
    """Each positive competes with the query's negatives, never with its other positives."""

    objective = staticmethod(functional.decoupled_softmax)


class MultiPositiveSoftmaxLoss(ManyPositivesLoss):
    """Each positive competes with all labels, the query's other positives too."""

    objective = staticmethod(functional.softmax)


class SoftTopKLoss(ManyPositivesLoss):
    """Each positive is compared with the threshold that k labels softly exceed; "positives": as many as the query has.

    A query with no more than k labels in play contributes nothing: k should be well below the labels of a batch.
    """

    def __init__(self, model: Any, k: int | Literal["positives"], *args: Any, alpha: float = 2.0, **how: Any) -> None:
        super().__init__(model, *args, **how)
        if k != "positives" and not (isinstance(k, int) and k >= 1):
            raise BadInput(f'k {k!r}: give a number of labels, 1 or more, or "positives"')
        self.k, self.alpha = k, alpha

    def objective(self, queries: Tensor, labels: Tensor, positives: Positives, **options: Any) -> Tensor:
        if isinstance(self.k, int) and len(labels) <= self.k:
            told = f"a batch has {len(labels)} labels, no more than k = {self.k}: nothing is learnt from it"
            warnings.warn(f"{told}; take a smaller k, larger batches, or `labels`", stacklevel=2)
        k = self.k if isinstance(self.k, str) else torch.full((len(queries),), self.k, device=queries.device)
        return functional.soft_top_k(queries, labels, positives, k, self.alpha, **options)

    def get_config_dict(self) -> dict[str, Any]:
        return {"k": self.k, "alpha": self.alpha, **super().get_config_dict()}


def _keys(features: Features) -> list[bytes]:
    """What tells texts apart: their tokens, hashed."""
    if "input_ids" not in features or features.keys() & {"pixel_values", "input_features", "input_values"}:
        raise BadInput("these losses tell texts apart by their tokens; images and sounds have none")
    ids = features["input_ids"].cpu()
    if _is_padded(features):
        texts = [row[mask] for row, mask in zip(ids, features["attention_mask"].cpu().bool(), strict=True)]
    else:  # one after the other: for StaticEmbedding, or for attention without padding
        starts = features["offsets"][1:] if "offsets" in features else features["cu_seq_lens_q"][1:-1]
        texts = list(ids.flatten().tensor_split(starts.cpu()))
    return [blake2b(text.numpy().tobytes(), digest_size=16).digest() for text in texts]


def _is_padded(features: Features) -> bool:
    return "attention_mask" in features and "cu_seq_lens_q" not in features


def _kept(features: Features, rows: list[int]) -> tuple[Features, list[int] | None]:
    """A column of these rows alone; where rows cannot be taken apart, the whole, and whose vectors to take."""
    if not _is_padded(features):
        return dict(features), rows
    if len(rows) == len(features["attention_mask"]):
        return dict(features), None
    return {name: part[rows] if isinstance(part, Tensor) else part for name, part in features.items()}, None


def _distinct(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """The rows where each key stands first, and the place of every row's key among these."""
    found: dict[Hashable, int] = {}
    places = [found.setdefault(key, len(found)) for key in keys]
    return np.unique(places, return_index=True)[1].tolist(), places


def _told(labels: Tensor) -> Tensor:
    if labels.dim() != 2 or labels.shape[1] != 2 or labels.is_floating_point():
        advice = "take the label column out, or let MultiLabelCollator make the batches"
        raise BadInput(f"labels of shape {tuple(labels.shape)} are not pairs of positions; {advice}")
    return labels


def _gathered(rows: Tensor, with_grad: bool = False) -> tuple[Tensor, int]:
    """The rows of all devices, however many each has, and where this one's begin."""
    counts = all_gather(torch.tensor([len(rows)], device=rows.device)).tolist()
    padded = pad(rows, (0, 0, 0, max(counts) - len(rows))).contiguous()
    everyone = all_gather(padded, with_grad=with_grad).view(len(counts), max(counts), -1)
    return torch.cat([part[:count] for part, count in zip(everyone, counts, strict=True)]), sum(counts[: get_rank()])


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
        right = [(row, text) for row, example in enumerate(features) for text in _listed(example[positive])]
        pairs = [(row, places.setdefault(text, len(places))) for row, text in right]
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
