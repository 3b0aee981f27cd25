"""A classifier survives its folder, refuses damaged ones, and answers texts."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.sparse import csr_array
from small_catalogue import entries

from answers import same_answers
from miniature import files_of, flip_a_byte
from tiny import tiny_tokenizer, tiny_transformer
from umpteen.config.settings import EncoderConfig
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadFile, BadInput, DamagedModel, NotSaved
from umpteen.evaluation.report import Report, evaluate
from umpteen.model import folder as model_folder
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import MANIFEST

LABELS = {"L1": "fish", "L2": "tax law", "L3": "library", "ключ": "図書館 — book", "L5": "dog and tree"}
TEXTS = ["the fish trade", "a tax in law", "library network"]


def catalogue() -> LabelCatalogue:
    return LabelCatalogue(LABELS.keys(), LABELS.values())


@pytest.fixture
def classifier(tmp_path: Path) -> Classifier:
    tower = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), 16, seed=0)
    return Classifier.build(Towers(tower).eval(), catalogue())


@pytest.fixture
def saved(classifier: Classifier, tmp_path: Path) -> Path:
    classifier.save(tmp_path / "model", report=report(classifier), recipe="seed = 1\n", data={"name": "tiny"})
    return tmp_path / "model"


def report(classifier: Classifier) -> Report:
    truth = csr_array(np.eye(3, 5, dtype=np.float32))
    counts = np.ones(5, dtype=np.int64)
    return evaluate(classifier.rank(TEXTS, 5), truth, label_counts=counts, train_queries=9, ks=(1, 5), bootstrap=20)


def test_a_label_is_the_best_answer_to_its_own_text(classifier: Classifier) -> None:
    answers = classifier.predict(list(LABELS.values()), k=2)
    assert [labels[0].key for labels in answers] == list(LABELS)
    assert [labels[0].text for labels in answers] == list(LABELS.values())
    assert all(labels[0].score == pytest.approx(1) and labels[0].score >= labels[1].score for labels in answers)


def test_excluded_labels_are_never_ranked(classifier: Classifier) -> None:
    ranking = classifier.rank(["fish"], 5, excluding=csr_array(([1.0], ([0], [0])), shape=(1, 5)))
    assert sorted(ranking.rows[0].tolist()) == [-1, 1, 2, 3, 4]


def test_a_loaded_classifier_is_the_saved_one(classifier: Classifier, saved: Path) -> None:
    loaded = Classifier.load(saved)
    same_answers(loaded.predict(TEXTS, 5), classifier.predict(TEXTS, 5))
    assert torch.equal(loaded.vectors, classifier.vectors)
    assert entries(loaded.labels) == entries(classifier.labels)
    assert loaded.recipe == "seed = 1\n" and loaded.report == report(classifier)
    assert verify(saved) == []


def test_two_towers_of_different_kinds_survive_their_folder(tmp_path: Path) -> None:
    query = TransformerEncoder.load(tiny_transformer(tmp_path / "transformer"), max_length=64)
    label = StaticEncoder.random(tiny_tokenizer(tmp_path / "tokenizer"), query.dimension, seed=0)
    classifier = Classifier.build(Towers(query, label).eval(), catalogue())
    classifier.save(tmp_path / "model")
    same_answers(Classifier.load(tmp_path / "model").predict(TEXTS, 3), classifier.predict(TEXTS, 3))


def test_the_model_card_shows_how_to_use_the_folder_without_umpteen(saved: Path, classifier: Classifier) -> None:
    from sentence_transformers import SentenceTransformer

    card = (saved / "README.md").read_text(encoding="utf-8")
    assert "data name: tiny" in card and "seed = 1" in card and "licence" in card and "| 5 | " in card
    vectors = SentenceTransformer(str(files_of(saved) / "encoder"), device="cpu").encode(TEXTS, convert_to_tensor=True)
    scores = vectors @ load_file(files_of(saved) / "vectors.safetensors")["vectors"].T
    ranking = classifier.rank(TEXTS, 5)
    assert torch.allclose(scores.topk(5).values, torch.from_numpy(ranking.scores), atol=1e-6)


def static_towers(start: Path, bigrams: int) -> Towers:
    source = tiny_tokenizer(start)
    return Towers(*(StaticEncoder.random(source, 16, seed=seed, bigrams=bigrams) for seed in (0, 1)))


def mixed_towers(start: Path, kind: str) -> Towers:
    part = {"start": tiny_transformer(start), "max_length": 16}
    return Towers.build(EncoderConfig.model_validate({"query": {"kind": kind, "static": part, "frozen": part}}), 0)


@pytest.mark.parametrize(
    "towers",
    [partial(static_towers, bigrams=0), partial(static_towers, bigrams=50), partial(mixed_towers, kind="sum")],
    ids=["words", "bigrams", "mixed"],
)
def test_the_model_card_s_own_code_runs(towers: Callable[[Path], Towers], tmp_path: Path) -> None:
    classifier = Classifier.build(towers(tmp_path / "start").eval(), catalogue())
    classifier.save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    code = card.split("```python")[3].split("```")[0].replace("this-folder", str(tmp_path / "model"))
    found: dict[str, torch.Tensor] = {}
    exec(code, found)
    best = classifier.rank(["a text"], 5).scores
    assert torch.allclose(found["scores"].topk(5).values, torch.from_numpy(best), atol=1e-6)


def test_saving_again_keeps_what_is_known_of_the_model(saved: Path, tmp_path: Path) -> None:
    Classifier.load(saved).save(tmp_path / "copy")
    copy = Classifier.load(tmp_path / "copy")
    assert copy.report == Classifier.load(saved).report and copy.recipe == "seed = 1\n"
    assert copy.data == {"name": "tiny"}


def test_extra_files_travel_with_the_model_and_unknown_ones_are_fine(classifier: Classifier, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    classifier.save(tmp_path / "model", extra_files=[tmp_path / "metrics.jsonl"])
    (tmp_path / "model" / "notes.txt").write_text("mine")
    (tmp_path / "model" / "README.md").write_text("edited")
    Classifier.load(tmp_path / "model")
    assert verify(tmp_path / "model") == []
    flip_a_byte(files_of(tmp_path / "model") / "metrics.jsonl")
    with pytest.raises(DamagedModel, match=r"metrics\.jsonl"):
        Classifier.load(tmp_path / "model")


def test_a_flipped_byte_in_any_small_file_is_found_at_load(saved: Path) -> None:
    listed = json.loads((saved / MANIFEST).read_text(encoding="utf-8"))["files"]
    assert {"labels.db", "part.json", "recipe.toml", "report.json", "vectors.safetensors"} < set(listed)
    for name in listed:
        file = files_of(saved) / name
        before = file.read_bytes()
        flip_a_byte(file)
        with pytest.raises(DamagedModel, match=rf"{name}: was altered"):
            Classifier.load(saved)
        file.write_bytes(before)
    Classifier.load(saved)


def test_a_byte_of_a_large_file_that_the_disk_lost_is_found_by_verify(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "ALWAYS_HASHED", 100)
    Classifier.load(saved)
    before = (files_of(saved) / "vectors.safetensors").stat()
    flip_a_byte(files_of(saved) / "vectors.safetensors")
    os.utime(files_of(saved) / "vectors.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))  # nobody wrote it
    Classifier.load(saved)
    seen: list[tuple[int, int]] = []
    damage = verify(saved, progress=lambda done, total: seen.append((done, total)))
    assert len(damage) == 1 and "vectors.safetensors: was altered" in damage[0]
    assert seen[-1][0] == seen[-1][1]


def test_large_arrays_cut_short_or_with_a_damaged_header_are_found_at_load(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "ALWAYS_HASHED", 100)
    content = (files_of(saved) / "vectors.safetensors").read_bytes()
    (files_of(saved) / "vectors.safetensors").write_bytes(content[:-4])
    with pytest.raises(DamagedModel, match=r"vectors.safetensors: has \d+ bytes instead of \d+"):
        Classifier.load(saved)
    (files_of(saved) / "vectors.safetensors").write_bytes(b"\xff" * 16 + content[16:])
    with pytest.raises(DamagedModel, match=r"vectors.safetensors: has a damaged header"):
        Classifier.load(saved)
    (files_of(saved) / "vectors.safetensors").unlink()
    with pytest.raises(DamagedModel, match=r"vectors.safetensors: is missing"):
        Classifier.load(saved)


def test_another_format_version_is_named_beside_the_expected_one(saved: Path) -> None:
    content = json.loads((saved / MANIFEST).read_text(encoding="utf-8"))
    (saved / MANIFEST).write_text(json.dumps({**content, "format": 7, "umpteen": "9.9"}))
    for read in (Classifier.load, verify):
        with pytest.raises(DamagedModel, match=r"format 7 found, 3 expected.*umpteen 9\.9"):
            read(saved)


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"format": 1}'])
def test_a_manifest_that_makes_no_sense_is_damaged(saved: Path, content: str) -> None:
    (saved / MANIFEST).write_text(content)
    with pytest.raises(DamagedModel, match=MANIFEST):
        Classifier.load(saved)


def test_an_altered_manifest_is_damaged(saved: Path) -> None:
    text = (saved / MANIFEST).read_text(encoding="utf-8")
    (saved / MANIFEST).write_text(text.replace('"labels": 5', '"labels": 4'), encoding="utf-8")
    with pytest.raises(DamagedModel, match=r"manifest.json: was altered"):
        Classifier.load(saved)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="nowhere: there is no such model folder"):
        Classifier.load(tmp_path / "nowhere")
    with pytest.raises(DamagedModel, match=r"manifest.json is missing"):
        Classifier.load(tmp_path)


def test_a_full_disk_leaves_the_old_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (saved / MANIFEST).read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotSaved, match="No space left"):
        Classifier.load(saved).save(saved, recipe="seed = 2\n")
    assert (saved / MANIFEST).read_bytes() == before and verify(saved) == []
    assert [path.name for path in saved.parent.iterdir() if path.name.startswith(".")] == []


def test_a_model_may_replace_itself_while_its_vectors_are_mapped(saved: Path) -> None:
    loaded = Classifier.load(saved)
    loaded.save(saved)
    same_answers(Classifier.load(saved).predict(TEXTS, 5), loaded.predict(TEXTS, 5))


def test_a_folder_with_other_things_in_it_is_not_replaced(classifier: Classifier, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    classifier.save(tmp_path / "documents")  # empty: nothing is lost
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").touch()
    with pytest.raises(BadInput, match="letters exists and is not a model folder"):
        classifier.save(tmp_path / "letters")


def test_texts_that_cannot_be_answered_are_refused_by_position(classifier: Classifier) -> None:
    assert classifier.predict([]) == []
    with pytest.raises(BadInput, match=r"texts\[1\] is empty"):
        classifier.predict(["fish", " \n"])
    with pytest.raises(BadInput, match="pass a list"):
        classifier.predict("fish")
    with pytest.raises(BadInput, match=r"texts\[0\] is a int"):
        classifier.predict([3])  # type: ignore[list-item]
    for k in (0, 6):
        with pytest.raises(BadInput, match=f"k is {k}, but the model has 5 labels"):
            classifier.predict(["fish"], k)


def test_vectors_must_fit_labels_and_towers(classifier: Classifier) -> None:
    with pytest.raises(BadInput, match=r"5 labels in 16 dimensions .* \(4, 16\)"):
        Classifier(classifier.towers, classifier.labels.catalogue(), classifier.vectors[:4])
