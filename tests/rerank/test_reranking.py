"""`umpteen rerank fit` and `remove`: the model folder gets a ranker whole or stays as it was."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy.sparse import csr_array

from miniature import KEYS, command, files_of, flip_a_byte, listing, part_of, refused, trained, write_miniature
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.errors import BadInput, DamagedModel
from umpteen.model import rerank as reranking
from umpteen.model.classifier import Classifier, verify
from umpteen.model.evaluate import evaluate_model
from umpteen.model.rerank import fit_ranker, remove_ranker
from umpteen.rerank import fit as fitting
from umpteen.rerank.features import RankerSettings
from umpteen.rerank.memory import Memory
from umpteen.rerank.ranker import Ranker
from umpteen.search.index import Effort
from umpteen.search.ranking import Ranking

SETTINGS = RankerSettings(candidates=7)
TEXTS = ["law of fish and tax", "the dog in the tree", "network of book 7"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ and a model/ that has no ranker."""
    folder = tmp_path_factory.mktemp("plain")
    trained(folder)
    return folder


@pytest.fixture
def home(plain: Path, tmp_path: Path) -> Path:
    shutil.copytree(plain, tmp_path, dirs_exist_ok=True)
    return tmp_path


def data_of(home: Path) -> Dataset:
    return open_dataset(home / "data")


def test_a_fitted_model_ranks_as_its_parts_say_and_is_whole(home: Path) -> None:
    before = listing(home / "model")
    ranker, trials = fit_ranker(home / "model", data_of(home), SETTINGS)
    assert verify(home / "model") == []
    assert not (home / "model.ranker").exists()
    after, alters = listing(home / "model"), {"README.md", f"{files_of(home / 'model').name}.db"}
    assert all(after[name] == content for name, content in before.items() if name not in alters)
    card = (home / "model" / "README.md").read_text().partition("## Ranker")[2]
    assert ranker.report is not None
    first, (low, high) = (ranker.report[of]["P@1"] for of in ("metrics", "intervals"))
    assert f"- as it answers: P@1 {first:.2f} [{low:.2f}, {high:.2f}], P@5 " in card

    best = max(trials, key=lambda trial: trial.mean)
    chosen = (ranker.weight, ranker.votes, ranker.rare, ranker.settings.neighbours, ranker.settings.similarity)
    assert chosen == best[:5] and trials[0].weight == 0.0
    assert {0.0, 1.0} < {trial.votes for trial in trials}  # each alone, and both together

    with_it, without = Classifier.load(home / "model"), Classifier.load(home / "model", ranker=False)
    assert with_it.report is not None and without.report is not None  # each says what it answers like
    assert with_it.report.metrics["P@1"] == pytest.approx(best.metrics["P@1"])
    assert without.report.metrics["P@1"] == pytest.approx(trials[0].metrics["P@1"])
    assert with_it.ranker is not None and without.ranker is None
    dense = without.rank(TEXTS, 10)
    vectors = without.towers.query.encode(TEXTS)
    margins = ranker.margins(TEXTS, dense.rows)
    np.testing.assert_allclose(with_it.ranker.margins(TEXTS, dense.rows), margins, rtol=1e-5, atol=1e-6)
    both = [one.scores(margins, margins, dense.rows) for one in (with_it.ranker, ranker)]
    np.testing.assert_array_equal(*both)
    fused = with_it.rank(TEXTS, 10)
    np.testing.assert_array_equal(fused.rows, ranker.rerank(TEXTS, vectors, dense).rows)
    np.testing.assert_array_equal(fused.rows[:, 7:], dense.rows[:, 7:])  # beyond the candidates
    np.testing.assert_array_equal(with_it.rank(TEXTS, 3).rows, fused.rows[:, :3])


