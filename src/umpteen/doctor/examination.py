"""All checks of one recipe, in order: later ones use what earlier ones found, and are skipped where that is missing."""

from collections.abc import Callable, Iterator
from functools import cached_property, partial

from umpteen.config.settings import RunConfig, SoftTopK, TextTower, TransformerTower
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.doctor import agreement, disk
from umpteen.doctor import checks as machine
from umpteen.doctor.checks import Check, Skipped, look
from umpteen.doctor.sample import Sample, draw_sample
from umpteen.encoders.backbone import Precision
from umpteen.encoders.folder import DEFAULT_MODEL, locate
from umpteen.encoders.towers import Towers
from umpteen.files.progress import Progress
from umpteen.parallel.shard import Shard
from umpteen.parallel.world import World
from umpteen.training.build import pick_device

SPARE_LABELS = 32  # beyond the k of SoftTop-k: some may be filtered


class Examination:
    """What was found so far; `checks` are to be made one after the other."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._dataset: Dataset | None = None
        self._towers: Towers | None = None

    def checks(self) -> dict[str, Callable[[], str]]:
        return {
            "versions": machine.versions,
            "devices": self._devices,
            "memory": machine.memory,
            "cache folder": disk.cache,
            "bfloat16": partial(self._half_precision, "bfloat16"),
            "float16": partial(self._half_precision, "float16"),
            "data": self._data,
            "start model": self._start_model,
            "token table": lambda: disk.token_table(self._sample, self._given_towers.label),
            "checkpoint": lambda: disk.checkpoint(self._config, self._given_towers),
            "naive formula": partial(self._compare, agreement.with_naive_formula),
            "processes meet": agreement.processes_meet,
            "two processes": partial(self._compare, agreement.on_two_processes),
        }

    def _devices(self) -> str:
        return machine.devices(pick_device(self._config.training.device))

    def _half_precision(self, precision: Precision) -> str:
        encoder = self._config.encoder
        asked_for = any(
            isinstance(tower, TransformerTower) and tower.precision == precision
            for tower in (encoder.query, encoder.label_tower)
        )
        device = pick_device(self._config.training.device).type
        return machine.half_precision(precision, device, asked_for=asked_for)

    def _data(self) -> str:
        dataset = open_dataset(self._config.data.source)
        self._dataset = dataset
        return f"{dataset.name}: {len(dataset.train):,} training queries, {len(dataset.labels):,} labels"

    def _start_model(self) -> str:
        encoder = self._config.encoder
        towers = (encoder.query, encoder.label_tower)
        found = {_found(tower): None for tower in towers if isinstance(tower, TextTower)}
        labels = Shard(World(), len(self._dataset.labels) if self._dataset else 0)
        self._towers = Towers.build(encoder, self._config.seed, labels)
        return f"{'; '.join(found)}; gives {self._towers.describe()}"

    def _compare(self, comparison: Callable[[RunConfig, Sample], str]) -> str:
        agreement.require_memory(self._given_towers)
        return comparison(self._config, self._sample)

    @property
    def _given_towers(self) -> Towers:
        if self._towers is None:
            raise Skipped("there is no start model to do it with")
        return self._towers

    @cached_property
    def _sample(self) -> Sample:
        if self._dataset is None:
            raise Skipped("there is no data to do it with")
        k = self._config.objective.k if isinstance(self._config.objective, SoftTopK) else 0
        at_least = SPARE_LABELS + (k if isinstance(k, int) else 0)
        return draw_sample(self._dataset, self._given_towers, seed=self._config.seed, at_least=at_least)


def _found(tower: TextTower) -> str:
    folder = locate(tower.start, weights=not tower.random_weights)
    verified = tower.start.removeprefix("sentence-transformers/") == DEFAULT_MODEL and not tower.random_weights
    return f"{tower.start} in {folder}{', checksum right' if verified else ''}"


def examine(config: RunConfig, progress: Progress = lambda name, done, total: None) -> Iterator[Check]:
    """Every check in order, as soon as it is made; progress hears the name of each before."""
    checks = Examination(config).checks()
    for number, (name, check) in enumerate(checks.items()):
        progress(name, number, len(checks))
        yield look(name, check)
