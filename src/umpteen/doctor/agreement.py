"""Whether loss and gradients of a recipe are the same by the step, by the naive formula, and on two processes.

All in float64 without dropout, on a slice of the user's data, in several micro-batches and tiles.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from umpteen.config.settings import RunConfig, StaticTower, TowerConfig, TransformerTower
from umpteen.doctor.checks import Failed, Skipped, available_memory
from umpteen.doctor.naive import naive_loss
from umpteen.doctor.sample import Sample
from umpteen.encoders.rows import row_tables
from umpteen.encoders.towers import Towers
from umpteen.objectives.losses import build_objective
from umpteen.parallel.children import run_in_world
from umpteen.parallel.shard import Shard, undivided
from umpteen.parallel.world import World
from umpteen.training.build import build_optimizer, step_settings
from umpteen.training.step import TrainingStep

LIMIT = 1e-8  # rounding in float64 stays a thousand times below it
SMALL = 1e-3  # of the largest gradient; what is smaller is judged as if it were this large
PARTS = 4  # micro-batches and tiles, at least
BUCKETS = 1024  # of bigrams: more take memory, and compute the same
BYTES_A_WEIGHT = 100  # by rule of thumb: three times its 8 bytes in three processes, and a transformer's graph


class Outcome(NamedTuple):
    """The loss of the sample, and what it leaves on every weight."""

    loss: float
    gradients: dict[str, Tensor]


class Difference(NamedTuple):
    size: float  # relative
    place: str
    loss: float
    total: float  # of all gradients: the same on all processes, to the bit


def require_memory(towers: Towers) -> None:
    """Skips what needs more memory than there is; bigrams need little, since most of their buckets are left out."""
    weights = sum(weight.numel() for name, weight in towers.named_parameters() if not name.endswith("bigrams"))
    needed, available = BYTES_A_WEIGHT * weights, available_memory()
    if available is not None and available < needed:
        raise Skipped(f"needs about {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are available")


def with_naive_formula(config: RunConfig, sample: Sample) -> str:
    """The step gives the loss and the gradients of the formula, differentiated in one graph."""
    with undivided():  # small operations; threads would wait for each other, for long on a busy machine
        towers = exact_towers(config, sample)
        ours, theirs = by_step(config, towers, sample, World()), by_formula(config, towers, sample)
    found = difference(ours, theirs)
    _judge(found, f"the loss is {ours.loss:.10g} by the step and {theirs.loss:.10g} by the formula")
    return f"loss {found.loss:.4f} of {_size(sample)}; {config.objective.name} and the naive formula {_agree(found)}"


def on_two_processes(config: RunConfig, sample: Sample) -> str:
    """Two processes that share the labels give the loss and the gradients of one."""
    found = run_in_world(2, _together_and_alone, config, sample, seconds=600)
    for each in found:
        _judge(each, f"the loss is {each.loss:.10g} on two processes")
    if len({each.total for each in found}) > 1:
        raise Failed(f"the processes end with different gradients: their sums are {[each.total for each in found]}")
    return f"loss {found[0].loss:.4f} of {_size(sample)}; one and two processes {_agree(max(found))}"


def processes_meet() -> str:
    """Two processes find each other and add up their ranks."""
    answers = run_in_world(2, _add_up)
    if answers != [3.0, 3.0]:
        raise Failed(f"1 + 2 over two processes gives {answers}")
    return "two processes met by gloo on 127.0.0.1 and added up"


def exact_towers(config: RunConfig, sample: Sample) -> Towers:
    """The recipe's towers at their start, in float64 and without dropout."""
    encoder = config.encoder
    changed = {"query": _exact(encoder.query), "label": encoder.label and _exact(encoder.label)}
    towers = Towers.build(encoder.model_copy(update=changed), config.seed, Shard(World(), sample.catalogue))
    rows = towers.label.rows
    towers.start(
        encoder, sample.data.queries, sample.data.labels, lambda: torch.empty(0) if rows is None else rows.weight
    )
    return towers.double().eval()