def test_a_classifier_saved_again_keeps_its_ranker(home: Path) -> None:
    fit_ranker(home / "model", data_of(home), RankerSettings(candidates=7, characters=(2, 3)), weight=0.4)
    loaded = Classifier.load(home / "model")
    assert loaded.report is None  # nobody has judged it with this weight
    loaded.save(home / "again")
    again = Classifier.load(home / "again")
    assert verify(home / "again") == []
    np.testing.assert_array_equal(again.rank(TEXTS, 5).rows, loaded.rank(TEXTS, 5).rows)
    np.testing.assert_allclose(again.rank(TEXTS, 5).scores, loaded.rank(TEXTS, 5).scores, rtol=1e-5, atol=1e-6)
    assert "by hand" in (home / "again" / "README.md").read_text()
    assert again.ranker is not None and again.ranker.memory is not None and again.ranker.memory.texts is not None
    kept = list(again.ranker.memory.texts)
    assert len(kept) == len(again.ranker.memory.vectors) and set(kept) <= set(data_of(home).train.texts)


def test_a_flipped_byte_of_the_ranker_is_found(home: Path) -> None:
    fit_ranker(home / "model", data_of(home), SETTINGS)
    flip_a_byte(part_of(home / "model", "ranker") / "weights.safetensors")
    assert "weights.safetensors" in verify(home / "model")[0]
    flip_a_byte(part_of(home / "model", "ranker") / "weights.safetensors")
    assert verify(home / "model") == []
    flip_a_byte(part_of(home / "model", "ranker") / "vocabulary.json")
    with pytest.raises(DamagedModel, match=r"vocabulary\.json"):
        Classifier.load(home / "model")


def test_a_neighbour_named_like_the_unfinished_fit_is_refused_and_left_alone(home: Path) -> None:
    (home / "model.ranker").mkdir()
    (home / "model.ranker" / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"model\.ranker is in the way.*move it away"):
        fit_ranker(home / "model", data_of(home), SETTINGS)
    assert listing(home / "model.ranker") == {"thesis.txt": b"mine"}


def test_a_killed_fit_leaves_the_model_alone_goes_on_and_ends_the_same(home: Path) -> None:
    before = listing(home / "model")
    with mock.patch.object(fitting, "_SMALLEST_BLOCK", 4):
        real, solved = fitting.solve_block, []

        def dies(*arguments: object) -> object:
            if len(solved) == 1:
                raise KeyboardInterrupt
            solved.append(arguments)
            return real(*arguments)  # type: ignore[arg-type]

        with mock.patch.object(fitting, "solve_block", dies), pytest.raises(KeyboardInterrupt):
            fit_ranker(home / "model", data_of(home), SETTINGS)
        assert listing(home / "model") == before and (home / "model.ranker").is_dir()
        shutil.copytree(home / "model", home / "other")
        with mock.patch.object(reranking, "top_k", wraps=reranking.top_k) as searched:
            resumed, _ = fit_ranker(home / "model", data_of(home), SETTINGS)
        assert searched.call_count == 1  # validation's only: the candidates were there
        straight, _ = fit_ranker(home / "other", data_of(home), SETTINGS)
    assert (resumed.weights != straight.weights).nnz == 0 and resumed.weight == straight.weight
    assert listing(part_of(home / "model", "ranker")) == listing(part_of(home / "other", "ranker"))


def test_what_was_begun_with_other_settings_is_not_used(home: Path) -> None:
    with mock.patch.object(reranking, "fit_weights", side_effect=KeyboardInterrupt) as dies:
        for settings, found in ((SETTINGS, False), (SETTINGS, True), (RankerSettings(candidates=6), False)):
            old = home / "model.ranker" / "weights-000000000000.safetensors"
            dies.side_effect = [KeyboardInterrupt]
            with pytest.raises(KeyboardInterrupt):
                fit_ranker(home / "model", data_of(home), settings)
            assert old.exists() == found
            old.write_bytes(b"old")


def test_removing_brings_the_old_model_back(home: Path) -> None:
    before = listing(home / "model")
    fit_ranker(home / "model", data_of(home), SETTINGS)
    remove_ranker(home / "model")
    assert verify(home / "model") == []
    after = listing(home / "model")
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in before if not name.endswith(".db") or "/" in name)
    refused(command("rerank", "remove", home / "model"), "no ranker")


