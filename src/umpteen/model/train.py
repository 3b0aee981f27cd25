"""One run from its recipe to its model folder: nothing of value is in the way, nothing appears before it is whole."""

import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from umpteen.config.recipes import resolve, to_toml
from umpteen.config.settings import RunConfig
from umpteen.data.dataset import Dataset
from umpteen.encoders.encoder import Encoder, encode_tokens
from umpteen.encoders.rows import row_tables
from umpteen.errors import BadInput, Diverged
from umpteen.files.storage import can_hold, open_workspace, write_atomically
from umpteen.model.classifier import Classifier
from umpteen.model.folder import MANIFEST
from umpteen.model.writing import standing_in, stood_in
from umpteen.parallel.world import Shard, World, launch_name
from umpteen.training.build import Start, build_run, weigh_parts
from umpteen.training.checkpoint import remove_checkpoint
from umpteen.training.observer import Observer, Observers
from umpteen.training.trackers import build_trackers
from umpteen.training.tune import as_settings

WORK = "umpteen train"  # the kind of its workspace
LAUNCHED_BY = "launched-by"  # the launcher's name for the run: processes it restarts go on by themselves


def train(
    config: RunConfig | str | Path,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | Path | None = None,
    observers: Sequence[Observer] = (),
) -> Classifier:
    """Trains one run to its end and returns the classifier that was saved in `output` (runs/NAME if left out).

    While it trains, `output` + ".training" holds its checkpoint and metrics.jsonl; the model folder appears whole at
    the end. `resume` goes on with what is there; `overwrite` discards it. `start_from` is a trained model's folder.
    Each of the `observers` hears of it all.

    >>> from umpteen import RunConfig, train
    >>> tiny = {"name": "tiny", "training": {"steps": 1, "batch_size": 8}, "evaluation": {"every_epochs": 0}}
    >>> classifier = train(RunConfig.model_validate(tiny), output="runs/tiny")
    >>> len(classifier.predict(["a small dog with a curly tail"], k=3)[0])
    3
    """
    config = resolve(str(config)) if isinstance(config, str | Path) else config
    output = Path("runs", config.name) if output is None else Path(output)
    train_in(World(), config, output, resume=resume, overwrite=overwrite, start_from=start_from, observers=observers)
    return Classifier.load(output)


def train_trial(config: RunConfig, output: Path, *observers: Observer) -> dict[str, Any]:
    """A trial of `umpteen.training.tune` whose model stays in `output`, or what of it is there already."""
    try:
        model = train(config, output=output, resume=True, observers=observers)
    except Diverged as problem:
        Observers(*observers).notice(str(problem))
        return {"metrics": {config.evaluation.metric: 0.0}, "then": []}
    assert model.report is not None
    weights = model.training.get("weights", {})
    return {"metrics": model.report.metrics, "best_step": model.training["best_step"], "then": as_settings(weights)}


