"""What this process holds and at most held, and what the machine has left: resident memory, or a GPU's own."""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch

from umpteen.errors import BadInput

STATUS, PEAK_RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEMORY = Path("/proc/meminfo")
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class Meter:
    """Bytes held by this process: resident memory where it computes on processors, allocations on its GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._on_gpu = device, device.type == "cuda"
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)
        if not self._on_gpu and not (STATUS.exists() and PEAK_RESET.exists()):
            raise BadInput("memory is measured by Linux's /proc, which this system does not have; plan on Linux")

    def settle(self) -> int:
        """Gives back what is free, starts the peak anew, and returns what is still held."""
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._trim(0)
            PEAK_RESET.write_text("5")
        return self.held()

    def held(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self._on_gpu else _field(STATUS, "VmRSS")

    def peak(self) -> int:
        """The most held since the last `settle`, or since the process began."""
        return torch.cuda.max_memory_allocated(self.device) if self._on_gpu else _field(STATUS, "VmHWM")

    def available(self) -> int:
        """What this process could come to hold: what it holds and what nobody else does."""
        if self._on_gpu:
            return torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)
        return self.held() + (free_memory() or 0)


def free_memory() -> int | None:
    """Bytes of the machine's memory that nobody holds and this process may take, where the system says so."""
    return min([_field(MEMORY, "MemAvailable"), *_left_by_cgroups()]) if MEMORY.exists() else None


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that the work takes."""
    finish(device)
    began = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - began


def finish(device: torch.device) -> None:
    """Waits until a GPU has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _field(file: Path, name: str) -> int:
    """A line such as `VmRSS:  1234 kB`, in bytes."""
    return next(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith(f"{name}:"))


def _left_by_cgroups() -> list[int]:
    """What each limit set on this process's groups leaves; pages of files count as free, since they give way."""
    left = []
    for line in OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, used, files = CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif controllers == "memory":
            mount, limit, used = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            files = "total_inactive_file"
        else:
            continue
        own = mount / path.strip("/")
        for group in (own, *own.parents):  # a limit of a group holds for those inside it
            if (group / limit).exists() and (most := (group / limit).read_text().strip()) != "max":
                stat = dict(entry.split() for entry in (group / "memory.stat").read_text().splitlines())
                left.append(int(most) - int((group / used).read_text()) + int(stat.get(files, 0)))
            if group == mount:
                break
    return left
