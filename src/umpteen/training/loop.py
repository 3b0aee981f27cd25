"""The loop around the step: schedule, validation, best model, early stopping, checkpoints, a clean end on signals.

Every process runs it and keeps the same state; only the first writes. What clocks and signals decide is agreed upon.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from umpteen.config.settings import RunConfig
from umpteen.data.labels import EpochSampler
from umpteen.encoders.rows import row_tables
from umpteen.errors import Diverged, Stopped
from umpteen.parallel.children import stop_request
from umpteen.training.checkpoint import POOL, Checkpoints, TrainState
from umpteen.training.observer import Observer
from umpteen.training.optimizer import learning_rate_factor, set_learning_rate
from umpteen.training.step import TrainingStep


@dataclass(eq=False)
class Loop:
    """One run in a workspace folder, from its checkpoint (or from the start) to its end."""

    step: TrainingStep
    sampler: EpochSampler
    evaluate: Callable[[], dict[str, float]] | None
    config: RunConfig
    observer: Observer
    checkpoints: Checkpoints

    def __post_init__(self) -> None:
        training, evaluation, epoch = self.config.training, self.config.evaluation, self.sampler.batches_per_epoch
        self.steps = training.steps or math.ceil(training.epochs * epoch)
        # Of training, after which the run ends; such a run cannot be repeated to the bit.
        self.seconds = 60 * training.minutes if training.minutes else None
        self.evaluate_every = evaluation.every_steps or math.ceil(evaluation.every_epochs * epoch)  # 0: at the end only
        self._optimizer, self._world = self.checkpoints.optimizer, self.checkpoints.world
        self._state = TrainState()

    def run(self) -> TrainState:
        """Trains to the end, then puts the best weights on validation, if any were kept, into the model."""
        resumed = self.checkpoints.load()
        self._state = resumed or TrainState()
        if resumed and self.step.pool is not None:
            self.step.pool.restore(self.checkpoints.shared(POOL))
        self._refuse_drift()
        state, every, saved = self._state, self.evaluate_every, time.monotonic()
        self.observer.started(self.config, state.step, self.steps)
        if resumed:
            self.observer.notice(f"resumed after step {state.step:,}")
        with stop_request() as stop:
            while not self._finished():
                self._train_one_step()
                due = self._place() >= self.steps or (every > 0 and state.step % every == 0)
                better = self.evaluate is not None and due and self._validate()
                waited, signal = self._world.largest(time.monotonic() - saved, stop.signal or 0)
                stopped = signal and not self._finished()
                if better or stopped or waited >= 60 * self.config.training.checkpoint_minutes:
                    self._refuse_drift()
                    self.checkpoints.save(state, None if self.step.pool is None else self.step.pool.state())
                    saved = time.monotonic()
                if stopped:
                    raise Stopped(f"stopped and saved after step {state.step:,}; --resume goes on", signal=int(signal))
        if state.best_step is not None:
            self.checkpoints.load_best()
        return state

    def _place(self) -> int:
        """Where the run stands in its schedule, in steps: by its steps or by its clock, whichever is further."""
        by_clock = self._state.seconds / self.seconds * self.steps if self.seconds else 0
        return max(self._state.step, int(by_clock))

    def _finished(self) -> bool:
        return self._state.stopped_early or self._place() >= self.steps

    def _train_one_step(self) -> None:
        state = self._state
        began, processor_began = time.monotonic(), time.process_time()
        factor = learning_rate_factor(self._place(), self.steps, self.config.optimizer.warmup)
        rate = set_learning_rate(self._optimizer, factor)
        rows = self.sampler.rows(*divmod(state.step, self.sampler.batches_per_epoch))  # its epoch, and place in that
        outcome = self.step(rows, step=state.step, seed=self.config.seed)
        took = time.monotonic() - began, time.process_time() - processor_began
        seconds, processor_seconds = self._world.largest(*took)
        state.step += 1
        state.seconds += seconds
        state.processor_seconds += processor_seconds
        record = {
            **_clock(state),
            "epoch": round(state.step / self.sampler.batches_per_epoch, 4),
            "loss": outcome.loss,
            "learning_rate": rate,
            "gradient_norm": outcome.gradient_norm,
            "queries_per_second": len(rows) / seconds,
            "tokens": outcome.tokens,
            **outcome.replay,
            **outcome.pool,
        }
        self.observer.stepped(record)

    def _validate(self) -> bool:
        """Whether the model is better than at any evaluation before."""
        assert self.evaluate is not None
        state, settings = self._state, self.config.evaluation
        metrics = self._world.gather_objects(self.evaluate())[0]  # one answer, whatever the processes' last digits say
        value = metrics[settings.metric]
        better = state.best_value is None or value > state.best_value
        if better:
            state.best_value, state.best_step, state.evaluations_since_best = value, state.step, 0
        else:
            state.evaluations_since_best += 1
            state.stopped_early = settings.patience is not None and state.evaluations_since_best >= settings.patience
        record = {**_clock(state), "best": better, "metrics": metrics}
        state.evaluations.append(record)
        self.observer.evaluated(record)
        if state.stopped_early:
            best = f"{settings.metric} was best at step {state.best_step:,} ({state.best_value:.2f})"
            self.observer.notice(f"stopped early: {best}")
        return better

    def _refuse_drift(self) -> None:
        """Every process must hold the same weights, its own rows apart; machines of different arithmetic do not."""
        if self._world.size > 1:
            model = self.checkpoints.model
            own = row_tables(model)
            shared = (weight for name, weight in model.named_parameters() if name not in own)
            with torch.no_grad():
                total = sum(float(weight.double().sum()) for weight in shared)
            high, low = self._world.largest(total, -total)
            if high != -low:
                since = f"after step {self._state.step:,} (their sums go from {-low!r} to {high!r})"
                advice = "use machines of one kind, and resume from the last checkpoint"
                raise Diverged(f"the processes no longer hold the same weights {since}; {advice}")


def _clock(state: TrainState) -> dict[str, float]:
    """Training time alone, without evaluations; processor time is what a busy machine leaves comparable."""
    return {"step": state.step, **{name: round(getattr(state, name), 3) for name in ("seconds", "processor_seconds")}}