def train_in(
    world: World,
    config: RunConfig,
    output: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | Path | None = None,
    observers: Sequence[Observer] = (),
) -> None:
    """`train` as one process of a world: all of them call it with the same arguments, and the first one writes."""
    own = Observers(*observers)
    trackers = build_trackers(config, output, workspace_of(output), own.notice) if world.is_first else []
    opened = open_workspace(workspace_of(output), WORK) if world.is_first else nullcontext()
    with Observers(own, *trackers) as observer, opened as workspace:
        complete = workspace is not None and is_complete(output, workspace.begun, resume=resume, overwrite=overwrite)
        stands = standing_in(output) if world.is_first else None
        if world.largest(complete)[0]:
            observer.notice(f"{output} is complete; nothing is left to train")
            return
        start = None
        if start_from is not None:
            trained = Classifier.load(start_from, ranker=False, index=False, runtime=False)
            start = Start(str(start_from), trained.towers, list(trained.labels.keys))
            before, by = trained.data, tomllib.loads(trained.recipe or "")
            del trained
        folder = None if workspace is None else workspace.folder
        run = build_run(config, workspace=folder, start=start, observer=observer, world=world)
        if start is not None and _saw_validation(before, by, run.dataset, config):
            told = f"{start_from} was trained on texts that are validation here"
            observer.notice(f"warning: {told}; figures on them will be too high")
        if workspace is not None:
            if overwrite:
                remove_checkpoint(workspace.folder)  # only now: a mistake in recipe or data must not cost the old run
            stands = stood_in(workspace, stands, anew=overwrite)
            if name := launch_name():
                write_atomically(workspace.folder / LAUNCHED_BY, name)
        state = run.loop.run()
        weights = weigh_parts(run, config.evaluation.metric, world)
        for tower in run.towers.modules():
            if isinstance(tower, Encoder):
                tower.settle()  # so that the saved model gives the same vectors to the bit
        labels, towers = run.dataset.labels, run.towers.eval()
        shard = Shard(world, len(labels))
        encoding = partial(observer, "encoding labels")
        encoded = encode_tokens(towers.label, run.data.labels.take(shard.rows), progress=encoding).float()
        report = run.evaluator.report(run.evaluator.rank(towers.query, encoded, shard=shard)) if run.evaluator else None
        vectors = shard.collect(encoded)
        for table in row_tables(towers).values():
            table.collect_()
        if workspace is not None and vectors is not None:
            origin = f"# Started from {start_from}: its towers stand in for [encoder].\n" if start_from else ""
            data = {"name": run.dataset.name, "fingerprint": run.dataset.fingerprint, "trained_on": config.data.fit_on}
            training = {
                "steps": state.step,
                "seconds": round(state.seconds, 1),
                "best_step": state.best_step,
                "parameters": towers.parameter_counts(),
                "tokens_cut": min(run.cut.values(), default=0.0),
                **({"tokens_cut_by_part": run.cut} if len(run.cut) > 1 else {}),
                **({"weights": weights} if weights else {}),
            }
            about: dict[str, Any] = {"report": report, "recipe": origin + to_toml(config), "data": data}
            about |= {"training": training, "unless_changed": stands}
            log = workspace.folder / "metrics.jsonl"
            kept = Classifier(towers, labels, vectors).save(output, **about, extra_files=[log])
            workspace.remove()
            if kept is not None:
                observer.notice(f"{output} was changed while this one was trained; what stood there is kept in {kept}")
        world.wait()
        observer.finished(output, report)


def _saw_validation(before: dict[str, Any], by: dict[str, Any], dataset: Dataset, config: RunConfig) -> bool:
    """Whether a model of this data by this recipe knows the validation split of another recipe."""
    if config.data.fit_on != "train" or before.get("fingerprint") != dataset.fingerprint:
        return False
    held_out = by.get("seed"), by.get("data", {}).get("validation_fraction")
    other = dataset.validation_was_taken and held_out != (config.seed, config.data.validation_fraction)
    return bool(before.get("trained_on") != "train" or other)


def workspace_of(output: Path) -> Path:
    """Where a run keeps its checkpoint and its log until the model folder is complete."""
    return Path(f"{output.resolve()}.training")


def started_by_this_launch(workspace: Path) -> bool:
    """Whether the run in this workspace was begun by the launcher that has started this process."""
    name, marker = launch_name(), workspace / LAUNCHED_BY
    return name is not None and marker.is_file() and marker.read_text(encoding="utf-8") == name


def is_complete(output: Path, begun: bool, *, resume: bool, overwrite: bool) -> bool:
    """Whether the run, of which something may have been begun, is done already; refuses to lose something of value."""
    if resume and overwrite:
        raise BadInput("--resume goes on with an unfinished run and --overwrite discards it; give one of them")
    if not can_hold(output, MANIFEST):
        raise BadInput(f"{output} exists and is not a model folder, so it is not replaced; give another --output")
    there = (output / MANIFEST).exists()
    if there and not (resume or overwrite):
        raise BadInput(f"{output} exists already; give another --output, or --overwrite to replace it at the end")
    if begun and not (resume or overwrite):
        raise BadInput(f"{workspace_of(output)} holds an unfinished run; --resume goes on, --overwrite discards it")
    return there and resume and not begun
