"""All checks of one recipe, in order, each told in a line: later ones use what earlier ones found, or are skipped."""

import copy
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from packaging.requirements import Requirement
from torch import Tensor
from torch.optim import AdamW

from umpteen.config.settings import RunConfig, TransformerTower
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.data.prepared import cache_folder
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.doctor import agreement
from umpteen.doctor.agreement import Failed, Skipped, available_memory
from umpteen.encoders.backbone import Precision, require
from umpteen.encoders.folder import DEFAULT_MODEL, TextTokenizer, locate
from umpteen.encoders.rows import row_tables
from umpteen.encoders.towers import Towers, with_lengths
from umpteen.errors import BadConfig, UmpteenError
from umpteen.files.progress import Progress
from umpteen.parallel.world import Shard, World, cores
from umpteen.training.build import build_optimizer, pick_device
from umpteen.training.checkpoint import TrainState, load_checkpoint, save_checkpoint, weights_of
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
        "memory": memory,
        "cache folder": cache,
        "bfloat16": partial(patient.half_precision, "bfloat16"),
        "float16": partial(patient.half_precision, "float16"),
        "data": patient.open_data,
        "start model": patient.start_model,
        "token table": patient.token_table,
        "checkpoint": lambda: checkpoint(config, patient.towers),
        "naive formula": lambda: patient.compare(agreement.with_naive_formula),
        "processes meet": agreement.processes_meet,
        "two processes": lambda: patient.compare(agreement.on_two_processes),
    }
    for number, (name, check) in enumerate(every.items()):
        progress(name, number, len(every))
        yield look(name, check)


