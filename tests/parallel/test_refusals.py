"""Worlds that cannot work are refused, by every process, and told by one."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from quick import quick_recipe

from miniature import KEYS, LABELS, write_miniature
from umpteen.config.recipes import resolve
from umpteen.errors import BadInput, InUse, LostProcess
from umpteen.files.storage import open_workspace
from umpteen.model.train import WORK, train_in
from umpteen.parallel.world import World, join_world
from worlds import run_world, try_world


def write_two_labels(folder: Path) -> Path:
    folder.mkdir()
    labels = [{"key": KEYS[row], "text": LABELS[row]} for row in (0, 1)]
    queries = [{"text": LABELS[row % 2], "labels": [KEYS[row % 2]]} for row in range(20)]
    for name, records in (("labels", labels), ("train", queries), ("test", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def train_on(world: World, recipe: Path, sources: Sequence[Path]) -> None:
    config = resolve(str(recipe))
    source = sources[min(world.rank, len(sources) - 1)]
    config = config.model_copy(update={"data": config.data.model_copy(update={"source": str(source)})})
    train_in(world, config, output=recipe.parent / "model")


def test_processes_that_see_different_data_are_refused_by_name(tmp_path: Path) -> None:
    recipe = quick_recipe(tmp_path)
    other = write_miniature(tmp_path / "other", queries=61)
    for outcome in try_world(3, train_on, recipe, [tmp_path / "data", tmp_path / "data", other]):
        assert isinstance(outcome, BadInput)
        assert str(outcome).startswith("process 2 has another data than process 0")


def test_fewer_labels_than_processes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="2 labels cannot be shared by 3 processes"):
        run_world(3, train_on, quick_recipe(tmp_path), [write_two_labels(tmp_path / "two")])


def test_an_output_that_another_run_is_at_is_refused_in_every_process(tmp_path: Path) -> None:
    recipe = quick_recipe(tmp_path)
    with open_workspace(tmp_path / "model.training", WORK):
        outcomes = try_world(3, train_on, recipe, [tmp_path / "data"])
    assert [type(outcome) for outcome in outcomes] == [InUse, LostProcess, LostProcess]
    assert [outcome.told_elsewhere for outcome in outcomes] == [False, True, True]


def fail(world: World, everywhere: bool) -> None:
    if everywhere or world.rank == 1:
        raise BadInput("broken")
    world.wait()


@pytest.mark.parametrize("everywhere", [True, False])
def test_an_error_is_told_once_however_many_processes_have_it(everywhere: bool) -> None:
    outcomes = try_world(3, fail, everywhere)
    assert [type(outcome) for outcome in outcomes].count(BadInput) == (3 if everywhere else 1)
    told = [outcome for outcome in outcomes if not outcome.told_elsewhere]
    assert [str(outcome) for outcome in told] == ["broken"]


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        place = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(BadInput, match=f"127.0.0.1:{port}: the port is in use"), join_world():
            pass


@pytest.mark.parametrize(
    ("device", "refusal"),
    [("mps", "is for a single process"), ("cuda", "needs a GPU of its own, and this machine has 1")],
)
def test_a_device_that_processes_cannot_share_is_refused(
    device: str, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=refusal), join_world(torch.device(device)):
        pass
