"""All checks of one recipe, in order, each told in a line: later ones use what earlier ones found, or are skipped."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from tempfile import TemporaryFile
from typing import Literal

import numpy as np
import torch

from umpteen.config.settings import RunConfig, TransformerTower
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.data.prepared import cache_folder
from umpteen.doctor import agreement
from umpteen.doctor.agreement import Failed, Skipped
from umpteen.encoders.backbone import Precision, require
from umpteen.encoders.folder import DEFAULT_MODEL, locate
from umpteen.encoders.towers import Towers, with_lengths
from umpteen.errors import BadConfig, UmpteenError
from umpteen.files.progress import Progress
from umpteen.parallel.world import Shard, World, cores
from umpteen.training.build import pick_device
from umpteen.version import __version__

SPARE_LABELS = 32  # beyond the k of SoftTop-k: some may be filtered


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["ok", "failed", "skipped"]
    detail: str
    seconds: float


def look(name: str, check: Callable[[], str]) -> Check:
    """Makes the check, which returns what it saw or raises; whatever it raises is part of the finding."""
    began = time.monotonic()
    status: Literal["ok", "failed", "skipped"] = "ok"
    try:
        detail = check()
    except Exception as problem:  # a doctor is for what nobody has foreseen
        status = "skipped" if isinstance(problem, Skipped) else "failed"
        foreseen = isinstance(problem, Skipped | Failed | UmpteenError)
        detail = str(problem) if foreseen else f"{type(problem).__name__}: {problem}"
    return Check(name, status, detail, round(time.monotonic() - began, 2))


def examine(config: RunConfig, progress: Progress = lambda name, done, total: None) -> Iterator[Check]:
    """Every check in order, as soon as it is made; progress hears the name of each before."""
    patient = Examination(config)
    every: dict[str, Callable[[], str]] = {
        "versions": versions,
        "devices": lambda: devices(pick_device(config.training.device)),
        "cache folder": cache,
        "bfloat16": partial(patient.half_precision, "bfloat16"),
        "float16": partial(patient.half_precision, "float16"),
        "data": patient.open_data,
        "start model": patient.start_model,
        "naive formula": lambda: agreement.with_naive_formula(patient.config, patient.sample),
        "two processes": lambda: agreement.on_two_processes(patient.config, patient.sample),
    }
    for number, (name, check) in enumerate(every.items()):
        progress(name, number, len(every))
        yield look(name, check)


class Examination:
    """What was found so far of a recipe."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._dataset: Dataset | None = None
        self._towers: Towers | None = None

    def half_precision(self, precision: Precision) -> str:
        """Whether the device computes in it, tried out; fails only if the recipe asks for what does not work."""
        encoder, device = self.config.encoder, pick_device(self.config.training.device).type
        try:
            require(precision, device)
        except BadConfig as refusal:
            readers = (*encoder.query.reading(), *encoder.label_tower.reading())
            if any(isinstance(tower, TransformerTower) and tower.precision == precision for tower in readers):
                raise
            return f"not usable here, and the recipe does not ask for it: {refusal}"
        return f"works on this {device}"

    def open_data(self) -> str:
        dataset = self._dataset = open_dataset(self.config.data.source)
        encoder = with_lengths(self.config.encoder, dataset)
        self.config = self.config.model_copy(update={"encoder": encoder})
        return f"{dataset.name}: {len(dataset.train):,} training queries, {len(dataset.labels):,} labels"

    def start_model(self) -> str:
        encoder, found = self.config.encoder, dict[str, None]()
        for tower in (*encoder.query.reading(), *encoder.label_tower.reading()):
            random_weights = getattr(tower, "random_weights", False)
            folder = locate(tower.start, weights=not random_weights)
            verified = tower.start.removeprefix("sentence-transformers/") == DEFAULT_MODEL and not random_weights
            found[f"{tower.start} in {folder}{', checksum right' if verified else ''}"] = None
        labels = Shard(World(), len(self._dataset.labels) if self._dataset else 0)
        self._towers = Towers.build(encoder, self.config.seed, labels)
        return f"{'; '.join(found)}; gives {self._towers.describe()}"

    @cached_property
    def sample(self) -> agreement.Sample:
        if self._towers is None or self._dataset is None:
            raise Skipped(f"there is no {'data' if self._towers else 'start model'} to do it with")
        # Bigrams need little, since most of their buckets are left out.
        sizes = [weight.numel() for name, weight in self._towers.named_parameters() if not name.endswith("bigrams")]
        needed, available = agreement.BYTES_A_WEIGHT * sum(sizes), agreement.available_memory()
        if available is not None and available < needed:
            raise Skipped(f"needs about {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are available")
        k = self.config.objective.arguments().get("k", 0)
        at_least = SPARE_LABELS + (k if isinstance(k, int) else 0)
        return agreement.draw_sample(self._dataset, self._towers, seed=self.config.seed, at_least=at_least)


def versions() -> str:
    """The installed versions; whether they go together is what `pip check` tells, of all packages."""
    if torch.from_numpy(np.arange(3)).numpy().sum() != 3:  # a torch built for another numpy cannot even do this
        raise Failed(f"torch {torch.__version__} and numpy {np.__version__} do not share memory; reinstall both")
    shown = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "tokenizers", "numpy"))
    return f"umpteen {__version__}, {shown}, python {platform.python_version()}"


def devices(chosen: torch.device) -> str:
    """Processors, memory and GPUs, and which of them the recipe uses."""
    found = [f"{cores()} CPU cores, of which torch uses {torch.get_num_threads()}"]
    if (available := agreement.available_memory()) is not None:
        found.append(f"{available / 1e9:.1f} GB of memory available")
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


def cache() -> str:
    """The cache folder takes a file and gives it back."""
    folder, content = cache_folder(), bytes(range(256)) * 4096  # a megabyte
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(content)
            file.seek(0)
            if file.read() != content:
                raise Failed(f"{folder} gives back other bytes than were written; is the disk in order?")
        return f"{folder} can be written, {shutil.disk_usage(folder).free / 1e9:.1f} GB free"
    except OSError as problem:
        reason = problem.strerror or str(problem)
        advice = "free space or set UMPTEEN_CACHE to another folder"
        raise Failed(f"{folder} cannot be written ({reason}); {advice}") from None
