"""The weights of parts whose scores are added up are those that validation likes best."""

from pathlib import Path

import pytest
import torch

from miniature import trained, write_recipe
from umpteen.config.recipes import resolve
from umpteen.encoders.frozen import FrozenEncoder
from umpteen.encoders.parts import PartsEncoder
from umpteen.model.classifier import Classifier
from umpteen.model.train import train
from umpteen.parallel.world import World
from umpteen.training.build import build_run, weigh_parts


def test_a_part_that_misleads_loses_its_weight(tmp_path: Path) -> None:
    run = build_run(resolve(str(write_recipe(tmp_path, kind="concat"))), workspace=None)
    run.loop.run()
    for sign, tower in ((8, run.towers.query), (-1, run.towers.label)):
        assert isinstance(tower, PartsEncoder)
        frozen = tower.encoders["frozen"]
        assert isinstance(frozen, FrozenEncoder)
        frozen.map.weight.data = sign * torch.eye(frozen.dimension)  # likes what is unlike, and says so aloud
        frozen.normalise = False
    assert run.loop.evaluate is not None
    before = run.loop.evaluate()["nDCG@5"]
    found = weigh_parts(run, "nDCG@5", World())
    assert found["frozen"] < found["static"]
    assert run.loop.evaluate()["nDCG@5"] >= before
    assert run.towers.query.shares == run.towers.label.shares
    assert sum(share.of_score for share in run.towers.query.shares) == pytest.approx(1)


def test_a_model_keeps_its_weights_and_a_sum_has_none_to_choose(tmp_path: Path) -> None:
    write_recipe(tmp_path / "concat", "training.steps=2", kind="concat")
    train(tmp_path / "concat" / "recipe.toml", output=tmp_path / "concat" / "model")
    loaded = Classifier.load(tmp_path / "concat" / "model")
    tower = loaded.towers.query
    assert isinstance(tower, PartsEncoder)
    assert loaded.training["weights"] == pytest.approx(dict(zip(tower.parts, tower.weights.tolist(), strict=True)))
    torch.testing.assert_close(loaded.vectors.norm(dim=1), torch.ones(len(loaded.labels)), rtol=1e-4, atol=1e-4)
    assert "weights" not in Classifier.load(trained(tmp_path / "plain", "training.steps=1")).training
