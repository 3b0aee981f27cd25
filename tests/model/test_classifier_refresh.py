"""A classifier in use takes in what others do to its folder: an index, a calibration, another model."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from answers import same_answers, same_numbers
from miniature import files_of, flip_a_byte, part_of
from tiny import WORDS, tiny_tokenizer
from umpteen.calibration.calibration import fit_calibration
from umpteen.calibration.curves import HeldOut
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput, DamagedModel, InUse
from umpteen.model import classifier as classifier_module
from umpteen.model import live as live_model
from umpteen.model.changes import Add, Retire
from umpteen.model.classifier import Classifier
from umpteen.model.folder import CALIBRATION, INDEX, MANIFEST, ModelFolder
from umpteen.model.index import build_index, remove_index
from umpteen.model.live import LiveModel
from umpteen.model.writing import compact
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.ranker import Ranker

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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What those who try again later look at."""
    now = [100.0]
    for module in (live_model, classifier_module):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def calibrate(model: Path) -> None:
    scores = Classifier.load(model).rank(TEXTS, 10).scores
    right = np.random.default_rng(0).random(scores.shape) < np.clip(scores, 0, 1)
    calibration = fit_calibration(HeldOut(scores, right, right.sum(axis=1)), {"said": "made for this test"})
    with ModelFolder(model).adding(CALIBRATION) as part:
        calibration.save(part.folder)


def index(model: Path, kind: str = "faiss-hnsw") -> None:
    build_index(model, kind, recall=1, k=5)


FILES = {CALIBRATION: "calibration.json", INDEX: "index.faiss"}


def damage(model: Path, name: str) -> None:
    """Done twice, it is whole again."""
    flip_a_byte(part_of(model, name) / FILES[name])


def answers(classifier: Classifier) -> list[list[tuple[str, float]]]:
    return [[(label.key, label.score) for label in labels] for labels in classifier.predict(TEXTS, 5)]


def test_a_calibration_that_comes_changes_or_goes_is_taken_in(model: Path) -> None:
    classifier = Classifier.load(model)
    assert classifier.predict(TEXTS[:1], 1)[0][0].probability is None
    calibrate(model)
    assert classifier.refresh() is True and classifier.refresh() is False
    assert classifier.predict(TEXTS[:1], 1)[0][0].probability is not None
    first = classifier.calibration
    calibrate(model)
    assert classifier.refresh() is True and classifier.calibration is not first
    ModelFolder(model).drop(CALIBRATION)
    assert classifier.refresh() is True and classifier.calibration is None


def test_an_index_that_comes_changes_or_goes_is_taken_in(model: Path) -> None:
    classifier, exact = Classifier.load(model), Classifier.load(model, index=False)
    before = answers(classifier)
    for kind in ("faiss-hnsw", "faiss-flat"):
        index(model, kind)
        assert classifier.index.kind != kind and classifier.refresh() is True and classifier.refresh() is False
        assert classifier.index.kind == kind
        same_numbers(answers(classifier), before)
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


