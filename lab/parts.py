"""What each part of a tower and each voice of the ranker is worth: alone, together, and left out.

The towers are the bag of word pieces, the frozen transformer with a learned map, both, and both with a vector for each
label, with labels' texts as queries, or with a transformer for queries that is trained beside them. Each is judged by
itself, with training texts that vote, with n-grams, and with both; what the ranker's voices count was chosen on
validation. Test is scored once with each.
"""

import shutil
import time
from dataclasses import replace
from typing import Any

import torch

from lab.comparison import Outcomes, written
from lab.dots import Dots, Value
from lab.experiment import Claim, Conclusion, Job, Setup, claim_better
from lab.ranker import save
from lab.training import Design, Workbench, percents
from umpteen.data.dataset import open_dataset
from umpteen.encoders.encoder import encode_tokens, tokens_for
from umpteen.model.classifier import Classifier
from umpteen.model.rerank import fit_ranker
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.ranker import Ranker
from umpteen.search.exact import top_k
from umpteen.training.tune import TRANSFORMER

BAG, FROZEN, MIX, APART = "bag", "frozen", "bag + frozen", "bag, frozen, scores added"
TABLE, QUERIES = "bag + frozen + label table", "bag + frozen, label queries"
TRAINED = "bag + frozen + trained"
_TWO = (
    "encoder.query.kind=sum",
    "encoder.query.dropout=0.0",
    "encoder.query.static.bigrams=100000",
    "encoder.query.static.dropout=0.3",
    "encoder.query.frozen.dropout=0.1",
    "encoder.label.static.bigrams=0",
)
TOWERS: dict[str, tuple[str, ...]] = {
    BAG: (),
    FROZEN: ("encoder.query.kind=frozen", "encoder.query.dropout=0.1"),
    MIX: _TWO,
    APART: (*_TWO, "encoder.query.kind=concat"),
    TABLE: (*_TWO, "encoder.label.table={}"),
    QUERIES: (*_TWO, "data.label_queries=0.1"),
    TRAINED: (*_TWO, *TRANSFORMER),
}
# For the size tiny: no bigrams, and one layer of the transformer.
_SMALLER_TWO = ("encoder.query.static.bigrams=0", "encoder.query.frozen.layers=1")
_SMALLER = {
    BAG: ("encoder.query.bigrams=0",),
    FROZEN: ("encoder.query.layers=1",),
    TRAINED: (*_SMALLER_TWO, "encoder.query.transformer.layers=1"),
}
JUDGED = ALONE, MEMORY, NGRAMS, BOTH = "alone", "memory", "n-grams", "n-grams and memory"
METRICS = ("P@1", "P@5", "PSP@5", "R@100")
LEARNED, FROZEN_NUMBERS, PACE = "learned numbers", "frozen numbers", ", texts a second"
TIMED = 512  # texts that are predicted against the clock
DESIGNS = {
    "tiny": Design(200, 100, ("training.epochs=1", "training.batch_size=64", "training.threads=1")),
    "small": Design(4000, 2000, ("training.batch_size=256",)),
    "paper": Design(),
}


def begin(setup: Setup) -> Job:
    """One run trains one kind of towers and judges it with each ranker."""
    smaller = {name: (*settings, *_SMALLER.get(name, _SMALLER_TWO)) for name, settings in TOWERS.items()}
    bench = Workbench(setup, smaller if setup.size == "tiny" else TOWERS, DESIGNS)

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained = bench.train(variant, seed)
        model = setup.output / "models" / f"{seed}-{list(TOWERS).index(variant)}"
        save(trained, model)
        classifier, evaluator = Classifier.load(model), trained.evaluator()
        texts = [trained.dataset.train.texts[row] for row in range(min(TIMED, len(trained.dataset.train)))]
        counts = trained.run.towers.parameter_counts()
        found: dict[str, Any] = {**trained.cost(), LEARNED: counts["total"], FROZEN_NUMBERS: counts["frozen"]}
        split, tower = evaluator.split, classifier.towers.query
        vectors = encode_tokens(tower, tokens_for(tower, split.texts))
        for name, ranker in {ALONE: None, **_rankers(bench, model)}.items():
            width = max(*evaluator.at, ranker.settings.candidates if ranker else 1)
            ranking = top_k(vectors, classifier.vectors, width, excluding=split.filtered.matrix)
            ranking = ranking if ranker is None else ranker.rerank(split.texts, vectors, ranking)
            found[name] = percents(evaluator.report(ranking.head(max(evaluator.at)), bootstrap=0))
        for name, asked in ((ALONE, Classifier.load(model, ranker=False)), (BOTH, Classifier.load(model))):
            asked.predict(texts[:8])
            began = time.monotonic()
            asked.predict(texts)
            found[f"{name}{PACE}"] = round(len(texts) / (time.monotonic() - began), 1)
        shutil.rmtree(model)
        return found

    return Job(bench.settings, list(TOWERS), make, conclude, data=bench.name, bulky=JUDGED)


