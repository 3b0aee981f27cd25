"""One run as settings: typed, frozen, every key explained, closed to keys it does not know."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

_TOO_LARGE = 2**31  # what every library below can hold, seeds included
_FASTEST = 100.0  # learning rate; far beyond what any run survives


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
    source: str = Field(
        "wordnet-nouns", description="a dataset folder, or the name of a bundled one; --data overrides it"
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="share of train held out for validation, unless the dataset brings its own"
    )
    fit_on: Literal["train", "train+validation"] = Field(
        "train",
        description="train+validation is the final fit, after all choices are made: nothing is evaluated on the way",
    )


class TowerConfig(Section):
    kind: Literal["transformer", "static", "table"] = Field(
        "static",
        description="transformer, or a bag of word pieces for CPUs; for labels also a table: a learned vector each, "
        "and no text",
    )
    start: str = Field("all-MiniLM-L6-v2", description="a Hugging Face model by name or folder")
    random_weights: bool = Field(
        False, description="start from random weights; `start` then gives the shape and the vocabulary"
    )
    max_length: int = Field(128, ge=1, description="tokens kept of a text")
    normalise: bool = Field(True, description="vectors of length 1")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the vectors")
    pooling: Literal["mean", "first"] = Field("mean", description="transformer: mean of the tokens, or the first one")
    projection: int | None = Field(None, ge=1, description="transformer: a linear map to this many dimensions")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="transformer: autocast precision"
    )
    hidden_dropout: float | None = Field(None, ge=0, lt=1, description="transformer: overrides the model's own rates")
    dimension: int | None = Field(None, ge=1, description="static: numbers in a vector; without it, the token table's")
    bigrams: int = Field(0, ge=0, description="static: hash buckets for pairs of neighbouring word pieces; 0 for none")
    idf: bool = Field(True, description="static: start the weight of a word piece at its inverse document frequency")
    residual: bool = Field(False, description="labels: a learned vector each, added to the text's")
    start_from_text: bool = Field(
        False, description="table: start from the query tower's vectors of the labels' texts, not at random"
    )
    learning_rate: float | None = Field(
        None, gt=0, le=_FASTEST, description="where this tower's differs from the optimizer's"
    )


class EncoderConfig(Section):
    towers: Literal["shared", "separate"] = Field("separate", description="shared is the paper's setting")
    query: TowerConfig = TowerConfig()
    label: TowerConfig | None = Field(
        None, description="only for separate towers; what it leaves out is as in [encoder.query]"
    )

    @model_validator(mode="before")
    @classmethod
    def _labels_start_from_the_settings_of_queries(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("label"), dict) and isinstance(given.get("query"), dict):
            return {**given, "label": {**given["query"], **given["label"]}}
        return given

    @model_validator(mode="after")
    def _one_tower_has_one_setting(self) -> "EncoderConfig":
        if self.towers == "shared" and self.label is not None and self.label != self.query:
            raise ValueError('shared towers are one encoder: remove [encoder.label], or set towers = "separate"')
        return self

    @model_validator(mode="after")
    def _only_labels_have_rows(self) -> "EncoderConfig":
        if self.query.kind == "table" or self.query.residual:
            what = 'kind = "table"' if self.query.kind == "table" else "residual = true"
            raise ValueError(f"{what} is for labels, which are known in advance: set it in [encoder.label]")
        if self.label_tower.residual and self.label_tower.kind == "table":
            raise ValueError("residual = true adds a vector to a text's, and a table has no texts; choose one of them")
        if self.label_tower.start_from_text and self.label_tower.kind != "table":
            raise ValueError(f'start_from_text is for kind = "table", not for "{self.label_tower.kind}"')
        return self

    @property
    def label_tower(self) -> TowerConfig:
        return self.label or self.query


class ObjectiveConfig(Section):
    name: Literal["decoupled_softmax", "softmax", "soft_top_k", "one_vs_all"] = Field(
        "decoupled_softmax", description="docs/explanation/choosing-an-objective.md tells which to use"
    )
    temperature: float = Field(
        0.05, gt=0, description="scores are inner products divided by this; 1 goes with unnormalised vectors"
    )
    k: int | Literal["positives"] = Field(
        5, description="soft_top_k: how many labels may pass, or each query's number of positives"
    )
    alpha: float = Field(2.0, gt=0, description="soft_top_k: steepness of the threshold")
    reduction: Literal["mean", "sum"] = Field(
        "mean", description="over a query's positives; the paper writes sum, its code takes the mean"
    )
    positives_per_query: int | None = Field(
        None, ge=1, description="pull at most this many sampled positives a step; without it, all"
    )

    @model_validator(mode="after")
    def _k_is_positive(self) -> "ObjectiveConfig":
        if isinstance(self.k, int) and self.k < 1:
            raise ValueError(f"k is {self.k}; it must be at least 1")
        return self


class PoolConfig(Section):
    name: Literal["all", "batch", "random", "shortlist", "cache"] = Field(
        "all",
        description="which labels compete at a step: all, or the batch's own and random or mined ones "
        "(docs/explanation/negatives.md)",
    )
    negatives: int = Field(
        1, ge=1, description="random, shortlist: labels drawn per query; cache: mined for the batch, per query of it"
    )
    shortlist: int = Field(100, ge=1, description="shortlist: labels kept per query, the best of the current encoder")
    refresh_epochs: float = Field(1, gt=0, description="shortlist: epochs between two searches")
    from_epoch: float = Field(0, ge=0, description="shortlist: before this epoch the batch's own labels compete")
    margin: float | None = Field(
        None,
        description="shortlist: labels that score more than a query's best positive less this are taken for unlabelled "
        "positives and kept out",
    )

    @model_validator(mode="after")
    def _settings_belong_to_the_pool(self) -> "PoolConfig":
        if self.name == "shortlist" and self.negatives > self.shortlist:
            raise ValueError(f"negatives = {self.negatives} cannot be drawn from a shortlist of {self.shortlist}")
        if self.margin is not None and self.name != "shortlist":
            raise ValueError(f'margin is for name = "shortlist", not for "{self.name}"')
        return self


class OptimizerConfig(Section):
    learning_rate: float = Field(1e-2, gt=0, le=_FASTEST, description="the peak, after warm-up")
    weight_decay: float = Field(0.01, ge=0, description="on matrices only: biases, norms and token weights have none")
    warmup: float = Field(
        0.1, ge=0, le=1, description="share of the steps over which the learning rate rises; then it falls to 0"
    )
    clip_norm: float = Field(
        1.0, ge=0, description="gradients longer than this are shortened to it; 0 leaves them alone"
    )
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)


class TrainingConfig(Section):
    batch_size: int = Field(512, ge=1, description="queries in a step; which labels compete is said in [pool]")
    epochs: float = Field(5, gt=0, description="passes over the training queries")
    steps: int | None = Field(None, ge=1, description="overrides epochs")
    minutes: float | None = Field(
        None, gt=0, description="ends earlier, after so much training time; the learning rate then falls with the clock"
    )
    token_budget: int = Field(
        16_384,
        ge=1,
        description="padded tokens in a micro-batch: memory against speed; with dropout it changes the masks",
    )
    replay_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the labels, sampled without bias, that carry their gradient back; without it, all",
    )
    tile: int | None = Field(
        None, ge=1, description="labels in a tile of scores; without it, chosen for the cache of the processor"
    )
    device: str = Field("auto", description="cpu, cuda (cuda:1, …), or auto: a GPU where there is one")
    threads: int | None = Field(None, ge=1, le=1024, description="processor threads; without it, all cores")
    checkpoint_minutes: float = Field(
        5.0, ge=0, description="a checkpoint at least this often, and with each better model"
    )
    log_every: int = Field(1, ge=1, description="steps between two lines of metrics.jsonl")
    tensorboard: bool = Field(False, description="also write TensorBoard events (pip install umpteen[tensorboard])")


class EvaluationConfig(Section):
    every_epochs: float = Field(1, ge=0, description="validation at this interval; 0 for the end only")
    every_steps: int | None = Field(None, ge=1, description="overrides every_epochs")
    metric: str = Field("nDCG@5", description="the best model by this metric on validation is kept")
    patience: int | None = Field(None, ge=1, description="stop after this many evaluations without a better one")
    at: tuple[PositiveInt, ...] = Field((1, 3, 5, 10, 100), description="the k of P@k, nDCG@k, PSP@k, PSnDCG@k and R@k")
    propensity_a: float = Field(0.55, description="0.6 for Amazon sets, 0.5 for Wikipedia sets")
    propensity_b: float = Field(1.5, description="2.6 for Amazon sets, 0.4 for Wikipedia sets")


class RunConfig(Section):
    name: str = Field("run", description="for people")
    seed: int = Field(0, ge=0, description="fixes the split, the order, the sampling and the dropout")
    data: DataConfig = DataConfig()
    encoder: EncoderConfig = EncoderConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    pool: PoolConfig = PoolConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
