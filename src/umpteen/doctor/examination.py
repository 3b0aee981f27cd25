"""All checks of one recipe, in order: later ones use what earlier ones found, and are skipped where that is missing."""

from collections.abc import Callable, Iterator
from functools import cached_property, partial

from umpteen.config.settings import RunConfig, TextTower, TransformerTower
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.doctor import agreement, checks
from umpteen.doctor.checks import Check, Skipped, look
from umpteen.encoders.backbone import Precision
from umpteen.encoders.folder import DEFAULT_MODEL, locate
from umpteen.encoders.towers import Towers
from umpteen.files.progress import Progress
from umpteen.parallel.world import Shard, World
from umpteen.training.build import pick_device

SPARE_LABELS = 32  # beyond the k of SoftTop-k: some may be filtered


def examine(config: RunConfig, progress: Progress = lambda name, done, total: None) -> Iterator[Check]:
    """Every check in order, as soon as it is made; progress hears the name of each before."""
    patient = Examination(config)
    every: dict[str, Callable[[], str]] = {
        "versions": checks.versions,
        "devices": lambda: checks.devices(pick_device(config.training.device)),
        "memory": checks.memory,
        "cache folder": checks.cache,
        "bfloat16": partial(patient.half_precision, "bfloat16"),
        "float16": partial(patient.half_precision, "float16"),
        "data": patient.open_data,
        "start model": patient.start_model,
        "token table": patient.token_table,
        "checkpoint": lambda: checks.checkpoint(config, patient.towers),
        "naive formula": lambda: patient.compare(agreement.with_naive_formula),
        "processes meet": agreement.processes_meet,
        "two processes": lambda: patient.compare(agreement.on_two_processes),
    }
    for number, (name, check) in enumerate(every.items()):
        progress(name, number, len(every))
        yield look(name, check)


class Examination:
    """What was found so far of a recipe."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._dataset: Dataset | None = None
        self._towers: Towers | None = None

    def half_precision(self, precision: Precision) -> str:
        sides = (self._config.encoder.query, self._config.encoder.label_tower)
        asked_for = any(isinstance(tower, TransformerTower) and tower.precision == precision for tower in sides)
        return checks.half_precision(precision, pick_device(self._config.training.device).type, asked_for=asked_for)

    def open_data(self) -> str:
        dataset = self._dataset = open_dataset(self._config.data.source)
        return f"{dataset.name}: {len(dataset.train):,} training queries, {len(dataset.labels):,} labels"

    def start_model(self) -> str:
        encoder, found = self._config.encoder, dict[str, None]()
        for tower in (encoder.query, encoder.label_tower):
            if not isinstance(tower, TextTower):
                continue
            folder = locate(tower.start, weights=not tower.random_weights)
            verified = tower.start.removeprefix("sentence-transformers/") == DEFAULT_MODEL and not tower.random_weights
            found[f"{tower.start} in {folder}{', checksum right' if verified else ''}"] = None
        labels = Shard(World(), len(self._dataset.labels) if self._dataset else 0)
        self._towers = Towers.build(encoder, self._config.seed, labels)
        return f"{'; '.join(found)}; gives {self._towers.describe()}"

    def token_table(self) -> str:
        texts, tower = self.sample.label_texts, self.towers.label
        if tower.reading(self.sample.data.labels) is None:
            raise Skipped("labels have a vector each, and no texts")
        return checks.token_table(texts, tower.tokenizer)

    def compare(self, comparison: Callable[[RunConfig, agreement.Sample], str]) -> str:
        agreement.require_memory(self.towers)
        return comparison(self._config, self.sample)

    @property
    def towers(self) -> Towers:
        if self._towers is None:
            raise Skipped("there is no start model to do it with")
        return self._towers

    @cached_property
    def sample(self) -> agreement.Sample:
        if self._dataset is None:
            raise Skipped("there is no data to do it with")
        k = self._config.objective.arguments().get("k", 0)
        at_least = SPARE_LABELS + (k if isinstance(k, int) else 0)
        return agreement.draw_sample(self._dataset, self.towers, seed=self._config.seed, at_least=at_least)
