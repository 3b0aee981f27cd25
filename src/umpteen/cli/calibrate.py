"""`umpteen calibrate`: a trained model learns how probable its answers are."""

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
    from umpteen.calibrating import calibrate as fit
    from umpteen.cli.console import Watch
    from umpteen.data.dataset import open_dataset

    with Watch(quiet=as_json) as watch:
        dataset = open_dataset(source, progress=partial(watch, "reading"))
        found = fit(model, dataset, folds=folds, unseen=unseen, coverage=coverage, observer=watch, progress=watch)
    rules = {name: rule.to_dict() for name, rule in found.rules.items()}
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
