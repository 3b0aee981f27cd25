"""The loop around the step: schedule, validation, best model, early stopping, checkpoints, a clean end on signals.

Every process runs it and keeps the same state; only the first writes. What clocks and signals decide is agreed upon.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

from umpteen.data.labels import EpochSampler
from umpteen.encoders.rows import row_tables
from umpteen.errors import BadConfig, Diverged, Stopped
from umpteen.parallel.children import stop_request
from umpteen.parallel.world import World
from umpteen.training.checkpoint import TrainState, load_best, load_checkpoint, load_pool, save_best, save_checkpoint
from umpteen.training.observer import Observer
from umpteen.training.optimizer import learning_rate_factor, set_learning_rate
from umpteen.training.step import TrainingStep

Evaluate = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class LoopSettings:
    steps: int
    seconds: float | None  # of training, after which the run ends; such a run cannot be repeated to the bit
    seed: int
    warmup: float
    evaluate_every: int  # steps; 0: at the end only
    metric: str
    patience: int | None
    checkpoint_seconds: float


class Loop:
    """One run in a workspace folder, from its checkpoint (or from the start) to its end."""

    def __init__(
        self,
        model: nn.Module,
        step: TrainingStep,
        optimizer: AdamW,
        sampler: EpochSampler,
        evaluate: Evaluate | None,
        settings: LoopSettings,
        observer: Observer,
        *,
        workspace: Path | None,
        recipe: dict[str, Any],
        data: str,
        world: World | None = None,
    ) -> None:
        self._model = model
        self._step = step
        self._optimizer = optimizer
        self._sampler = sampler
        self._evaluate = evaluate
        self._settings = settings
        self._observer = observer
        self._workspace = workspace
        self._recipe = recipe
        self._data = data
        self._world = world or World()
        self._state = TrainState()
        self._last_save = time.monotonic()

    def run(self) -> TrainState:
        """Trains to the end, then puts the best weights on validation, if any were kept, into the model."""
        resumed = load_checkpoint(
            self._workspace, self._model, self._optimizer, recipe=self._recipe, data=self._data, world=self._world
        )
        self._state = resumed or TrainState()
        if resumed and self._step.pool is not None:
            self._step.pool.restore(load_pool(self._workspace, self._world))
        self._refuse_drift()
        state, settings = self._state, self._settings
        self._observer.started(state.step, settings.steps)
        if resumed:
            self._observer.notice(f"resumed after step {state.step:,}")
        with stop_request() as stop:
            while not self._finished():
                self._train_one_step()
                better = self._evaluation_is_due() and self._validate()
                waited = time.monotonic() - self._last_save
                waited, signal = self._world.largest(waited, stop.signal or 0)
                if better or waited >= settings.checkpoint_seconds:
                    self._save()
                if signal and not self._finished():
                    self._save()
                    raise Stopped(f"stopped and saved after step {state.step:,}; --resume goes on", signal=int(signal))
        if state.best_sha256 is not None:
            load_best(self._workspace, state.best_sha256, self._model, self._world)
        return state

    def _place(self) -> int:
        """Where the run stands in its schedule, in steps: by its steps or by its clock, whichever is further."""
        step, settings = self._state.step, self._settings
        if settings.seconds is None:
            return step
        return max(step, int(self._state.seconds / settings.seconds * settings.steps))

    def _finished(self) -> bool:
        return self._state.stopped_early or self._place() >= self._settings.steps

    def _train_one_step(self) -> None:
        state, settings = self._state, self._settings
        began, processor_began = time.monotonic(), time.process_time()
        epoch, index = divmod(state.step, self._sampler.batches_per_epoch)
        rate = set_learning_rate(self._optimizer, learning_rate_factor(self._place(), settings.steps, settings.warmup))
        rows = self._sampler.rows(epoch, index)
        outcome = self._step(rows, step=state.step, seed=settings.seed)
        seconds, processor_seconds = self._world.largest(
            time.monotonic() - began, time.process_time() - processor_began
        )
        state.step += 1
        state.seconds += seconds
        state.processor_seconds += processor_seconds
        self._observer.stepped(
            {
                **_clock(state),
                "epoch": round(state.step / self._sampler.batches_per_epoch, 4),
                "loss": outcome.loss,
                "learning_rate": rate,
                "gradient_norm": outcome.gradient_norm,
                "queries_per_second": len(rows) / seconds,
                "tokens": outcome.tokens,
                **outcome.replay,
                **outcome.pool,
            }
        )

    def _evaluation_is_due(self) -> bool:
        if self._evaluate is None:
            return False
        every = self._settings.evaluate_every
        return self._place() >= self._settings.steps or (every > 0 and self._state.step % every == 0)

    def _validate(self) -> bool:
        """Whether the model is better than at any evaluation before."""
        assert self._evaluate is not None
        state, settings = self._state, self._settings
        metrics = self._world.gather_objects(self._evaluate())[0]  # one answer, whatever the processes' last digits say
        if settings.metric not in metrics:
            raise BadConfig(f"evaluation.metric = {settings.metric!r}: there is {', '.join(metrics)}")
        value = metrics[settings.metric]
        better = state.best_value is None or value > state.best_value
        if better:
            state.best_sha256 = self._world.gather_objects(save_best(self._workspace, self._model))[0]
            state.best_value, state.best_step, state.evaluations_since_best = value, state.step, 0
        else:
            state.evaluations_since_best += 1
            state.stopped_early = settings.patience is not None and state.evaluations_since_best >= settings.patience
        record = {**_clock(state), "best": better, "metrics": metrics}
        state.evaluations.append(record)
        self._observer.evaluated(record)
        if state.stopped_early:
            self._observer.notice(
                f"stopped early: {settings.metric} was best at step {state.best_step:,} ({state.best_value:.2f})"
            )
        return better

    def _save(self) -> None:
        self._refuse_drift()
        pool = {} if self._step.pool is None else self._step.pool.state()
        save_checkpoint(
            self._workspace,
            self._state,
            self._model,
            self._optimizer,
            pool=pool,
            recipe=self._recipe,
            data=self._data,
        )
        self._last_save = time.monotonic()

    def _refuse_drift(self) -> None:
        """Every process must hold the same weights, its own rows of a table apart.

        If the machines' arithmetic differs, that is not so.
        """
        if self._world.size > 1:
            own = row_tables(self._model)
            shared = (weight for name, weight in self._model.named_parameters() if name not in own)
            with torch.no_grad():
                total = sum(float(weight.double().sum()) for weight in shared)
            high, low = self._world.largest(total, -total)
            if high != -low:
                raise Diverged(
                    f"the processes no longer hold the same weights after step {self._state.step:,} (their sums go "
                    f"from {-low!r} to {high!r}); use machines of one kind, and resume from the last checkpoint"
                )


def _clock(state: TrainState) -> dict[str, float]:
    """Training time alone, without evaluations; processor time is what a busy machine leaves comparable."""
    return {
        "step": state.step,
        "seconds": round(state.seconds, 3),
        "processor_seconds": round(state.processor_seconds, 3),
    }
