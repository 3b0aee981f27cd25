"""A model's labels change in its folder: found at once, there after a restart, undone by version."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from small_catalogue import LABELS, entries

from answers import same_answers
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.encoder import encode_texts
from umpteen.encoders.parts import PartsEncoder
from umpteen.encoders.rows import RowTable
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.table import LabelTable
from umpteen.encoders.towers import Towers
from umpteen.errors import BadInput
from umpteen.model import catalogue as catalogue_module
from umpteen.model.catalogue import Encoded, open_labels
from umpteen.model.changes import Add, Locked, Rename, Retire
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import MANIFEST, ModelFolder
from umpteen.model.writing import compact

TEXTS = ["the fish trade", "a tax in law", "library network", "food for a dog"]


def best(classifier: Classifier, text: str) -> str:
    return classifier.predict([text], k=1)[0][0].key


def test_a_new_label_is_found_at_once_and_after_a_restart(model: Path) -> None:
    classifier = Classifier.load(model)
    assert classifier.version == 0 and classifier.history() == []
    assert classifier.add_labels({"n": "network of food"}) == 1
    for one in (classifier, Classifier.load(model)):
        assert best(one, "network of food") == "n" and one.version == 1
        assert one.predict(["network of food"], k=1)[0][0].score == pytest.approx(1)
        assert one.vectors.shape == (6, 16)


def test_a_renamed_label_answers_to_its_new_text_and_a_retired_one_to_none(model: Path) -> None:
    classifier = Classifier.load(model)
    classifier.rename_labels({"f": "network of food"})
    classifier.retire_labels(["t"])
    for one in (classifier, Classifier.load(model)):
        assert best(one, "network of food") == "f"
        assert one.predict(["network of food"], k=1)[0][0].text == "network of food"
        assert "t" not in [label.key for label in one.predict(["tax law"], k=4)[0]]
        nothing = np.zeros((1, 5))
        ranking = one.rank(["tax law"], 4, excluding=csr_array(nothing))
        np.testing.assert_array_equal(ranking.rows, one.rank(["tax law"], 4).rows)
        with pytest.raises(BadInput, match="k is 5, but the model has 4 labels"):
            one.predict(["fish"], k=5)


def test_only_changed_texts_are_encoded(model: Path) -> None:
    classifier = Classifier.load(model)
    with mock.patch.object(catalogue_module, "encode_new", wraps=catalogue_module.encode_new) as encoded:
        classifier.change_labels([Add("n", "new"), Rename("f", "fishes"), Retire("t")])
        assert [call.args[1] for call in encoded.call_args_list] == [["new", "fishes"]]
        encoded.reset_mock()
        classifier.undo(0)
        Classifier.load(model)
        assert not encoded.called


def test_several_changes_are_one_version_and_all_or_none(model: Path) -> None:
    classifier = Classifier.load(model)
    assert classifier.change_labels([Add("n", "new"), Rename("f", "fishes"), Retire("t")], note="spring") == 1
    with pytest.raises(BadInput, match="'nobody'"):
        classifier.change_labels([Add("m", "more"), Retire("nobody")])
    assert classifier.version == 1 and "m" not in Classifier.load(model).labels
    (line,) = classifier.history()
    assert (line.added, line.renamed, line.retired, line.note) == (1, 1, 1, "spring")
    assert line.version == 1 and line.time.endswith("+00:00")
    assert classifier.rename_labels({"f": "fishes"}) == 1  # nothing to do, no version


def test_undo_gives_back_labels_and_vectors_to_the_bit(model: Path) -> None:
    classifier = Classifier.load(model)

    def state(one: Classifier) -> tuple[object, ...]:
        ranking = one.rank(TEXTS, 4)
        assert torch.isfinite(one.vectors).all()
        return (
            entries(one.labels, retired=False),
            ranking.rows.tolist(),
            one.vectors[torch.from_numpy(one.labels.active)].tolist(),
        )

    states = [state(classifier)]
    for changes in (
        [Add("n", "network of food"), Retire("t")],
        [Rename("n", "food"), Rename("f", "trade")],
        [Add("t", "tariffs"), Retire("n"), Add("m", "more food")],
        [Rename("t", "tax law"), Rename("f", "fish")],
    ):
        classifier.change_labels(changes)
        states.append(state(classifier))
    for version in (2, 0, 4, 1, 3, 3):
        classifier.undo(version)
        for one in (classifier, Classifier.load(model)):
            assert state(one) == states[version]
    assert classifier.version == 4 + 5  # the last undo had nothing to do
    assert verify(model) == []


def test_undo_without_a_version_takes_back_the_last_change(model: Path) -> None:
    classifier = Classifier.load(model)
    with pytest.raises(BadInput, match="nothing to undo"):
        classifier.undo()
    classifier.add_labels({"n": "new"})
    assert classifier.undo() == 2 and "n" not in classifier.labels
    for version in (-1, 3):
        with pytest.raises(BadInput, match=f"no version {version}; there are 0 to 2"):
            classifier.undo(version)


def test_a_classifier_without_a_folder_changes_in_memory(model: Path, tmp_path: Path) -> None:
    towers = Classifier.load(model).towers
    classifier = Classifier.build(towers, LabelCatalogue(LABELS.keys(), LABELS.values()))
    assert classifier.path is None and classifier.refresh() is False
    classifier.add_labels([("n", "network of food")])
    classifier.retire_labels(["f"])
    assert classifier.undo(1) == 3 and best(classifier, "network of food") == "n" and "f" in classifier.labels
    assert len(classifier.history()) == 3
    classifier.save(tmp_path / "saved")
    saved = Classifier.load(tmp_path / "saved")
    assert (
        saved.version == 3
        and entries(saved.labels) == entries(classifier.labels)
        and saved.labels.entry(5).origin == "added"
    )
    np.testing.assert_array_equal(saved.rank(TEXTS, 6).rows, classifier.rank(TEXTS, 6).rows)
    np.testing.assert_allclose(saved.rank(TEXTS, 6).scores, classifier.rank(TEXTS, 6).scores, atol=1e-6)


def test_other_processes_changes_are_taken_in_by_refresh(model: Path) -> None:
    one, other = Classifier.load(model), Classifier.load(model)
    assert one.refresh() is False
    other.add_labels({"n": "network of food"})
    other.retire_labels(["t"])
    before = one.labels
    assert "n" not in one.labels and one.refresh() is True and one.refresh() is False
    assert best(one, "network of food") == "n" and one.version == 2 and "n" not in before
    assert len(one.history()) == 2


def test_a_change_begins_with_what_others_have_changed(model: Path) -> None:
    one, other = Classifier.load(model), Classifier.load(model)
    other.add_labels({"n": "network of food"})
    with pytest.raises(BadInput, match="'n' already"):
        one.add_labels({"n": "mine"})
    assert best(one, "network of food") == "n"  # the index has heard of it although the change was refused
    assert one.add_labels({"m": "mine"}) == 2


def while_it_encodes(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody does this while the next change's texts are encoded, before it waits for its turn."""
    real = catalogue_module.encode_new

    def meanwhile(*asked: Any, **named: Any) -> torch.Tensor:
        monkeypatch.setattr(catalogue_module, "encode_new", real)
        work()
        return real(*asked, **named)

    monkeypatch.setattr(catalogue_module, "encode_new", meanwhile)


