"""Running out of memory, noticed by all processes together: then all of them can start the step again."""

from collections.abc import Callable
from typing import TypeVar

import torch

from umpteen.errors import UmpteenError
from umpteen.parallel.world import World

Result = TypeVar("Result")


class TooLittleMemory(UmpteenError):
    """Some process could not get the memory for its micro-batches."""


def together(world: World, work: Callable[[], Result]) -> Result:
    """The result of the work, which must hold no collective; raises on all processes if one of them lacks memory."""
    result: Result | None = None
    try:
        result = work()
        failed = False
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        failed = True
    if world.largest(failed)[0]:
        del result
        raise TooLittleMemory(
            "out of memory, although the micro-batches are as small as can be; "
            "shorten max_length, use more processes, or a machine with more memory"
        )
    return result  # type: ignore[return-value]


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an error says that memory was refused, on a GPU or on the processor."""
    refused = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(problem, MemoryError | torch.OutOfMemoryError) or any(words in str(problem) for words in refused)
