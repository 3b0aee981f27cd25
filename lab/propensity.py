"""A dial for rare labels: the logarithm of a label's inverse propensity, times a multiple, added to its score.

The multiple, in temperatures, is chosen on validation: by nDCG@5 (the metric a recipe keeps its best weights by), and
once more by PSP@5. Test is scored with no dial and with what either chose.
"""

from typing import Any

import numpy as np

from lab.comparison import Outcomes, written
from lab.dots import Dots, Value
from lab.experiment import Conclusion, Job, Setup, claim_better
from lab.parts import BAG, DESIGNS, MIX, TOWERS
from lab.training import TINY, Trained, Workbench, percents
from umpteen.data.dataset import Split
from umpteen.encoders.encoder import encode_tokens, tokens_for
from umpteen.evaluation.report import Evaluator, inverse_propensities
from umpteen.search.exact import top_k
from umpteen.search.ranking import Ranking
from umpteen.training.build import build_evaluator

DIALS = (-0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # temperatures a unit of −log(propensity)
NONE, BY = "no dial", ("nDCG@5", "PSP@5")
METRICS = ("P@1", "P@5", "nDCG@5", "PSP@5")
WIDE = 400  # candidates a dial can bring to the front


def begin(setup: Setup) -> Job:
    """One run trains one kind of towers and turns the dial on what it found."""
    towers = {BAG: TOWERS[BAG]} if setup.size == "tiny" else {BAG: TOWERS[BAG], MIX: TOWERS[MIX]}
    bench = Workbench(setup, towers, DESIGNS | {"tiny": TINY})

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed)
        evaluator, test = _evaluator(trained, trained.dataset.validation), trained.evaluator()
        found, on_test = _wide(trained, evaluator), _wide(trained, test)
        turned = {dial: evaluator.report(_turn(trained, found, dial), bootstrap=0).metrics for dial in DIALS}
        chosen = {metric: max((turned[dial][metric], dial) for dial in DIALS)[1] for metric in BY}
        return {
            "validation": {f"{dial:g}": {name: round(turned[dial][name], 3) for name in METRICS} for dial in DIALS},
            "chosen": chosen,
            NONE: percents(test.report(_turn(trained, on_test, 0.0), bootstrap=0)),
            **{metric: percents(test.report(_turn(trained, on_test, chosen[metric]), bootstrap=0)) for metric in BY},
        }

    return Job(bench.settings, list(towers), make, conclude, data=bench.name, bulky=(NONE, *BY))


def _evaluator(trained: Trained, split: Split | None) -> Evaluator:
    assert split is not None
    return build_evaluator(trained.config.evaluation, trained.dataset, split)


def _wide(trained: Trained, evaluator: Evaluator) -> Ranking:
    tower, split = trained.run.towers.query, evaluator.split
    vectors, labels = encode_tokens(tower, tokens_for(tower, split.texts)), trained.label_vectors()
    return top_k(vectors, labels, min(WIDE, len(labels)), excluding=split.filtered.matrix)


def _turn(trained: Trained, found: Ranking, dial: float) -> Ranking:
    settings, counts = trained.config.evaluation, trained.label_counts()
    queries = len(trained.dataset.with_validation_in_train().train)
    rare = np.log(inverse_propensities(counts, queries, settings.propensity_a, settings.propensity_b))
    bonus = (dial * trained.config.objective.temperature * rare).astype(np.float32)
    return found.lifted(bonus, min(100, found.width))


def conclude(outcomes: Outcomes) -> Conclusion:
    """Whether the dial that validation chose adds anything on test."""
    apart = Outcomes(
        {"variant": f"{run['variant']}, {name}", "seed": run["seed"], **run[name]}
        for run in outcomes
        for name in (NONE, *BY)
    )
    claims = [
        claim_better(
            apart,
            f"{variant}: a dial for rare labels, chosen by {by} on validation, adds at {metric}",
            f"{variant}, {by}",
            f"{variant}, {NONE}",
            metric,
            paper="not in the paper",
        )
        for variant in outcomes.variants
        for by, metric in (("nDCG@5", "P@5"), ("nDCG@5", "PSP@5"), ("PSP@5", "PSP@5"), ("PSP@5", "P@5"))
    ]
    chosen = "; ".join(f"{run['variant']}, seed {run['seed']}: {run['chosen']}" for run in outcomes)
    figures = "; ".join(
        f"{name}: " + ", ".join(f"{metric} {written(apart.mean(name, metric))}" for metric in METRICS)
        for name in apart.variants
    )
    return Conclusion(
        claims,
        apart.table(METRICS),
        summary=f"Test: {figures}. Chosen, in temperatures: {chosen}. The paper has no such dial.",
        title="A dial for rare labels, chosen on validation: figures on test, 95 % intervals over seeds",
        panels=[
            Dots({name: Value(**apart.mean(name, metric)) for name in apart.variants}, x=f"{metric} (%)")
            for metric in ("P@5", "PSP@5")
        ],
    )
