"""The objectives on plain tensors, and a gradient cache, for anybody's training loop.

    from umpteen.functional import decoupled_softmax, gradient_cache

    labels = gradient_cache(encode, label_tokens, 32)  # [L, d] at the memory of 32 texts
    decoupled_softmax(encode(query_tokens), labels, positives, temperature=0.05).backward()

Scores are streamed and never held: nothing of size n × L exists. n queries, L labels, d dimensions, p pairs. Inside
torch.autocast scores and sums are float32 all the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from umpteen import objectives
from umpteen.errors import BadInput
from umpteen.objectives import Pairs, Scores, Targets
from umpteen.objectives.targets import TopK

# Which labels are right for which query. One list of label positions a query is the plain form; a sparse matrix
# (scipy's or torch's) or a dense one of floats [n, L], whose values weigh the positives; a mask [n, L]; pairs of
# positions, as integers [p, 2] or as two vectors.
Positives = Any
Inputs = TypeVar("Inputs")


class Posed(TypedDict, total=False):
    """What every loss takes."""

    temperature: float  # scores are <query, label> ÷ temperature; 1
    relevant: Positives  # right as well, but not to be pulled up, and never a negative; none
    filtered: Positives  # pairs that are left out of everything; none


class Options(Posed, total=False):
    """What the losses of positives take."""

    reduction: Literal["mean", "sum"]  # over a query's positives; over queries it is always the mean. "mean"


def softmax(queries: Tensor, labels: Tensor, positives: Positives, **options: Unpack[Options]) -> Tensor:
    """Each positive competes with all labels, the query's other positives too: −log softmax, over many positives."""
    return objectives.softmax(*_posed(queries, labels, positives, **options))


def decoupled_softmax(queries: Tensor, labels: Tensor, positives: Positives, **options: Unpack[Options]) -> Tensor:
    """Each positive competes with the query's negatives, never with its other positives."""
    return objectives.decoupled_softmax(*_posed(queries, labels, positives, **options))


def soft_top_k(
    queries: Tensor, labels: Tensor, positives: Positives, k: TopK, alpha: float = 2.0, **options: Unpack[Options]
) -> Tensor:
    """Each positive is compared with the threshold that k of the labels softly exceed.

    k is one number, one for each query, or "positives": as many as are right for it.
    """
    if isinstance(k, int) and not 1 <= k < len(labels):
        raise BadInput(f"k is {k:,}, and there are {len(labels):,} labels; give 1 or more, and fewer than these")
    return objectives.soft_top_k(*_posed(queries, labels, positives, **options), k, alpha)


def bce(queries: Tensor, labels: Tensor, positives: Positives, **options: Unpack[Posed]) -> Tensor:
    """Each pair is right or wrong on its own: summed over labels, averaged over queries."""
    return objectives.one_vs_all(*_posed(queries, labels, positives, **options))


def _posed(queries: Tensor, labels: Tensor, positives: Positives, **options: Unpack[Options]) -> tuple[Scores, Targets]:
    relevant, filtered = options.get("relevant"), options.get("filtered")
    shape, device = (len(queries), len(labels)), queries.device
    pulled, weights = as_pairs(positives, shape, device)
    known = pulled if relevant is None else pulled.joined(as_pairs(relevant, shape, device)[0])
    left_out = None if filtered is None else as_pairs(filtered, shape, device)[0]
    scores = Scores(queries, labels, temperature=options.get("temperature", 1.0), filtered=left_out)
    return scores, Targets(pulled, known, len(queries), weights, options.get("reduction", "mean"))


def gradient_cache(encode: Callable[[Inputs], Tensor], inputs: Inputs, size: int) -> Tensor:
    """The vectors of all inputs at the memory of `size` of them, with the gradient of the plain forward pass.

    `inputs` are a tensor, a list, or a mapping of tensors, whose first axis counts them. They are encoded `size` at a
    time and nothing but the vectors is kept; once the loss has given these their gradients, its backward pass encodes
    each chunk again, dropout drawing the same numbers, and goes on to the weights. Loss and optimizer need not know.
    """
    if size < 1:
        raise BadInput(f"size {size} is no number of inputs to encode at a time; use 1 or more")
    columns: Any = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    count = next((len(column) for column in columns if _has_rows(column)), None)
    if count is None:
        raise BadInput(f"inputs are a {type(inputs).__name__}; give a tensor, a list, or a mapping of tensors")
    if count <= size:
        return encode(inputs)  # a single chunk keeps its graph, which saves the second forward pass
    chunks = [_rows(inputs, slice(start, start + size)) for start in range(0, count, size)]
    return torch.cat([checkpoint(encode, chunk, use_reentrant=False) for chunk in chunks])


def _rows(inputs: Any, rows: slice) -> Any:
    if isinstance(inputs, Mapping):
        return {name: value[rows] if _has_rows(value) else value for name, value in inputs.items()}
    return inputs[rows]


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0)


def as_pairs(
    given: Positives, shape: tuple[int, int], device: torch.device | None = None
) -> tuple[Pairs, Tensor | None]:
    """Positives in any of their forms as pairs of positions, with their weights where the form has some."""
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(given)
    weights: Any = None
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(side, Tensor) for side in given):
        query, label = given
        if query.shape != label.shape or query.dim() != 1:
            shapes = f"{tuple(query.shape)} and {tuple(label.shape)}"
            raise BadInput(f"pairs were given as vectors of shapes {shapes}; give two of one length")
    elif issparse(given):
        entries = _fitting(given, shape).tocoo()
        query, label, weights = (torch.as_tensor(part) for part in (entries.row, entries.col, entries.data))
    elif not isinstance(given, Tensor):
        if len(given) != shape[0]:
            raise BadInput(f"positives of {len(given):,} queries were given for {shape[0]:,}; give each query a list")
        query = torch.arange(shape[0]).repeat_interleave(torch.tensor([len(row) for row in given], dtype=torch.int64))
        label = torch.tensor([int(label) for row in given for label in row], dtype=torch.int64)
    elif given.layout != torch.strided or given.is_floating_point() or given.dtype == torch.bool:
        entries = _fitting(given, shape).to_sparse_coo().coalesce()
        query, label = entries.indices()
        weights = None if given.dtype == torch.bool else entries.values()
    elif given.dim() == 2 and given.shape[1] == 2:
        query, label = given.unbind(1)
    else:
        form = f"positives of {given.dtype} and shape {tuple(given.shape)} are neither pairs [p, 2] nor a mask"
        raise BadInput(f"{form}; a matrix of 0 and 1 becomes a mask by .bool()")
    pairs = Pairs(*(side.to(device=device, dtype=torch.int64) for side in (query, label)))
    return pairs, None if weights is None else weights.to(device)


def _fitting(matrix: Any, shape: tuple[int, int]) -> Any:
    if tuple(matrix.shape) != shape:
        raise BadInput(f"positives are a matrix of shape {tuple(matrix.shape)}; queries × labels is {shape}")
    return matrix
