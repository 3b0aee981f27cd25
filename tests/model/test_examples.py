"""What a model learns from corrections counts at once, for every process, for good, and until it is undone."""

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import ends_of, fork
from scipy.sparse import csr_array
from small_catalogue import LABELS, alter, ask, database

from miniature import command, refused
from umpteen.calibration.calibration import fit_calibration
from umpteen.calibration.curves import HeldOut
from umpteen.data.dataset import open_dataset
from umpteen.errors import BadInput, DamagedModel
from umpteen.model import correcting
from umpteen.model.classifier import Classifier, verify
from umpteen.model.correcting import read_corrections, review, with_examples
from umpteen.model.examples import open_examples
from umpteen.model.index import build_index
from umpteen.model.writing import compact, standing_in
from umpteen.rerank.features import RankerSettings, TextFeatures
from umpteen.rerank.memory import Memory
from umpteen.rerank.ranker import Ranker

TEXT, NEAR, FAR = "fish food in the network", "fish food in network", "library of book"


def first(classifier: Classifier, text: str = TEXT, k: int = 1) -> list[str]:
    return [label.key for label in classifier.predict([text], k=k)[0]]


def taught(model: Path, note: str = "") -> Classifier:
    """The best label of TEXT is wrong, and its last one is right."""
    classifier = Classifier.load(model)
    best, *_, last = first(classifier, k=5)
    assert classifier.learn([TEXT], [[last]], [[best]], note) == 1
    return classifier


def test_a_corrected_text_and_one_near_to_it_are_answered_accordingly_and_others_as_before(model: Path) -> None:
    before = Classifier.load(model)
    best, *_, last = first(before, k=5)
    after = taught(model)
    for text in (TEXT, NEAR):
        assert first(after, text)[0] == last and first(after, text, k=5)[-1] == best
    assert after.predict([FAR], k=5) == before.predict([FAR], k=5)
    assert 0 <= after.predict([TEXT], k=1)[0][0].score <= 1.001


@pytest.mark.parametrize("ranker", [False, True])
def test_a_text_beside_a_corrected_one_is_searched_as_without(
    model: Path, monkeypatch: pytest.MonkeyPatch, ranker: bool
) -> None:
    classifier = with_ranker(model, memory=False) if ranker else Classifier.load(model)
    texts, asked = [FAR, TEXT, "tax law"], list[tuple[int, int]]()
    before, excluding = classifier.rank(texts, 2), csr_array(([1.0], ([1], [0])), shape=(3, len(LABELS)))
    best, *_, last = first(classifier, k=5)
    classifier.learn([TEXT], [[last]], [[best]])
    search = classifier.index.search
    record = lambda vectors, k: asked.append((len(vectors), k)) or search(vectors, k)  # noqa: E731
    monkeypatch.setattr(classifier.index, "search", record)
    after, alone = classifier.rank(texts, 2), classifier.rank([TEXT], 2)
    wide, usual = len(LABELS), 3 if ranker else 2
    assert asked == [(3, usual), (1, wide), (1, wide)]
    for found, expected in ((after.rows, before.rows), (after.scores, before.scores)):
        np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]])
    assert after.rows[1].tolist() == alone.rows[0].tolist() and after.rows[1, 0] == classifier.labels.row(last)
    assert 0 not in classifier.rank(texts, 2, excluding).rows[1]


def test_a_label_that_the_search_would_not_have_found_is_found_and_with_an_index_too(model: Path) -> None:
    Classifier.load(model).add_labels({f"x{row}": f"tree {row} and fish {row}" for row in range(150)})
    build_index(model, kind="faiss-flat")
    classifier = Classifier.load(model)
    assert classifier.index.kind == "faiss-flat" and classifier.head_start is None
    last = classifier.labels.keys[int(classifier.rank([TEXT], 155).rows[0, -1])]
    classifier.learn([TEXT], [last])
    assert first(classifier) == [last] and last in first(Classifier.load(model, index=False))


def with_ranker(model: Path, *, memory: bool) -> Classifier:
    texts = [*LABELS.values(), TEXT]
    settings = RankerSettings(candidates=3, memory=memory)
    features = TextFeatures.fit(texts, settings)
    count, loaded = len(LABELS), Classifier.load(model)
    weights = csr_array(np.random.default_rng(0).random((len(features), count), np.float32))
    remembered = Memory.of(torch.randn(4, 16), csr_array(np.eye(4, count, dtype=np.float32))) if memory else None
    ranker = Ranker(features, weights, np.zeros(count, np.float32), np.full(count, 3), settings, remembered, weight=0.5)
    return Classifier(loaded.towers, loaded.labels.catalogue(), loaded.vectors, ranker=ranker)


