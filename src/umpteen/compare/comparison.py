"""A comparison from its methods to its results and its page: trials on validation, one final fit each, then test, once.

OUTPUT/trials/*.jsonl · results/METHOD.npz · models/ · results.json · index.html. Every finished trial and every
finished method is kept, so the same command goes on where it was stopped. The page needs no other file.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from umpteen.compare.methods import Method, Task, Unavailable, trials_file
from umpteen.data.dataset import Dataset
from umpteen.errors import BadFile, BadInput, Stopped
from umpteen.evaluation.figures import NO_FIGURE, Point, Points, bare_axes, inline, render
from umpteen.evaluation.report import paired_differences
from umpteen.files.progress import Notice
from umpteen.files.storage import atomic_file, write_atomically
from umpteen.search.ranking import Ranking
from umpteen.training.observer import Observer
from umpteen.training.tune import Trials, axes_of, climb


def make_task(
    source: str, dataset: Dataset, *, metric: str, seed: int, validation: float, propensity: tuple[float, float]
) -> Task:
    """The dataset with one validation split for all methods; what is wrong with it is said before anything runs."""
    held_out = replace(dataset.with_validation(validation, seed), test=None)
    task = Task(source, dataset, held_out, metric, seed, validation, propensity)
    evaluator = task.evaluator_of_validation()
    evaluator.require(metric)
    evaluator.require_positives()
    if task.test.relevance.without(task.test.filtered).pairs == 0:
        raise BadInput(f"none of the {len(task.test):,} test queries of {dataset.name} has a label to find")
    return task


def compare(task: Task, methods: Sequence[Method], *, trials: int, output: Path, observer: Observer) -> dict[str, Any]:
    """Runs what is not finished yet, and evaluates all methods on test beside each other."""
    threads = torch.get_num_threads()
    rows, left_out = [], []
    for done, method in enumerate(methods):
        torch.set_num_threads(threads)  # a recipe may have set its own
        observer("comparing", done, len(methods))
        try:
            method.install(observer.notice)
            rows.append((method, *_finish(task, method, trials, output, observer.notice)))
        except Stopped as stopped:
            kept = f"stopped; what is done is kept in {output}: the same command goes on"
            raise Stopped(kept, signal=stopped.signal) from None
        except Unavailable as reason:
            observer.notice(f"{method.name} is left out: {reason}")
            left_out.append({"method": method.name, "reason": str(reason)})
    observer("comparing", len(methods), len(methods))
    outcome = _evaluated(task, rows, trials) | {"skipped": left_out}
    write_atomically(output / "results.json", json.dumps(outcome, indent=1) + "\n")
    write_page(output / "index.html", outcome)
    return outcome


def _finish(task: Task, method: Method, most: int, output: Path, notice: Notice) -> tuple[dict[str, Any], Ranking]:
    """What a method took, and its ranking of test, after so many trials at most and its final fit."""
    ranked: list[dict[str, Any]] = []
    models = output / "models"
    if most == 1 and not method.is_ours:  # validation would choose nothing
        settings, then = tuple(axis[0] for axis in axes_of(method.choices(task))), ()
        tried = task.identify(method.name, settings)
    else:
        notice(f"{method.name}: up to {most} {'trial' if most == 1 else 'trials'} on validation")
        trials = Trials(output / "trials" / trials_file(method), task.metric, notice)

        def attempt(point: tuple[str, ...]) -> float:
            reached = trials.attempt(method.candidate(task, point, models))
            for worse in trials.best_first()[1:]:
                for model in models.glob(f"*-{worse['identity']}"):
                    shutil.rmtree(model, ignore_errors=True)
            return reached

        climb(method.choices(task), most, attempt)
        ranked = trials.best_first()
        settings, then, tried = ranked[0]["settings"], ranked[0].get("then", ()), ranked[0]["identity"]
    place = output / "results" / f"{method.name.replace(' ', '-').replace('×', 'x')}.npz"
    identity = task.identify(method.name, (*settings, *then), tried, method.particulars)
    kept = _read(place, identity)
    if kept is None:
        notice(f"{method.name}: final fit on all of train {' '.join((*settings, *then))}".rstrip())
        found = method.finish(task, tuple(settings), tuple(then), models, task.seed)
        about = {name: value for name, value in found._asdict().items() if name != "ranking"}
        with atomic_file(place) as opened:  # as it is: a sparse matrix would not keep the order of equal scores
            np.savez(opened, **vars(found.ranking), identity=identity, about=json.dumps(about))
        kept = about, found.ranking
    about, ranking = kept
    tuned = ranked[0]["metrics"] if ranked else None
    row = {
        **about,
        "settings": [*settings, *then],
        "validation": about["validation"] or tuned,  # with the settings it was given for test
        "trials": [{name: trial[name] for name in ("settings", "metrics", "seconds")} for trial in ranked],
    }
    return row, ranking.head(max(task.evaluator_of_test().at))


def _read(file: Path, identity: str) -> tuple[dict[str, Any], Ranking] | None:
    """What was kept of the same final fit, if it was."""
    if not file.exists():
        return None
    try:
        with np.load(file) as stored:
            if str(stored["identity"]) != identity:
                return None
            return json.loads(str(stored["about"])), Ranking(stored["rows"], stored["scores"], int(stored["labels"]))
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as problem:
        raise BadFile(file, f"is not a result of `umpteen compare` ({problem}); give another --output") from None


def _evaluated(task: Task, rows: list[tuple[Method, dict[str, Any], Ranking]], trials: int) -> dict[str, Any]:
    evaluator = task.evaluator_of_test()
    validated = {method.name: row["validation"][task.metric] for method, row, _ in rows if method.is_ours}
    reference = max(validated, key=validated.__getitem__)  # by validation, never by test; of equals the first
    reports = {method.name: evaluator.report(ranking) for method, _, ranking in rows}
    results = []
    for method, row, _ in rows:
        report = reports[method.name]
        differences = {} if method.name == reference else paired_differences(report.terms, reports[reference].terms)
        told = {"method": method.name, "ours": method.is_ours, "metrics": report.metrics, "intervals": report.intervals}
        told["differences"] = {name: difference.to_dict() for name, difference in differences.items()}
        results.append(told | row)
    return {
        "dataset": task.dataset.name,
        "labels": len(task.dataset.labels),
        "train_queries": len(task.dataset.with_validation_in_train().train),
        "validation_queries": len(task.evaluator_of_validation().split),
        "test_queries": report.queries,
        "test_queries_left_out": report.queries_left_out,
        "propensity": report.propensity,
        "metric": task.metric,
        "trials": trials,
        "seed": task.seed,
        "reference": reference,
        "results": results,
    }


METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")
COSTS = {"train_seconds": "training time, seconds", "parameters": "parameters"}


def write_page(path: Path, outcome: dict[str, Any]) -> None:
    """Writes the page; it shows what is in `outcome` and computes nothing."""
    metrics = shown_metrics(outcome)
    page = page_template(Path(__file__).with_name("page.html.jinja"), short_number).render(
        outcome,
        metrics=metrics,
        best={metric: max(result["metrics"][metric] for result in outcome["results"]) for metric in metrics},
        figures={what: draw_tradeoff(outcome["results"], cost, what) for cost, what in COSTS.items()},
        no_figure=NO_FIGURE,
    )
    write_atomically(path, page)


def page_template(file: Path, *filters: Callable[..., str]) -> Template:
    """The Jinja template of a page, which escapes what it is given, and may call the filters by their names."""
    files = FileSystemLoader(file.parent)
    templates = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    templates.filters.update({function.__name__.strip("_"): function for function in filters})
    return templates.get_template(file.name)


def draw_tradeoff(results: list[dict[str, Any]], cost: str, what: str) -> Markup:
    """P@1 against a cost (the paper's figure 1), logarithmic, as SVG for a page; a cost of 0 stands at the left end.

    What is less than half as good as the best stands at the foot with its value: it would press the rest together.
    """
    best = max(result["metrics"]["P@1"] for result in results)
    least = min((result[cost] for result in results if result[cost] > 0), default=1.0)
    foot = min(result["intervals"]["P@1"][0] for result in results if result["metrics"]["P@1"] >= best / 2)
    points = []
    for result in results:
        name, value, interval = result["method"], result["metrics"]["P@1"], result["intervals"]["P@1"]
        if value < best / 2:
            name, value, interval = f"{name} ({value:.1f}, below)", foot, None
        points.append(Point(name, result[cost] or least, value, 0 if result["ours"] else 1, interval))
    drawn = Points(points, x=f"{what} (logarithmic)", y="P@1, %", log_x=True)
    image = render(lambda figure: drawn.draw_on(bare_axes(figure)), size=(6.4, 4.0), kinds=["svg"])
    return Markup(inline(image["svg"].decode(), cost)) if image else Markup()


def short_number(value: float) -> str:
    """1,200,000 as 1.2M: three digits at most."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def shown_metrics(outcome: dict[str, Any]) -> list[str]:
    """Those of the usual metrics that the dataset is large enough for."""
    return [metric for metric in METRICS if all(metric in result["metrics"] for result in outcome["results"])]
