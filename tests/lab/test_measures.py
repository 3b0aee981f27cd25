"""What the experiments compute beyond training: each against a plain definition."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.bm25 import bm25
from lab.comparison import Outcomes
from lab.cutting import cut
from lab.deciles import contributions_by_pairs, deciles_by_pairs
from lab.gradients import choose_labels, feedback_of
from lab.new_labels import hold_out, recall
from lab.scores import count_scores, precision_recall, separation
from lab.similarity import ENCODER, gains
from scipy.sparse import csr_array
from sklearn.metrics import average_precision_score

import reference
from umpteen.data.dataset import Dataset, Split, open_dataset, write_native
from umpteen.data.labels import LabelCatalogue, Relevance
from umpteen.errors import BadInput
from umpteen.search.ranking import Ranking

NOTHING = csr_array((2, 4), dtype=np.float32)


def dataset_of(queries: list[list[int]], labels: int, test: list[list[int]] | None = None) -> Dataset:
    """Label i is called `word-i`, and a query holds the words of its labels."""

    def split(rows: list[list[int]]) -> Split:
        return Split.of(
            [" ".join(f"word-{i}" for i in row) or "none" for row in rows], Relevance.from_lists(rows, labels)
        )

    names = [f"word-{label}" for label in range(labels)]
    return Dataset.of("made", LabelCatalogue(names, names), split(queries), test=split(test or queries))


@pytest.mark.parametrize("decoupled", [True, False])
def test_feedback_is_the_gradient_of_the_objective_by_the_score_of_a_positive(decoupled: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    positives = [(0, 1), (0, 4), (0, 5), (1, 2), (2, 0), (2, 3)]
    # With unit vectors as labels, the vectors of queries are the scores themselves.
    problem = reference.Problem(scores, torch.eye(6, dtype=torch.float64), positives, reduction="sum")
    (reference.decoupled_softmax if decoupled else reference.softmax)(problem).backward()  # type: ignore[no-untyped-call]
    relevant = torch.zeros(3, 6, dtype=torch.bool)
    for query, label in positives:
        relevant[query, label] = True
    found = feedback_of(scores.detach(), relevant, decoupled=decoupled)
    assert scores.grad is not None
    torch.testing.assert_close(found[relevant], -3 * scores.grad[relevant])
    assert bool((found[relevant] >= 0).all()) or not decoupled


def test_watched_labels_are_those_their_queries_name_and_some_drawn() -> None:
    queries = [[label, (label + 1) % 8] for label in range(8)] * 2
    dataset = dataset_of(queries, 8)
    silent = Split.of(
        [text.replace("word-3", "x").replace("word-5", "x") for text in dataset.train.texts], dataset.train.relevance
    )
    chosen = choose_labels(Dataset.of("made", dataset.labels, silent), fewest=4)
    assert [text for _, text in chosen[:2]] == ["word-0", "word-1"]
    assert len({row for row, _ in chosen}) == 4
    with pytest.raises(BadInput, match="has 0 labels with 5 training queries"):
        choose_labels(dataset, fewest=5)


def test_bm25_is_its_formula() -> None:
    labels = ["red fish", "blue fish fish", "red red wine", "bread"]
    ranking = bm25(labels, ["red fish", "nothing known"], 3, NOTHING)
    mean = (2 + 3 + 3 + 1) / 4

    def score(label: str) -> float:
        words, total = label.split(), 0.0
        for word in ("red", "fish"):
            holding = sum(word in other.split() for other in labels)
            idf = math.log(1 + (len(labels) - holding + 0.5) / (holding + 0.5))
            count = words.count(word)
            total += idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(words) / mean))
        return total

    best = sorted(range(3), key=lambda row: -score(labels[row]))
    assert ranking.rows[0].tolist() == best
    assert ranking.scores[0] == pytest.approx([score(labels[row]) for row in best], rel=1e-5)
    assert ranking.rows[1].tolist() == [-1, -1, -1]
    excluded = csr_array(([1.0], ([0], [best[0]])), shape=(2, 4), dtype=np.float32)
    assert bm25(labels, ["red fish", "bread"], 2, csr_array(excluded)).rows[0].tolist() == best[1:]


def test_held_out_labels_are_nowhere_in_training_and_other_labels_keep_their_queries(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dataset = dataset_of([rng.choice(40, 3, replace=False).tolist() for _ in range(200)], 40)
    parts = hold_out(dataset, 0.25, seed=1)
    assert len(parts.unseen) == 10 and len(parts.rehearsed) > 0
    assert not set(parts.unseen) & set(parts.rehearsed)
    gone = {dataset.labels.keys[row] for row in (*parts.unseen, *parts.rehearsed)}
    assert set(parts.train.labels.keys) == set(dataset.labels.keys) - gone
    whole = dataset.with_validation(0.1, 1).train
    expected = sum(dataset.labels.keys[row] not in gone for row in whole.relevance.matrix.indices)
    assert parts.train.train.relevance.pairs == expected
    assert np.diff(parts.train.train.relevance.matrix.indptr).min() > 0
    assert hold_out(dataset, 0.25, seed=1).unseen.tolist() == parts.unseen.tolist()
    write_native(parts.train, tmp_path / "data")
    assert len(open_dataset(tmp_path / "data").labels) == len(parts.train.labels)


def test_an_empty_held_out_set_is_an_error() -> None:
    dataset = dataset_of([[0], [1], [2]] * 4, 3)
    with pytest.raises(BadInput, match=r"10% of the 3 labels of made's test queries are 0: the held-out set must not"):
        hold_out(dataset, 0.1, seed=0)


def test_recall_counts_the_asked_labels_only() -> None:
    split = dataset_of([[0, 1], [2], [3]], 4).train
    ranking = Ranking(np.array([[0, 3], [0, -1], [3, 2]], dtype=np.int32), np.zeros((3, 2), dtype=np.float32), 4)
    assert recall(ranking, split, np.array([0, 1])) == 50
    assert recall(ranking, split, np.array([1, 2, 3])) == pytest.approx(100 / 3, abs=1e-3)


def test_precision_recall_and_separation_are_those_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, labels = torch.randn(7, 4, generator=generator), torch.randn(9, 4, generator=generator)
    rows = [[0], [1, 2], [3], [8], [5, 6], [7], [0, 4]]
    split = Split.of([str(row) for row in rows], Relevance.from_lists(rows, 9), Relevance.from_lists([[8]] * 7, 9))
    scores = (queries @ labels.T).double().numpy()
    truth = np.zeros((7, 9), dtype=bool)
    for query, row in enumerate(rows):
        truth[query, row] = True
    kept = np.arange(9) != 8  # label 8 is filtered everywhere
    counts = count_scores(queries, labels, split)
    assert counts.positive.sum() == truth[:, kept].sum() and counts.negative.sum() == (~truth[:, kept]).sum()
    recalls, precision, average = precision_recall(counts)
    assert average == pytest.approx(average_precision_score(truth[:, kept].ravel(), scores[:, kept].ravel()), abs=1e-2)
    assert recalls[-1] == 1 and precision[-1] == pytest.approx(truth[:, kept].mean())
    positive, negative = scores[:, kept][truth[:, kept]], scores[:, kept][~truth[:, kept]]
    expected = (positive.mean() - negative.mean()) / np.sqrt((positive.var() + negative.var()) / 2)
    assert separation(counts) == pytest.approx(expected, abs=1e-2)


def test_gains_go_by_similarity_and_the_tail_alone_where_it_is_asked_for() -> None:
    outcomes = Outcomes(
        [
            {"variant": ENCODER, "seed": 0, "hits": [4, 2, 2, 6, 9, 9]}
            | {"similarity": [0.1, 0.5, 0.9, 0.2, 0.6, 0.95], "counts": [9, 9, 9, 9, 1, 5]},
            {"variant": "classifier", "seed": 0, "hits": [2, 2, 2, 3, 3, 0]},
        ]
    )
    found, fewest = gains(outcomes, "classifier", tail=False)
    assert found.tolist() == [[100.0, 120.0, 450.0]] and fewest == 2
    # Two tail labels in three bins: 200 % each where there is a hit of the classifier, and an empty bin.
    found, fewest = gains(outcomes, "classifier", tail=True)
    assert found.tolist() == [[200.0, 900.0, 0.0]] and fewest == 0


def test_a_cut_keeps_frequent_labels_and_queries_that_have_one() -> None:
    dataset = dataset_of([[0, 1], [0], [1], [2], [0, 3], [1, 4]], 5, test=[[0], [4], [1], [0]])
    part = cut(dataset, queries=3, labels=2)
    assert part.labels.keys == ["word-0", "word-1"] and len(part.train) == 3
    assert part.test is not None and len(part.test) == 2
    assert np.diff(part.train.relevance.matrix.indptr).min() > 0
    assert part.fingerprint == cut(dataset, queries=3, labels=2).fingerprint


def test_each_tenth_of_the_pairs_holds_as_many_of_them() -> None:
    counts = np.array([1, 10, 3, 5, 1])
    assert deciles_by_pairs(counts).tolist() == [9, 4, 8, 7, 9]  # pairs 1–10 of 20, 11–15, 16–18, 19, 20; rows by count
    even = np.full(40, 3)
    assert np.bincount(deciles_by_pairs(even)).tolist() == [4] * 10
    assert deciles_by_pairs(np.zeros(3, dtype=np.int64)).tolist() == [0, 0, 0]


def test_contributions_by_pairs_add_up_to_precision() -> None:
    truth = dataset_of([[0]], 6, test=[[0, 1, 5], [2], [3, 4]]).test
    assert truth is not None
    rows = np.array([[0, 1, 2, 3, 4], [2, 0, 1, 3, 4], [0, 1, 2, 5, 3]], dtype=np.int32)
    ranking = Ranking(rows, -np.arange(15, dtype=np.float32).reshape(3, 5), 6)
    found = contributions_by_pairs(ranking, truth, np.array([50, 20, 10, 10, 5, 5]))
    assert sum(found) == pytest.approx(100 * 4 / 15, abs=1e-3)  # of 15 answers, 0, 1, 2 and 3 are right
    assert found[4] == found[6] == found[7] == found[8] == pytest.approx(100 / 15, abs=1e-3)
