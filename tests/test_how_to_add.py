"""docs/explanation/architecture.md, "How to add …", followed with a toy of each kind."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import pytest
import torch
from torch import Tensor

from miniature import command, refused, write_miniature, write_recipe
from tiny import tiny_tokenizer
from umpteen import search
from umpteen.cli.main import cli
from umpteen.config import settings
from umpteen.config.recipes import resolve
from umpteen.data import formats
from umpteen.data.dataset import open_dataset
from umpteen.data.formats import native
from umpteen.doctor.checks import draw_sample, with_naive_formula
from umpteen.encoders import encoder as encoder_kinds
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder, Place, class_of
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadConfig, BadInput
from umpteen.model.classifier import Classifier
from umpteen.model.index import build_index, certificate_of
from umpteen.objectives import losses, reference
from umpteen.objectives.scores import Scores
from umpteen.objectives.targets import Pairs, Targets
from umpteen.search import index as index_kinds
from umpteen.search.index import ExactIndex
from umpteen.training import build
from umpteen.training.build import build_run
from umpteen.training.negatives.pool import Uniform

QUICK = ("training.steps=2", "evaluation.every_epochs=0")


class ToyObjective(settings.ReducedObjective):
    name: Literal["toy"] = "toy"
    margin: float = 0.1

    def arguments(self) -> dict[str, Any]:
        return {"margin": self.margin}


def toy_loss(scores: Scores, targets: Targets, margin: float) -> Tensor:
    """Each positive wants to stand a margin above the soft maximum of all labels."""
    targets = targets.without(scores.filtered)
    return targets.mean(scores.log_sum_exp()[targets.pulled.query] - scores.at(targets.pulled) + margin)


def toy_formula(scores: Tensor, targets: Targets, filtered: Pairs | None = None, *, margin: float) -> Tensor:
    return reference.softmax(scores, targets, filtered) + margin


def test_an_objective_is_a_function_its_formula_and_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.OBJECTIVES, "toy", ToyObjective)
    monkeypatch.setitem(losses.OBJECTIVES, "toy", lambda chosen, labels: partial(toy_loss, **chosen.arguments()))
    monkeypatch.setitem(reference.REFERENCE, "toy", toy_formula)
    config = resolve(str(write_recipe(tmp_path, *QUICK)), ("objective.name=toy", "objective.margin=0.3"))
    run = build_run(config, workspace=None)
    run.loop.run()
    sample = draw_sample(run.dataset, run.towers, seed=0, at_least=1)
    assert "the naive formula agree" in with_naive_formula(config, sample)


class ToyTower(settings.TextTower):
    kind: Literal["toy"] = "toy"
    factor: float = 2.0


class ToyEncoder(StaticEncoder):
    """A bag of word pieces, stretched."""

    factor = 1.0

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return super().forward(ids, offsets) * self.factor

    def save(self, folder: Path, beside: Encoder | None = None) -> None:
        super().save(folder)
        layout.write_settings(folder, {**layout.read_settings(folder), "kind": "toy", "factor": self.factor})

    @classmethod
    def read(cls, folder: Path, stored: dict[str, Any], beside: Encoder | None) -> "ToyEncoder":
        encoder = super().read(folder, stored, beside)
        assert isinstance(encoder, ToyEncoder)
        encoder.factor = stored["factor"]
        return encoder

    @classmethod
    def build(cls, tower: ToyTower, place: Place) -> "ToyEncoder":  # type: ignore[override]
        encoder = cls.random(tower.start, 8, place.seed)
        assert isinstance(encoder, ToyEncoder)
        encoder.factor = tower.factor
        return encoder

    def start(self, *given: Any) -> None:
        pass


def test_an_encoder_part_is_a_class_a_row_and_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.TOWERS, "toy", ToyTower)
    monkeypatch.setitem(encoder_kinds.KINDS, "toy", f"{__name__}.ToyEncoder")
    recipe = write_recipe(tmp_path, *QUICK)
    config = resolve(str(recipe), ("encoder.query.kind=toy", "encoder.query.factor=3"))
    run = build_run(config, workspace=None)
    run.loop.run()
    run.towers.save(tmp_path / "towers")
    loaded = Towers.load(tmp_path / "towers")
    texts = ["fish of the sea", "law"]
    torch.testing.assert_close(loaded.query.encode(texts), run.towers.eval().query.encode(texts))
    assert loaded.query.encode(texts).norm(dim=1).tolist() == pytest.approx([3, 3])
    with pytest.raises(BadConfig, match='factor is for kind = "toy", not for "static"'):
        resolve(str(recipe), ("encoder.query.factor=3",))


class ToyPool(settings.PoolConfig):
    name: Literal["toy"] = "toy"


def test_a_pool_is_a_class_a_row_and_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.POOLS, "toy", ToyPool)
    monkeypatch.setitem(build.POOLS, "toy", lambda pool, step, epoch: Uniform())
    run = build_run(resolve(str(write_recipe(tmp_path, *QUICK)), ("pool.name=toy",)), workspace=None)
    assert isinstance(run.step.pool, Uniform)
    run.loop.run()


class ToyIndex(ExactIndex):
    kind = "toy"


def test_an_index_is_a_class_and_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(search.KINDS, "toy", f"{__name__}.ToyIndex")
    labels = open_dataset(write_miniature(tmp_path / "data")).labels
    tower = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 16, seed=0)
    Classifier.build(Towers(tower).eval(), labels).save(tmp_path / "model")
    build_index(tmp_path / "model", "toy")
    loaded, certificate = Classifier.load(tmp_path / "model"), certificate_of(tmp_path / "model")
    assert loaded.index.kind == "toy" and certificate is not None and certificate.recall == 1
    exact = Classifier.load(tmp_path / "model", index=False)
    assert loaded.predict(["fish"], k=3) == exact.predict(["fish"], k=3)


class Renamed:
    """The native format under other file names."""

    def recognises(self, folder: Path) -> bool:
        return (folder / "toy").is_dir()

    def sources(self, folder: Path) -> list[Path]:
        return native.sources(folder / "toy")

    def read(self, folder: Path, into: Any) -> None:
        native.read(folder / "toy", into)


def test_a_format_is_three_functions_and_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_miniature(tmp_path / "data" / "toy")
    with pytest.raises(BadInput, match="no known dataset format"):
        open_dataset(tmp_path / "data")
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, Renamed()))
    assert len(open_dataset(tmp_path / "data").labels) == len(open_dataset(tmp_path / "data" / "toy").labels)


def test_a_verb_is_a_command_and_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def toy() -> None:
        """Say something."""
        raise BadInput("toys are not served")

    monkeypatch.setitem(cli.commands, "toy", toy)
    assert "toy" in command("--help").out
    refused(command("toy"), "toys are not served")


@pytest.mark.parametrize("seam", ["objective.name", "encoder.query.kind", "pool.name"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(seam: str, tmp_path: Path) -> None:
    known = settings.KINDS[seam.rpartition(".")[0]][1]
    with pytest.raises(BadConfig) as refusal:
        resolve(str(write_recipe(tmp_path)), (f"{seam}=nobody",))
    assert "nobody" in str(refusal.value) and all(name in str(refusal.value) for name in known)


def test_every_name_that_a_recipe_may_use_has_its_code() -> None:
    assert set(settings.OBJECTIVES) == set(losses.OBJECTIVES) == set(reference.REFERENCE)
    assert set(settings.POOLS) == set(build.POOLS)
    assert set(settings.TOWERS) == set(encoder_kinds.KINDS)
    with pytest.raises(BadInput, match="exact, faiss-flat"):
        index_kinds.class_of("nobody")
    with pytest.raises(BadConfig, match="there is static, frozen, transformer, table"):
        class_of("nobody")
    with pytest.raises(BadConfig, match="there is softmax"):
        losses.build_objective(settings.ObjectiveConfig(name="nobody"), 3)