@pytest.mark.parametrize("memory", [False, True])
def test_it_works_with_a_ranker_and_probabilities_too(model: Path, memory: bool) -> None:
    classifier = with_ranker(model, memory=memory)
    scores = np.sort(np.random.default_rng(0).random((50, 5), np.float32))[:, ::-1].copy()
    held_out = HeldOut(scores, scores > 0.6, np.full(50, 5))
    classifier._live.calibration = fit_calibration(held_out, {})
    best, *_, last = first(classifier, k=5)
    before = {label.key: label.probability or 0 for label in classifier.predict([TEXT], k=5)[0]}
    classifier.learn([TEXT], [[last]], [[best]])
    after = {label.key: label.probability or 0 for label in classifier.predict([TEXT], k=5)[0]}
    assert [*after][:1] == [last] and [*after][-1:] == [best]
    assert after[last] > before[last] and after[best] < before[best] and after[last] >= max(before.values())


def test_pairs_that_are_excluded_stay_out(model: Path) -> None:
    classifier = taught(model)
    right = classifier.labels.row(first(classifier)[0])
    excluding = csr_array(([1.0], ([0], [right])), shape=(1, len(LABELS)))
    assert right not in classifier.rank([TEXT], 4, excluding).rows
    assert classifier.rank([TEXT], 1, examples=False).rows[0, 0] != right


def test_what_was_said_last_of_a_text_counts(model: Path) -> None:
    classifier = taught(model)
    right = first(classifier)
    classifier.learn([TEXT], [[]], [right])
    assert first(classifier) != right
    classifier.learn([TEXT], [right])
    assert first(classifier) == right and len(classifier.examples()) == 3


def test_other_processes_see_it_and_theirs_is_seen(model: Path) -> None:
    here = Classifier.load(model)
    assert ends_of(fork(lambda: taught(model, "theirs") and None)) == [0]
    assert here.refresh() and not here.refresh()
    assert [(one.text, one.note) for one in here.examples()] == [(TEXT, "theirs")] and here.examples()[0].time
    assert first(here) == first(Classifier.load(model)) == list(here.examples()[0].labels)
    other = Classifier.load(model)
    here.learn([FAR], ["f"])
    other.learn(["tax"], ["t"])  # takes in what it has not seen yet
    assert [one.text for one in other.examples()] == [TEXT, FAR, "tax"]


def test_undoing_takes_back_the_last_call_and_the_record_stays(model: Path) -> None:
    classifier = Classifier.load(model)
    before = classifier.predict([TEXT], k=5)
    classifier.learn([TEXT, FAR], ["d", "d"], note="wrong")
    classifier.learn(["tax"], ["t"])
    assert classifier.undo_examples() == 1 and classifier.undo_examples() == 2 and classifier.examples() == []
    assert classifier.predict([TEXT], k=5) == before
    with pytest.raises(BadInput, match="nothing to undo"):
        classifier.undo_examples()
    assert ask(database(model), "SELECT lesson, note, undoes FROM lessons") == [
        (1, "wrong", None), (2, "", None), (3, "", 2), (4, "", 1)
    ]  # fmt: skip
    assert Classifier.load(model).examples() == [] and verify(model) == []


def test_a_retired_label_does_not_count_until_it_is_back(model: Path) -> None:
    classifier = taught(model)
    right = first(classifier)
    classifier.retire_labels(right)
    assert first(classifier) != right and classifier.corrections is not None
    classifier.undo()
    assert first(classifier) == right


@pytest.mark.parametrize(
    ("texts", "labels", "wrong", "said"),
    [
        (["a"], [["f"], ["t"]], None, "1 texts, but 2 lists"),
        (["a", "b"], [["f"], ["nobody"]], None, "example 2: there is no label with the key 'nobody'"),
        (["a"], [["f"]], [["f"]], "names the label 'f' twice"),
        (["a"], [[]], None, "names 0 labels"),
        (["a"], [["f"] * 300], None, "300 labels; name 1 to 256"),
        (["a" * 10_001], [["f"]], None, "10,001 characters; 10,000 are the most"),
        (["a\x1b"], [["f"]], None, r"U\+001B, a control character"),
        ([" "], [["f"]], None, "is empty"),
    ],
)
def test_what_cannot_be_learnt_is_refused_and_leaves_nothing(
    texts: list[str], labels: list[list[str]], wrong: list[list[str]] | None, said: str, model: Path
) -> None:
    classifier = Classifier.load(model)
    with pytest.raises(BadInput, match=said):
        classifier.learn(texts, labels, wrong)
    assert classifier.examples() == [] and Classifier.load(model).examples() == [] and verify(model) == []


