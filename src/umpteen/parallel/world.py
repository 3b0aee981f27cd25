"""The processes of a run: what they say to each other, whose rows are whose, and each one's threads.

The only module that knows torch.distributed. A world of one process is a world like any other: its collectives have
nothing to do. Every process must make the same calls in the same order. In-place ones end in `_`.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from umpteen.errors import BadInput, LostProcess, Stopped, UmpteenError

# Longer than one process may prepare data for all. A process that dies is noticed at once, whatever this says.
PATIENCE = timedelta(hours=6)
ROWS_AT_ONCE = 16_384  # that travel to the first process together
Result = TypeVar("Result")


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"  # where the collectives' own small tensors live

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        return self._reduce_(tensor, distributed.ReduceOp.SUM)

    def largest(self, *numbers: float) -> tuple[float, ...]:
        """The largest of every process's numbers, place by place."""
        if self.size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        return tuple(self._reduce_(tensor, distributed.ReduceOp.MAX).tolist())

    def gather(self, tensor: Tensor) -> Tensor:
        """Every process's tensor, all of one shape, by rank."""  # [N, …]
        if self.size == 1:
            return tensor[None]
        gathered = tensor.new_empty(self.size, *tensor.shape)
        with _lost_processes_named():
            distributed.all_gather(list(gathered), tensor.contiguous())
        return gathered

    def gather_rows(self, mine: Tensor, counts: Sequence[int]) -> Tensor:
        """Every process's rows one after the other; `counts` says how many each has."""
        if self.size == 1:
            return mine
        padded = mine.new_zeros(max(counts), *mine.shape[1:])
        padded[: len(mine)] = mine
        return torch.cat([part[:count] for part, count in zip(self.gather(padded), counts, strict=True)])

    def gather_objects(self, mine: Any) -> list[Any]:
        """Every process's small object, by rank."""
        if self.size == 1:
            return [mine]
        gathered: list[Any] = [None] * self.size
        with _lost_processes_named():
            distributed.all_gather_object(gathered, mine)
        return gathered

    def share(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The first process's tensors on every process, which need not see its files; the others give None."""
        if self.size == 1:
            assert tensors is not None
            return tensors
        mine = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in (tensors or {}).items()]
        shared: dict[str, Tensor] = {}
        for name, shape, dtype in self.gather_objects(mine)[0]:
            tensor = torch.empty(shape, dtype=dtype) if tensors is None else tensors[name]
            there = tensor.to(self.device).contiguous()
            with _lost_processes_named():
                distributed.broadcast(there, src=0)
            shared[name] = there.to(tensor.device)
        return shared

    def require_same(self, claims: Mapping[str, str]) -> None:
        """Refuses processes that differ in what they were given, and names the first that does."""
        first, *others = self.gather_objects(dict(claims))
        for rank, other in enumerate(others, start=1):
            for name, value in first.items():
                if other.get(name) != value:
                    both = f"process {rank} has another {name} than process 0: {other.get(name)} against {value}"
                    raise BadInput(f"{both}; give every process the same files, settings and versions")

    def wait(self) -> None:
        """Returns when every process has come here."""
        self.largest(0)

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The first process runs the block while the others wait, then they run it: work into a shared cache."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def _reduce_(self, tensor: Tensor, how: Any) -> Tensor:
        if self.size > 1 and tensor.numel():
            with _lost_processes_named():
                distributed.all_reduce(tensor, how)
        return tensor


@dataclass(frozen=True)
class Shard:
    """Rank g owns rows ⌊g·n/N⌋ up to, and without, ⌊(g+1)·n/N⌋: slices differ by at most one row, and may be empty."""

    world: World
    count: int  # n, over all processes
    edges: tuple[int, ...] | None = None  # where the slices begin, and n, where they are not of equal size

    def among(self, chosen: NDArray[np.integer[Any]]) -> "Shard":
        """The shard of a choice of these rows, ascending: every process keeps those of its own slice."""
        edges = [self._edge(rank) for rank in range(self.world.size + 1)]
        return Shard(self.world, len(chosen), tuple(np.searchsorted(chosen, edges).tolist()))

    @property
    def start(self) -> int:
        return self._edge(self.world.rank)

    @property
    def stop(self) -> int:
        return self._edge(self.world.rank + 1)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def gather(self, mine: Tensor) -> Tensor:
        """All n rows, in order, from every process's own."""
        return self.world.gather_rows(mine, self._sizes())

    def collect(self, mine: Tensor) -> Tensor | None:
        """The same for the first process alone, a few rows at a time and in main memory; None for the others."""
        world, sizes = self.world, self._sizes()
        if world.size == 1:
            return mine
        # All rows may be more than a GPU has.
        everyone = torch.empty(self.count if world.is_first else 0, *mine.shape[1:], dtype=mine.dtype)
        for start in range(0, max(sizes), ROWS_AT_ONCE):
            few = [max(min(size - start, ROWS_AT_ONCE), 0) for size in sizes]
            rows = world.gather_rows(mine[start : start + ROWS_AT_ONCE], few)
            for rank, part in enumerate(torch.split(rows, few) if world.is_first else ()):
                first = self._edge(rank) + start
                everyone[first : first + len(part)] = part
        return everyone if world.is_first else None

    def _sizes(self) -> list[int]:
        return [self._edge(rank + 1) - self._edge(rank) for rank in range(self.world.size)]

    def _edge(self, rank: int) -> int:
        return rank * self.count // self.world.size if self.edges is None else self.edges[rank]


