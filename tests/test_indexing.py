"""A model folder with an index: built, certified, opened by the classifier, told of changed labels, synced, removed."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from umpteen.catalogue.lock import locked
from umpteen.compacting import compact
from umpteen.index_sync import sync_index
from umpteen.manifest import read_manifest
from umpteen.stamps import NOTHING_THERE, file_stamp

from miniature import command, flip_a_byte, listing, refused
from tiny import WORDS, tiny_tokenizer
from umpteen.classifier import Classifier, verify
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel, InUse, NotSaved
from umpteen.index_building import build_index
from umpteen.index_sample import Sample, of_file, of_label_texts
from umpteen.indexing import KINDS, certificate_of, open_index, remove_index, settings_of
from umpteen.retrieval import milvus_engine
from umpteen.retrieval.faiss_index import FaissIndex
from umpteen.retrieval.milvus_connection import MilvusConnection
from umpteen.retrieval.milvus_index import MilvusIndex
from umpteen.storage import can_hold

COUNT = 300


def label_texts(count: int = COUNT) -> dict[str, str]:
    chance = random.Random(0)
    return {f"L{row}": " ".join(chance.choices([*WORDS, *"abcdefghijkl"], k=4)) for row in range(count)}


QUERIES = list(label_texts(40).values())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    texts = label_texts()
    tower = StaticEncoder.random(tiny_tokenizer(folder / "tokenizer"), 16, seed=0)
    classifier = Classifier.build(Towers(tower).eval(), LabelCatalogue(texts.keys(), texts.values()))
    classifier.save(folder / "model")
    return folder / "model"


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "model")
    return tmp_path / "model"


def answers(model: Path, *, index: bool = True) -> list[list[tuple[str, float]]]:
    classifier = Classifier.load(model, index=index)
    found = classifier.predict(QUERIES, 5)
    classifier.index.close()
    return [[(label.text, round(label.score, 5)) for label in labels] for labels in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_answers_through_its_index_as_it_did_without(kind: str, model: Path) -> None:
    before = answers(model)
    certificate = build_index(model, kind, recall=0.99)
    assert certificate.kind == kind and certificate.recall >= 0.99 and certificate.k == 10
    assert certificate.queries + certificate.queries_tuned_on == COUNT
    assert certificate.queries_per_second["index"] > 0 and certificate.queries_per_second["exact"] > 0
    assert certificate.bytes["exact"] == COUNT * 16 * 4 and (certificate.bytes["index"] or 0) > 0
    assert certificate_of(model) == certificate
    opened = Classifier.load(model)
    assert opened.index.kind == kind
    opened.index.close()
    assert answers(model) == before
    assert verify(model) == []
    remove_index(model)
    assert Classifier.load(model).index.kind == "exact" and settings_of(model) is None
    assert answers(model) == before


@pytest.mark.parametrize("kind", ["exact", "faiss-hnsw", "milvus"])
def test_labels_that_change_after_and_before_the_index_was_built_are_found(kind: str, model: Path) -> None:
    early = Classifier.load(model)
    early.add_labels({"early": "fish fish tree"})
    early.rename_labels({"L7": "tax tax network"})
    early.retire_labels(["L9"])
    build_index(model, kind, recall=0.9)
    changing = Classifier.load(model)
    changing.add_labels({"late": "dog dog library"})
    changing.rename_labels({"L8": "book book law", "L7": "law law law"})
    changing.retire_labels(["early", "L10"])
    changing.add_labels({"L9": label_texts()["L9"]})
    changing.index.close()
    assert answers(model) == answers(model, index=False)
    opened = Classifier.load(model)
    assert opened.index.kind == kind
    assert [label[0].key for label in opened.predict(["dog dog library", "book book law", "law law law"], 1)] == [
        "late",
        "L8",
        "L7",
    ]
    opened.index.close()

    assert sync_index(model) == 6
    assert settings_of(model)["catalogue_version"] == Classifier.load(model, index=False).version  # type: ignore[index]
    assert sync_index(model) == 0
    assert answers(model) == answers(model, index=False)
    assert verify(model) == []


@pytest.mark.parametrize("kind", ["exact", "faiss-hnsw"])
def test_labels_that_came_and_went_trouble_no_index(kind: str, model: Path) -> None:
    def come_and_go(key: str) -> None:
        classifier = Classifier.load(model)
        classifier.add_labels({key: QUERIES[0]})
        classifier.retire_labels([key])

    before = answers(model)
    come_and_go("early")
    build_index(model, kind, k=5, sample=of_label_texts(Classifier.load(model).labels, 100))
    come_and_go("early")  # again, after the index was built
    come_and_go("late")
    assert answers(model) == before
    sync_index(model)
    assert answers(model) == before
    compact(model)
    assert answers(model) == before and verify(model) == []
    build_index(model, kind, k=5, sample=of_label_texts(Classifier.load(model).labels, 100))
    come_and_go("later still")
    assert answers(model) == before


def test_the_unfinished_work_of_others_never_becomes_part_of_a_model(model: Path) -> None:
    Classifier.load(model).add_labels({"new": "a new label"})
    left = model / ".index.partial.here.1.x"
    left.mkdir()
    (left / "half").write_text("half")
    compact(model)
    shutil.rmtree(left, ignore_errors=True)
    assert verify(model) == [] and Classifier.load(model).labels.count() == COUNT + 1


def test_a_recall_that_cannot_be_reached_changes_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(model, "faiss-flat", recall=0.9)
    before = listing(model)
    from umpteen.retrieval.effort import Effort
    from umpteen.retrieval.faiss_structures import Structure

    monkeypatch.setattr(Structure, "efforts", lambda self, k: [Effort(k, 1, k)])
    outcome = command("index", "build", model, "--kind", "faiss-ivfpq", "--recall", "1", "--json")
    refused(outcome, "recall@10", "at most here, not 1")
    assert listing(model) == before


def test_milvus_that_cannot_be_reached_changes_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umpteen.retrieval.milvus_connection._WAITS", (0.01, 0.01, 0.01))
    before = listing(model)
    outcome = command("index", "build", model, "--kind", "milvus", "--uri", "http://127.0.0.1:9")
    refused(outcome, "127.0.0.1:9", "is it running")
    assert listing(model) == before


def test_the_command_builds_shows_syncs_and_removes(model: Path, tmp_path: Path) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(QUERIES) + "\n", encoding="utf-8")
    asked = ("--kind", "faiss-hnsw", "--recall", "0.9", "--k", "5", "--queries", queries, "--sample", "30", "--json")
    built = json.loads(command("index", "build", model, *asked).out)
    assert built["sample"] == "texts of queries.txt" and built["queries"] == 15 and built["k"] == 5
    assert json.loads(command("index", "show", model, "--json").out) == built
    shown = command("index", "show", model).out
    assert "searches with faiss-hnsw" in shown and "recall@5" in shown and "texts of queries.txt" in shown
    assert command("index", "sync", model).out == "nothing to do\n"
    answer = json.loads(command("predict", model, "fish law", "--json").out)
    assert len(answer["labels"]) == 5
    assert command("index", "remove", model).out == f"{model} searches exactly\n"
    assert "has no index" in command("index", "show", model).out
    refused(command("index", "remove", model), "has no index to remove")
    refused(command("index", "sync", model), "umpteen index build")


def test_what_cannot_be_asked_for_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no kind of index; there are exact, faiss-flat"):
        build_index(model, "annoy")
    with pytest.raises(BadInput, match=r"recall of 1\.5"):
        build_index(model, "exact", recall=1.5)
    with pytest.raises(BadInput, match="k is 0"):
        build_index(model, "exact", k=0)
    with pytest.raises(BadInput, match="is for the kind milvus"):
        build_index(model, "exact", uri="http://somewhere:19530")
    with pytest.raises(BadInput, match=r"ends in \.db"):
        build_index(model, "milvus", uri=str(tmp_path / "labels"))
    with pytest.raises(BadInput, match=r"there is no folder .*nowhere; make it"):
        build_index(model, "milvus", uri=str(tmp_path / "nowhere" / "labels.db"))
    refused(command("index", "build", model, "--kind", "exact", "--queries", "a", "--data", "b"), "give one of them")
    (tmp_path / "one.txt").write_text("alone\n")
    with pytest.raises(BadInput, match=r"one\.txt: holds 1 texts"):
        of_file(tmp_path / "one.txt")
    refused(command("index", "show", tmp_path), "umpteen.json is missing")


def test_a_damaged_index_is_refused_by_name_and_can_be_removed_or_built_again(model: Path) -> None:
    build_index(model, "faiss-flat")
    flip_a_byte(model / "index" / "index.faiss")
    with pytest.raises(DamagedModel, match=r"index\.faiss: was altered"):
        Classifier.load(model)
    assert any("index.faiss" in problem for problem in verify(model))
    build_index(model, "faiss-flat")
    assert verify(model) == []
    flip_a_byte(model / "index" / "index.faiss")
    remove_index(model)
    assert answers(model)


def test_an_index_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    other = Classifier.load(model)
    other.rename_labels({"L1": "law"})
    other.save(tmp_path / "other")
    build_index(tmp_path / "other", "faiss-flat")
    shutil.copytree(tmp_path / "other" / "index", model / "index")
    with pytest.raises(DamagedModel, match="belongs to another model"):
        Classifier.load(model)


def test_an_index_of_labels_that_are_not_there_any_more_is_refused(model: Path) -> None:
    Classifier.load(model).add_labels({"more": "fish"})
    build_index(model, "faiss-flat")
    shutil.rmtree(model / "catalogue")
    with pytest.raises(DamagedModel, match="version 1 of the labels, but they are at version 0"):
        Classifier.load(model)


@contextmanager
def open_elsewhere(engine: Path) -> Iterator[None]:
    """Another process has this embedded engine open."""
    program = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(); sys.stdin.read()"
    started = (sys.executable, "-c", program, f"{engine}.lock")
    with subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        yield
        other.stdin.close()


def collections(engine: Path) -> list[str]:
    connection = MilvusConnection(str(engine))
    try:
        return list(connection.call(lambda client: client.list_collections()))
    finally:
        connection.close()


def never(*_: object) -> Any:
    raise AssertionError("this comes too early")


@pytest.mark.parametrize("outside", [False, True], ids=["in the folder", "elsewhere"])
def test_an_embedded_milvus_in_use_is_neither_replaced_nor_removed(
    outside: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "elsewhere.db" if outside else model / "index" / "milvus" / "labels.db"
    build_index(model, "milvus", recall=0.9, uri=str(engine) if outside else None)
    Classifier.load(model, index=False).add_labels({"late": "dog dog library"})
    held, before = collections(engine), listing(model)
    works: list[Callable[[], Any]] = [
        lambda: build_index(model, "exact"),
        lambda: build_index(model, "milvus", uri=str(tmp_path / "another.db")),
        lambda: remove_index(model),
        lambda: sync_index(model),
    ]
    with open_elsewhere(engine), monkeypatch.context() as patch:
        patch.setattr("umpteen.index_building.labels_now", never)  # nobody computes for long, only to be refused
        patch.setattr("umpteen.index_sync.labels_now", never)
        for work in works:
            with pytest.raises(InUse, match=rf"{engine.name}: .*stop that one.*Nothing was changed"):
                work()
    assert collections(engine) == held and len(held) == 1
    assert {name: content for name, content in listing(model).items() if "/milvus/" not in name} == {
        name: content for name, content in before.items() if "/milvus/" not in name
    }
    remove_index(model)


def test_nothing_is_built_into_an_engine_that_another_process_has_open(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listing(model)
    monkeypatch.setattr("umpteen.index_building.labels_now", never)
    with open_elsewhere(tmp_path / "elsewhere.db"):
        outcome = command("index", "build", model, "--kind", "milvus", "--uri", tmp_path / "elsewhere.db")
    refused(outcome, "elsewhere.db", "stop that one", "Nothing was changed")
    assert listing(model) == before


def test_a_folder_that_cannot_be_removed_keeps_its_index_in_milvus(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "elsewhere.db"
    build_index(model, "milvus", recall=0.9, uri=str(engine))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(NotSaved, match="Permission denied; it is as it was"):
            remove_index(model)
    assert len(collections(engine)) == 1 and answers(model)


@pytest.mark.parametrize("kind", ["faiss-flat", "milvus"])
def test_who_changes_the_folder_waits_for_others_who_do(
    kind: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(model, kind, recall=0.9)
    Classifier.load(model, index=False).add_labels({"late": "dog dog library"})
    part = model / "index" / "part.json"
    stamp = file_stamp(part)
    monkeypatch.setattr("umpteen.catalogue.lock.PATIENCE", 0.05)
    with locked(model):
        for work in (remove_index, sync_index):
            with pytest.raises(NotSaved, match="nothing was changed, try again later"):
                work(model)
    assert file_stamp(part) == stamp != NOTHING_THERE
    assert sync_index(model) == 1
    assert file_stamp(part) != stamp
    remove_index(model)
    assert file_stamp(part) == NOTHING_THERE


def test_a_sync_leaves_an_index_alone_that_was_built_meanwhile(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(model, "milvus", recall=0.9, uri=str(tmp_path / "elsewhere.db"))
    Classifier.load(model, index=False).add_labels({"late": "dog dog library"})
    catch_up = MilvusIndex.catch_up

    def meanwhile(index: MilvusIndex, *, anyway: bool = False) -> None:
        catch_up(index, anyway=anyway)
        build_index(model, "exact")

    monkeypatch.setattr(MilvusIndex, "catch_up", meanwhile)
    with pytest.raises(BadInput, match=r"replaced meanwhile.*sync it again"):
        sync_index(model)
    assert Classifier.load(model).index.kind == "exact" and verify(model) == []


def test_of_two_builds_at_once_none_leaves_a_collection_behind(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "elsewhere.db"
    from umpteen.index_building import save_certificate

    def meanwhile(*written: Any) -> None:
        save_certificate(*written)
        monkeypatch.setattr("umpteen.index_building.save_certificate", save_certificate)
        build_index(model, "milvus", recall=0.9, uri=str(engine))

    monkeypatch.setattr("umpteen.index_building.save_certificate", meanwhile)
    with pytest.raises(BadInput, match="replaced while this index was built; nothing was changed"):
        build_index(model, "milvus", recall=0.9, uri=str(engine))
    settings = settings_of(model)
    assert settings is not None and collections(engine) == [settings["collection"]]


def test_an_index_that_never_reached_its_place_leaves_no_collection(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("umpteen.storage.flush_to_disk", full)
    with pytest.raises(NotSaved, match="No space left"):
        build_index(model, "milvus", recall=0.9, uri=str(tmp_path / "elsewhere.db"))
    assert collections(tmp_path / "elsewhere.db") == [] and settings_of(model) is None


@pytest.mark.parametrize("then", ["faiss-sq", None], ids=["replaced", "removed"])
def test_an_index_that_changes_while_it_is_opened_is_opened_as_it_is_now(
    then: str | None, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(model, "faiss-flat")
    classifier = Classifier.load(model, index=False)
    opening = FaissIndex.open

    def meanwhile(*asked: Any) -> FaissIndex:
        monkeypatch.setattr(FaissIndex, "open", opening)
        if then is None:
            remove_index(model)
        else:
            build_index(model, then)
        return opening(*asked)

    monkeypatch.setattr(FaissIndex, "open", meanwhile)
    opened = open_index(model, read_manifest(model)["checksum"], classifier.vectors, lambda: classifier.labels)
    assert (opened and opened[0].kind) == then


def test_an_embedded_milvus_is_opened_again_after_it_was_replaced_and_after_it_was_synced(model: Path) -> None:
    def opened() -> Classifier:
        found = Classifier.load(model)
        assert found.predict(QUERIES[:1], 1) and found.index.absence is None  # type: ignore[attr-defined]
        return found

    before = answers(model)
    build_index(model, "milvus", recall=0.9)
    first = opened()
    build_index(model, "milvus", recall=0.9)  # this process has the old one open
    second = opened()
    second.index.close()
    first.index.close()
    assert answers(model) == before

    third = opened()
    third.add_labels({"late": "dog dog library"})
    sync_index(model)
    fourth = opened()
    assert fourth.predict(["dog dog library"], 1)[0][0].key == "late" and fourth.index.waiting() == 0  # type: ignore[attr-defined]
    remove_index(model)
    assert fourth.predict(["dog dog library"], 1)[0][0].key == "late"  # exactly now
    for classifier in (third, fourth):
        classifier.index.close()
    assert not milvus_engine._OWNED and Classifier.load(model).index.kind == "exact"


def test_milvus_outside_the_folder_is_left_without_the_old_collection(model: Path, tmp_path: Path) -> None:
    where = tmp_path / "elsewhere.db"
    first = build_index(model, "milvus", recall=0.9, uri=str(where))
    build_index(model, "milvus", recall=0.9, uri=str(where))
    settings = settings_of(model)
    assert settings is not None and first.kind == "milvus"
    connection = MilvusConnection(str(where))
    assert connection.call(lambda client: client.list_collections()) == [settings["collection"]]
    connection.close()
    assert remove_index(model) is None
    connection = MilvusConnection(str(where))
    assert connection.call(lambda client: client.list_collections()) == []
    connection.close()


def test_samples_say_where_they_come_from_and_leave_retired_labels_out(model: Path) -> None:
    classifier = Classifier.load(model)
    classifier.retire_labels([f"L{row}" for row in range(1, COUNT)])
    sample = of_label_texts(classifier.labels, 9)
    assert sample == Sample([label_texts()["L0"]], "the labels' own texts, encoded as queries")
    assert can_hold(model, "umpteen.json")
