"""Checkpoints that an exact resume needs, and nothing else: weights, optimizer, pool, progress.

Batches, sampled positives and dropout follow from (seed, step), so no generator has a state to keep.
A checkpoint is a folder that appears whole or not at all; its files carry checksums.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn
from torch.optim import AdamW

from umpteen.encoders.rows import RowTable, row_tables
from umpteen.errors import DamagedCheckpoint
from umpteen.files.storage import atomic_folder, put_back, sha256_of, write_atomically
from umpteen.parallel.world import World

FORMAT = 2
NAME = "checkpoint"
POOL = "pool.safetensors"  # what the pool of competing labels remembers: a shortlist, cached vectors


@dataclass
class TrainState:
    """Where a run stands; with the weights and the optimizer, all that an exact resume needs."""

    step: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    best_value: float | None = None
    best_step: int | None = None
    best_sha256: str | None = None  # of the best weights on validation, which `best_file` names
    evaluations_since_best: int = 0
    stopped_early: bool = False
    evaluations: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    run: Path | None,
    state: TrainState,
    model: nn.Module,
    optimizer: AdamW,
    *,
    recipe: dict[str, Any],
    data: str,
    pool: dict[str, Tensor] | None = None,
) -> None:
    """Replaces the run's checkpoint; the previous one survives until this one is complete.

    Every process must call it; one without a folder only hands over what it alone holds.
    """
    weights, moments = weights_of(model), _optimizer_tensors(model, optimizer)
    if run is None:
        return
    with atomic_folder(run / NAME) as folder:
        save_file(weights, folder / "weights.safetensors")
        save_file(moments, folder / "optimizer.safetensors")
        save_file(pool or {}, folder / POOL)
        files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
        record = {"format": FORMAT, "state": asdict(state), "files": files, "recipe": recipe, "data": data}
        record["checksum"] = _checksum(record)
        (folder / "state.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    for best in run.glob("best-*"):  # only now, because the checkpoint before this one may have needed another
        if best != best_file(run, state.best_sha256 or ""):
            best.unlink()


def load_checkpoint(
    run: Path | None,
    model: nn.Module,
    optimizer: AdamW,
    *,
    recipe: dict[str, Any],
    data: str,
    world: World | None = None,
) -> TrainState | None:
    """Restores weights and optimizer and returns the state; None where the run has no checkpoint yet.

    The first process reads the files and the others get everything from it, however many there were when it was saved.
    """
    world = world or World()
    record: dict[str, Any] | None = None
    if world.is_first and run is not None:
        put_back(run / NAME)
        if (run / NAME).exists():
            record = _verified_record(run / NAME)
            _refuse_another_run(run / NAME, record, recipe, data)
    state = world.gather_objects(record and record["state"])[0]
    if state is None:
        return None
    load_weights(model, run and run / NAME / "weights.safetensors", world)
    stored = load_file(run / NAME / "optimizer.safetensors") if record and run else None
    _restore_optimizer(model, optimizer, world.share(stored))
    return TrainState(**state)


def best_file(run: Path, sha256: str) -> Path:
    """Where the best weights lie: named by content, so that a checkpoint finds its own even if later ones are there."""
    return run / f"best-{sha256[:16]}.safetensors"


def save_best(run: Path | None, model: nn.Module) -> str | None:
    """Keeps the weights until a checkpoint has better ones; their SHA-256. Every process must call it."""
    weights = weights_of(model)
    if run is None:
        return None
    content = save(weights)
    sha256 = hashlib.sha256(content).hexdigest()
    write_atomically(best_file(run, sha256), content)
    return sha256


def load_best(run: Path | None, sha256: str, model: nn.Module, world: World | None = None) -> None:
    """Sets the model's weights to those that were kept."""
    path = run and best_file(run, sha256)
    if path and (not path.is_file() or sha256_of(path) != sha256):
        raise DamagedCheckpoint(f"{path} is missing, cut short or altered; {_AFRESH}")
    load_weights(model, path, world)


