"""A classifier in use takes in what others do to its folder: an index, a calibration, another model."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from umpteen.manifest import CALIBRATION, INDEX, PART, read_manifest, write_part

from miniature import flip_a_byte
from tiny import WORDS, tiny_tokenizer
from umpteen import followed_folder, model_folder
from umpteen.calibration.fitting import fit_calibration
from umpteen.calibration.held_out import HeldOut
from umpteen.classifier import Classifier
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import DamagedModel, InUse
from umpteen.index_building import build_index
from umpteen.indexing import remove_index
from umpteen.ranker.features import TextFeatures
from umpteen.ranker.ranker import Ranker
from umpteen.ranker.settings import RankerSettings
from umpteen.storage import atomic_folder

CHANCE = random.Random(0)
LABELS = {f"L{row}": " ".join(CHANCE.choices([*WORDS, *"abcdefghijkl"], k=4)) for row in range(150)}
TEXTS = list(LABELS.values())[:20]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    towers = Towers(StaticEncoder.random(tiny_tokenizer(folder / "tokenizer"), 16, seed=0)).eval()
    Classifier.build(towers, LabelCatalogue(LABELS.keys(), LABELS.values())).save(folder / "model")
    return folder / "model"


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def calibrate(model: Path, *, damaged: bool = False) -> None:
    scores = Classifier.load(model).rank(TEXTS, 10).scores
    right = np.random.default_rng(0).random(scores.shape) < np.clip(scores, 0, 1)
    calibration, _ = fit_calibration(HeldOut(scores, right, right.sum(axis=1)), {"said": "made for this test"})
    with atomic_folder(model / CALIBRATION) as part:
        calibration.save(part)
        write_part(part, read_manifest(model)["checksum"], {}, 0)
        if damaged:
            flip_a_byte(part / "calibration.json")


def index(model: Path, kind: str = "faiss-hnsw") -> None:
    build_index(model, kind, recall=1, k=5)


def answers(classifier: Classifier) -> list[list[tuple[str, float]]]:
    return [[(label.key, round(label.score, 5)) for label in labels] for labels in classifier.predict(TEXTS, 5)]


def test_a_calibration_that_comes_changes_or_goes_is_taken_in(model: Path) -> None:
    classifier = Classifier.load(model)
    assert classifier.predict(TEXTS[:1], 1)[0][0].probability is None
    calibrate(model)
    assert classifier.refresh() is True and classifier.refresh() is False
    assert classifier.predict(TEXTS[:1], 1)[0][0].probability is not None
    first = classifier.calibration
    calibrate(model)
    assert classifier.refresh() is True and classifier.calibration is not first
    shutil.rmtree(model / CALIBRATION)
    assert classifier.refresh() is True and classifier.calibration is None


def test_an_index_that_comes_changes_or_goes_is_taken_in(model: Path) -> None:
    classifier, exact = Classifier.load(model), Classifier.load(model, index=False)
    before = answers(classifier)
    for kind in ("faiss-hnsw", "faiss-flat"):
        index(model, kind)
        assert classifier.index.kind != kind and classifier.refresh() is True and classifier.refresh() is False
        assert classifier.index.kind == kind and answers(classifier) == before
    classifier.add_labels({"new": "fish fish tree"})
    assert classifier.predict(["fish fish tree"], 1)[0][0].key == "new"
    remove_index(model)
    assert classifier.refresh() is True and classifier.index.kind == "exact"
    assert classifier.predict(["fish fish tree"], 1)[0][0].key == "new"
    index(model)
    assert exact.refresh() is True and exact.refresh() is False  # the label, and never the index
    assert exact.index.kind == "exact" and "new" in exact.labels


def test_an_index_of_labels_that_are_news_comes_with_them(model: Path) -> None:
    classifier, other = Classifier.load(model), Classifier.load(model)
    other.add_labels({"new": "fish fish tree"})
    other.retire_labels(["L3"])
    index(model)
    other.add_labels({"newer": "dog dog library"})
    assert classifier.refresh() is True and classifier.refresh() is False
    assert (classifier.index.kind, classifier.version) == ("faiss-hnsw", 3)
    found = classifier.predict(["fish fish tree", "dog dog library"], 1)
    assert [labels[0].key for labels in found] == ["new", "newer"]
    assert "L3" not in {key for labels in answers(classifier) for key, _ in labels}


@pytest.mark.parametrize("part", [CALIBRATION, INDEX])
def test_a_damaged_part_is_told_once_and_the_one_before_stays_in_use(
    part: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(model)
    index(model, "faiss-flat")
    classifier = Classifier.load(model)
    clock = [100.0]
    monkeypatch.setattr(followed_folder, "monotonic", lambda: clock[0])
    kept, before = (classifier.calibration, classifier.index), classifier.predict(TEXTS, 5)
    if part == CALIBRATION:
        calibrate(model, damaged=True)
    else:
        index(model)
        flip_a_byte(model / INDEX / "index.faiss")
        (model / INDEX / PART).touch()
    with pytest.raises(DamagedModel, match=rf"{part}/.*was altered"):
        classifier.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(model_folder, "read_part", None)
        patch.setattr("umpteen.indexing.read_part", None)
        assert classifier.refresh() is False  # nothing is read again at once
    clock[0] += 6
    assert classifier.refresh() is False  # it is, and nobody told again
    assert (classifier.calibration, classifier.index) == kept and classifier.predict(TEXTS, 5) == before
    shutil.rmtree(model / part)
    calibrate(model) if part == CALIBRATION else index(model)
    assert classifier.refresh() is True
    assert classifier.index.kind == ("faiss-hnsw" if part == INDEX else "faiss-flat")


def test_a_damaged_part_is_no_reason_to_refuse_a_label(model: Path) -> None:
    classifier = Classifier.load(model)
    calibrate(model, damaged=True)
    assert classifier.add_labels({"new": "fish fish tree"}) == 1


def test_a_calibration_of_the_ranker_s_scores_is_not_for_those_without_it(model: Path, tmp_path: Path) -> None:
    plain = Classifier.load(model)
    features = TextFeatures.fit(TEXTS, RankerSettings())
    none = np.zeros(len(LABELS))
    weights = csr_array((len(LABELS), len(features)), dtype=np.float32)
    ranker = Ranker(features, weights, none.astype(np.float32), none.astype(np.int64), RankerSettings(candidates=5))
    Classifier(plain.towers, plain.labels, plain.vectors, ranker=ranker).save(tmp_path / "ranked")
    whole, part = (Classifier.load(tmp_path / "ranked", ranker=how) for how in (True, False))
    calibrate(tmp_path / "ranked")
    assert whole.refresh() and whole.calibration is not None
    part.refresh()
    assert part.calibration is None


def test_a_look_that_finds_nothing_is_a_few_looks_at_the_disk(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(model)
    index(model)
    classifier = Classifier.load(model)
    looks: list[object] = []
    real = os.stat

    def stat(path: object, *more: object, **named: object) -> os.stat_result:
        looks.append(path)
        return real(path, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "open", None)
    assert classifier.refresh() is False
    assert len(looks) == 4


def test_a_folder_that_is_gone_takes_nothing_with_it(model: Path) -> None:
    calibrate(model)
    index(model)
    classifier = Classifier.load(model)
    before = classifier.predict(TEXTS, 5)
    shutil.rmtree(model)
    assert classifier.refresh() is False and classifier.index.kind == "faiss-hnsw"
    assert classifier.predict(TEXTS, 5) == before


def test_a_damaged_model_in_the_folder_s_place_is_not_loaded_over_and_over(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(model)
    index(model)
    classifier = Classifier.load(model)
    before = classifier.predict(TEXTS, 5)
    Classifier.load(model).save(model, recipe="seed = 2\n")
    flip_a_byte(model / "vectors.safetensors")
    read = model_folder.read_manifest
    loads: list[Path] = []

    def counted(path: Path) -> dict[str, object]:
        loads.append(path)
        return read(path)

    monkeypatch.setattr(model_folder, "read_manifest", counted)
    clock = [100.0]
    monkeypatch.setattr(followed_folder, "monotonic", lambda: clock[0])

    def refused(work: Callable[[], object], tried: int) -> None:
        loads.clear()
        with pytest.raises(DamagedModel, match=r"vectors\.safetensors: was altered"):
            work()
        assert len(loads) == tried

    refused(classifier.refresh, 1)
    refused(classifier.refresh, 0)
    refused(lambda: classifier.add_labels({"new": "fish"}), 0)
    assert classifier.predict(TEXTS, 5) == before and classifier.index.kind == "faiss-hnsw"
    clock[0] += 61
    refused(classifier.refresh, 1)
    flip_a_byte(model / "vectors.safetensors")
    clock[0] += 61
    assert classifier.refresh() is True and classifier.recipe == "seed = 2\n"
    assert classifier.index.kind == "faiss-hnsw" and classifier.refresh() is False


def test_a_new_model_with_a_damaged_index_is_searched_exactly(model: Path) -> None:
    index(model)
    classifier = Classifier.load(model)
    Classifier.load(model).save(model, recipe="seed = 2\n")
    flip_a_byte(model / INDEX / "index.faiss")
    assert classifier.add_labels({"new": "fish fish tree"}) == 1  # no reason to refuse a label
    assert classifier.recipe == "seed = 2\n" and classifier.index.kind == "exact"
    with pytest.raises(DamagedModel, match=r"index\.faiss"):
        classifier.refresh()
    assert classifier.refresh() is False
    index_again = model / INDEX / "index.faiss"
    flip_a_byte(index_again)
    (model / INDEX / PART).touch()
    assert classifier.refresh() is True and classifier.index.kind == "faiss-hnsw"


def test_an_engine_that_another_process_has_to_itself_is_left_to_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = Classifier.load(model)
    before = answers(classifier)
    clock = [100.0]
    monkeypatch.setattr(followed_folder, "monotonic", lambda: clock[0])
    index(model, "milvus")

    def in_use(uri: str) -> None:
        raise InUse(f"{uri}: another process has it open")

    with monkeypatch.context() as patch:
        patch.setattr("umpteen.retrieval.milvus_engine.own", in_use)
        with pytest.raises(InUse):
            classifier.refresh()
        assert classifier.refresh() is False and classifier.index.kind == "exact"
    clock[0] += 6
    assert classifier.refresh() is True and classifier.index.kind == "milvus" and answers(classifier) == before

    for kind in ("milvus", "faiss-hnsw"):  # built again in the process that has it to itself
        index(model, kind)
        assert classifier.refresh() is True and classifier.index.kind == kind and answers(classifier) == before
        assert getattr(classifier.index, "absence", None) is None
