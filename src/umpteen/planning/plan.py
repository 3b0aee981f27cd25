"""What a run will cost, for people and machines to read."""

from dataclasses import dataclass
from typing import Any

from umpteen.planning.prediction import SAVING, Prediction, Sizes
from umpteen.planning.verification import Measured


@dataclass(frozen=True)
class Plan:
    """The prediction for a run, the memory it has, and what would fit if it does not."""

    prediction: Prediction
    sizes: Sizes
    memory: int  # bytes that a process may hold
    processes: int
    steps_per_epoch: int
    steps: int  # in all; fewer than the recipe's where its minutes end first
    evaluations: int
    suggestion: Sizes | None  # the sizes themselves if they fit; None if none do
    least: int  # bytes needed whatever the sizes,
    of_labels: int  # and how many of them the labels' vectors and gradients take
    measured: Measured | None = None

    @property
    def fits(self) -> bool:
        return self.prediction.peak <= self.memory

    @property
    def seconds_total(self) -> float:
        """Training, the evaluations on the way, and the last one, made when the model is saved."""
        evaluation = float(self.prediction.evaluation[0])
        return self.steps * float(self.prediction.step[0]) + (self.evaluations + 1) * evaluation

    @property
    def changes(self) -> dict[str, int | None] | None:
        """The settings to change for the run to fit, none if it does already; None if no change is enough."""
        if self.suggestion is None:
            return None
        pairs = zip(Sizes._fields, self.suggestion, self.sizes, strict=True)
        return {f"training.{name}": value for name, value, before in pairs if value != before}

    def advice(self) -> str:
        """What to do about a run that does not fit."""
        story = f"the run needs {self.prediction.peak / 1e9:.2f} GB and has {self.memory / 1e9:.2f}"
        if self.changes is not None:
            settings = " ".join(f"--set {key}={value}" for key, value in self.changes.items())
            return f"{story}; the largest settings that fit: {settings}"
        return (
            f"{story}; no batch, token budget or tile makes it fit: {self.least / 1e9:.2f} GB are needed whatever they "
            f"are, {self.of_labels / 1e9:.2f} of them for the labels' vectors and gradients, which more processes on "
            "more machines would share"
        )

    def ratios(self) -> dict[str, float]:
        """Predicted ÷ measured, of what the measured run does: it saves nothing."""
        assert self.measured is not None
        peak = max(size for phase, size in self.prediction.memory.items() if phase != SAVING)
        clock, processor = (self.prediction.step / self.measured.step).tolist()
        found = {"memory_ratio": peak / self.measured.memory, "time_ratio": clock, "processor_time_ratio": processor}
        if self.evaluations:
            found["evaluation_ratio"] = float(self.prediction.evaluation[0] / self.measured.evaluation[0])
        return found

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        step, evaluation = float(self.prediction.step[0]), float(self.prediction.evaluation[0])
        content: dict[str, Any] = {
            "processes": self.processes,
            "memory_gb": self.prediction.peak / 1e9,
            "memory_limit_gb": self.memory / 1e9,
            "fits": self.fits,
            "suggestion": self.changes,
            "memory_by_phase_gb": {phase: size / 1e9 for phase, size in self.prediction.memory.items()},
            "seconds_per_step": step,
            "processor_seconds_per_step": float(self.prediction.step[1]),
            "steps_per_epoch": self.steps_per_epoch,
            "seconds_per_epoch": step * self.steps_per_epoch,
            "steps": self.steps,
            "seconds_per_evaluation": evaluation,
            "evaluations": self.evaluations,
            "seconds_total": self.seconds_total,
            "shares": {part: float(seconds[0]) / step for part, seconds in self.prediction.seconds.items()},
        }
        if self.measured is not None:
            content["measured_memory_gb"] = self.measured.memory / 1e9
            content["measured_seconds_per_step"] = float(self.measured.step[0])
            content["measured_processor_seconds_per_step"] = float(self.measured.step[1])
            content |= self.ratios()
        return content
