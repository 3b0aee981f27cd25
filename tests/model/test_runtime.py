"""A model with a runtime: the same answers by onnxruntime, certified, taken in and left out, never of other weights."""

import json
import logging
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir
import onnxruntime
import pytest
import torch

from answers import same_answers, same_numbers
from miniature import KEYS, LABELS, command, files_of, flip_a_byte, listing, part_of, refused, write_miniature
from tiny import tiny_tokenizer, tiny_transformer
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders import runtime
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.frozen import FrozenEncoder, FrozenReader
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.runtime import OnnxGraph
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput, DamagedModel
from umpteen.model.classifier import Classifier, verify
from umpteen.model.export import export_model
from umpteen.model.folder import ModelFolder
from umpteen.model.index import Sample
from umpteen.model.writing import compact
from umpteen.search.certificate import a_second

TEXTS = ["dog", "the law of fish and trade", "food in the library and the book", "tax network tree of the law"]
GRAPHS = ["transformer-0.onnx", "transformer-1.onnx"]


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    """Speed is measured with a text or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("umpteen.model.export.a_second", partial(a_second, seconds=0.0))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose queries are read by words, by a frozen transformer and by one that would be trained."""
    home = tmp_path_factory.mktemp("written")
    start = tiny_transformer(home / "start")
    parts: dict[str, Encoder] = {
        "static": StaticEncoder.random(start, 16, seed=0),
        "frozen": FrozenEncoder(FrozenReader(TransformerEncoder.load(start)), dimension=16),
        "transformer": TransformerEncoder.load(start, projection=8, pooling="first"),
    }
    labels = LabelCatalogue(KEYS, LABELS)
    Classifier.build(Towers(PartsEncoder(parts, "concat")).eval(), labels).save(home / "model", recipe="seed = 1\n")
    return home / "model"


