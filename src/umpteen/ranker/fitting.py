"""All labels' weights, block by block on several processes; a finished block is a file, so a killed fit goes on."""

from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from scipy.sparse import csr_array

from umpteen.errors import LostProcess
from umpteen.ranker.samples import Samples
from umpteen.ranker.settings import RankerSettings
from umpteen.ranker.solving import solve_block
from umpteen.storage import write_atomically

# Every block reads all candidates once: few blocks for many labels, and for few labels blocks small enough to share.
_MOST_BLOCKS = 64
_SMALLEST_BLOCK = 256


def fit_weights(
    samples: Samples,
    labels: int,
    settings: RankerSettings,
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[csr_array, NDArray[np.float32]]:
    """Weights (labels × features) and intercepts; blocks that an earlier call finished are not solved again."""
    size = max(_SMALLEST_BLOCK, -(-labels // _MOST_BLOCKS))
    blocks = [(start, min(start + size, labels)) for start in range(0, labels, size)]
    waiting = [block for block in blocks if not _path(samples, block).exists()]
    done = labels - sum(stop - start for start, stop in waiting)
    try:
        finished = Parallel(n_jobs=min(jobs, max(1, len(waiting))), return_as="generator_unordered")(
            delayed(_fit_block)(samples.folder, block, settings) for block in waiting
        )
        for start, stop in finished:
            done += stop - start
            if progress is not None:
                progress(done, labels)
    except BrokenProcessPool as problem:
        raise LostProcess(
            f"a process that fitted labels has ended ({str(problem).partition('.')[0]}); finished labels are kept, "
            "the same command goes on; if memory ran out, give fewer --jobs"
        ) from None
    return _gather([load_file(_path(samples, block)) for block in blocks], _features(samples, settings))


def _fit_block(folder: Path, block: tuple[int, int], settings: RankerSettings) -> tuple[int, int]:
    samples = Samples(folder)
    write_atomically(_path(samples, block), save(solve_block(samples, *block, settings)._asdict()))
    return block


def _path(samples: Samples, block: tuple[int, int]) -> Path:
    return samples.folder / f"weights-{block[0]:012}.safetensors"


def _features(samples: Samples, settings: RankerSettings) -> int:
    sparse = int(samples.matrix("features").shape[1])
    return sparse + samples.vectors(np.zeros(1, dtype=np.int64)).shape[1] if settings.dense else sparse


def _gather(blocks: list[dict[str, NDArray[np.generic]]], features: int) -> tuple[csr_array, NDArray[np.float32]]:
    whole = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    starts = np.concatenate([[0], np.cumsum(whole["counts"])])
    weights = csr_array((whole["values"], whole["columns"], starts), shape=(len(whole["counts"]), features))
    return weights, whole["intercepts"].astype(np.float32)
