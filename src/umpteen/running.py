"""One run from its recipe to its model folder: nothing of value is in the way, nothing appears before it is whole."""

import shutil
from pathlib import Path

from umpteen.assemble import Progress, build_run, named
from umpteen.classifier import Classifier
from umpteen.config import RunConfig, read_config, to_toml
from umpteen.encoders.static import StaticEncoder
from umpteen.errors import BadInput
from umpteen.manifest import MANIFEST
from umpteen.storage import can_hold
from umpteen.training.checkpoint import remove_checkpoint
from umpteen.training.observer import Observer, Silence


def train(
    config: RunConfig | str | Path,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | Path | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> Classifier:
    """Trains one run to its end and returns the classifier that was saved in `output` (runs/NAME if left out).

    While it trains, `output` + ".training" holds its checkpoint and metrics.jsonl; the model folder appears whole at
    the end. `resume` goes on with what is there; `overwrite` discards it. `start_from` is a trained model's folder.
    """
    config = read_config(Path(config)) if isinstance(config, str | Path) else config
    observer = observer or Silence()
    output = Path("runs", config.name) if output is None else Path(output)
    workspace = Path(f"{output.resolve()}.training")
    if _complete(output, workspace, resume=resume, overwrite=overwrite):
        observer.notice(f"{output} is complete; nothing is left to train")
        return Classifier.load(output)
    run = build_run(config, workspace=workspace, start_from=start_from, observer=observer, progress=progress)
    if overwrite:
        remove_checkpoint(workspace)  # only now: a mistake in the recipe or the data must not cost the old run
    state = run.loop.run()
    for tower in (run.towers.query, run.towers.label):
        if isinstance(tower, StaticEncoder):
            tower.fold_token_weights()  # as saving will, so that the saved model gives the same vectors to the bit
    classifier = Classifier.build(run.towers.eval(), run.dataset.labels, progress=named(progress, "encoding labels"))
    report = run.judge.report(run.judge.rank(run.towers.query, classifier.vectors)) if run.judge else None
    classifier.save(
        output,
        report=report,
        recipe=_origin(start_from) + to_toml(config),
        data={"name": run.dataset.name, "fingerprint": run.dataset.fingerprint, "trained_on": config.data.fit_on},
        training={"steps": state.step, "seconds": round(state.seconds, 1), "best_step": state.best_step},
        extra_files=[workspace / "metrics.jsonl"],
    )
    shutil.rmtree(workspace, ignore_errors=True)
    return Classifier.load(output)


def _origin(start_from: str | Path | None) -> str:
    return f"# Started from {start_from}: its towers stand in for [encoder].\n" if start_from else ""


def _complete(output: Path, workspace: Path, *, resume: bool, overwrite: bool) -> bool:
    """Whether the run is done already; refuses what would lose something of value."""
    if resume and overwrite:
        raise BadInput("--resume goes on with an unfinished run and --overwrite discards it; give one of them")
    if not can_hold(output, MANIFEST):
        raise BadInput(f"{output} exists and is not a model folder, so it is not replaced; give another --output")
    there = (output / MANIFEST).exists()
    if there and not (resume or overwrite):
        raise BadInput(f"{output} exists already; give another --output, or --overwrite to replace it at the end")
    if workspace.exists() and not (resume or overwrite):
        raise BadInput(f"{workspace} holds an unfinished run; --resume goes on with it, --overwrite discards it")
    return there and resume and not workspace.exists()
