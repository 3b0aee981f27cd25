"""How well the labels known to be right score."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from umpteen.parallel.shard import Shard

_PAIRS_AT_A_TIME = 65_536


def best_known(queries: Tensor, labels: Tensor, known: csr_array, shard: Shard) -> NDArray[np.float32]:
    """Each query's largest score over the labels stored for it, −∞ where there are none: the same on every process.

    `labels` are this process's shard of them.
    """
    query = np.repeat(np.arange(known.shape[0]), np.diff(known.indptr))
    own = np.flatnonzero((known.indices >= shard.start) & (known.indices < shard.stop))
    best = torch.full((known.shape[0],), -torch.inf, device=queries.device)
    for start in range(0, len(own), _PAIRS_AT_A_TIME):
        some = own[start : start + _PAIRS_AT_A_TIME]
        at = torch.from_numpy(query[some]).to(queries.device)
        rows = torch.from_numpy(known.indices[some].astype(np.int64) - shard.start).to(labels.device)
        scores = torch.linalg.vecdot(queries[at].float(), labels[rows].float())
        best.scatter_reduce_(0, at, scores, "amax")
    found: NDArray[np.float32] = shard.world.max_(best).cpu().numpy()
    return found