def test_a_change_that_another_process_makes_impossible_is_refused_whole(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Classifier.load(model), Classifier.load(model)
    while_it_encodes(lambda: other.add_labels({"n": "network of food"}), monkeypatch)
    with pytest.raises(BadInput, match="'n' already"):
        one.change_labels([Add("n", "mine"), Retire("t")])
    assert best(one, "network of food") == "n" and "t" in one.labels and one.version == 1


def test_who_tries_a_change_again_encodes_nothing_twice(model: Path) -> None:
    classifier, encoded = Classifier.load(model), Encoded()
    with mock.patch.object(catalogue_module, "encode_new", wraps=catalogue_module.encode_new) as encoding:
        with ModelFolder(model).store.changing(), pytest.raises(Locked):
            classifier.change_labels([Add("n", "network of food")], patience=0.0, encoded=encoded)
        assert classifier.change_labels([Add("n", "network of food"), Add("m", "more")], encoded=encoded) == 1
    assert [call.args[1] for call in encoding.call_args_list] == [["network of food"], ["more"]]
    assert best(classifier, "network of food") == "n"


def test_a_model_that_is_replaced_is_loaded_again(model: Path) -> None:
    one, other = Classifier.load(model), Classifier.load(model)
    other.add_labels({"n": "network of food"})
    other.save(model)  # the history is gone, the version stays
    assert one.refresh() is True and one.version == 1 and best(one, "network of food") == "n"
    assert other.add_labels({"m": "more"}) == 2 and one.refresh() is True and "m" in one.labels
    assert [line.version for line in one.history()] == [2]


def test_a_model_replaced_between_look_and_lock_is_loaded_again_before_the_change(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Classifier.load(model), Classifier.load(model)
    other.add_labels({"n": "network of food"})
    while_it_encodes(lambda: other.save(model), monkeypatch)
    assert one.add_labels({"m": "more"}) == 2
    assert Classifier.load(model).labels.count() == 7


def test_labels_and_vectors_of_two_models_are_never_taken_for_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Classifier.load(model)
    other.rename_labels({"f": "tree"})
    read = catalogue_module.read_vectors

    def replaced_before(path: Path) -> torch.Tensor:
        monkeypatch.setattr(catalogue_module, "read_vectors", read)
        other.save(model)
        return read(path)

    monkeypatch.setattr(catalogue_module, "read_vectors", replaced_before)
    found = open_labels(model)
    assert found.labels.texts[0] == "tree" and found.labels.version == 1
    assert torch.equal(found.vectors.everything, other.vectors)


def test_a_model_in_use_goes_on_without_its_folder(model: Path, tmp_path: Path) -> None:
    """What is in memory is all that answers and a copy need, whatever became of the files."""
    one, other = Classifier.load(model), Classifier.load(model)
    one.change_labels([Add("n", "network of food"), Rename("f", "trade"), Retire("l")])
    one.change_labels([Retire("n"), Retire("f"), Add("m", "more food")])
    vectors, nothing = one.vectors.clone(), csr_array((1, 7))
    before = one.rank(["more food"], 3, excluding=nothing)
    for away in (lambda: compact(model), lambda: shutil.rmtree(model)):
        other = Classifier.load(model)
        away()
        for kept in (one, other):
            assert torch.equal(kept.vectors, vectors)
            found = kept.rank(["more food"], 3, excluding=nothing)
            np.testing.assert_array_equal(found.rows, before.rows)
            np.testing.assert_allclose(found.scores, before.scores, atol=1e-6)
        other.save(tmp_path / "copy")
        copy = Classifier.load(tmp_path / "copy")
        assert entries(copy.labels) == entries(one.labels) and torch.equal(copy.vectors, vectors)
        copy.change_labels([Add("n", "network of food"), Add("l", "library")])
        assert best(copy, "network of food") == "n" and best(copy, "library") == "l"


def test_touching_the_manifest_is_no_new_model(model: Path) -> None:
    classifier = Classifier.load(model)
    (model / MANIFEST).touch()
    vectors = classifier.vectors
    assert classifier.refresh() is False and classifier.vectors is vectors
    assert classifier.add_labels({"n": "new"}) == 1


def test_saving_over_itself_loses_nothing_another_process_wrote(model: Path) -> None:
    one, other = Classifier.load(model), Classifier.load(model)
    other.add_labels({"n": "network of food"})
    one.save(model)
    assert "n" in Classifier.load(model).labels


def test_a_label_table_has_no_vector_for_a_new_text_but_can_retire(model: Path, tmp_path: Path) -> None:
    first = Classifier.load(model)
    towers = Towers(first.towers.query, LabelTable(RowTable(first.vectors.clone())))
    Classifier(towers.eval(), first.labels.catalogue(), first.vectors).save(tmp_path / "table")
    table = Classifier.load(tmp_path / "table")
    with pytest.raises(BadInput, match="label table, which has no vector for a text"):
        table.add_labels({"n": "new"})
    assert table.retire_labels(["f"]) == 1 and table.undo() == 2 and table.labels.entry(0).origin == "trained"
    assert len(table.index.labels.changed) == 0  # its own vector of the base: nothing to keep
    same_answers(table.predict(["fish"], k=5), first.predict(["fish"], k=5))


def test_a_new_label_of_a_fused_tower_has_no_residual_and_an_old_one_takes_its_own_back(
    model: Path, tmp_path: Path
) -> None:
    query = Classifier.load(model).towers.query
    assert isinstance(query, StaticEncoder)
    residual = RowTable(torch.randn(5, 16, generator=torch.Generator().manual_seed(1)))
    parts = {"static": query, "table": LabelTable(residual, normalise=False, optional=True)}
    fused = Towers(query, PartsEncoder(parts, "sum")).eval()
    vectors = encode_texts(fused.label, list(LABELS.values()), rows=np.arange(5)).float()
    Classifier(fused, LabelCatalogue(LABELS.keys(), LABELS.values()), vectors).save(tmp_path / "fused")
    classifier = Classifier.load(tmp_path / "fused")
    before = classifier.vectors.clone()
    classifier.change_labels([Add("n", "network of food"), Rename("f", "trade")])
    torch.testing.assert_close(classifier.vectors[5], query.encode(["network of food"])[0])
    torch.testing.assert_close(classifier.vectors[0], query.encode(["trade"])[0])
    classifier.rename_labels({"f": "fish"})
    assert torch.equal(classifier.vectors[:5], before) and classifier.labels.entry(0).origin == "trained"


def test_keys_that_come_as_one_string_are_refused(model: Path) -> None:
    with pytest.raises(BadInput, match="pass a list of keys"):
        Classifier.load(model).retire_labels("f")


def test_a_copy_of_a_folder_goes_its_own_way(model: Path, tmp_path: Path) -> None:
    Classifier.load(model).add_labels({"n": "new"})
    shutil.copytree(model, tmp_path / "copy")
    Classifier.load(tmp_path / "copy").add_labels({"m": "more"})
    assert Classifier.load(tmp_path / "copy").version == 2 and Classifier.load(model).version == 1
