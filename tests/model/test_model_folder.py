"""Large files are hashed once after they have changed, never two models are read as one, and nobody's files are swept.

What becomes of a stranger's folder is in test_strangers.py, of a killed writer's in catalogue/test_crashes.py.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from answers import same_answers
from miniature import command, files_of, flip_a_byte, listing, part_of, refused
from tiny import tiny_tokenizer
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel
from umpteen.files.storage import sha256_of
from umpteen.model import catalogue as catalogue_module
from umpteen.model import folder as model_folder
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import INDEX, MANIFEST, ModelFolder, checked_parts
from umpteen.model.index import build_index, remove_index
from umpteen.model.writing import compact

LABELS = {"f": "fish", "t": "tax law", "l": "library", "n": "network of food"}
VECTORS, STRUCTURE = "vectors.safetensors", "index.faiss"

Hashed = Callable[[Callable[[], object]], list[str]]


@pytest.fixture(autouse=True)
def arrays_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "ALWAYS_HASHED", 200)  # bytes


def classifier_of(folder: Path, seed: int) -> Classifier:
    towers = Towers(StaticEncoder.random(tiny_tokenizer(folder / "tokenizer"), 16, seed=seed)).eval()
    return Classifier.build(towers, LabelCatalogue(LABELS.keys(), LABELS.values()))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    classifier_of(folder, 0).save(folder / "model", recipe="seed = 1\n")
    return folder / "model"


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """Which arrays are hashed in full during some work."""

    def during(work: Callable[[], object]) -> list[str]:
        names: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(model_folder, "sha256_of", lambda path: names.append(path.name) or sha256_of(path))
            work()
        return sorted({VECTORS, STRUCTURE}.intersection(names))

    return during


def test_a_large_file_is_hashed_once_after_it_has_changed(saved: Path, tmp_path: Path, hashed: Hashed) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "copy"))
    assert hashed(lambda: Classifier.load(copy)) == [VECTORS]
    assert hashed(lambda: Classifier.load(copy)) == []
    os.utime(files_of(copy) / VECTORS, ns=(1, 1))
    assert hashed(lambda: Classifier.load(copy)) == [VECTORS]
    assert hashed(lambda: Classifier.load(copy)) == []
    assert hashed(lambda: verify(copy)) == [VECTORS]  # whatever is known of it


def test_a_damaged_copy_is_refused_by_name_at_every_load(saved: Path, model: Path) -> None:
    Classifier.load(model)
    flip_a_byte(files_of(model) / VECTORS)
    for _ in range(2):
        with pytest.raises(DamagedModel, match=rf"model-\w+/{VECTORS}: was altered"):
            Classifier.load(model)
    shutil.copyfile(files_of(saved) / VECTORS, files_of(model) / VECTORS)
    assert Classifier.load(model).predict(["fish"], k=1)[0][0].key == "f"


def test_an_index_is_treated_like_the_model_s_own_arrays(model: Path, tmp_path: Path, hashed: Hashed) -> None:
    build_index(model, "faiss-flat", k=2)
    Classifier.load(model)
    assert hashed(lambda: Classifier.load(model)) == []
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    assert hashed(lambda: Classifier.load(copy)) == [STRUCTURE, VECTORS]
    assert hashed(lambda: Classifier.load(copy)) == []
    flip_a_byte(part_of(copy, INDEX) / STRUCTURE)
    with pytest.raises(DamagedModel, match=rf"index-\w+/{STRUCTURE}: was altered"):
        Classifier.load(copy)


def test_what_comes_along_with_a_model_that_is_written_again_is_whole(model: Path, tmp_path: Path) -> None:
    Classifier.load(model).add_labels({"d": "dog and tree"})
    build_index(model, "faiss-flat", k=2)
    saved = tmp_path / "saved"
    for folder, write in ((model, lambda: compact(model)), (saved, lambda: Classifier.load(model).save(saved))):
        write()
        assert verify(folder) == [] and Classifier.load(folder).index.kind == "faiss-flat"


def test_what_was_hashed_while_somebody_wrote_is_hashed_again(model: Path, hashed: Hashed) -> None:
    with ModelFolder(model).store.changing():  # so nothing can be remembered; nobody waits for that
        assert hashed(lambda: Classifier.load(model)) == [VECTORS]
    assert hashed(lambda: Classifier.load(model)) == [VECTORS]
    assert hashed(lambda: Classifier.load(model)) == []


def test_where_nothing_can_be_remembered_size_and_header_decide(
    model: Path, hashed: Hashed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert hashed(lambda: Classifier.load(model)) == []
    file = files_of(model) / VECTORS
    content = file.read_bytes()
    file.write_bytes(b"\xff" * 8 + content[8:])
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(DamagedModel, match=rf"{VECTORS}: has a damaged header"):
            Classifier.load(model)
    file.write_bytes(content[:-1])
    with pytest.raises(DamagedModel, match=rf"{VECTORS}: has .* bytes instead of"):
        Classifier.load(model)


def test_verify_names_each_file_with_a_flipped_byte(model: Path) -> None:
    build_index(model, "faiss-flat", k=2)
    folder, part = ModelFolder(model), Classifier.load(model).parts[INDEX]
    assert verify(model) == []
    listed = [folder.trained / name for name in folder.manifest["files"]]
    listed += [folder.path / part.folder / name for name in part.files]
    assert {"part.json", "labels.db", VECTORS, "recipe.toml", STRUCTURE} <= {path.name for path in listed}
    for path in listed:
        content = path.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            assert [problem.partition(": ")[0] for problem in verify(model)] == [str(path)]
        path.write_bytes(content)
    assert verify(model) == []


def test_an_altered_manifest_is_refused_by_name(model: Path) -> None:
    content = json.loads((model / MANIFEST).read_text())
    for altered in (
        {**content, "model": "0badcafe"},
        {**content, "settings": {**content["settings"], "labels_version": 7}},
        {**content, "files": {}},
        {**content, "checksum": "0"},
    ):
        (model / MANIFEST).write_text(json.dumps(altered))
        with pytest.raises(DamagedModel, match=rf"{MANIFEST}: was altered, its checksum does not match"):
            Classifier.load(model)
    (model / MANIFEST).write_text(json.dumps(content))  # laid out in another way
    assert verify(model) == []


def test_folders_of_other_formats_are_refused_with_one_line(model: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "umpteen.json").write_text('{"format_version": 2}')
    (older / "labels.jsonl").write_text("{}")
    content = json.loads((model / MANIFEST).read_text())
    (model / MANIFEST).write_text(json.dumps({**content, "format": 4, "umpteen": "9.9"}))
    for folder, *named in (
        (older, "manifest.json is missing", "no umpteen model"),
        (model, "format 4 found, 3 expected", "9.9"),
    ):
        before = listing(folder)
        for asked in (["predict", folder, "fish"], ["verify", folder], ["labels", "add", folder, "k", "text"]):
            outcome = command(*asked)
            refused(outcome, str(folder), *named)
            assert len(outcome.err.strip().splitlines()) == 1
        assert listing(folder) == before
    with pytest.raises(BadInput, match="is not a model folder; nothing was written"):
        classifier_of(tmp_path, 1).save(older)


def test_a_model_replaced_while_it_is_read_is_read_to_the_end(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, other = Classifier.load(model), classifier_of(tmp_path, 1)
    read = catalogue_module.read_vectors

    def replaced_before(folder: Path) -> object:
        monkeypatch.setattr(catalogue_module, "read_vectors", read)
        other.save(model)
        return read(folder)

    monkeypatch.setattr(catalogue_module, "read_vectors", replaced_before)
    loaded = Classifier.load(model)
    assert np.array_equal(loaded.vectors, old.vectors)
    same_answers(loaded.predict(["fish"], k=4), old.predict(["fish"], k=4))
    assert loaded.refresh() is True and np.array_equal(loaded.vectors, other.vectors)
    same_answers(loaded.predict(["fish"], k=4), other.predict(["fish"], k=4))


def test_a_model_whose_parts_are_swept_while_it_is_read_is_read_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(model, "faiss-flat", k=2)
    gone, other, read = part_of(model, INDEX), classifier_of(tmp_path, 1), catalogue_module.read_vectors

    def replaced_before(folder: Path) -> object:
        monkeypatch.setattr(catalogue_module, "read_vectors", read)
        other.save(model)
        shutil.rmtree(gone, ignore_errors=True)  # as a sweep by the new model's rules may do
        return read(folder)

    monkeypatch.setattr(catalogue_module, "read_vectors", replaced_before)
    loaded = Classifier.load(model)
    same_answers(loaded.predict(["fish"], k=4), other.predict(["fish"], k=4))
    assert loaded.index.kind == "exact"


def test_a_part_is_swept_when_nobody_reads_a_snapshot_in_which_it_counts(model: Path) -> None:
    build_index(model, "exact", k=1)
    folder, first = ModelFolder(model), part_of(model, INDEX)
    with folder.store.reading() as connection:
        assert checked_parts(connection)[INDEX].folder == first.name
        build_index(model, "faiss-flat", k=1)
        second = part_of(model, INDEX)
        remove_index(model)
        assert first.exists() and second.exists()
        folder.sweep()
        assert first.exists() and second.exists() and checked_parts(connection)[INDEX].folder == first.name
    folder.sweep()
    assert not first.exists() and not second.exists() and verify(model) == []


def test_a_replaced_model_is_swept_when_nobody_reads_it(model: Path) -> None:
    old = ModelFolder(model)
    assert old.store.path is not None
    with old.store.reading() as connection:
        Classifier.load(model).save(model, recipe="seed = 2\n")
        ModelFolder(model).sweep()
        assert old.trained.exists() and old.store.path.exists() and not old.is_current()
        assert connection.execute("SELECT max(version) FROM versions").fetchone() == (0,)
    old.sweep()  # not its business any more
    assert old.trained.exists()
    ModelFolder(model).sweep()
    assert not list(model.glob(f"{old.trained.name}*")) and Classifier.load(model).recipe == "seed = 2\n"


def test_a_part_whose_lock_somebody_holds_stays_until_it_is_free(model: Path) -> None:
    folder = ModelFolder(model)
    with folder.adding(INDEX) as part:
        part.about = {"kind": "exact"}
        (part.folder / "engine").mkdir()
        (part.folder / "engine" / "files.lock").touch()
    place = part_of(model, INDEX)
    with (place / "engine" / "files.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.drop(INDEX)
        assert place.exists() and INDEX not in Classifier.load(model).parts
    folder.sweep()
    assert not place.exists()


def test_a_part_that_fails_in_the_making_changes_nothing(model: Path) -> None:
    build_index(model, "exact", k=1)
    before = listing(model)
    with pytest.raises(ZeroDivisionError), ModelFolder(model).adding(INDEX) as part:
        (part.folder / "half").write_text("half")
        raise ZeroDivisionError
    assert listing(model) == before


def before_the_manifest(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Somebody does this when all files of a new model are there and its manifest is not; what came of it."""
    write, found = model_folder.write_atomically, []

    def meanwhile(path: Path, data: bytes | str) -> None:
        if path.name == MANIFEST:
            found.append(work())
        write(path, data)

    monkeypatch.setattr(model_folder, "write_atomically", meanwhile)
    return found


def test_a_model_on_its_way_is_swept_by_nobody(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = before_the_manifest(lambda: ModelFolder(model).sweep(), monkeypatch)
    classifier_of(tmp_path, 1).save(model, recipe="seed = 2\n")
    assert len(found) == 1 and verify(model) == [] and Classifier.load(model).recipe == "seed = 2\n"


def test_nobody_changes_a_model_that_is_kept_aside_before_the_new_one_counts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program, so that it sees the locks as other processes do; a file closed too early would end them."""
    Classifier.load(model).add_labels({"d": "dog and tree"})
    program = (
        "import sqlite3, sys\n"
        "try: sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('BEGIN IMMEDIATE')\n"
        "except sqlite3.OperationalError as error: print(error)"
    )
    started = [sys.executable, "-c", program, str(ModelFolder(model).store.path)]
    found = before_the_manifest(lambda: subprocess.check_output(started, text=True), monkeypatch)
    kept = classifier_of(tmp_path, 1).save(model, unless_changed=None)
    assert found == ["database is locked\n"]
    assert kept is not None and "d" in Classifier.load(kept).labels and verify(kept) == []
    assert "d" not in Classifier.load(model).labels and verify(model) == []