def test_a_transaction_that_fails_leaves_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(sqlite3.Connection):
        def executemany(self, *given: object) -> sqlite3.Cursor:
            super().executemany(*given)  # type: ignore[arg-type]
            raise OSError("the disk is gone")

    classifier, connect = Classifier.load(model), sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Failing))
    with pytest.raises(OSError, match="the disk is gone"):
        classifier.learn([TEXT], ["f"])
    monkeypatch.undo()
    assert classifier.examples() == [] and Classifier.load(model).examples() == []
    assert classifier.learn([TEXT], ["f"]) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lessons SET note = 'because'",
        "UPDATE examples SET text = 'another'",
        "UPDATE examples SET labels = '[1'",
        "UPDATE examples SET vector = zeroblob(32)",
        "UPDATE examples SET vector = zeroblob(31)",
        "DELETE FROM examples",
    ],
)
def test_an_altered_lesson_is_refused_by_its_number(statement: str, model: Path) -> None:
    taught(model)
    alter(database(model), statement)
    (found,) = verify(model)
    assert "lesson 1 does not follow the one before it" in found
    for load in (Classifier.load, open_examples):
        with pytest.raises(DamagedModel, match="lesson 1 does not follow"):
            load(model)


def test_more_examples_than_a_model_can_have_are_refused_but_undone_ones_do_not_count(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(model).undo_examples()
    taught(model)
    monkeypatch.setattr("umpteen.model.examples.MOST_EXAMPLES", 1)
    assert len(Classifier.load(model).examples()) == 1
    with pytest.raises(BadInput, match="at most 1 examples"):
        taught(model)
    monkeypatch.undo()
    taught(model)
    monkeypatch.setattr("umpteen.model.examples.MOST_EXAMPLES", 1)
    with pytest.raises(DamagedModel, match="more than 1 examples"):
        Classifier.load(model)


def test_a_database_of_an_older_format_is_refused_in_one_line(model: Path) -> None:
    alter(database(model), "PRAGMA user_version=1")
    with pytest.raises(
        DamagedModel, match=r"no database of this version of umpteen \(format 1, now 2\).*train it again"
    ):
        Classifier.load(model)


def test_saving_and_compacting_carry_the_examples_that_count(model: Path, tmp_path: Path) -> None:
    classifier = taught(model, "why")
    classifier.learn(["tax"], ["t"])
    classifier.undo_examples()
    classifier.add_labels({"n": "network of food"})
    classifier.save(tmp_path / "copy")
    compact(model)
    for folder in (tmp_path / "copy", model):
        found = Classifier.load(folder)
        assert found.examples() == classifier.examples() and first(found) == first(classifier)
        assert found.lessons == 1 and verify(folder) == [] and standing_in(folder) is not None


def test_a_model_that_learnt_while_another_was_trained_is_kept_aside(model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    stands = standing_in(model)
    taught(model)
    kept = Classifier.load(other).save(model, unless_changed=stands)
    assert kept is not None and len(Classifier.load(kept).examples()) == 1 and Classifier.load(model).examples() == []


def test_the_commands_learn_list_export_and_undo(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "corrections.csv"
    file.write_text('text,labels,wrong\nfish of law,f|t,l\n"tax, trade",t,\n', encoding="utf-8")
    assert command("learn", model, file, "--note", "by hand").out == "2 examples learnt; 2 in all\n"
    listed = json.loads(command("examples", "list", model, "--json").out)
    assert (
        listed["count"] == 2 and listed["examples"][1]["wrong"] == ["l"] and listed["examples"][0]["note"] == "by hand"
    )
    assert "+ f  + t  - l" in command("examples", "list", model).out
    out = tmp_path / "train.jsonl"
    assert command("examples", "export", model, out).code == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"text": "fish of law", "labels": ["f", "t"], "wrong": ["l"]}
    dataset = open_dataset(out)
    assert [dataset.labels.keys[row] for row in dataset.train.relevance.of(0)] == ["f", "t"]
    assert read_corrections(out, {"l"}, print)[0].wrong == ("l",)
    assert json.loads(command("examples", "undo", model, "--json").out) == {
        "model": str(model),
        "undone": 2,
        "count": 0,
    }
    refused(command("examples", "undo", model), "nothing to undo")
    file.write_text('{"text": "a"}\n', encoding="utf-8")
    refused(command("learn", model, file.rename(tmp_path / "corrections.jsonl")), "corrections.jsonl", "labels")


def corrections(path: Path, content: str) -> tuple[list[tuple[tuple[str, ...], ...]], list[str]]:
    """Right and wrong labels of each row, and what was told, where f, l and t are known."""
    told: list[str] = []
    path.write_text(content, encoding="utf-8")
    return [(one.labels, one.wrong) for one in read_corrections(path, {"f", "l", "t"}, told.append)], told


def test_corrections_are_parted_into_labels_that_the_model_knows(tmp_path: Path) -> None:
    csv, jsonl = tmp_path / "c.csv", tmp_path / "c.jsonl"
    assert corrections(csv, 'text,labels,wrong\na,"f,t",\n')[0] == [(("f", "t"), ())]
    assert corrections(csv, "text,labels,wrong\na,f,l;t\n")[0] == [(("f",), ("l", "t"))]
    found, told = corrections(csv, "body,tags,wrong\na,f|t,l\nb,t,\n")
    assert found == [(("f", "t"), ("l",)), (("t",), ())] and "labels in 'tags'" in told[0]
    assert corrections(csv, "text,wrong\na,l\n")[0] == [((), ("l",))]
    rows = '{"text": "a", "labels": []}\n{"text": "b", "labels": ["f"]}\n{"text": "c", "labels": []}\n'
    assert corrections(jsonl, rows) == ([(("f",), ())], ["2 rows name no label, and are passed over"])


def test_right_labels_need_not_be_given_where_some_are_wrong(model: Path) -> None:
    classifier = Classifier.load(model)
    assert classifier.learn([TEXT], wrong=["l"]) == 1
    assert (classifier.examples()[0].labels, classifier.examples()[0].wrong) == ((), ("l",))


def test_examples_become_training_data_with_labels_that_came_later(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "fish", "labels": ["f"]}\n{"text": "tax", "labels": ["t"]}\n', encoding="utf-8")
    classifier = Classifier.load(model)
    classifier.add_labels({"n": "network of food", "gone": "gone"})
    classifier.learn([TEXT, "nothing right", "gone"], [["n", "f"], [], ["gone"]], [[], ["t"], []])
    classifier.retire_labels(["gone"])
    folder, count = with_examples(open_dataset(data), model, tmp_path / "out")
    assert (folder, count) == with_examples(open_dataset(data), model, tmp_path / "out") and count == 1
    made = open_dataset(folder)
    assert dict(zip(made.labels.keys, made.labels.texts, strict=True)) == {"f": "f", "t": "t", "n": "network of food"}
    assert list(made.train.texts) == ["fish", "tax", TEXT]
    assert sorted(made.labels.keys[row] for row in made.train.relevance.of(2)) == ["f", "n"]
    classifier.undo_examples()
    with pytest.raises(BadInput, match="no examples with right labels"):
        with_examples(open_dataset(data), model, tmp_path / "out")


def test_a_text_that_train_has_gains_right_labels_and_loses_wrong_ones(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [("fish", ["f", "t"]), ("tax", ["t"]), ("book", ["l"])]
    lines = [{"text": text, "labels": labels, "weights": [0.5] * len(labels)} for text, labels in rows]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    classifier = Classifier.load(model)
    classifier.add_labels({"n": "network of food"})
    classifier.learn(["fish", "tax", "unseen"], [["d", "n"], [], []], [["t"], ["t"], ["l"]])
    folder, count = with_examples(open_dataset(data), model, tmp_path / "out")
    train = (Path(folder) / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert count == 1 and [json.loads(line) for line in train] == [
        {"text": "book", "labels": ["l"], "weights": [0.5]},
        {"text": "fish", "labels": ["f", "d", "n"], "weights": [0.5, 1.0, 1.0]},
        {"text": "tax", "labels": []},
    ]
    classifier.rename_labels({"n": "network"})
    other = open_dataset(with_examples(open_dataset(data), model, tmp_path / "out")[0])
    assert other.labels.texts[other.labels.row("n")] == "network"


def test_the_least_certain_answers_are_reviewed_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correcting, "TEXTS_AT_A_TIME", 2)
    texts = [*LABELS.values(), "fish and tax", TEXT]
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in [*texts, *texts]), encoding="utf-8")
    taught(model)
    found = review(Classifier.load(model), file, most=4)
    scores = Classifier.load(model).rank(texts[:-1], 5).scores
    gaps = np.sort((scores[:, :-1] - scores[:, 1:]).max(1))
    np.testing.assert_allclose([doubt.certainty for doubt in found], gaps[:4], atol=1e-6)
    assert TEXT not in [doubt.text for doubt in found]
    lines = [json.loads(line) for line in command("review", model, file, "--most", "2", "--json").out.splitlines()]
    assert [line["text"] for line in lines] == [doubt.text for doubt in found[:2]] and len(lines[0]["labels"]) == 5


def test_certainty_is_the_expected_share_of_right_decisions() -> None:
    scores = np.array([[0.9, 0.5, 0.1]], np.float32)

    class Calibrated:
        def probabilities(self, given: np.ndarray) -> np.ndarray:
            return given

    assert correcting.certainties(scores, Calibrated())[0] == pytest.approx((0.9 + 0.5 + 0.9) / 3)  # type: ignore[arg-type]
