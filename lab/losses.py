"""The paper's ablation of objectives (section 5.5, table 4): who wins at which k?"""

from dataclasses import replace
from typing import Any

from lab.choosing import FACTORS, MOST, RATE, train_chosen
from lab.comparison import Outcomes, written
from lab.dots import Dots, Value
from lab.estimate import Estimate
from lab.experiment import Claim, Conclusion, Job, Setup, claim_best, claim_better
from lab.figures import Curve, Lines
from lab.training import Trained, Workbench
from umpteen.encoders.encoder import encode_tokens, tokens_for
from umpteen.objectives.losses import ScaledOneVsAll

BCE, SOFTMAX, DECOUPLED, TOP_5, TOP_100 = "BCE", "softmax", "decoupled softmax", "SoftTop-5", "SoftTop-100"
SCALED_BCE = "BCE, learned scale and bias"
LOSSES = {
    DECOUPLED: ("objective.name=decoupled_softmax",),
    SOFTMAX: ("objective.name=softmax",),
    TOP_5: ("objective.name=soft_top_k", "objective.k=5"),
    TOP_100: ("objective.name=soft_top_k", "objective.k=100"),
    BCE: ("objective.name=one_vs_all",),
}
# Not in the paper: with SigLIP's scale of 10 and bias of −10 to start from, BCE asks of no vector what it cannot give.
MORE = {SCALED_BCE: ("objective.name=one_vs_all", "objective.logit_bias=-10", "objective.temperature=0.1")}
# Layers whose first token no contrastive training has ever looked at: all texts begin in one narrow cone.
NARROW = ", first token"
FROM_A_CONE = {
    f"{name}{NARROW}": (*{**LOSSES, **MORE}[name], "encoder.query.pooling=first") for name in (SOFTMAX, BCE, SCALED_BCE)
}
OWN = {TOP_5: "P@5", TOP_100: "R@100"}  # what an objective is made for; the others for P@1
METRICS = ("P@1", "P@5", "R@10", "R@100")
KNOBS = ("temperature", "learning rate", "epochs")
COSINE, COURSE = "mean cosine of two queries", "course"


def begin(setup: Setup) -> Job:
    """The same recipe with each objective, and what is chosen on validation for each: temperature, learning rate and
    epochs; of a transformer the learning rate, as its training ends when validation no longer improves."""
    short = setup.encoder == "minilm-short"
    # Of the few labels that a transformer is given, a hundred are nearly all that a query could have.
    every = {**LOSSES, **MORE} | (FROM_A_CONE if short else {})
    if short and setup.size == "small":
        del every[TOP_100]
    variants = {name: (*settings, f"evaluation.metric={OWN.get(name, 'P@1')}") for name, settings in every.items()}
    bench = Workbench(setup, variants)
    factors = {RATE: FACTORS[RATE]} if short else FACTORS

    def make(variant: str, seed: int) -> dict[str, Any]:
        trained, how = train_chosen(bench, variant, seed, factors)
        config = trained.config
        return {
            **trained.metrics(),
            **trained.cost(),
            COSINE: _cosine(trained),
            COURSE: trained.course("P@1"),
            "temperature": config.objective.temperature,
            "learning rate": config.optimizer.learning_rate,
            "epochs": config.training.epochs,
            **how,
            **_learned(trained),
        }

    settings = bench.settings | {"steps_of_knobs": factors, "trials_at_most": MOST, "measures": [COSINE, COURSE]}
    return Job(settings, list(variants), make, conclude, data=bench.name)


def _cosine(trained: Trained) -> float:
    """How much alike test queries are: 1 where an encoder has collapsed."""
    tower, split = trained.run.towers.query, trained.evaluator().split
    vectors = encode_tokens(tower, tokens_for(tower, split.texts))
    count = len(vectors)
    return round((vectors.sum(0).square().sum().item() - vectors.square().sum().item()) / (count * (count - 1)), 4)


def _learned(trained: Trained) -> dict[str, float]:
    """The scale and bias that an objective has learned, if it does; scores are cosines."""
    objective = trained.run.step.objective
    if not isinstance(objective, ScaledOneVsAll):
        return {}
    scale = objective.log_scale.exp().item() / trained.config.objective.temperature
    return {"scale": round(scale, 4), "bias": round(objective.bias.item(), 4)}