def _exact(tower: TowerConfig) -> TowerConfig:
    if isinstance(tower, TransformerTower):
        return tower.model_copy(update={"precision": "float32"})
    return (
        tower.model_copy(update={"bigrams": min(tower.bigrams, BUCKETS)}) if isinstance(tower, StaticTower) else tower
    )


def by_step(config: RunConfig, towers: Towers, sample: Sample, world: World) -> Outcome:
    """As training computes it."""
    settings = replace(
        step_settings(config),
        token_budget=min(config.training.token_budget, -(-sample.tokens // PARTS)),
        tile=min(config.training.tile or sample.labels, -(-sample.labels // PARTS)),
        replay_fraction=None,  # a sample of the gradients has the right mean, and no more
    )
    objective = build_objective(config.objective, sample.labels)
    step = TrainingStep(towers, sample.data, objective, build_optimizer(config, towers), settings, world=world)
    loss = step.gradients(np.arange(sample.queries), step=0, seed=config.seed).loss
    return Outcome(loss, _taken_gradients(towers, world))


def by_formula(config: RunConfig, towers: Towers, sample: Sample) -> Outcome:
    """As the paper writes it."""
    loss = naive_loss(towers, sample.data, config.objective, np.random.default_rng([config.seed, 0]))
    loss.backward()  # type: ignore[no-untyped-call]
    return Outcome(float(loss.detach()), _taken_gradients(towers))


def _taken_gradients(towers: Towers, world: World | None = None) -> dict[str, Tensor]:
    """Every weight's gradient; of rows, each process has that of its own labels."""
    found = {name: weight.grad for name, weight in towers.named_parameters() if weight.grad is not None}
    towers.zero_grad(set_to_none=True)
    for name, table in row_tables(towers).items():
        found[name] = (world or World()).sum_(table.dense_gradient())
        table.forget_gradients()
    return found


def difference(ours: Outcome, theirs: Outcome) -> Difference:
    """The largest relative difference and where it is; infinite where a number is none."""
    total = math.fsum(float(gradient.sum()) for gradient in ours.gradients.values())
    found = [Difference(_relative(torch.tensor(ours.loss), torch.tensor(theirs.loss), 0.0), "loss", ours.loss, total)]
    largest = max((float(gradient.abs().max()) for gradient in theirs.gradients.values()), default=0.0)
    for name in ours.gradients.keys() | theirs.gradients.keys():
        pair = [outcome.gradients.get(name, torch.zeros(())) for outcome in (ours, theirs)]
        size = _relative(pair[0], pair[1], SMALL * largest)
        found.append(Difference(size, f"gradient of {name}", ours.loss, total))
    return max(found)


def _relative(ours: Tensor, theirs: Tensor, at_least: float) -> float:
    scale = max(float(theirs.abs().max()), at_least)
    size = float((ours - theirs).abs().max())
    if not (math.isfinite(size) and math.isfinite(scale)):
        return math.inf
    return size / scale if scale else float(size > 0)


def _judge(found: Difference, losses: str) -> None:
    if found.size > LIMIT:
        what = losses if found.place == "loss" else f"the {found.place} is off by {found.size:.1e} of its size"
        raise Failed(f"{what}; nothing trained here can be trusted: please report it with `umpteen doctor --json`")


def _agree(found: Difference) -> str:
    return f"agree to {max(found.size, 1e-16):.0e} (limit {LIMIT:.0e})"


def _size(sample: Sample) -> str:
    return f"{sample.queries} queries and {sample.labels} labels"


def _together_and_alone(world: World, config: RunConfig, sample: Sample) -> Difference:
    with undivided():
        towers = exact_towers(config, sample)
        return difference(by_step(config, towers, sample, world), by_step(config, towers, sample, World()))


def _add_up(world: World) -> float:
    return float(world.sum_(torch.tensor(float(world.rank + 1))))