def load_pool(run: Path | None, world: World) -> dict[str, Tensor]:
    """The pool's part of a checkpoint that was just restored, on every process."""
    return world.share(load_file(run / NAME / POOL) if world.is_first and run else None)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights by name, each once even where towers share them.

    Of a table whose rows are shared out the first process gets all, the others nothing; every process must ask.
    """
    tables = row_tables(model)
    weights = {name: _whole(tensor, tables.get(name)) for name, tensor in _own_weights(model).items()}
    return {name: tensor.cpu().contiguous() for name, tensor in weights.items() if tensor is not None}


def _own_weights(model: nn.Module) -> dict[str, Tensor]:
    seen: set[int] = set()
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            weights[name] = tensor.detach()
    return weights


def _whole(tensor: Tensor, table: RowTable | None) -> Tensor | None:
    return tensor if table is None else table.shard.collect(tensor)


def load_weights(model: nn.Module, path: Path | None, world: World | None = None) -> None:
    """Sets the model's weights in place from a file made of `weights_of`, which the first process reads for all."""
    world = world or World()
    try:
        stored = load_file(path) if world.is_first and path else None
    except (OSError, SafetensorError) as problem:
        raise DamagedCheckpoint(f"{path} is missing or cut short ({problem}); {_AFRESH}") from None
    stored = world.share(stored)
    tables = row_tables(model)
    with torch.no_grad():
        for name, own in _own_weights(model).items():
            if name in stored and name in tables and len(stored[name]) == tables[name].count:
                stored[name] = stored[name][tables[name].shard.rows]
            if name not in stored or stored[name].shape != own.shape:
                raise DamagedCheckpoint(f"{path} does not fit this model: {name} is missing or has another shape")
            own.copy_(stored[name])


def remove_checkpoint(run: Path) -> None:
    """The run in this workspace starts afresh."""
    put_back(run / NAME)  # or it would come back later
    shutil.rmtree(run / NAME, ignore_errors=True)


def _verified_record(folder: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files, checksum = record["files"], record.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedCheckpoint(f"{folder / 'state.json'} is unreadable ({problem}); {_AFRESH}") from None
    if record.get("format") != FORMAT:
        raise DamagedCheckpoint(
            f"{folder} has checkpoint format {record.get('format')}, this version reads {FORMAT}; {_AFRESH}"
        )
    if checksum != _checksum(record):
        raise DamagedCheckpoint(f"{folder / 'state.json'} was altered; {_AFRESH}")
    for name, expected in files.items():
        if not (folder / name).is_file() or sha256_of(folder / name) != expected:
            raise DamagedCheckpoint(f"{folder / name} is cut short or altered; {_AFRESH}")
    return record


_AFRESH = "start afresh without --resume, in another --output"


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _refuse_another_run(folder: Path, record: dict[str, Any], recipe: dict[str, Any], data: str) -> None:
    differing = sorted(_differences(record["recipe"], recipe))
    if differing:
        raise DamagedCheckpoint(
            f"{folder} belongs to another recipe: {'; '.join(differing[:5])}. "
            "Resume with the recipe it was started with, or choose another --output"
        )
    if record["data"] != data:
        raise DamagedCheckpoint(f"{folder} was trained on other data than is given now; choose another --output")


def _differences(old: dict[str, Any], new: dict[str, Any], path: str = "") -> list[str]:
    found: list[str] = []
    for key in old.keys() | new.keys():
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{path}{key}.")
        elif before != after:
            found.append(f"{path}{key} was {before!r}, is {after!r}")
    return found


def _names(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    names, tables = _names(model), row_tables(model)
    moments = {
        f"{names[parameter]}:{key}": _whole(value.detach(), tables.get(names[parameter]))
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }
    return {name: value.cpu().contiguous() for name, value in moments.items() if value is not None}


def _restore_optimizer(model: nn.Module, optimizer: AdamW, stored: dict[str, Tensor]) -> None:
    # A fused optimizer keeps its step counts beside the weights, the others on the processor.
    fused = any(group["fused"] for group in optimizer.param_groups)
    tables = row_tables(model)
    for parameter, name in _names(model).items():
        state = {key.rpartition(":")[2]: value for key, value in stored.items() if key.rpartition(":")[0] == name}
        if name in tables:
            state = {key: value[tables[name].shard.rows].clone() for key, value in state.items()}
        if state:
            optimizer.state[parameter] = {
                key: value if key == "step" and not fused else value.to(parameter.device)
                for key, value in state.items()
            }