def test_filtered_pairs_are_no_candidates_and_no_positives(home: Path) -> None:
    data = data_of(home)
    kept: list[np.ndarray] = []
    real = reranking.fit_weights

    def look(samples: reranking.Samples, *arguments: object, **named: object) -> object:
        kept.append(samples.matrix("relevant").toarray())
        for label, (positives, negatives) in enumerate(samples.of_labels(0, len(data.labels))):
            filtered = train.filtered.matrix.toarray() > 0
            assert filtered.any()
            assert not filtered[negatives, label].any()
            assert not filtered[positives, label].any()
            assert not (train.relevance.matrix.toarray()[negatives, label] > 0).any()
        return real(samples, *arguments, **named)  # type: ignore[arg-type]

    train = data.with_validation(0.1, 0).train
    with mock.patch.object(reranking, "fit_weights", look):
        fit_ranker(home / "model", data, SETTINGS)
    assert kept[0].shape == (len(train), len(data.labels))


def test_the_command_fits_judges_and_predicts(home: Path) -> None:
    outcome = command(
        "rerank", "fit", home / "model", "--data", home / "data", "--set", "candidates=7", "--jobs", "1", "--json"
    )
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert told["candidates"] == 7 and len(told["trials"]) > 1 + len(reranking.WEIGHTS) * len(reranking.RARES)
    texts = len(data_of(home).with_validation(0.1, 0).train)
    assert told["remembered_texts"] == (texts if told["votes"] else 0)
    chosen = max(told["trials"], key=lambda trial: sum(trial["metrics"].values()))
    assert told["weight"] == chosen["weight"]

    def judged(*flags: str) -> dict[str, float]:
        judged = command("evaluate", home / "model", home / "data", "--json", "--at", "1", "--at", "5", *flags)
        assert judged.code == 0, judged.err
        metrics: dict[str, float] = json.loads(judged.out)["metrics"]
        return metrics

    classifier, data = Classifier.load(home / "model"), data_of(home)
    assert data.test is not None
    ranking = classifier.rank(list(data.test.texts), 5, excluding=data.test.filtered.matrix)
    first = np.mean([row in data.test.relevance.of(query) for query, row in enumerate(ranking.rows[:, 0])])
    assert judged()["P@1"] == pytest.approx(100 * first)

    fit_ranker(home / "model", data_of(home), SETTINGS, weight=0.5, rare=0.1)  # over the first one
    dense = json.loads(command("predict", home / "model", TEXTS[0], "--json", "--no-ranker").out)
    fused = json.loads(command("predict", home / "model", TEXTS[0], "--json").out)
    assert [label["score"] for label in dense["labels"]] != [label["score"] for label in fused["labels"]]
    assert {label["key"] for label in fused["labels"]} <= set(KEYS)
    assert judged("--no-ranker").keys() == judged().keys()


def test_a_model_with_few_labels_has_all_of_them_looked_at(home: Path) -> None:
    fitted, _ = fit_ranker(home / "model", data_of(home), RankerSettings(), weight=0.5)
    assert fitted.settings.candidates == 10
    assert len(Classifier.load(home / "model").predict(TEXTS, k=10)[0]) == 10


