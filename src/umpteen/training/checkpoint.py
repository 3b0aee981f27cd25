"""Checkpoints that an exact resume needs, and nothing else: weights, optimizer, pool, progress.

Batches, sampled positives and dropout follow from (seed, step), so no generator has a state to keep.
A checkpoint is a folder, named after its step, that appears whole or not at all; its files carry checksums.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW

from umpteen.config.recipes import flat
from umpteen.encoders.rows import row_tables
from umpteen.errors import DamagedCheckpoint
from umpteen.files.storage import atomic_folder, digest_of, sha256_of
from umpteen.parallel.world import World

FORMAT = 3
WEIGHTS, BEST = "weights.safetensors", "best.safetensors"  # as they are, and as they were best on validation
TRACKED = "tracked"  # what trackers call the run, by their names
POOL = "pool.safetensors"  # what the pool of competing labels remembers: a shortlist, cached vectors


@dataclass
class TrainState:
    """Where a run stands; with the weights and the optimizer, all that an exact resume needs."""

    step: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    best_value: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    stopped_early: bool = False
    evaluations: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Checkpoints:
    """Of one run in its workspace. Every process must make the same calls; without a workspace nothing is written."""

    run: Path | None  # the first process's, and no other's
    model: nn.Module
    optimizer: AdamW
    recipe: dict[str, Any]
    data: str  # its fingerprint
    world: World = field(default_factory=World)

    def save(self, state: TrainState, pool: dict[str, Tensor] | None = None) -> None:
        """A checkpoint of the step; the previous one goes when this one is complete.

        The first one after a better evaluation must be of the same step: its weights are then the best, too.
        """
        kept = {name: self.optimizer.state.get(weight, {}) for name, weight in self.model.named_parameters()}
        moments = {f"{name}:{key}": value for name, own in kept.items() for key, value in own.items()}
        weights, moments = weights_of(self.model), _whole(self.model, moments)
        if self.run is None:
            return
        previous = sorted(_checkpoints(self.run))
        with atomic_folder(self.run / f"checkpoint-{state.step:09}") as folder:
            save_file(weights, folder / WEIGHTS)
            if state.best_step is not None:
                best = folder if state.best_step == state.step else previous[-1]
                shutil.copyfile(best / (WEIGHTS if best == folder else BEST), folder / BEST)
            save_file(moments, folder / "optimizer.safetensors")
            save_file(pool or {}, folder / POOL)
            files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
            known = {"recipe": self.recipe, "data": self.data}
            record = {"format": FORMAT, "state": asdict(state), "files": files, **known}
            record["checksum"] = digest_of(record)
            (folder / "state.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        for older in previous:
            shutil.rmtree(older, ignore_errors=True)

    def load(self) -> TrainState | None:
        """Restores weights and optimizer, which the first process reads for all; None if there is no checkpoint yet."""
        record: dict[str, Any] | None = None
        if self.run is not None and self.world.is_first and (newest := max(_checkpoints(self.run), default=None)):
            record = _verified_record(newest)
            was, now = flat(record["recipe"]), flat(self.recipe)
            differing = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
            if differing:
                told = "; ".join(f"{key} was {was.get(key)!r}, is {now.get(key)!r}" for key in differing[:5])
                advice = "Resume with the recipe it was started with, or choose another --output"
                raise DamagedCheckpoint(f"{newest} belongs to another recipe: {told}. {advice}")
            if record["data"] != self.data:
                told = "was trained on other data than is given now; choose another --output"
                raise DamagedCheckpoint(f"{newest} {told}")
        state = self.world.gather_objects(record and record["state"])[0]
        if state is None:
            return None
        self._load_weights(WEIGHTS)
        self._restore_optimizer(self.shared("optimizer.safetensors"))
        return TrainState(**state)

    def load_best(self) -> None:
        """Sets the model's weights to the best on validation, if they were kept."""
        if self.run is not None and self.world.is_first:
            _verified_record(max(_checkpoints(self.run)))
        if self.world.gather_objects(self.run is not None)[0]:
            self._load_weights(BEST)

    def _load_weights(self, file: str) -> None:
        """In place, from a file of the checkpoint that was made of `weights_of`."""
        stored, tables = self.shared(file), row_tables(self.model)
        with torch.no_grad():
            for name, own in self.model.named_parameters():
                if name in stored and name in tables and len(stored[name]) == tables[name].count:
                    stored[name] = stored[name][tables[name].shard.rows]
                if name not in stored or stored[name].shape != own.shape:
                    raise DamagedCheckpoint(f"{file} does not fit this model: {name} is missing or has another shape")
                own.copy_(stored[name])

    def _restore_optimizer(self, stored: dict[str, Tensor]) -> None:
        weights, tables = dict(self.model.named_parameters()), row_tables(self.model)
        for place, value in stored.items():
            name, _, key = place.rpartition(":")
            value = value[tables[name].shard.rows].clone() if name in tables else value
            self.optimizer.state[weights[name]][key] = value.to(weights[name].device)

    def shared(self, name: str) -> dict[str, Tensor]:
        """A file of the checkpoint, on every process."""
        place = max(_checkpoints(self.run)) / name if self.run is not None and self.world.is_first else None
        return self.world.share(None if place is None else load_file(place))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights by name, each once; of shared-out rows the first process gets all. Every process must ask."""
    return _whole(model, dict(model.named_parameters()))


def _whole(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the processor, by a weight's name and perhaps more behind a colon; rows from all processes."""
    tables, found = row_tables(model), dict[str, Tensor]()
    for name, tensor in tensors.items():
        table = tables.get(name.partition(":")[0])
        whole = tensor.detach() if table is None else table.shard.collect(tensor.detach())
        if whole is not None:
            found[name] = whole.cpu().contiguous()
    return found


def _checkpoints(run: Path) -> Iterator[Path]:
    """More than one only where a kill came between a new one and the end of the one before; the last counts."""
    return run.glob("checkpoint-*")


def remove_checkpoint(run: Path) -> None:
    """The run in this workspace starts afresh."""
    for folder in (*_checkpoints(run), run / TRACKED):
        shutil.rmtree(folder, ignore_errors=True)


def _verified_record(folder: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files, checksum = record["files"], record.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedCheckpoint(f"{folder / 'state.json'} is unreadable ({problem}); {_AFRESH}") from None
    if (version := record.get("format")) != FORMAT:
        raise DamagedCheckpoint(f"{folder} has checkpoint format {version}, this version reads {FORMAT}; {_AFRESH}")
    if checksum != digest_of(record):
        raise DamagedCheckpoint(f"{folder / 'state.json'} was altered; {_AFRESH}")
    for name, expected in files.items():
        if not (folder / name).is_file() or sha256_of(folder / name) != expected:
            raise DamagedCheckpoint(f"{folder / name} is cut short or altered; {_AFRESH}")
    return record


_AFRESH = "start afresh without --resume, in another --output"