def conclude(outcomes: Outcomes) -> Conclusion:
    """Decoupled softmax first, the objectives of a fixed k at their k, and what became of BCE."""
    rivals = [name for name in LOSSES if name in outcomes.variants]
    claims = [
        claim_better(
            outcomes,
            "decoupled softmax is better than softmax at P@1",
            DECOUPLED,
            SOFTMAX,
            "P@1",
            paper="86.78 against 80.05 (EURLex-4K), 42.52 against 41.77 (LF-AmazonTitles-131K)",
        ),
        claim_best(
            outcomes,
            "decoupled softmax is the best of all at P@1",
            DECOUPLED,
            "P@1",
            paper="86.78, next 83.42 (SoftTop-5) on EURLex-4K",
            among=rivals,
        ),
        claim_best(
            outcomes,
            "SoftTop-5 is the best of all at P@5",
            TOP_5,
            "P@5",
            paper="60.95, next 60.19 (decoupled softmax) on EURLex-4K",
            among=rivals,
        ),
        *(
            claim_best(
                outcomes,
                f"{name} is the best of all at R@100",
                name,
                "R@100",
                paper="93.72, next 92.57 (softmax) on EURLex-4K",
                among=rivals,
            )
            for name in rivals
            if name == TOP_100
        ),
        _fails(
            outcomes,
            "BCE fails to train a dual encoder (less than half of softmax's P@1)",
            BCE,
            paper="0.1 against 80.05 (EURLex-4K), 12.75 against 41.77 (LF-AmazonTitles-131K)",
        ),
        _fails(outcomes, "BCE fails even with a learned scale and bias", SCALED_BCE, paper="not in the paper"),
        claim_better(
            outcomes,
            "a learned scale and bias make BCE better at P@1",
            SCALED_BCE,
            BCE,
            "P@1",
            paper="not in the paper",
        ),
        *(
            _fails(
                outcomes,
                f"from a narrow cone {words}",
                f"{name}{NARROW}",
                f"{SOFTMAX}{NARROW}",
                paper="not in the paper",
            )
            for name, words in ((BCE, "BCE fails"), (SCALED_BCE, "even BCE with a learned scale and bias fails"))
            if f"{name}{NARROW}" in outcomes.variants
        ),
    ]
    winners = "; ".join(f"{m}: {outcomes.best(m)} ({written(outcomes.mean(outcomes.best(m), m))})" for m in METRICS)
    unsettled = sorted({run["variant"] for run in outcomes if not run["settled"]})
    of_the_paper = sum(claim.paper != "not in the paper" for claim in claims)
    doubtful = claims if {*unsettled} & {*LOSSES} else claims[of_the_paper:] if unsettled else []
    claims = [replace(claim, verdict="undecided") if claim in doubtful else claim for claim in claims]
    found = "; ".join(
        f"{v} {', '.join(f'{knob} {outcomes.values(v, knob)[0]:g}' for knob in KNOBS)}" for v in outcomes.variants
    )
    alike = "; ".join(f"{v} {outcomes.mean(v, COSINE)['mean']:.2f}" for v in outcomes.variants)
    doubt = f" Not settled, so nothing that hangs on it is decided: {', '.join(unsettled)}." if unsettled else ""
    return Conclusion(
        claims,
        outcomes.table([*METRICS, COSINE, *KNOBS, "processor_seconds"]),
        summary=(
            f"Highest means (number of seeds: {outcomes.seeds}): {winners}. In the paper, decoupled softmax wins at "
            "P@1, SoftTop-5 at P@5 and R@10, SoftTop-100 at R@100, and BCE does not train. Dropout was chosen for "
            "decoupled softmax; temperature, learning rate and epochs (of a transformer the learning rate) for each "
            "objective by itself, on validation, by P@1 (SoftTop-5 by P@5, SoftTop-100 by R@100), until no step of any "
            f"of them helped: {found}. Mean cosine of two test queries: {alike}.{doubt}"
        ),
        title="One recipe, every objective: figures on test with 95 % intervals over seeds and queries",
        panels=[
            Dots({v: Value(**outcomes.mean(v, metric)) for v in outcomes.variants}, x=f"{metric} (%)")
            for metric in METRICS
        ]
        + [Lines({v: course_of(outcomes, v) for v in outcomes.variants}, x="step", y="P@1, validation")],
    )


def course_of(outcomes: Outcomes, variant: str) -> Curve:
    """What validation said through training, in every seed as far as all of them went."""
    courses = outcomes.values(variant, COURSE)
    length = min(map(len, courses))
    return Curve([step for step, _ in courses[0][:length]], [[value for _, value in one[:length]] for one in courses])


def _fails(outcomes: Outcomes, claim: str, variant: str, softmax: str = SOFTMAX, *, paper: str) -> Claim:
    """Failing is taken to mean: not even half of softmax's P@1 (BCE in the paper: 0.1 % and 31 % of it)."""
    difference = Estimate.of(outcomes.samples(softmax, "P@1") / 2 - outcomes.samples(variant, "P@1"))
    found = [f"{written(outcomes.mean(each, 'P@1'))} for {each}" for each in (variant, softmax)]
    return Claim.of(claim, paper, f"P@1 {'; '.join(found)}", difference)
