"""`umpteen train`, `tune`, `plan` and `doctor`: a run, which settings, what it will cost, what is wrong."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import DATA_OF_RECIPE, PATH, RECIPE, Watch, cli, duration, option, say, say_json, settings, verb
from umpteen.cli.tables import figures, show_metrics, show_table
from umpteen.errors import BadInput


@verb(cli, RECIPE, DATA_OF_RECIPE, last=())
@settings("Override a setting, e.g. training.epochs=3.")
@click.option("--output", type=PATH, required=True, help="Model folder to make.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run; starts it where there is none.")
@click.option("--overwrite", is_flag=True, help="Discard an unfinished run; replace the model when training ends.")
@click.option("--from", "start_from", metavar="MODEL", help="Start from a trained model, on other data or more labels.")
@click.option("--quiet", is_flag=True, help="No progress; errors only.")
def train(recipe: str, source: str | None, overrides: tuple[str, ...], output: Path, quiet: bool, **how: Any) -> None:
    """Train a model by RECIPE: a TOML file, or the name of one that ships with umpteen.

    On several processes: torchrun --standalone --nproc-per-node 2 -m umpteen train … (docs/how-to/many-machines.md).
    """
    launcher = os.getppid()  # which may end while torch is loaded
    from umpteen.parallel.children import end_with_launcher
    from umpteen.parallel.world import join_world, launch_name

    if launch_name():
        end_with_launcher(launcher)
    from umpteen.config.recipes import resolve
    from umpteen.model.classifier import Classifier
    from umpteen.model.train import started_by_this_launch, train_in, workspace_of
    from umpteen.training.build import pick_device

    config = resolve(recipe, overrides, source)
    with join_world(pick_device(config.training.device)) as world, Watch(quiet=quiet or not world.is_first) as watch:
        if world.gather_objects(started_by_this_launch(workspace_of(output)))[0]:
            how |= {"resume": True, "overwrite": False}  # this process stands in the place of one that ended
        train_in(world, config, output=output, observers=[watch], **how)
    if quiet or not world.is_first:
        return
    if (report := Classifier.load(output).report) is not None:
        show_metrics({"validation": report})
    say(f"saved {output}; try: umpteen predict {output} 'your text'")


TUNED = "# The best that `umpteen tune` found.\n"
TRIED = "Values to try; repeat for a grid.  [default: mixes of parts, values around the recipe's own]"
TRIALS = "Try so many, one choice after another from the best so far.  [default: 12; with --try the whole grid]"
TRY = click.Option(["--try", "choices"], multiple=True, metavar="KEY=V1,V2,…", help=TRIED)


@verb(cli, RECIPE, TRY, DATA_OF_RECIPE)
@settings("Override a setting for all trials.")
@click.option("--trials", type=click.IntRange(1), help=TRIALS)
@click.option("--output", type=PATH, required=True, help="A .jsonl file: one line a trial, resumable.")
@click.option("--recipe-out", type=PATH, help="The recipe that won.  [default: OUTPUT, ending in .best.toml]")
def tune(recipe: str, source: str | None, overrides: tuple[str, ...], output: Path, as_json: bool, **how: Any) -> None:
    """Try settings of RECIPE and rank them by its metric on validation; test data is never scored."""
    from umpteen.config.recipes import resolve, to_toml
    from umpteen.files.storage import write_atomically
    from umpteen.training.tune import tune as run

    metric = resolve(recipe, overrides, source).evaluation.metric
    place: Path = how.pop("recipe_out") or output.with_suffix(".best.toml")
    if place.exists() and (
        place.resolve() == Path(recipe).resolve() or not place.read_bytes().startswith(TUNED.encode())
    ):
        raise BadInput(f"{place} is not a recipe that an earlier call wrote; give another --recipe-out")
    with Watch(quiet=as_json) as watch:
        results = run(recipe, output, overrides=overrides, source=source, **how, observer=watch)
    won = results[0]
    write_atomically(place, TUNED + to_toml(resolve(recipe, (*won["settings"], *won.get("then", ())), source)))
    if as_json:
        say_json({"metric": metric, "results": results, "recipe": str(place)})
        return
    metrics = [trial["metrics"] for trial in results]
    columns = {
        "settings": [" ".join(trial["settings"]) for trial in results],
        **{name: figures(metrics, name) for name in dict.fromkeys((metric, "P@1", "P@5", "PSP@5", "R@100"))},
        "best step": [str(trial["best_step"]) for trial in results],
        "s": [str(trial["seconds"]) for trial in results],
    }
    show_table(columns)
    say(f"the best of them is written to {place}; train it:  umpteen train {place} --output MODEL")


HELD = "What a process may hold; by default what this machine has available, shared by the processes."


@verb(cli, RECIPE, DATA_OF_RECIPE)
@settings("Override a setting, e.g. training.batch_size=256.")
@click.option("--memory", "memory_gb", type=click.FloatRange(0, min_open=True), metavar="GB", help=HELD)
@option("--processes", type=click.IntRange(1), default=1, help="Processes that share the labels.")
def plan(recipe: str, source: str | None, overrides: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Tell what training by RECIPE will cost here, before it starts: memory, time, and where it goes."""
    from umpteen.config.recipes import resolve
    from umpteen.plan.plan import advice, make_plan

    config = resolve(recipe, overrides, source)
    with Watch(quiet=as_json) as watch:
        found = make_plan(config, **asked, observer=watch)
    if as_json:
        say_json(found)
    else:
        _show(found)
    if not found["fits"]:
        say("warning: ", fg="yellow", bold=True, nl=False, err=True)
        say(advice(found), err=True)