@contextmanager
def join_world(device: torch.device | None = None) -> Iterator[World]:
    """The world torchrun has described in the environment; without torchrun, a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    device = _own_device(device or torch.device("cpu"))
    # Imported later, as optimizers do, its functions' defaults would be the group: it and its threads would outlive the
    # world, and a thread that lets go of a tensor while Python ends aborts the process.
    import_module("torch.distributed.nn.functional")
    try:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        store = distributed.PrefixStore(_fresh_room(store, rank, size), store)  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        distributed.barrier()  # who fails at once must not leave while the others still join hands
    except (RuntimeError, ValueError) as problem:
        if distributed.is_initialized():
            distributed.destroy_process_group()
        address, port = (os.environ.get(f"MASTER_{part}", "?") for part in ("ADDR", "PORT"))
        reason = "the port is in use" if "EADDRINUSE" in str(problem) else str(problem).splitlines()[0]
        advice = "give torchrun another --master-port, or --standalone on a single machine"
        raise BadInput(f"the processes could not meet at {address}:{port}: {reason}; {advice}") from None
    try:
        yield World(rank, size, str(device))
    except UmpteenError as error:
        error.told_elsewhere = rank > 0 if isinstance(error, Stopped) else _told_elsewhere(error, store)
        raise
    finally:
        distributed.destroy_process_group()


def open_meeting() -> Any:
    """A store for processes of this machine, at a `port` that the system chose; it is open as long as it is kept."""
    return distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def _own_device(device: torch.device) -> torch.device:
    """The device of this process: of a machine's GPUs, the one with its number."""
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise BadInput(f'training.device = "{device}" is for a single process; several run on "cpu" or on "cuda"')
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise BadInput(f"each process needs a GPU of its own, and this machine has {there}; start as many on it")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _fresh_room(store: Any, rank: int, size: int) -> str:
    """A name that the processes now here agree on, for their keys in the store.

    After a restart torch's launcher offers the old store, with the addresses of processes that are gone. Its count of
    restarts cannot tell them apart, because every machine counts for itself.
    """
    if rank > 0:
        own_name = uuid4().hex
        store.set(f"umpteen/process {rank}", own_name)
        room: str = store.get(f"umpteen/room of {own_name}").decode()  # waits for it
        store.add(f"{room}/here", 1)
        return room
    room = f"umpteen/{uuid4().hex}"
    while store.add(f"{room}/here", 0) < size - 1:
        for other in (f"umpteen/process {rank}" for rank in range(1, size)):
            if store.check([other]):
                store.set(f"umpteen/room of {store.get(other).decode()}", room)
        time.sleep(0.01)
    return room


def _told_elsewhere(error: UmpteenError, store: Any) -> bool:
    """Whether another process is telling this error or, if one was lost, any; if not, this process has the word."""
    try:
        told: int = store.add("told", 1)
        if not isinstance(error, LostProcess):
            told = store.add(f"told/{error}", 1)
        return told > 1
    except RuntimeError:  # the store has gone with the process that kept it
        return False


@contextmanager
def _lost_processes_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:  # gloo's and NCCL's errors are RuntimeErrors
        reason = str(problem).splitlines()[0]
        reason = (reason.partition("] ")[2] or reason).partition(". ")[0]  # gloo's file and line; its guesses
        ended = "another process of this run has ended or cannot be reached, so this one ends too"
        raise LostProcess(f"{ended}; look above for the first error, then go on with --resume ({reason})") from None


def launch_name() -> str | None:
    """What torch's launcher calls the run; processes it starts in the place of others have the same name."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# One thread for each share of a long walk, instead of all threads on each short operation of it: an operation on one
# tile is too short to be divided, its threads would wait for each other thousands of times a walk.
@contextmanager
def undivided() -> Iterator[None]:
    """Operations in this thread are not spread over others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def spread(work: Callable[[int], Result], shares: int) -> list[Result]:
    """work(0) … work(shares − 1), each in a thread of its own, undivided; the first in the one that calls."""
    if shares == 1:
        return [work(0)]

    def alone(share: int) -> Result:
        torch.set_num_threads(1)  # holds for the thread that says so
        with torch.no_grad():
            return work(share)

    with undivided(), ThreadPoolExecutor(shares - 1) as pool:
        others = pool.map(alone, range(1, shares))  # which begin at once
        return [alone(0), *others]


class TooLittleMemory(UmpteenError):
    """Some process could not get the memory for its micro-batches."""


def together(world: World, work: Callable[[], Result]) -> Result:
    """The result of the work, which must hold no collective; raises on all processes if one of them lacks memory."""
    results: list[Result] = []
    try:
        results.append(work())
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
    if world.largest(not results)[0]:
        results.clear()
        advice = "shorten max_length, use more processes, or a machine with more memory"
        raise TooLittleMemory(f"out of memory, although the micro-batches are as small as can be; {advice}")
    return results[0]


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an error says that memory was refused, on a GPU or on the processor."""
    refused = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(problem, MemoryError | torch.OutOfMemoryError) or any(words in str(problem) for words in refused)
