"""One look at one thing, told in a line; and the first ones: the installation and the machine."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import numpy as np
import torch
from packaging.requirements import Requirement

from umpteen.encoders.backbone import Precision, require
from umpteen.errors import BadConfig, BadInput, UmpteenError
from umpteen.parallel.meter import Meter
from umpteen.parallel.world import cores
from umpteen.version import __version__


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["ok", "failed", "skipped"]
    detail: str
    seconds: float


class Failed(Exception):
    """Something is not as it should be; the message says what, and what to do."""


class Skipped(Exception):
    """The check cannot be made here; the message says why."""


def look(name: str, check: Callable[[], str]) -> Check:
    """Makes the check, which returns what it saw or raises; whatever it raises is part of the finding."""
    began = time.monotonic()
    status: Literal["ok", "failed", "skipped"] = "ok"
    try:
        detail = check()
    except Skipped as reason:
        status, detail = "skipped", str(reason)
    except (Failed, UmpteenError) as problem:
        status, detail = "failed", str(problem)
    except Exception as problem:  # a doctor is for what nobody has foreseen
        status, detail = "failed", f"{type(problem).__name__}: {problem}"
    return Check(name, status, detail, round(time.monotonic() - began, 2))


SHOWN = ("torch", "transformers", "tokenizers", "numpy")
# Each of these says which versions of the others it works with.
RELATED = ("umpteen", *SHOWN, "scipy", "safetensors", "huggingface-hub", "sentence-transformers")


def versions() -> str:
    """The installed versions; names those that do not go together."""
    installed = {name: found for name in RELATED if (found := _version(name)) is not None}
    wrong = [problem for name in installed for problem in _unmet(name, installed)]
    if wrong:
        raise Failed("; ".join(wrong) + ". Install them together: pip install --upgrade umpteen")
    if torch.from_numpy(np.arange(3)).numpy().sum() != 3:  # a torch built for another numpy cannot even do this
        raise Failed(f"torch {torch.__version__} and numpy {np.__version__} do not share memory; reinstall both")
    shown = ", ".join(f"{name} {installed.get(name, 'is missing')}" for name in SHOWN)
    return f"umpteen {__version__}, {shown}, python {platform.python_version()}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _unmet(package: str, installed: dict[str, str]) -> list[str]:
    """What a package demands of the others and does not get."""
    unmet = []
    for written in metadata.requires(package) or []:
        demand = Requirement(written)
        # transformers names the torch it works with among its extras.
        applies = demand.marker is None or demand.marker.evaluate({"extra": "torch"})
        found = installed.get(demand.name)
        if applies and found is not None and not demand.specifier.contains(found, prereleases=True):
            wanted = f"{package} {installed[package]} works with {demand.name}{demand.specifier}"
            unmet.append(f"{wanted}, but {demand.name} {found} is installed")
    return unmet


def devices(chosen: torch.device) -> str:
    """Processors and GPUs, and which of them the recipe uses."""
    found = [f"{cores()} CPU cores, of which torch uses {torch.get_num_threads()}"]
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > cores():
        found.append(f"busy with other work (load {load:.1f})")
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        found.append(f"GPU {number}: {properties.name}, {properties.total_memory / 1e9:.0f} GB")
    if chosen.type == "cuda":
        product = torch.ones(256, 256, device=chosen) @ torch.ones(256, 256, device=chosen)
        if not bool((product == 256).all()):
            raise Failed(f"{chosen} multiplies wrongly; check its driver and its torch")
    return f"{', '.join(found)}; the recipe trains on {chosen}"


def memory() -> str:
    available = available_memory()
    if available is None:
        return "this system does not say how much is left"
    return f"{available / 1e9:.1f} GB available"


def available_memory() -> int | None:
    """Bytes that this process could come to hold, where the system says so."""
    try:
        return Meter(torch.device("cpu")).available()
    except BadInput:
        return None


def half_precision(precision: Precision, device: str, *, asked_for: bool) -> str:
    """Whether the device computes in it, tried out; fails only if the recipe asks for what does not work."""
    try:
        require(precision, device)
    except BadConfig as refusal:
        if asked_for:
            raise
        return f"not usable here, and the recipe does not ask for it: {refusal}"
    return f"works on this {device}"
