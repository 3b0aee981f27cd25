"""How runs went on validation, read from their metrics.jsonl: finished models and runs under way alike."""

import json
from pathlib import Path
from typing import Any, Literal

from umpteen.errors import BadFile, BadInput
from umpteen.model_folder import MANIFEST, ModelFolder

Clock = Literal["step", "seconds", "processor_seconds"]


def validation_course(run: Path, metric: str, clock: Clock) -> list[tuple[float, float]]:
    """Place and metric at each evaluation of a run, against its steps, its training time or its processor time."""
    log = _log_of(run)
    evaluations: list[dict[str, Any]] = []
    for number, line in enumerate(log.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            raise BadFile(log, "is not JSON; was the log edited?", line=number) from None
        if "metrics" in record:
            evaluations.append(record)
    if not evaluations:
        raise BadInput(f"{run} was never evaluated on validation; there is no curve (was it a final fit?)")
    if metric not in evaluations[0]["metrics"]:
        raise BadInput(f"{run} has no {metric}; it has {', '.join(evaluations[0]['metrics'])}")
    return [(record[clock], record["metrics"][metric]) for record in evaluations]


def _log_of(run: Path) -> Path:
    trained = ModelFolder(run).trained if (run / MANIFEST).is_file() else run
    candidates = [folder / "metrics.jsonl" for folder in (Path(f"{run}.training"), trained)]
    for log in candidates:
        if log.is_file():
            return log
    raise BadInput(f"there is no run at {run}: neither {candidates[0]} nor {candidates[1]} exists")
