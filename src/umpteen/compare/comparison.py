"""A comparison from its methods to its results: trials on validation, one final fit each, then test, once.

OUTPUT/trials/*.jsonl · results/METHOD.json and .npz · models/ · results.json · index.html. Every finished trial and
every finished method is kept, so the same command goes on where it was stopped.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from umpteen.compare.methods import Method, Outcome, Task, Unavailable
from umpteen.compare.page import write_page
from umpteen.data.dataset import Dataset
from umpteen.errors import BadFile, BadInput
from umpteen.evaluation.significance import paired_differences
from umpteen.files.progress import Notice, Progress
from umpteen.files.storage import write_atomically
from umpteen.search.ranking import Ranking
from umpteen.training.tune import Candidate, search

Skipped = dict[str, str]  # method, reason


def make_task(
    source: str, dataset: Dataset, *, metric: str, seed: int, fraction: float, propensity: tuple[float, float]
) -> Task:
    """The dataset with one validation split for all methods; what is wrong with it is said before anything runs."""
    held_out = replace(dataset.with_validation(fraction, seed), test=None)
    task = Task(source, dataset, held_out, metric, seed, fraction, propensity)
    evaluator = task.evaluator_of_validation()
    evaluator.require(metric)
    evaluator.require_positives()
    if task.test.relevance.without(task.test.filtered).pairs == 0:
        raise BadInput(f"none of the {len(task.test):,} test queries of {dataset.name} has a label to find")
    return task


def compare(
    task: Task,
    methods: Sequence[Method],
    *,
    trials: int,
    output: Path,
    notice: Notice,
    progress: Progress,
    skipped: Sequence[Skipped] = (),
) -> dict[str, Any]:
    """Runs what is not finished yet, and evaluates all methods on test beside each other."""
    tried = {method.name: method.candidates(task, trials) for method in methods}
    total = sum(len(candidates) + 1 for candidates in tried.values())
    done, left_out, threads = 0, list(skipped), torch.get_num_threads()
    finished: list[tuple[Method, dict[str, Any], Ranking]] = []
    for method in sorted(methods, key=lambda method: not method.is_ours):  # the slow ones first, for an honest ETA
        candidates = tried[method.name]
        torch.set_num_threads(threads)  # a recipe may have set its own
        progress("comparing", done, total)
        try:
            kept, ranking = _finish(task, method, candidates, output, notice, _ticking(progress, done, total))
            finished.append((method, kept, ranking))
        except Unavailable as reason:
            notice(f"{method.name} is left out: {reason}")
            left_out.append({"method": method.name, "reason": str(reason)})
        done += len(candidates) + 1
    progress("comparing", total, total)
    finished.sort(key=lambda one: methods.index(one[0]))
    outcome = _evaluated(task, finished, trials) | {"skipped": left_out}
    write_atomically(output / "results.json", json.dumps(outcome, indent=1) + "\n")
    write_page(output / "index.html", outcome)
    return outcome


def _ticking(progress: Progress, done: int, total: int) -> Callable[[int], None]:
    return lambda more: progress("comparing", done + more, total)


def _finish(
    task: Task,
    method: Method,
    candidates: list[Candidate],
    output: Path,
    notice: Notice,
    tick: Callable[[int], None],
) -> tuple[dict[str, Any], Ranking]:
    """What is kept of a method, after its trials and its final fit."""
    notice(f"{method.name}: {len(candidates)} {'trial' if len(candidates) == 1 else 'trials'} on validation")
    watched = [_watched(candidate, number, tick) for number, candidate in enumerate(candidates)]
    file = output / "trials" / f"{method.trials_file}.jsonl"
    asked = {candidate.identity for candidate in candidates}
    ranked = [trial for trial in search(watched, file, task.metric, notice) if trial["identity"] in asked]
    settings = tuple(ranked[0]["settings"])
    tick(len(candidates))

    place = output / "results" / method.name.replace(" ", "-")
    identity = task.identify(method.name, settings, ranked[0]["identity"], method.particulars)
    kept = _read(place.with_name(f"{place.name}.json"))
    if kept is None or kept["identity"] != identity:
        notice(f"{method.name}: final fit on all of train {' '.join(settings)}".rstrip())
        found = method.finish(task, settings, output / "models")
        kept = _keep(place, found, {"identity": identity, "settings": list(settings)})
    shown = [
        {"settings": trial["settings"], "metrics": trial["metrics"], "seconds": trial["seconds"]} for trial in ranked
    ]
    width = max(task.evaluator_of_test().at)
    return kept | {"trials": shown}, _read_ranking(place.with_name(f"{place.name}.npz"), width)


def _watched(candidate: Candidate, number: int, tick: Callable[[int], None]) -> Candidate:
    def run() -> dict[str, Any]:
        tick(number)
        return candidate.run()

    return candidate._replace(run=run)


def _keep(place: Path, found: Outcome, content: dict[str, Any]) -> dict[str, Any]:
    place.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    # As it is, and not as a sparse matrix: that would not keep the order of equal scores.
    np.savez(buffer, rows=found.ranking.rows, scores=found.ranking.scores, labels=found.ranking.labels)
    write_atomically(place.with_name(f"{place.name}.npz"), buffer.getvalue())
    kept = content | {
        "train_seconds": round(found.train_seconds, 3),
        "predict_seconds": round(found.predict_seconds, 3),
        "parameters": found.parameters,
        "validation": found.validation,
    }
    write_atomically(place.with_name(f"{place.name}.json"), json.dumps(kept) + "\n")  # last: it says that all is there
    return kept


def _read_ranking(file: Path, width: int) -> Ranking:
    try:
        with np.load(file) as stored:
            return Ranking(stored["rows"], stored["scores"], int(stored["labels"])).head(width)
    except (OSError, ValueError, KeyError) as problem:
        raise BadFile(file, f"is not a ranking of `umpteen compare` ({problem}); give another --output") from None


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        _ = content["identity"], content["parameters"]
    except (ValueError, KeyError, TypeError):
        raise BadFile(file, "is not a result of `umpteen compare`; give another --output") from None
    return content


def _evaluated(task: Task, finished: list[tuple[Method, dict[str, Any], Ranking]], trials: int) -> dict[str, Any]:
    evaluator = task.evaluator_of_test()
    validated = {method.name: _on_validation(kept)[task.metric] for method, kept, _ in finished if method.is_ours}
    reference = max(validated, key=validated.__getitem__)  # by validation, never by test; of equals the first
    terms = {method.name: evaluator.terms(ranking) for method, _, ranking in finished}
    results = []
    for method, kept, ranking in finished:
        report = evaluator.report(ranking)
        differences = {} if method.name == reference else paired_differences(terms[method.name], terms[reference])
        results.append(
            {
                "method": method.name,
                "ours": method.is_ours,
                "metrics": report.metrics,
                "intervals": report.intervals,
                "differences": {name: difference.to_dict() for name, difference in differences.items()},
                "train_seconds": kept["train_seconds"],
                "predict_seconds": kept["predict_seconds"],
                "parameters": kept["parameters"],
                "settings": kept["settings"],
                "validation": _on_validation(kept),
                "trials": kept["trials"],
            }
        )
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


def _on_validation(kept: dict[str, Any]) -> dict[str, float]:
    """A method's metrics there with the settings it was given for test."""
    metrics: dict[str, float] = kept["validation"] or kept["trials"][0]["metrics"]
    return metrics