def _show(plan: dict[str, Any]) -> None:
    step, memory = plan["seconds_per_step"], plan["memory_by_phase_gb"]
    each = "" if plan["processes"] == 1 else f" in each of {plan['processes']} processes, their communication left out"
    largest = f"phase: {max(memory, key=memory.get)}; {plan['memory_limit_gb']:.2f} GB there"
    lines = [("peak memory", f"{plan['memory_gb']:.2f} GB", largest), ("a step", f"{step:.3g} s", "")]
    for part, share in plan["shares"].items():
        of_these = f", {plan['labels_encoded_per_step']:,} of them" if part == "encode_labels" else ""
        lines.append((f"  {part.replace('_', ' ')}", f"{share * step:.3g} s", f"{share:.0%}{of_these}"))
    lines.append(("an epoch", duration(plan["seconds_per_epoch"]), f"{plan['steps_per_epoch']:,} steps"))
    if plan["evaluations"]:
        evaluation = f"{plan['seconds_per_evaluation']:.3g} s"
        lines.append(("an evaluation", evaluation, f"{plan['evaluations']:,} of them, one more to save"))
    lines.append(("the run", duration(plan["seconds_total"]), f"{plan['steps']:,} steps"))
    names, values, notes = zip(*lines, strict=True)
    show_table({"": names, "cost": values, "of that": notes}, title=f"predicted{each}", words=("", "of that"))


COLOURS = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


@verb(cli, click.Argument(["recipe"], default="wordnet-nouns"), DATA_OF_RECIPE)
@settings("Override a setting, e.g. objective.name=softmax.")
def doctor(recipe: str, source: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the installation, this machine, and that RECIPE computes what it should; the demo's if left out.

    Exit code 1 if anything fails.
    """
    from umpteen.config.recipes import resolve
    from umpteen.doctor.checks import examine

    config = resolve(recipe, overrides, source)
    with Watch(quiet=as_json) as watch:
        checks = list(examine(config, lambda name, done, total: watch("checking", done, total, name)))
    failed = [check.name for check in checks if check.status == "failed"]
    if as_json:
        say_json({"ok": not failed, "checks": [vars(check) for check in checks]})
    else:
        columns = {
            "": [f"[{COLOURS[check.status]}]{check.status}[/]" for check in checks],
            "check": [check.name for check in checks],
            "what was found": [check.detail for check in checks],
            "s": [f"{check.seconds:.1f}" for check in checks],
        }
        show_table(columns, words=("check", "what was found"))
        say(f"failed: {', '.join(failed)}" if failed else "all is well")
    sys.exit(1 if failed else 0)
