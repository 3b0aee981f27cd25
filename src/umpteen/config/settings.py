"""One run as settings: typed, frozen, every key explained, closed to keys it does not know."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, SerializeAsAny
from pydantic.functional_validators import BeforeValidator, field_validator, model_validator

_TOO_LARGE = 2**31  # what every library below can hold, seeds included
_FASTEST = 100.0  # learning rate; far beyond what any run survives
PARTS = ("static", "frozen", "transformer", "table")
UNSET = "none"  # how a recipe says that labels go without something that queries have
_WHICH = "docs/explanation/choosing-an-objective.md tells which to use"
_RANDOM = Field(False, description="start from random weights; `start` then gives the shape and the vocabulary")
_POOLED = "mean of the tokens, or the first one"
_LAYERS = Field(None, ge=1, description="keep the first so many layers; without it, all")


class Section(BaseModel):
    """Part of a recipe: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _numbers_are_within_reach(cls, value: Any) -> Any:
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not abs(number) < _TOO_LARGE:
                raise ValueError(f"numbers must be below {_TOO_LARGE:,}")
        return value


class DataConfig(Section):
    source: str = Field("wordnet-nouns", description="a dataset folder, or a bundled one by name; --data overrides it")
    validation_fraction: float = Field(0.1, gt=0, lt=1, description="share of train held out if there is no validation")
    fit_on: Literal["train", "train+validation"] = Field(
        "train", description="train+validation is the final fit, after all choices: nothing is evaluated on the way"
    )
    label_queries: float = Field(
        0.0, ge=0, le=1, description="label texts are queries, too, for labels that this share of their queries have"
    )


class TowerConfig(Section):
    """What every tower has; its kind decides what else it knows."""

    kind: str
    normalise: bool = Field(True, description="vectors of length 1")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the vectors")
    learning_rate: float | None = Field(None, gt=0, le=_FASTEST, description="where it differs from the optimizer's")

    @property
    def parts(self) -> "dict[str, TowerConfig]":
        """The settings of the parts that it has, by kind."""
        return {name: part for name in PARTS if (part := getattr(self, name, None)) is not None}

    def reading(self) -> "list[TextTower]":
        """The settings of whatever in it reads texts."""
        return [one for one in (self, *self.parts.values()) if isinstance(one, TextTower)]

    def each(self, change: "Callable[[TextTower], TextTower]") -> "TowerConfig":
        """The same with each of these changed."""
        if isinstance(self, TextTower):
            return change(self)
        return self.model_copy(update={name: part.each(change) for name, part in self.parts.items()})


class TextTower(TowerConfig):
    """A tower that reads texts."""

    start: str = Field("all-MiniLM-L6-v2", description="a Hugging Face model by name or folder")
    max_length: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        128, description='tokens kept of a text; "auto": as many as 99 in 100 training texts have'
    )


class StaticTower(TextTower):
    kind: Literal["static"] = Field("static", description="a bag of word pieces; or frozen, transformer, sum, concat")
    random_weights: bool = _RANDOM
    dimension: int | None = Field(None, ge=1, description="numbers in a vector; without it, the token table's")
    bigrams: int = Field(0, ge=0, description="hash buckets for pairs of neighbouring word pieces; 0 for none")
    idf: bool = Field(True, description="start the weight of a word piece at its inverse document frequency")


class TransformerTower(TextTower):
    kind: Literal["transformer"] = Field("transformer", description="any Hugging Face encoder, trained")
    random_weights: bool = _RANDOM
    pooling: Literal["mean", "first"] = Field("mean", description=_POOLED)
    layers: int | None = _LAYERS
    trained_layers: int | None = Field(None, ge=1, description="train the last so many only; without it, everything")
    projection: int | None = Field(None, ge=1, description="a linear map to this many dimensions")
    precision: Literal["float32", "bfloat16", "float16"] = Field("float32", description="autocast precision")
    hidden_dropout: float | None = Field(None, ge=0, lt=1, description="overrides the model's own rates")