class Examination:
    """What was found so far of a recipe."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._dataset: Dataset | None = None
        self._towers: Towers | None = None

    def half_precision(self, precision: Precision) -> str:
        encoder = self._config.encoder
        readers = (*encoder.query.reading(), *encoder.label_tower.reading())
        asked_for = any(isinstance(tower, TransformerTower) and tower.precision == precision for tower in readers)
        return half_precision(precision, pick_device(self._config.training.device).type, asked_for=asked_for)

    def open_data(self) -> str:
        dataset = self._dataset = open_dataset(self._config.data.source)
        encoder = with_lengths(self._config.encoder, dataset)
        self._config = self._config.model_copy(update={"encoder": encoder})
        return f"{dataset.name}: {len(dataset.train):,} training queries, {len(dataset.labels):,} labels"

    def start_model(self) -> str:
        encoder, found = self._config.encoder, dict[str, None]()
        for tower in (*encoder.query.reading(), *encoder.label_tower.reading()):
            random_weights = getattr(tower, "random_weights", False)
            folder = locate(tower.start, weights=not random_weights)
            verified = tower.start.removeprefix("sentence-transformers/") == DEFAULT_MODEL and not random_weights
            found[f"{tower.start} in {folder}{', checksum right' if verified else ''}"] = None
        labels = Shard(World(), len(self._dataset.labels) if self._dataset else 0)
        self._towers = Towers.build(encoder, self._config.seed, labels)
        return f"{'; '.join(found)}; gives {self._towers.describe()}"

    def token_table(self) -> str:
        texts, tower = self.sample.label_texts, self.towers.label
        leaves = tower.leaves(self.sample.data.labels)
        if not leaves:
            raise Skipped("labels have a vector each, and no texts")
        return token_table(texts, leaves[0][0].tokenizer)

    def compare(self, comparison: Callable[[RunConfig, agreement.Sample], str]) -> str:
        agreement.require_memory(self.towers)
        return comparison(self._config, self.sample)

    @property
    def towers(self) -> Towers:
        if self._towers is None:
            raise Skipped("there is no start model to do it with")
        return self._towers

    @cached_property
    def sample(self) -> agreement.Sample:
        if self._dataset is None:
            raise Skipped("there is no data to do it with")
        k = self._config.objective.arguments().get("k", 0)
        at_least = SPARE_LABELS + (k if isinstance(k, int) else 0)
        return agreement.draw_sample(self._dataset, self.towers, seed=self._config.seed, at_least=at_least)


SHOWN = ("torch", "transformers", "tokenizers", "numpy")
# Each of these says which versions of the others it works with.
RELATED = ("umpteen", *SHOWN, "scipy", "safetensors", "huggingface-hub", "sentence-transformers")


def versions() -> str:
    """The installed versions; names those that do not go together."""
    installed = {name: found for name in RELATED if (found := _version(name)) is not None}
    if wrong := list(_conflicts(installed)):
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


def _conflicts(installed: dict[str, str]) -> Iterator[str]:
    """What a package demands of the others and does not get."""
    for package, version in installed.items():
        for demand in map(Requirement, metadata.requires(package) or []):
            # transformers names the torch it works with among its extras.
            applies = demand.marker is None or demand.marker.evaluate({"extra": "torch"})
            found = installed.get(demand.name)
            if applies and found is not None and not demand.specifier.contains(found, prereleases=True):
                wanted = f"{package} {version} works with {demand.name}{demand.specifier}"
                yield f"{wanted}, but {demand.name} {found} is installed"


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
    return "this system does not say how much is left" if available is None else f"{available / 1e9:.1f} GB available"


def half_precision(precision: Precision, device: str, *, asked_for: bool) -> str:
    """Whether the device computes in it, tried out; fails only if the recipe asks for what does not work."""
    try:
        require(precision, device)
    except BadConfig as refusal:
        if asked_for:
            raise
        return f"not usable here, and the recipe does not ask for it: {refusal}"
    return f"works on this {device}"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in the cache that is gone afterwards."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="doctor-", dir=folder) as inside:
            yield Path(inside)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise Failed(
            f"{folder} cannot be written ({reason}); free space or set UMPTEEN_CACHE to another folder"
        ) from None


def cache() -> str:
    """The cache folder takes a file and gives it back."""
    content = bytes(range(256)) * 4096  # a megabyte
    with scratch() as folder:
        (folder / "file").write_bytes(content)
        if (folder / "file").read_bytes() != content:
            raise Failed(f"{folder} gives back other bytes than were written; is the disk in order?")
        free = shutil.disk_usage(folder).free
    return f"{cache_folder()} can be written, {free / 1e9:.1f} GB free"


def token_table(texts: list[str], tokenizer: TextTokenizer) -> str:
    """A table is written once, found again, and holds what tokenising in memory gives."""
    expected, every = TokenTable.of(tokenizer(texts), tokenizer.vocabulary_size), np.arange(len(texts))
    worked: list[tuple[int, int]] = []  # grows whenever the tokenizer has work
    with scratch() as folder:
        for again in (False, True):
            before = len(worked)
            table = tokenise(
                Texts.of(texts), tokenizer, cache=folder, progress=lambda *done: worked.append(done), small=0
            )
            if again and len(worked) > before:
                raise Failed(f"the table in {folder} was written but not found again; is the disk in order?")
            if len(table) != len(texts) or not all(map(torch.equal, table.batch(every), expected.batch(every))):
                raise Failed(
                    f"the table in {folder} holds other tokens than the tokenizer gives; is the disk in order?"
                )
    return f"{len(texts):,} label texts tokenised once, then found in the cache"


def checkpoint(config: RunConfig, towers: Towers) -> str:
    """Weights and optimizer state, saved and loaded into a blank model, are the same to the bit."""
    optimizer = build_optimizer(config, towers)
    random = torch.Generator().manual_seed(config.seed)
    tables = row_tables(towers)
    for name, weight in towers.named_parameters():
        gradient = torch.rand(weight.shape, generator=random)
        if name in tables:
            tables[name](torch.arange(len(weight))).backward(gradient)
        else:
            weight.grad = gradient
    optimizer.step()
    towers.zero_grad(set_to_none=True)
    fresh = copy.deepcopy(towers)
    with torch.no_grad():
        for weight in fresh.parameters():
            weight.zero_()
    fresh_optimizer = build_optimizer(config, fresh)
    recipe, state = config.model_dump(mode="json"), TrainState(step=1, seconds=0.5)
    with scratch() as folder:
        save_checkpoint(folder, state, towers, optimizer, recipe=recipe, data="doctor")
        loaded = load_checkpoint(folder, fresh, fresh_optimizer, recipe=recipe, data="doctor")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if loaded != state:
        raise Failed(f"the state came back as {loaded}, saved was {state}")
    saved, found = _tensors(towers, optimizer), _tensors(fresh, fresh_optimizer)
    different = [name for name in saved if name not in found or not torch.equal(saved[name], found[name])]
    if different:
        raise Failed(f"came back altered from a checkpoint: {', '.join(different[:3])}; is the disk in order?")
    return f"{size / 1e6:.0f} MB of weights and optimizer state came back as they were"


def _tensors(towers: Towers, optimizer: AdamW) -> dict[str, Tensor]:
    state = {
        f"the optimizer's state of {name} ({key})": tensor
        for name, weight in towers.named_parameters()
        for key, tensor in optimizer.state[weight].items()
    }
    return weights_of(towers) | state