@pytest.mark.parametrize("name", [CALIBRATION, INDEX])
def test_a_damaged_part_is_an_error_as_long_as_it_counts_and_the_one_before_stays_in_use(
    name: str, model: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(model)
    index(model, "faiss-flat")
    classifier = Classifier.load(model)
    kept, before = (classifier.calibration, classifier.index), classifier.predict(TEXTS, 5)
    calibrate(model) if name == CALIBRATION else index(model)
    damage(model, name)
    looks: list[object] = []
    look = ModelFolder.require_whole
    monkeypatch.setattr(ModelFolder, "require_whole", lambda *asked, **named: looks.append(1) or look(*asked, **named))
    for later, looked in ((0, 1), (0, 0), (6, 1), (1, 0)):  # nothing is read again at once
        clock[0] += later
        looks.clear()
        with pytest.raises(DamagedModel, match=rf"{name}-\w+/{FILES[name]}: was altered"):
            classifier.refresh()
        assert len(looks) == looked
    assert (classifier.calibration, classifier.index) == kept
    same_answers(classifier.predict(TEXTS, 5), before)
    damage(model, name)  # and so it is repaired
    clock[0] += 6
    assert classifier.refresh() is True and classifier.refresh() is False
    assert (classifier.index is kept[1], classifier.calibration is kept[0]) == (name != INDEX, name != CALIBRATION)


def test_a_damaged_part_that_is_replaced_is_forgotten_at_once(model: Path, clock: list[float]) -> None:
    classifier = Classifier.load(model)
    index(model, "faiss-flat")
    damage(model, INDEX)
    with pytest.raises(DamagedModel):
        classifier.refresh()
    index(model)
    assert classifier.refresh() is True and classifier.index.kind == "faiss-hnsw"
    index(model, "faiss-flat")
    damage(model, INDEX)
    with pytest.raises(DamagedModel):
        classifier.refresh()
    remove_index(model)
    assert classifier.refresh() is True and classifier.index.kind == "exact"


def test_labels_come_in_although_a_part_cannot_be_used(model: Path, clock: list[float]) -> None:
    classifier, other = Classifier.load(model), Classifier.load(model)
    calibrate(model)
    damage(model, CALIBRATION)
    assert classifier.add_labels({"new": "fish fish tree"}) == 1  # no reason to refuse a label
    other.retire_labels(["L3"])
    with pytest.raises(DamagedModel, match="was altered"):
        classifier.refresh()
    assert classifier.version == 2 and "L3" not in classifier.labels
    assert classifier.predict(["fish fish tree"], 1)[0][0].key == "new"


def test_a_calibration_of_the_ranker_s_scores_is_not_for_those_without_it(model: Path, tmp_path: Path) -> None:
    plain = Classifier.load(model)
    features = TextFeatures.fit(TEXTS, RankerSettings())
    none = np.zeros(len(LABELS))
    weights = csr_array((len(features), len(LABELS)), dtype=np.float32)
    ranker = Ranker(
        features, weights, none.astype(np.float32), none.astype(np.int64), RankerSettings(candidates=5, memory=False)
    )
    Classifier(plain.towers, plain.labels.catalogue(), plain.vectors, ranker=ranker).save(tmp_path / "ranked")
    whole, part = (Classifier.load(tmp_path / "ranked", ranker=how) for how in (True, False))
    calibrate(tmp_path / "ranked")
    assert whole.refresh() and whole.calibration is not None
    part.refresh()
    assert part.calibration is None


def test_a_look_that_finds_nothing_is_three_looks_at_the_disk(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(model)
    index(model)
    for path in (model / MANIFEST, ModelFolder(model).store.path):
        assert path is not None
        os.utime(path, ns=(1, 1))  # long enough ago that a later change would have another time
    classifier = Classifier.load(model)
    classifier.refresh()
    looks: list[object] = []
    real = os.stat

    def stat(path: object, *more: object, **named: object) -> os.stat_result:
        looks.append(path)
        return real(path, *more, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        patch.setattr(os, "open", None)
        patch.setattr("sqlite3.connect", None)
        assert classifier.refresh() is False
    assert len(looks) == 3
    Classifier.load(model).retire_labels(["L3"])
    assert classifier.refresh() is True and "L3" not in classifier.labels


def test_a_folder_that_is_gone_is_told_and_takes_nothing_with_it(model: Path) -> None:
    calibrate(model)
    index(model)
    classifier = Classifier.load(model)
    before = classifier.predict(TEXTS, 5)
    shutil.rmtree(model)
    for _ in range(2):
        with pytest.raises(BadInput, match="there is no such model folder"):
            classifier.refresh()
    assert classifier.index.kind == "faiss-hnsw"
    same_answers(classifier.predict(TEXTS, 5), before)


def test_files_of_a_part_in_use_are_there_until_it_is_gone(model: Path) -> None:
    calibrate(model)
    classifier = Classifier.load(model)
    written = (part_of(model, CALIBRATION) / "calibration.json").read_bytes()
    assert classifier.part_file(CALIBRATION, "calibration.json") == written
    for name, file in ((CALIBRATION, "../manifest.json"), (CALIBRATION, "nothing"), (INDEX, "index.faiss")):
        assert classifier.part_file(name, file) is None
    ModelFolder(model).drop(CALIBRATION)
    assert classifier.part_file(CALIBRATION, "calibration.json") is None
    assert classifier.predict(TEXTS[:1], 1)[0][0].probability is not None  # until it is refreshed


def test_a_model_that_was_compacted_is_taken_in_with_its_parts(model: Path) -> None:
    classifier, exact = Classifier.load(model), Classifier.load(model, index=False)
    calibrate(model)  # before the labels change: it holds for them, too
    classifier.change_labels([Add("new", "fish fish tree"), Retire("L3")])
    index(model)
    assert classifier.refresh() is True
    before = classifier.predict(TEXTS, 5)
    compact(model)
    assert classifier.refresh() is True and classifier.refresh() is False and classifier.history() == []
    assert classifier.index.kind == "faiss-hnsw" and classifier.calibration is not None
    same_answers(classifier.predict(TEXTS, 5), before)
    assert exact.refresh() is True and exact.index.kind == "exact" and exact.version == 1


def test_a_damaged_model_in_the_folder_s_place_is_not_loaded_over_and_over(
    model: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(model)
    index(model)
    classifier = Classifier.load(model)
    before = classifier.predict(TEXTS, 5)
    Classifier.load(model).save(model, recipe="seed = 2\n")
    flip_a_byte(files_of(model) / "vectors.safetensors")
    load, loads = LiveModel.load, []

    def counted(*asked: Any, **named: Any) -> LiveModel:
        loads.append(asked)
        return load(*asked, **named)

    monkeypatch.setattr(LiveModel, "load", counted)

    def refused(work: Callable[[], object], tried: int) -> None:
        loads.clear()
        with pytest.raises(DamagedModel, match=r"vectors\.safetensors: was altered"):
            work()
        assert len(loads) == tried

    refused(classifier.refresh, 1)
    refused(classifier.refresh, 0)
    refused(lambda: classifier.add_labels({"new": "fish"}), 0)
    assert classifier.index.kind == "faiss-hnsw"
    same_answers(classifier.predict(TEXTS, 5), before)
    clock[0] += 61
    refused(classifier.refresh, 1)
    flip_a_byte(files_of(model) / "vectors.safetensors")
    clock[0] += 61
    assert classifier.refresh() is True and classifier.recipe == "seed = 2\n"
    assert classifier.index.kind == "faiss-hnsw" and classifier.refresh() is False


def test_a_new_model_with_a_damaged_index_is_searched_exactly(model: Path, clock: list[float]) -> None:
    index(model)
    classifier = Classifier.load(model)
    Classifier.load(model).save(model, recipe="seed = 2\n")
    damage(model, INDEX)
    assert classifier.add_labels({"new": "fish fish tree"}) == 1  # no reason to refuse a label
    assert classifier.recipe == "seed = 2\n" and classifier.index.kind == "exact"
    for _ in range(2):
        with pytest.raises(DamagedModel, match=r"index\.faiss"):
            classifier.refresh()
    damage(model, INDEX)
    clock[0] += 6
    assert classifier.refresh() is True and classifier.index.kind == "faiss-hnsw"
    assert classifier.predict(["fish fish tree"], 1)[0][0].key == "new"


def test_an_engine_that_another_process_has_to_itself_is_left_to_it(
    model: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = Classifier.load(model)
    before = answers(classifier)
    index(model, "milvus")

    def in_use(uri: str) -> None:
        raise InUse(f"{uri}: another process has it open")

    with monkeypatch.context() as patch:
        patch.setattr("umpteen.search.milvus.own", in_use)
        for later in (0, 6):
            clock[0] += later
            with pytest.raises(InUse):
                classifier.refresh()
        assert classifier.index.kind == "exact"
    clock[0] += 6
    assert classifier.refresh() is True and classifier.index.kind == "milvus"
    same_numbers(answers(classifier), before)

    for kind in ("milvus", "faiss-hnsw"):  # built again in the process that has it to itself
        old = part_of(model, INDEX)
        index(model, kind)
        assert old.exists()  # it is open
        assert classifier.refresh() is True and classifier.index.kind == kind
        same_numbers(answers(classifier), before)
        assert getattr(classifier.index, "absence", None) is None
        ModelFolder(model).sweep()
        assert not old.exists()