class FrozenTower(TextTower):
    kind: Literal["frozen"] = Field(
        "frozen", description="a Hugging Face encoder that is not trained, each text encoded once; a map on top learns"
    )
    pooling: Literal["mean", "first"] = Field("mean", description=_POOLED)
    layers: int | None = _LAYERS
    dimension: int | None = Field(None, ge=1, description="numbers in a vector; without it, the encoder's")
    hidden: int = Field(0, ge=0, description="units of a hidden layer beside the linear map; 0 for none")


class TableTower(TowerConfig):
    kind: Literal["table"] = Field("table", description="for labels: a learned vector each, and no text")
    bias: bool = Field(False, description="each label also has a learned number that is added to its inner products")


class PartConfig(Section):
    """What every part of a tower has besides."""

    weight: float = Field(1.0, gt=0, description="of a sum: at the start; of a concatenation: of the part's score")
    skip: float = Field(0.0, ge=0, lt=1, description="share of the texts of a step that go without this part")


class StaticPart(PartConfig, StaticTower): ...


class FrozenPart(PartConfig, FrozenTower): ...


class TransformerPart(PartConfig, TransformerTower): ...


class TablePart(PartConfig, TowerConfig):
    """A residual for each label: it starts at zero, and has whatever length it learns."""

    kind: Literal["table"] = Field("table", description="for labels: a learned vector each, added to the text's")
    normalise: Literal[False] = Field(False, description="as it starts at zero, it has no direction to keep")


class PartsTower(TowerConfig):
    """Several encoders of the same text, each with its own settings in a section of its name."""

    static: StaticPart | None = None
    frozen: FrozenPart | None = None
    transformer: TransformerPart | None = None
    table: TablePart | None = None

    @model_validator(mode="after")
    def _has_parts(self) -> "PartsTower":
        if not set(self.parts) - {"table"}:
            names = ", ".join(PARTS[:-1])
            raise ValueError(f'kind = "{self.kind}" needs parts that read texts: a section for each of {names}')
        return self


class SumTower(PartsTower):
    kind: Literal["sum"] = Field("sum", description="the vectors of several encoders added up, their weights learned")


class ConcatTower(PartsTower):
    kind: Literal["concat"] = Field(
        "concat", description="several encoders trained side by side, their scores added up"
    )


def by_kind(key: str, *sections: type[Section]) -> dict[str, type[Section]]:
    """What a section may be, by the kind that each is."""
    return {section.model_fields[key].default: section for section in sections}