def _rankers(bench: Workbench, model: Any) -> dict[str, Ranker]:
    """Training texts that vote, n-grams, and both; the model keeps the last."""
    dataset, setup = open_dataset(bench.source), bench.setup
    how: dict[str, Any] = {"jobs": torch.get_num_threads(), "progress": setup.progress}
    memory, _ = fit_ranker(model, dataset, RankerSettings(sparse=False), **how)
    both, trials = fit_ranker(model, dataset, RankerSettings(), **how)
    best = max((trial for trial in trials if trial.votes == 0), key=lambda trial: trial.mean)
    ngrams = replace(both, weight=best.weight, votes=0.0, rare=best.rare, memory=None)
    return {MEMORY: memory, NGRAMS: ngrams, BOTH: both}


def conclude(outcomes: Outcomes) -> Conclusion:
    """Whether each part adds to what is there without it."""
    apart = Outcomes(
        {"variant": f"{run['variant']}, {name}", "seed": run["seed"], **run[name]}
        for run in outcomes
        for name in JUDGED
    )

    def adds(what: str, ours: str, theirs: str) -> Claim:
        return claim_better(apart, f"{what} at P@5", ours, theirs, "P@5", paper="not in the paper")

    claims = [
        adds("the frozen transformer adds to the bag", f"{MIX}, {ALONE}", f"{BAG}, {ALONE}"),
        adds("the bag adds to the frozen transformer", f"{MIX}, {ALONE}", f"{FROZEN}, {ALONE}"),
        adds("with n-grams and memory, the frozen transformer still adds", f"{MIX}, {BOTH}", f"{BAG}, {BOTH}"),
        adds("with n-grams and memory, the bag still adds", f"{MIX}, {BOTH}", f"{FROZEN}, {BOTH}"),
        adds("the memory adds to the mix", f"{MIX}, {MEMORY}", f"{MIX}, {ALONE}"),
        adds("n-grams add to the mix", f"{MIX}, {NGRAMS}", f"{MIX}, {ALONE}"),
        adds("with n-grams, the memory still adds", f"{MIX}, {BOTH}", f"{MIX}, {NGRAMS}"),
        adds("with the memory, n-grams still add", f"{MIX}, {BOTH}", f"{MIX}, {MEMORY}"),
        adds("a vector for each label adds to the whole", f"{TABLE}, {BOTH}", f"{MIX}, {BOTH}"),
        adds("a trained transformer adds to the mix", f"{TRAINED}, {ALONE}", f"{MIX}, {ALONE}"),
        adds("a trained transformer adds to the whole", f"{TRAINED}, {BOTH}", f"{MIX}, {BOTH}"),
        adds("labels' texts as queries add to the whole", f"{QUERIES}, {BOTH}", f"{MIX}, {BOTH}"),
    ]
    best = max(TOWERS, key=lambda towers: apart.mean(f"{towers}, {BOTH}", "P@5")["mean"])
    figures = "; ".join(f"{metric} {written(apart.mean(f'{best}, {BOTH}', metric))}" for metric in METRICS)
    return Conclusion(
        claims,
        apart.table(METRICS),
        summary=(
            f"Of the towers with n-grams and memory, {best} has the highest P@5 on test: {figures}. "
            "The paper has no such parts. Processor seconds of training without what is read beforehand, millions of "
            "numbers learned and frozen, texts a second alone and with n-grams and memory (on a machine that may do "
            f"other work): {'; '.join(_cost(outcomes, towers) for towers in TOWERS)}."
        ),
        title="Parts of towers, and voices of the ranker: figures on test, 95 % intervals over seeds",
        panels=[
            Dots({name: Value(**apart.mean(name, metric)) for name in apart.variants}, x=f"{metric} (%)")
            for metric in METRICS[:3]
        ],
    )


def _cost(outcomes: Outcomes, towers: str) -> str:
    def mean(measure: str) -> float:
        return float(outcomes.mean(towers, measure)["mean"])

    return (
        f"{towers} {mean('processor_seconds'):.0f} s, {mean(LEARNED) / 1e6:.1f} and {mean(FROZEN_NUMBERS) / 1e6:.1f}, "
        f"{mean(f'{ALONE}{PACE}'):.0f} and {mean(f'{BOTH}{PACE}'):.0f}"
    )
