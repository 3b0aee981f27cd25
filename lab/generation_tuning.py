"""Fine-tuning of a causal language model on targets alone; validation ends it, and a kill loses at most an epoch.

Everything random follows from (seed, step), so that a stopped fine-tuning goes on exactly.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import AdamW

from lab.generation_model import Example, Writer
from umpteen.errors import Diverged, Stopped
from umpteen.files.progress import Advance
from umpteen.parallel.children import stop_request
from umpteen.training.checkpoint import Checkpoints, TrainState
from umpteen.training.optimizer import learning_rate_factor, make_optimizer, set_learning_rate


@dataclass(frozen=True)
class Budget:
    """How long a model learns."""

    epochs: int
    learning_rate: float
    batch_size: int = 16
    patience: int = 2  # epochs without a lower validation loss


def fine_tune(
    writer: Writer,
    train: Sequence[Example],
    validation: Sequence[Example],
    budget: Budget,
    *,
    seed: int,
    workspace: Path,
    recipe: dict[str, Any],
    progress: Advance = lambda done, total: None,
) -> TrainState:
    """Learns until the epochs are over or validation no longer improves; the model then has its best weights.

    `workspace` holds a checkpoint of every epoch; the same call goes on from there.
    """
    model = writer.model
    optimizer = make_optimizer([(model, budget.learning_rate)], weight_decay=0.01)
    checkpoints = Checkpoints(workspace, model, optimizer, recipe, _fingerprint(train))
    state = checkpoints.load() or TrainState()
    per_epoch = -(-len(train) // budget.batch_size)
    steps = budget.epochs * per_epoch
    order: list[NDArray[np.int64]] = []
    with stop_request() as stop:
        while state.step < steps and not state.stopped_early:
            epoch, index = divmod(state.step, per_epoch)
            if index == 0 or not order:
                order = batches(train, budget.batch_size, seed, epoch)
            batch = [train[row] for row in order[index]]
            set_learning_rate(optimizer, learning_rate_factor(state.step, steps, warmup=0.1))
            _step(writer, optimizer, batch, seed * 1_000_003 + state.step)
            state.step += 1
            progress(state.step, steps)
            if state.step % per_epoch == 0:
                _validate(writer, validation, budget, state)
            if state.step % per_epoch == 0 or stop.signal:
                checkpoints.save(state)
            if stop.signal:
                raise Stopped(f"stopped and saved after step {state.step:,}", signal=stop.signal)
    checkpoints.load_best()
    return state


def _step(writer: Writer, optimizer: AdamW, batch: Sequence[Example], seed: int) -> None:
    writer.model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the dropout
        total, tokens = writer.loss(batch)
    loss = total / tokens
    if not torch.isfinite(loss):
        raise Diverged("the language model's loss is no longer a number; lower its learning rate")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(writer.model.parameters(), 1.0)
    optimizer.step()


def _validate(writer: Writer, validation: Sequence[Example], budget: Budget, state: TrainState) -> None:
    """Notes the loss; the checkpoint that follows keeps the weights of the lowest so far."""
    value = validation_loss(writer, validation, budget.batch_size)
    state.evaluations.append({"step": state.step, "loss": round(value, 4)})
    if state.best_value is None or value < state.best_value:
        state.best_value, state.best_step, state.evaluations_since_best = value, state.step, 0
    else:
        state.evaluations_since_best += 1
        state.stopped_early = state.evaluations_since_best >= budget.patience


def validation_loss(writer: Writer, examples: Sequence[Example], batch_size: int) -> float:
    """The mean loss of a target token, in nats."""
    writer.model.eval()
    with torch.no_grad():
        sums = [writer.loss([examples[row] for row in rows]) for rows in batches(examples, batch_size, 0, 0)]
    return sum(float(total) for total, _ in sums) / sum(tokens for _, tokens in sums)


def batches(examples: Sequence[Example], size: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """All examples once, in batches of like prompts whose order is drawn by (seed, epoch): little is filling."""
    rng = np.random.default_rng((seed, epoch))
    prompts, targets = np.array([[len(prompt), len(target)] for prompt, target in examples]).T
    order = np.lexsort((rng.random(len(examples)), targets, prompts))
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    return [parts[part] for part in rng.permutation(len(parts))]


def _fingerprint(examples: Sequence[Example]) -> str:
    return hashlib.sha256(repr(list(examples)).encode()).hexdigest()