def chosen_by(key: str, table: dict[str, type[Section]], usual: str) -> BeforeValidator:
    """The kind that a section names decides which settings it knows; whatever does not belong to it is refused."""

    def choose(given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        kind = given.get(key) or usual
        if not isinstance(kind, str) or kind not in table:
            raise ValueError(f"there is no {key} = {kind!r}; there is {', '.join(table)}")
        known = table[kind].model_fields
        given = {name: value for name, value in given.items() if value is not None or name in known}  # taken back
        for name in given.keys() - known.keys():
            if owners := [other for other, section in table.items() if name in section.model_fields]:
                raise ValueError(f'{name} is for {key} = "{" or ".join(owners)}", not for "{kind}"; leave it out')
        return table[kind].model_validate({**given, key: kind})

    return BeforeValidator(choose)


TOWERS = by_kind("kind", StaticTower, FrozenTower, TransformerTower, SumTower, ConcatTower, TableTower)
_ByKind = chosen_by("kind", TOWERS, "static")


def merged(under: dict[str, Any], over: dict[str, Any], *path: str) -> dict[str, Any]:
    """Settings on top of others; where another kind is chosen, what only the old one knew falls away."""
    key, kinds = KINDS.get(".".join(path), ("", {}))
    chosen = over.get(key)
    known = kinds.get(chosen) if isinstance(chosen, str) else None
    if chosen in PARTS and isinstance(under.get(chosen), dict):  # the part alone is as it was among the others
        under = {**under, **under[chosen]}
    both = {name: value for name, value in under.items() if known is None or name in known.model_fields}
    query = over.get("query")
    if path == ("encoder",) and isinstance(under.get("label"), dict) and isinstance(query, dict) and "kind" in query:
        kind = under["label"].get("kind", query["kind"])  # labels have a kind of their own, or the queries'
        both["label"] = merged(under["label"], {"kind": kind}, "encoder", "label")
        if "kind" not in under["label"]:  # it goes on having the queries'
            del both["label"]["kind"]
    for name, value in over.items():
        beneath = both.get(name)
        if isinstance(value, dict) and isinstance(beneath, dict | None):
            both[name] = merged(beneath or {}, value, *path, name)
        elif value is None and path != ("encoder", "label"):  # as if nobody had said anything about it
            both.pop(name, None)
        else:
            both[name] = value
    return both


class EncoderConfig(Section):
    towers: Literal["shared", "separate"] = Field("separate", description="shared is the paper's setting")
    query: Annotated[SerializeAsAny[TowerConfig], _ByKind] = StaticTower()
    label: Annotated[SerializeAsAny[TowerConfig], _ByKind] | None = Field(
        None, description="only for separate towers; what it leaves out is as in [encoder.query]"
    )

    @model_validator(mode="before")
    @classmethod
    def _labels_start_from_the_settings_of_queries(cls, given: Any) -> Any:
        query, label = (given.get(side) for side in ("query", "label")) if isinstance(given, dict) else (None, None)
        if not isinstance(query, dict):
            return given
        kind = query.get("kind", "static")
        if kind == "table" or query.get("table") is not None:
            raise ValueError('"table" is for labels, which are known in advance: set it in [encoder.label]')
        if not isinstance(label, dict):
            return given
        label = {name: None if value == UNSET else value for name, value in label.items()}
        own = str(label.get("kind", kind))
        under = query[own] if own in PARTS and isinstance(query.get(own), dict) else query  # as the part of its kind
        if kind in PARTS and isinstance(label.get(kind), dict):  # its part is as the tower of that kind
            under = {**under, kind: {key: value for key, value in query.items() if key in TOWERS[kind].model_fields}}
        return {**given, "label": merged(under, {"kind": own, **label}, "encoder", "label")}

    @model_validator(mode="after")
    def _towers_go_together(self) -> "EncoderConfig":
        query, label = self.query, self.label_tower
        if self.towers == "shared" and label != query:
            raise ValueError('shared towers are one encoder: remove [encoder.label], or set towers = "separate"')
        names = [list(side.parts) if isinstance(side, ConcatTower) else None for side in (query, label)]
        if names[0] != names[1] or "table" in (names[0] or ()):
            raise ValueError('"concat" adds up the scores of like parts: give both towers the same ones, and no table')
        return self

    @property
    def label_tower(self) -> TowerConfig:
        return self.label or self.query

    def each(self, change: Callable[[TextTower], TextTower]) -> "EncoderConfig":
        """The same with each change to whatever reads texts."""
        label = self.label and self.label.each(change)
        return self.model_copy(update={"query": self.query.each(change), "label": label})


class ObjectiveConfig(Section):
    """What every objective has; its name decides what else it knows."""

    uses_unlabelled: ClassVar[bool] = False  # whether a query without positives has something to say
    name: str
    temperature: float = Field(0.05, gt=0, description="scores are divided by this; 1 goes with unnormalised vectors")
    positives_per_query: int | None = Field(
        None, ge=1, description="sampled positives a step, at most; without it, all"
    )

    def arguments(self) -> dict[str, Any]:
        """What its formula takes besides scores and targets."""
        return self.model_dump(exclude={*ReducedObjective.model_fields})


class ReducedObjective(ObjectiveConfig):
    """One whose terms are those of the positives."""

    reduction: Literal["mean", "sum"] = Field(
        "mean", description="over a query's positives; the paper writes sum, its code takes the mean"
    )


class DecoupledSoftmax(ReducedObjective):
    name: Literal["decoupled_softmax"] = Field("decoupled_softmax", description=_WHICH)


class Softmax(ReducedObjective):
    name: Literal["softmax"] = Field("softmax", description=_WHICH)


class SoftTopK(ReducedObjective):
    name: Literal["soft_top_k"] = Field("soft_top_k", description=_WHICH)
    k: PositiveInt | Literal["positives"] = Field(
        5, description="how many labels may pass, or each query's number of positives"
    )
    alpha: float = Field(2.0, gt=0, description="steepness of the threshold")
    mask_unsampled: bool = Field(
        False, description="as published: k sampled positives are pulled, at most, and the others leave the sum"
    )

    @model_validator(mode="before")
    @classmethod
    def _k_are_sampled(cls, given: Any) -> Any:
        if not (isinstance(given, dict) and given.get("mask_unsampled")):
            return given
        if (k := given.get("k", 5)) == "positives":
            raise ValueError('mask_unsampled needs a number for k; with k = "positives" all of them are pulled')
        return {"positives_per_query": k, **given}


class OneVsAll(ObjectiveConfig):
    uses_unlabelled: ClassVar[bool] = True
    name: Literal["one_vs_all"] = Field("one_vs_all", description=_WHICH)
    logit_bias: float | None = Field(
        None, description="learn a bias from this value on (-10 in SigLIP) and a scale from 1/temperature on"
    )


OBJECTIVES = by_kind("name", DecoupledSoftmax, Softmax, SoftTopK, OneVsAll)


class PoolConfig(Section):
    """Which labels compete at a step: all, or the batch's own and random or mined ones."""

    name: str


class AllLabels(PoolConfig):
    name: Literal["all"] = Field("all", description="which labels compete at a step (docs/explanation/negatives.md)")


class InBatch(PoolConfig):
    name: Literal["batch"] = Field("batch", description="the labels of the batch's own queries")


class RandomPool(PoolConfig):
    name: Literal["random"] = Field("random", description="the batch's own labels, and others drawn at random")
    negatives: PositiveInt = Field(1, description="labels drawn per query")


class ShortlistPool(PoolConfig):
    name: Literal["shortlist"] = Field("shortlist", description="the batch's own labels, and mined ones (ANCE)")
    negatives: PositiveInt = Field(1, description="labels drawn per query")
    shortlist: PositiveInt = Field(100, description="labels kept per query, the best of the current encoder")
    refresh_epochs: float = Field(1, gt=0, description="epochs between two searches")
    from_epoch: float = Field(0, ge=0, description="before this epoch the batch's own labels compete")
    margin: float | None = Field(
        None, description="labels scoring above a query's best positive less this are kept out as unlabelled positives"
    )

    @model_validator(mode="after")
    def _enough_to_draw_from(self) -> "ShortlistPool":
        if self.negatives > self.shortlist:
            raise ValueError(f"negatives = {self.negatives} cannot be drawn from a shortlist of {self.shortlist}")
        return self


class CachePool(PoolConfig):
    name: Literal["cache"] = Field("cache", description="the batch's own labels, and mined ones from a cache of all")
    negatives: PositiveInt = Field(1, description="labels mined for the batch, per query of it")


class BankPool(PoolConfig):
    name: Literal["bank"] = Field("bank", description="all labels by kept vectors, of which a few are renewed")
    sampled: int = Field(1, ge=0, description="labels that learn, drawn by their gradient's norm, per query of a batch")
    negatives: int = Field(0, ge=0, description="labels mined and renewed before the loss, per query of the batch")
    renewed: int = Field(0, ge=0, description="labels renewed in turn, per step")

    @model_validator(mode="after")
    def _more_is_renewed_than_the_batch(self) -> "BankPool":
        if not self.sampled + self.negatives + self.renewed:
            raise ValueError("labels that no query has would never be renewed; set sampled, negatives or renewed")
        return self


POOLS = by_kind("name", AllLabels, InBatch, RandomPool, ShortlistPool, CachePool, BankPool)
# Which sections of a recipe have kinds: the key that names the kind, and what each kind knows.
KINDS = {
    "encoder.query": ("kind", TOWERS),
    "encoder.label": ("kind", TOWERS),
    "objective": ("name", OBJECTIVES),
    "pool": ("name", POOLS),
}


class OptimizerConfig(Section):
    learning_rate: float = Field(1e-2, gt=0, le=_FASTEST, description="the peak, after warm-up")
    weight_decay: float = Field(0.01, ge=0, description="on matrices only: biases, norms and token weights have none")
    warmup: float = Field(0.1, ge=0, le=1, description="share of the steps with a rising learning rate; it then falls")
    clip_norm: float = Field(1.0, ge=0, description="longer gradients are shortened to this; 0 leaves them alone")


class TrainingConfig(Section):
    batch_size: int = Field(512, ge=1, description="queries in a step; which labels compete is said in [pool]")
    epochs: float = Field(5, gt=0, description="passes over the training queries")
    steps: int | None = Field(None, ge=1, description="overrides epochs")
    minutes: float | None = Field(None, gt=0, description="ends after so much training; the rate falls with the clock")
    token_budget: int = Field(
        16_384, ge=1, description="padded tokens of a micro-batch: memory for speed; with dropout, it changes masks"
    )
    replay_fraction: float | None = Field(
        None, gt=0, le=1, description="share of the labels, sampled without bias, with a gradient; without it, all"
    )
    tile: int | None = Field(None, ge=1, description="labels in a tile of scores; without it, what the cache holds")
    half_labels: bool = Field(
        False, description="label vectors and their gradients take half the memory, as bfloat16; sums are float32"
    )
    device: str = Field("auto", description="cpu, cuda (cuda:1, …), or auto: a GPU where there is one")
    threads: int | None = Field(None, ge=1, le=1024, description="processor threads; without it, all cores")
    checkpoint_minutes: float = Field(5.0, ge=0, description="a checkpoint this often, and with each better model")
    log_every: int = Field(1, ge=1, description="steps between two lines of metrics.jsonl")
    trackers: tuple[str, ...] = Field(
        (), description="who else hears of it: tensorboard, mlflow, wandb (docs/how-to/trackers.md)"
    )


class EvaluationConfig(Section):
    every_epochs: float = Field(1, ge=0, description="validation at this interval; 0 for the end only")
    every_steps: int | None = Field(None, ge=1, description="overrides every_epochs")
    metric: str = Field("nDCG@5", description="the best model by this metric on validation is kept")
    patience: int | None = Field(None, ge=1, description="stop after this many evaluations without a better one")
    at: tuple[PositiveInt, ...] = Field((1, 3, 5, 10, 100), description="the k of P@k, nDCG@k, PSP@k, PSnDCG@k and R@k")
    propensity_a: float = Field(0.55, description="0.6 for Amazon sets, 0.5 for Wikipedia sets")
    propensity_b: float = Field(1.5, description="2.6 for Amazon sets, 0.4 for Wikipedia sets")


class RunConfig(Section):
    """One run: what a recipe holds, every key with its default. What does not belong to a section is refused.

    Takes the sections of a recipe; `umpteen.train` runs it.

    >>> from umpteen import RunConfig
    >>> config = RunConfig.model_validate({"objective": {"name": "soft_top_k", "k": 3}})
    >>> config.objective.name, config.encoder.query.kind
    ('soft_top_k', 'static')
    """

    name: str = Field("run", description="for people")
    seed: int = Field(0, ge=0, description="fixes the split, the order, the sampling and the dropout")
    data: DataConfig = DataConfig()
    encoder: EncoderConfig = EncoderConfig()
    objective: Annotated[SerializeAsAny[ObjectiveConfig], chosen_by("name", OBJECTIVES, "decoupled_softmax")] = (
        DecoupledSoftmax()
    )
    pool: Annotated[SerializeAsAny[PoolConfig], chosen_by("name", POOLS, "all")] = AllLabels()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
