"""`umpteen calibrate` and `umpteen ranker`: what can be added to a trained model."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from umpteen.cli.saying import say


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", "source", required=True, help="The dataset folder or bundled name the model was trained on.")
@click.option(
    "--folds",
    type=click.IntRange(2),
    help="Train the recipe anew so many times, each time without a small fold, and calibrate on what was left out: for "
    "models fitted on validation, too.",
)
@click.option("--unseen", is_flag=True, help="The model has seen none of DATA's training texts: calibrate on them.")
@click.option(
    "--coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The share of right labels that the rule of coverage is to give.  [default: 0.9, or what can be reached]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(model: Path, source: str, folds: int | None, unseen: bool, coverage: float | None, as_json: bool) -> None:
    """Learn probabilities, thresholds and rules on texts MODEL was not fitted on, and put them into its folder.

    The texts are those that training held out for validation; with --folds, training texts, each scored by a model that
    was trained without it. A killed run with folds goes on when it is started again. Test data is never used.
    """
    from umpteen.cli.console import Watch
    from umpteen.data.dataset import open_dataset
    from umpteen.model.calibrate import calibrate as fit

    with Watch(quiet=as_json) as watch:
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        found = fit(model, dataset, folds=folds, unseen=unseen, coverage=coverage, observer=watch, progress=watch)
    rules = {name: rule._asdict() for name, rule in found.rules.items()}
    steps = [_nearest(found.steps, wanted) for wanted in (0.5, 0.7, 0.8, 0.9, 0.95)]
    if as_json:
        about = {"model": str(model), "data": dataset.name, "held_out": found.origin}
        reached = [step for step in steps if step is not None]
        click.echo(json.dumps({**about, "figures": found.figures, "precision": reached, "rules": rules}))
        return
    _tell(model, found.origin, found.figures, steps, rules)


def _nearest(steps: Any, wanted: float) -> dict[str, float] | None:
    step = next((step for step in steps if step.precision >= wanted), None)
    return None if step is None else {"wanted": wanted, **step._asdict()}


def _tell(
    model: Path,
    origin: dict[str, Any],
    figures: dict[str, Any],
    steps: list[dict[str, float] | None],
    rules: dict[str, dict[str, float]],
) -> None:
    say(f"calibrated on {origin['said']}")
    if origin.get("also_chosen_on_them"):
        say(f"  on the same texts were chosen: {', '.join(origin['also_chosen_on_them'])}")
    say(f"expected calibration error, Brier score and log loss over {figures['over']}")
    say("  (each text's probabilities from curves fitted on other texts):")
    depth = "5" if "5" in figures["by_depth"] else list(figures["by_depth"])[-1]
    for name, side in (("raw score", "raw"), ("calibrated", "calibrated")):
        found = figures["by_depth"][depth][side]
        say(f"  {name:<11} ECE {found['ece']:.4f}  Brier {found['brier']:.4f}  log loss {found['log_loss']:.4f}")
    for step in steps:
        if step is not None:
            say(
                f"precision {step['wanted']:g}: probability {step['threshold']:.3f} or more, "
                f"{100 * step['recall']:.1f} % of the right labels"
            )
    for name, rule in rules.items():
        say(
            f"rule {name}: probability {rule['threshold']:.3f} or more, {rule['at_most']:g} labels at most; "
            f"{rule['labels_per_text']:.1f} a text, micro F1 {100 * rule['micro_f1']:.1f}, "
            f"precision {100 * rule['precision']:.1f}, recall {100 * rule['recall']:.1f}"
        )
    say(f"try: umpteen predict {model} 'your text' --precision 0.9")


def calibration_lines(found: dict[str, Any] | None) -> list[str]:
    """What a calibrated model's probabilities were worth on a split; nothing for other models."""
    if found is None:
        return []
    lines = [f"calibration error {found['ece']:.4f}, of the raw score {found['ece_raw']:.4f}, over {found['over']}"]
    for one in found["precision"]:
        if one["wanted"] == 0.9:
            lines.append(
                f"--precision 0.9: {one['given']:,} labels given, {100 * one['reached']:.1f} % of them right, "
                f"{100 * one['recall']:.1f} % of the right ones"
            )
    for name, rule in found["rules"].items():
        lines.append(
            f"--rule {name}: {rule['labels_per_text']:.1f} labels a text, micro F1 {100 * rule['micro']:.1f}, macro F1 "
            f"{100 * rule['macro']:.1f}, precision {100 * rule['precision']:.1f}, recall {100 * rule['recall']:.1f}"
        )
    return lines


@click.group()
def ranker() -> None:
    """Add a sparse ranker to a trained model, or remove it (docs/how-to/ranker.md)."""


@ranker.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", "source", required=True, help="The dataset folder or bundled name the model was trained on.")
@click.option("--weight", type=click.FloatRange(0, 1), help="Of the ranker's score.  [default: chosen on validation]")
@click.option("--rare", type=click.FloatRange(0), help="Head start of rare labels.  [default: chosen on validation]")
@click.option("--candidates", type=click.IntRange(1), help="Labels of a text to put in order.  [default: 100]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting, e.g. cost=3 or words=[1,3].")
@click.option("--jobs", type=click.IntRange(1), help="Processes that fit labels.  [default: one for each core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fit(
    model: Path,
    source: str,
    weight: float | None,
    rare: float | None,
    candidates: int | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    as_json: bool,
) -> None:
    """Fit a ranker on what MODEL was trained on and put it into the model folder; a killed fit goes on."""
    from umpteen.cli.console import Watch
    from umpteen.config.recipes import with_overrides
    from umpteen.data.dataset import open_dataset
    from umpteen.model.rerank import fit_ranker
    from umpteen.parallel.world import cores
    from umpteen.rerank.features import RankerSettings

    asked = {} if candidates is None else {"candidates": candidates}
    settings = RankerSettings.of(with_overrides({}, overrides) | asked)
    with Watch(quiet=as_json) as watch:
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        fitted, trials = fit_ranker(
            model, dataset, settings, weight=weight, rare=rare, jobs=jobs or cores(), progress=watch
        )
    if as_json:
        course = [trial._asdict() for trial in trials]
        click.echo(json.dumps({"model": str(model), "data": dataset.name, **fitted.describe(), "trials": course}))
        return
    for trial in trials:
        if trial.weight == 0 or (trial.weight, trial.rare) == (fitted.weight, fitted.rare):
            figures = "  ".join(f"{name} {value:.2f}" for name, value in trial.metrics.items())
            say(f"validation, weight {trial.weight:g}, rare {trial.rare:g}: {figures}")
    say(f"{model} has a ranker of {fitted.weights.nnz:,} weights; it counts {fitted.weight:g}")


@ranker.command()
@click.argument("model", type=click.Path(path_type=Path))
def remove(model: Path) -> None:
    """Take the ranker out of MODEL."""
    from umpteen.model.rerank import remove_ranker

    remove_ranker(model)
    say(f"{model} ranks with its dual encoder alone")