def test_what_cannot_be_is_refused(home: Path) -> None:
    model, data = home / "model", home / "data"
    refused(
        command("rerank", "fit", model, "--data", data, "--set", "candidates=5", "--set", "costs=1"), "costs", "cost"
    )
    few = ("--set", "candidates=5", "--jobs", "1")
    refused(command("rerank", "fit", model, "--data", data, *few, "--set", "min_texts=1000"), "no n-gram")
    other = home / "other-data"
    shutil.copytree(data, other)
    with (other / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": "one more", "labels": [KEYS[0]], "ignore": []}) + "\n")
    refused(command("rerank", "fit", model, "--data", other, *few), "not what the model was trained on", "--weight")


def test_a_model_fitted_on_everything_needs_a_weight(tmp_path: Path) -> None:
    model = trained(tmp_path, "data.fit_on=train+validation")
    asked = ("rerank", "fit", model, "--data", tmp_path / "data", "--set", "candidates=5", "--jobs", "1")
    refused(command(*asked), "fitted on validation", "--weight")
    outcome = command(*asked, "--weight", "0.35")
    assert outcome.code == 0, outcome.err
    ranker = Classifier.load(model).ranker
    assert isinstance(ranker, Ranker) and ranker.weight == 0.35 and ranker.rare == reranking.USUAL_RARE
    fitted, trials = fit_ranker(model, open_dataset(tmp_path / "data"), SETTINGS, weight=0.35, rare=0.1)
    assert fitted.rare == 0.1 and trials == []


def test_votes_that_are_given_are_kept_and_a_memory_that_nobody_asks_is_not(home: Path) -> None:
    fitted, trials = fit_ranker(home / "model", data_of(home), SETTINGS, votes=0.4)
    assert {trial.votes for trial in trials[1:]} == {0.4} and fitted.votes in (0.0, 0.4)
    fitted, _ = fit_ranker(home / "model", data_of(home), RankerSettings(candidates=7, memory=False))
    assert fitted.memory is None and Classifier.load(home / "model").ranker is not None


def test_a_ranker_can_be_fitted_on_data_as_it_was_opened(tmp_path: Path) -> None:
    """Nothing filtered, nothing held out: the dataset's own arrays, which nobody may write to."""
    for file in write_miniature(tmp_path / "data").glob("t*.jsonl"):
        lines = [json.loads(line) | {"ignore": []} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = trained(tmp_path, "data.fit_on=train+validation")
    data = open_dataset(tmp_path / "data")
    before = data.train.relevance.matrix.toarray()
    fitted, _ = fit_ranker(model, data, SETTINGS, weight=0.5)
    assert fitted.memory is not None and fitted.memory.labels.nnz == np.count_nonzero(before)
    np.testing.assert_array_equal(data.train.relevance.matrix.toarray(), before)


def test_saving_a_model_with_a_ranker_keeps_the_encoder_s_own_report(home: Path) -> None:
    alone = Classifier.load(home / "model").report
    fit_ranker(home / "model", data_of(home), SETTINGS)
    Classifier.load(home / "model").save(home / "again")
    remove_ranker(home / "again")
    again = Classifier.load(home / "again").report
    assert alone is not None and again is not None and again.metrics == alone.metrics


def test_a_memory_of_other_vectors_is_refused_by_name(home: Path) -> None:
    fitted, _ = fit_ranker(home / "model", data_of(home), SETTINGS, weight=0.5)
    assert fitted.memory is not None
    with pytest.raises(DamagedModel, match="rerank fit"):
        fitted.memory.require(3)


def test_a_large_memory_has_an_index_that_all_answers_use(home: Path) -> None:
    settings = RankerSettings(candidates=10, sparse=False, neighbours=5, index_from=20)
    fit_ranker(home / "model", data_of(home), settings, weight=0.9)
    loaded = Classifier.load(home / "model")
    assert loaded.ranker is not None and loaded.ranker.memory is not None and loaded.ranker.memory.index is not None
    assert loaded.ranker.describe()["neighbours_found"] >= 0.95
    assert "neighbours found: " in (home / "model" / "README.md").read_text()
    loaded.ranker.memory.index.effort = Effort(5, 1, 60)  # all texts
    exact = replace(loaded.ranker, memory=replace(loaded.ranker.memory, index=None))
    dense, vectors = Classifier.load(home / "model", ranker=False).rank(TEXTS, 10), loaded.towers.query.encode(TEXTS)
    found, expected = loaded.rank(TEXTS, 10), exact.rerank(TEXTS, vectors, dense)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    last = KEYS[int(found.rows[0, -1])]
    loaded.learn([TEXTS[0]], [[last]])
    assert loaded.predict(TEXTS[:1], k=1)[0][0].key == last  # at once
    loaded.save(home / "again")
    again = Classifier.load(home / "again", light=True)
    assert again.ranker is not None and again.ranker.memory is not None and again.ranker.memory.index is not None
    assert verify(home / "again") == [] and again.predict(TEXTS[:1], k=1)[0][0].key == last
    flip_a_byte(part_of(home / "model", "ranker") / "index.faiss")
    assert "index.faiss" in verify(home / "model")[0]


@pytest.mark.parametrize("left_out", ["sparse", "memory"])
def test_n_grams_or_memory_alone_put_labels_in_order(left_out: str, home: Path) -> None:
    settings = RankerSettings.of({"candidates": 7, left_out: False})
    fitted, trials = fit_ranker(home / "model", data_of(home), settings)
    assert verify(home / "model") == []
    assert {trial.votes for trial in trials} == {1.0 if left_out == "sparse" else 0.0}
    loaded = Classifier.load(home / "model")
    assert loaded.ranker is not None and (loaded.ranker.memory is None) == (left_out == "memory")
    assert (loaded.ranker.weights.nnz == 0) == (left_out == "sparse")
    dense = Classifier.load(home / "model", ranker=False).rank(TEXTS, 10)
    expected = fitted.rerank(TEXTS, loaded.towers.query.encode(TEXTS), dense)
    np.testing.assert_array_equal(loaded.rank(TEXTS, 10).rows, expected.rows)
    loaded.add_labels({"new": TEXTS[1]})
    place = {
        name: [label.key for label in one.predict([TEXTS[1]], k=10)[0]].index("new")
        for name, one in (("alone", Classifier.load(home / "model", ranker=False)), ("ranked", loaded))
    }
    assert place["ranked"] <= 2 * place["alone"]  # nobody votes for it, and it keeps its place


def test_a_model_that_is_judged_by_its_training_texts_lets_none_vote_for_itself(home: Path) -> None:
    settings = RankerSettings(candidates=10, sparse=False, neighbours=5)
    fit_ranker(home / "model", data_of(home), settings, weight=1.0)
    classifier, train = Classifier.load(home / "model"), data_of(home).train
    ranker, filtered = classifier.ranker, train.filtered.matrix
    assert ranker is not None and ranker.memory is not None and ranker.memory.texts is not None
    _, judged = evaluate_model(classifier, data_of(home), "train", at=(1, 5))
    dense = Classifier.load(home / "model", ranker=False).rank(train.texts, 10, filtered)
    vectors = classifier.towers.query.encode(list(train.texts))
    for query, text in enumerate(train.texts):
        others = [row for row, kept in enumerate(ranker.memory.texts) if kept != text]
        memory = Memory(ranker.memory.vectors[others], csr_array(ranker.memory.labels[others]))
        own = Ranking(dense.rows[query : query + 1], dense.scores[query : query + 1], dense.labels)
        expected = replace(ranker, memory=memory).rerank([text], vectors[query : query + 1], own)
        np.testing.assert_allclose(judged.scores[query], expected.scores[0, :5], atol=1e-5)
    by_itself = classifier.rank(train.texts, 5, filtered)  # as who asks is answered
    assert (by_itself.scores[:, 0] > judged.scores[:, 0] + 1e-3).any()
    answered = classifier.rank(data_of(home).test.texts, 5, data_of(home).test.filtered.matrix)
    np.testing.assert_array_equal(evaluate_model(classifier, data_of(home), at=(5,))[1].rows, answered.rows)


def test_training_texts_that_are_not_kept_cannot_be_left_out_and_this_is_said(home: Path) -> None:
    fit_ranker(home / "model", data_of(home), RankerSettings(candidates=7, keep_texts=False), weight=0.5)
    refused(command("evaluate", home / "model", home / "data", "--split", "train"), "keep_texts=true", "--no-ranker")
    assert command("evaluate", home / "model", home / "data").code == 0