@pytest.fixture(scope="module")
def exported(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Path(shutil.copytree(written, tmp_path_factory.mktemp("exported") / "model"))
    export_model(model, sample=Sample(TEXTS, "texts of this test"))
    return model


@pytest.fixture
def plain(written: Path, tmp_path: Path) -> Path:
    """Without a runtime."""
    return Path(shutil.copytree(written, tmp_path / "plain"))


@pytest.fixture
def model(exported: Path, tmp_path: Path) -> Path:
    """With one."""
    return Path(shutil.copytree(exported, tmp_path / "model"))


@pytest.fixture
def quick(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch need not trace the transformers again: both are the same."""
    graph = part_of(exported, "runtime") / GRAPHS[0]
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: SimpleNamespace(model=onnx_ir.load(graph)))


def answers(model: Path, **how: bool) -> Any:
    return Classifier.load(model, **how).predict(TEXTS, 3)


def test_a_model_answers_through_its_runtime_as_it_does_by_torch(model: Path, tmp_path: Path) -> None:
    by_torch, by_onnx = Classifier.load(model, runtime=False), Classifier.load(model)
    assert by_torch.runtime is None and by_torch.query_tower is by_torch.towers.query
    assert by_onnx.runtime is not None and by_onnx.query_tower is not by_onnx.towers.query
    same_answers(by_onnx.predict(TEXTS), by_torch.predict(TEXTS))
    same_answers(by_onnx.predict(TEXTS[1:2]), by_torch.predict(TEXTS[1:2]))
    given = TEXTS, [[key] for key in KEYS[: len(TEXTS)]]
    same_numbers(by_onnx.evaluate(*given).metrics, by_torch.evaluate(*given).metrics)
    same_numbers(by_onnx.explain(TEXTS[1], KEYS[0]).to_dict(), by_torch.explain(TEXTS[1], KEYS[0]).to_dict())
    assert "onnx" in repr(by_onnx) and "onnx" not in repr(by_torch)


def test_a_family_without_fused_attention_is_exported_too(tmp_path: Path) -> None:
    tower = TransformerEncoder.load(tiny_transformer(tmp_path, "mpnet")).eval()
    exported = runtime.export(tower, tmp_path)
    assert exported is not tower
    torch.testing.assert_close(exported.encode(TEXTS), tower.encode(TEXTS), rtol=1e-4, atol=1e-5)


def test_the_certificate_says_what_was_measured(model: Path) -> None:
    about = Classifier.load(model).runtime
    assert about is not None
    assert about["agreement"] == 1.0 and about["target"] == 0.99 and about["k"] == 5
    assert (about["texts"], about["sample"]) == (len(TEXTS), "texts of this test")
    assert set(about["texts_per_second"]) == {"onnx", "torch"} and min(about["texts_per_second"].values()) > 0
    card = (model / "README.md").read_text()
    assert card.count("## Runtime") == 1 and "- agreement: 1.0" in card
    assert verify(model) == []


def test_the_graphs_say_nothing_of_the_machine_that_made_them(model: Path) -> None:
    for name in GRAPHS:
        content = (part_of(model, "runtime") / name).read_bytes()
        assert str(Path(torch.__file__).parents[1]).encode() not in content and b"stack_trace" not in content


def test_vectors_that_a_runtime_read_are_kept_apart_in_the_cache(model: Path) -> None:
    classifier = Classifier.load(model)
    (by_torch,), (by_onnx,) = classifier.towers.query.readers, classifier.query_tower.readers
    assert by_torch.fingerprint != by_onnx.fingerprint  # type: ignore[attr-defined]


def test_a_service_says_what_encodes_and_goes_back_to_torch_while_it_runs(model: Path) -> None:
    from starlette.testclient import TestClient

    from umpteen.service.app import create_app

    classifier = Classifier.load(model)
    with TestClient(create_app(classifier)) as client:
        assert client.get("/model").json()["runtime"]["agreement"] == 1.0
        before = client.post("/predict", json={"texts": TEXTS}).json()["results"]
    outcome = command("export", model, "--to", "torch")
    assert outcome.code == 0 and "torch" in outcome.out, outcome
    assert classifier.refresh() and classifier.runtime is None
    with TestClient(create_app(classifier)) as client:
        assert client.get("/model").json()["runtime"] is None
        same_numbers(client.post("/predict", json={"texts": TEXTS}).json()["results"], before)
    assert "## Runtime" not in (model / "README.md").read_text() and not list(model.glob("runtime-*"))
    refused(command("export", model, "--to", "torch"), "has no runtime to remove")


@pytest.mark.usefixtures("quick")
def test_a_classifier_takes_in_a_runtime_that_is_exported_meanwhile(plain: Path, tmp_path: Path) -> None:
    classifier = Classifier.load(plain)
    data = write_miniature(tmp_path / "data")
    outcome = command("export", plain, "--to", "onnx", "--data", data, "--sample", "7", "--json")
    assert outcome.code == 0, outcome
    told = json.loads(outcome.out)
    assert told["agreement"] == 1.0 and told["texts"] == 7 and told["sample"] == "test texts of data"
    expected = classifier.predict(TEXTS)
    assert classifier.refresh() and classifier.runtime is not None
    same_answers(classifier.predict(TEXTS), expected)


def test_what_agrees_too_rarely_is_refused_and_leaves_nothing(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listing(plain)

    def another(tower: Encoder, folder: Path) -> Encoder:
        (folder / GRAPHS[0]).write_bytes(b"as if")
        return StaticEncoder.random(tiny_tokenizer(plain.parent / "tokenizer"), tower.dimension, seed=1).eval()

    monkeypatch.setattr("umpteen.model.export.export", another)
    refused(command("export", plain, "--to", "onnx"), "same 5 labels as with torch, not 0.99", "nothing was changed")
    assert listing(plain) == before


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("step", ["torch", "trial"])
def test_an_export_that_fails_leaves_nothing(step: str, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listing(plain)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand more")

    if step == "torch":
        monkeypatch.setattr(torch.onnx, "export", fails)
        expected = "torch cannot export this bert to ONNX: no such operator;"
    else:
        monkeypatch.setattr(runtime, "TRIAL", "import os\nos.kill(os.getpid(), 4)")
        expected = "killed by signal 4"
    with pytest.raises(BadInput, match=expected):
        export_model(plain)
    assert listing(plain) == before


def test_a_tower_without_a_transformer_is_refused(tmp_path: Path) -> None:
    tower = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 16, seed=0)
    Classifier.build(Towers(tower).eval(), LabelCatalogue(KEYS, LABELS)).save(tmp_path / "model")
    refused(command("export", tmp_path / "model", "--to", "onnx"), "no transformer to export")


def test_without_onnxruntime_torch_answers_and_it_is_said_once(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers(model)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    classifier = Classifier.load(model)
    same_answers(classifier.predict(TEXTS, 3), expected)
    assert classifier.runtime is None and not classifier.refresh()
    (said,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "onnxruntime is not installed" in said and "umpteen[onnx]" in said
    refused(command("export", model, "--to", "onnx"), "onnxruntime", "pip install 'umpteen[onnx]'")
    assert (part_of(model, "runtime") / GRAPHS[1]).is_file()


def test_a_copy_and_a_compacted_model_keep_the_runtime(model: Path, tmp_path: Path) -> None:
    classifier = Classifier.load(model)
    classifier.add_labels({"new": "a network of dog and tree"})
    classifier.save(tmp_path / "copy")
    compact(model)
    for path in (tmp_path / "copy", model):
        assert Classifier.load(path).runtime == classifier.runtime and "## Runtime" in (path / "README.md").read_text()
        same_answers(answers(path), classifier.predict(TEXTS, 3))


def test_a_runtime_of_other_weights_is_left_behind_and_never_used(model: Path, tmp_path: Path) -> None:
    classifier = Classifier.load(model)
    with torch.no_grad():
        next(classifier.towers.query.parts["transformer"].model.parameters()).mul_(2)  # type: ignore[attr-defined]
    classifier.save(tmp_path / "other")
    other = Classifier.load(tmp_path / "other")
    assert other.runtime is None and "## Runtime" not in (tmp_path / "other" / "README.md").read_text()
    with sqlite3.connect(ModelFolder(model).database) as connection:
        connection.execute('UPDATE parts SET about = replace(about, \'"weights": "\', \'"weights": "0\')')
    connection.close()
    with pytest.raises(DamagedModel, match="exported of other weights"):
        Classifier.load(model)
    same_answers(answers(model, runtime=False), answers(model, runtime=False, index=False))


def test_a_damaged_graph_is_named_with_the_way_out(model: Path) -> None:
    flip_a_byte(part_of(model, "runtime") / GRAPHS[1])
    with pytest.raises(DamagedModel, match=re.escape(GRAPHS[1]) + ".*umpteen export --to torch"):
        Classifier.load(model)


def test_a_graph_whose_weights_lie_in_another_file_is_refused(model: Path, tmp_path: Path) -> None:
    file, size = part_of(model, "runtime") / GRAPHS[0], 32
    OnnxGraph(file, size)
    graph = tmp_path / "elsewhere.onnx"
    onnx.save(onnx.load(file), graph, save_as_external_data=True, location="weights", size_threshold=0)
    written_longer = tmp_path / "longer.onnx"  # a length in two bytes, which no reader of protobuf refuses
    written_longer.write_bytes(graph.read_bytes().replace(b"\x08location", b"\x88\x00location"))
    for path in (graph, written_longer):
        with pytest.raises(DamagedModel, match="lie in another file"):
            OnnxGraph(path, size)


def test_a_file_that_is_no_graph_of_this_encoder_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no graph")
    with pytest.raises(DamagedModel, match="onnxruntime cannot compute it"):
        OnnxGraph(tmp_path / "no.onnx", 32)
    with pytest.raises(DamagedModel, match="another shape"):
        OnnxGraph(part_of(model, "runtime") / GRAPHS[0], 33)


def test_a_graph_uses_as_many_threads_as_torch_does_where_it_is_called(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    session = onnxruntime.InferenceSession

    def counted(content: bytes, options: Any, **more: Any) -> Any:
        opened.append(options.intra_op_num_threads)
        return session(content, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    file = Path(shutil.copyfile(part_of(model, "runtime") / GRAPHS[0], tmp_path / "graph.onnx"))
    graph, ids = OnnxGraph(file, 32), torch.ones(2, 3, dtype=torch.int64)
    expected = graph(ids, ids)
    torch.set_num_threads(2)
    try:
        assert torch.allclose(graph(ids, ids), expected, atol=1e-5) and opened == [1, 2]
        file.unlink()  # another export has taken its place
        torch.set_num_threads(3)
        assert torch.allclose(graph(ids, ids), expected, atol=1e-5) and opened == [1, 2]
    finally:
        torch.set_num_threads(1)


def test_the_encoder_of_a_model_with_a_runtime_is_saved_as_ever(model: Path, written: Path, tmp_path: Path) -> None:
    Classifier.load(model).save(tmp_path / "copy")
    arrays = [path.relative_to(files_of(written)) for path in files_of(written).rglob("*.safetensors")]
    assert arrays
    for name in arrays:
        assert (files_of(tmp_path / "copy") / name).read_bytes() == (files_of(written) / name).read_bytes()
