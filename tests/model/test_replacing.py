"""What takes a model's place, or a part's, loses nothing of others; a hostile database is one error."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from small_catalogue import entries

from miniature import files_of, listing, part_of
from umpteen.data.dataset import open_dataset
from umpteen.errors import BadInput, DamagedModel, NotSaved
from umpteen.model.calibrate import calibrate
from umpteen.model.catalogue import open_labels
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import INDEX, ModelFolder, has_part
from umpteen.model.index import build_index, remove_index
from umpteen.model.rerank import fit_ranker, remove_ranker
from umpteen.model.writing import compact, standing_in
from umpteen.rerank.features import RankerSettings
from umpteen.search.index import BOUND

FEW = RankerSettings(candidates=5)


@pytest.mark.parametrize("rewrite", [lambda loaded, model: loaded.save(model), lambda loaded, model: compact(model)])
def test_a_ranker_fitted_since_the_load_survives_a_model_that_is_written_again(
    rewrite: Callable[[Classifier, Path], object], plain_model: Path, plain: Path
) -> None:
    loaded = Classifier.load(plain_model)
    loaded.add_labels({"new": "a new label"})
    fit_ranker(plain_model, open_dataset(plain / "data"), FEW, weight=0.5)
    rewrite(loaded, plain_model)
    again = Classifier.load(plain_model)
    assert again.ranker is not None and "new" in again.labels and again.history() == [] and verify(plain_model) == []


def test_a_calibration_of_scores_that_are_no_longer_the_model_s_is_not_kept(
    plain_model: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umpteen.model import calibrate as calibrating

    data, fit = open_dataset(plain / "data"), calibrating.fit_calibration
    fit_ranker(plain_model, data, FEW, weight=0.5)

    def beside(*given: object, **options: object) -> object:
        remove_ranker(plain_model)
        return fit(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(calibrating, "fit_calibration", beside)
    with pytest.raises(NotSaved, match="has another ranker by now"):
        calibrate(plain_model, replace(data, fingerprint="of others"), unseen=True)
    assert Classifier.load(plain_model).calibration is None and verify(plain_model) == []


def test_a_copy_has_no_calibration_of_another_ranker_than_its_own(
    plain_model: Path, plain: Path, tmp_path: Path
) -> None:
    data = open_dataset(plain / "data")
    fit_ranker(plain_model, data, FEW, weight=0.5)
    loaded = Classifier.load(plain_model)
    fit_ranker(plain_model, data, FEW, weight=0.9)
    calibrate(plain_model, replace(data, fingerprint="of others"), unseen=True)
    loaded.save(tmp_path / "copy")
    copy = Classifier.load(tmp_path / "copy")
    assert copy.ranker is not None and copy.ranker.weight == 0.5 and copy.calibration is None
    loaded.refresh()
    loaded.save(tmp_path / "copy")
    copy = Classifier.load(tmp_path / "copy")
    assert copy.ranker is not None and copy.ranker.weight == 0.9 and copy.calibration is not None


def test_a_copy_has_no_index_of_labels_that_were_put_back(plain_model: Path, tmp_path: Path) -> None:
    (database,) = plain_model.glob("model-*.db")
    backup = shutil.copyfile(database, tmp_path / "backup.db")
    loaded = Classifier.load(plain_model)
    loaded.add_labels({"one": "a first label"})
    shutil.copyfile(backup, database)
    Classifier.load(plain_model).add_labels({"other": "another first label"})
    build_index(plain_model, "exact")
    loaded.save(tmp_path / "copy")
    assert not has_part(tmp_path / "copy", INDEX) and "one" in Classifier.load(tmp_path / "copy").labels


def test_a_model_that_came_to_stand_where_another_is_written_stays(
    plain_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umpteen.model import writing as model_writing

    target, whole = tmp_path / "target", model_writing.write_labels

    def meanwhile(folder: Path, labels: object) -> None:
        shutil.copytree(plain_model, target)
        whole(folder, labels)  # type: ignore[arg-type]

    monkeypatch.setattr(model_writing, "write_labels", meanwhile)
    with pytest.raises(NotSaved):
        Classifier.load(plain_model).save(target)
    assert standing_in(target) == standing_in(plain_model) and verify(target) == []
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_model_that_is_replaced_while_it_is_verified_raises_no_alarm(plain_model: Path, tmp_path: Path) -> None:
    Classifier.load(plain_model).save(tmp_path / "other")
    build_index(plain_model, "exact")
    old = part_of(plain_model, INDEX)

    def replaced(*_: object) -> None:
        if old.exists():
            Classifier.load(tmp_path / "other").save(plain_model)

    assert verify(plain_model, replaced) == [] and not old.exists()


def test_a_model_nobody_expected_is_kept_aside(plain_model: Path, tmp_path: Path) -> None:
    Classifier.load(plain_model).save(tmp_path / "other")
    expected = standing_in(tmp_path / "other")
    assert Classifier.load(plain_model).save(tmp_path / "other", unless_changed=expected) is None
    kept = Classifier.load(plain_model).save(tmp_path / "other", unless_changed=None)
    assert kept is not None and verify(kept) == [] and verify(tmp_path / "other") == []


def test_what_was_kept_aside_once_is_never_replaced_by_what_is_kept_aside_later(
    plain_model: Path, tmp_path: Path
) -> None:
    first = Classifier.load(plain_model).save(shutil.copytree(plain_model, tmp_path / "other"), unless_changed=None)
    assert first is not None
    shutil.rmtree(tmp_path / "other")
    shutil.copytree(first, tmp_path / "other")
    Classifier.load(first).add_labels({"mine": "a label of the model aside"})
    second = Classifier.load(plain_model).save(tmp_path / "other", unless_changed=None)
    assert second is not None and second != first and "mine" in Classifier.load(first).labels


def test_a_model_is_kept_aside_without_the_files_of_an_engine_that_may_be_in_use(
    plain_model: Path, tmp_path: Path
) -> None:
    target = Path(shutil.copytree(plain_model, tmp_path / "other"))
    with ModelFolder(target).adding(INDEX) as part:
        (part.folder / "engine").mkdir()
        (part.folder / "engine" / "log").write_text("comes and goes")
        part.about, part.living = {"kind": "exact", BOUND: True}, "engine"
    kept = Classifier.load(plain_model).save(target, unless_changed=None)
    assert kept is not None and list(kept.glob("index-*")) == []
    assert not has_part(kept, INDEX) and verify(kept) == [] and Classifier.load(kept).index.kind == "exact"


def test_a_card_that_cannot_be_written_is_told_as_that_and_the_new_model_counts(
    plain_model: Path, tmp_path: Path
) -> None:
    target = Path(shutil.copytree(plain_model, tmp_path / "other"))
    (target / "README.md").unlink()
    (target / "README.md").mkdir()
    before = standing_in(target)
    with pytest.raises(NotSaved, match=r"the new model is in its place, without its card: .*README\.md"):
        Classifier.load(plain_model).save(target)
    assert standing_in(target) not in (before, None) and verify(target) == []


def test_a_model_that_cannot_be_read_is_moved_aside_with_its_history(plain_model: Path, tmp_path: Path) -> None:
    good = Classifier.load(plain_model)
    good.add_labels({"new": "a new label"})
    manifest = (plain_model / "manifest.json").read_bytes()
    (plain_model / "manifest.json").write_bytes(manifest[:-9])
    kept = good.save(tmp_path / "copy") or Classifier.load(tmp_path / "copy").save(plain_model)
    assert kept is not None and verify(plain_model) == []
    (kept / "manifest.json").write_bytes(manifest)
    assert "new" in open_labels(kept).labels


def test_a_model_that_cannot_be_read_is_back_in_its_place_if_nothing_can_be_written_there(
    plain_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umpteen.model import writing as model_writing

    good = Classifier.load(plain_model)
    good.save(tmp_path / "copy")
    (tmp_path / "copy" / "manifest.json").write_text("{}")
    before = listing(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_writing, "write_labels", full)
    with pytest.raises(NotSaved):
        good.save(tmp_path / "copy")
    assert listing(tmp_path) == before


def test_a_model_that_counts_by_now_is_not_removed_if_its_folder_cannot_be_flushed(
    plain_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umpteen.files import storage

    classifier, old, flush = Classifier.load(plain_model), ModelFolder(plain_model).model, storage.flush_to_disk

    def failing(path: Path) -> None:
        if path == plain_model.resolve() and ModelFolder(plain_model).model != old:
            raise OSError(5, "Input/output error")
        flush(path)

    monkeypatch.setattr(storage, "flush_to_disk", failing)
    with pytest.raises(NotSaved):
        classifier.save(plain_model)
    assert ModelFolder(plain_model).model != old and verify(plain_model) == []
    assert entries(Classifier.load(plain_model).labels) == entries(classifier.labels)


def test_verify_finds_that_something_else_is_said_of_a_part(plain_model: Path) -> None:
    build_index(plain_model, "exact", k=1)
    assert verify(plain_model) == []
    with closing(sqlite3.connect(next(plain_model.glob("model-*.db")))) as connection:
        connection.execute("UPDATE parts SET about = replace(about, 'exact', 'exalt')")
        connection.commit()
    (problem,) = verify(plain_model)
    assert "what it says of the index was altered; make the index again" in problem


def test_what_is_remembered_of_a_part_s_files_goes_with_the_part(
    plain_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umpteen.model import folder as model_folder

    monkeypatch.setattr(model_folder, "ALWAYS_HASHED", 100)

    def remembered() -> set[str]:
        Classifier.load(plain_model)
        with closing(sqlite3.connect(next(plain_model.glob("model-*.db")))) as connection:
            return {file.partition("/")[0] for (file,) in connection.execute("SELECT file FROM verified")}

    own = {files_of(plain_model).name}
    build_index(plain_model, "exact", k=1)
    assert remembered() == {*own, part_of(plain_model, "index").name}
    build_index(plain_model, "exact", k=1)
    assert remembered() == {*own, part_of(plain_model, "index").name}
    remove_index(plain_model)
    assert remembered() == own


def test_parts_carried_to_another_folder_get_names_of_their_own(plain_model: Path, tmp_path: Path) -> None:
    build_index(plain_model, "exact", k=1)
    Classifier.load(plain_model).save(tmp_path / "copy")
    assert part_of(tmp_path / "copy", "index").name != part_of(plain_model, "index").name
    assert verify(tmp_path / "copy") == []


def test_the_first_load_of_a_written_model_hashes_no_large_file_again(
    plain_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from umpteen.model import folder as model_folder

    monkeypatch.setattr(model_folder, "ALWAYS_HASHED", 100)
    Classifier.load(plain_model).save(tmp_path / "copy")
    hashed: list[str] = []
    whole = model_folder.sha256_of
    monkeypatch.setattr(model_folder, "sha256_of", lambda path: hashed.append(Path(path).name) or whole(path))
    Classifier.load(tmp_path / "copy")
    assert "vectors.safetensors" not in hashed and "labels.db" not in hashed


HOSTILE = {
    "note that is no text": "UPDATE versions SET note = CAST(x'ff' AS TEXT)",
    "key that is no text": "UPDATE changes SET key = CAST(x'ff' AS TEXT)",
    "part without JSON": "UPDATE parts SET about = 'x'",
    "part that is a list": "UPDATE parts SET files = '[]'",
    "part nested without end": f"UPDATE parts SET about = '{'[' * 100_000}'",
    "part of a version that never was": "UPDATE parts SET labels_version = 7",
    "no version at all": "DELETE FROM versions",
    "version that is missing": "UPDATE versions SET version = 3 WHERE version = 1",
    "text that was altered": "UPDATE changes SET text = 'other'",
    "vector cut short": "UPDATE changes SET vector = x'0000'",
    "vector of no numbers": "UPDATE changes SET vector = zeroblob(3)",
    "change nobody knows": "UPDATE changes SET do = 'burn'",
}


@pytest.mark.parametrize("statement", HOSTILE.values(), ids=HOSTILE.keys())
def test_whatever_stands_in_a_stranger_s_database_is_one_error(statement: str, plain_model: Path) -> None:
    Classifier.load(plain_model).add_labels({"new": "a new label"})
    build_index(plain_model, "exact", k=1)
    with closing(sqlite3.connect(next(plain_model.glob("model-*.db")))) as connection:
        connection.execute(statement)
        connection.commit()
    with pytest.raises(DamagedModel):
        Classifier.load(plain_model)
    with suppress(DamagedModel):
        assert verify(plain_model) != []


@pytest.mark.parametrize("row", [-1_000_000_000, 2_000_000_000, 10**15])
def test_a_row_that_no_vector_has_costs_no_memory(row: int, plain_model: Path) -> None:
    database = files_of(plain_model) / "labels.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE labels SET row = ?, retired = 1 WHERE row = 9", (row,))
        connection.commit()
    reseal(plain_model, "labels.db")
    for read in (Classifier.load, open_labels):
        with pytest.raises(DamagedModel, match=r"labels\.db: holds the rows"):
            read(plain_model)


@pytest.mark.parametrize("recipe", ["notes", "objective = 3", "data = []", '[objective]\ntemperature = "warm"'])
def test_a_recipe_that_is_none_is_refused_where_it_is_saved_and_where_it_is_loaded(
    recipe: str, plain_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"recipe\.toml cannot be read"):
        Classifier.load(plain_model).save(tmp_path / "copy", recipe=recipe)
    assert not (tmp_path / "copy").exists()
    (files_of(plain_model) / "recipe.toml").write_text(recipe)
    reseal(plain_model, "recipe.toml")
    with pytest.raises(DamagedModel, match=r"recipe\.toml cannot be read"):
        Classifier.load(plain_model)


def reseal(model: Path, name: str) -> None:
    """As somebody does who alters a file and knows of checksums."""
    import hashlib

    folder = ModelFolder(model)
    content = {key: value for key, value in folder.manifest.items() if key != "checksum"}
    file = folder.trained / name
    content["files"][name] = {
        "bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    seal = hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    (model / "manifest.json").write_text(json.dumps({**content, "checksum": seal}))
