import json

from umpteen.data.dataset import Dataset, Split
from umpteen.data.describe import Described, describe, lines_of
from umpteen.data.labels import LabelCatalogue, Relevance
from umpteen.data.texts import Texts

LABELS = LabelCatalogue(["a", "b", "c", "d"], ["cat", "dog", "cat", "the long fish"])


def split(texts: list[str], relevant: list[list[int]], filtered: list[list[int]] | None = None) -> Split:
    nothing: list[list[int]] = [[] for _ in texts]
    return Split(Texts.of(texts), Relevance.from_lists(relevant, 4), Relevance.from_lists(filtered or nothing, 4))


def dataset(train: Split, test: Split | None = None) -> Dataset:
    return Dataset.of("little", LABELS, train, test=test)


def finding(described: Described, kind: str, part: str) -> Described:
    (found,) = (one for one in described["suspicious"] if (one["kind"], one["split"]) == (kind, part))
    assert isinstance(found, dict)
    return found


def rows(found: Described) -> list[int]:
    return [example["row"] for example in found["examples"]]


def test_sizes_frequencies_and_lengths_are_counted() -> None:
    train = split(["one two three", "one", "one two"], [[0, 1, 3], [0], [0, 1]], [[2], [], []])
    found = describe(dataset(train))
    summary = found["splits"]["train"]
    assert [summary[name] for name in ("queries", "pairs", "ignored_pairs", "graded")] == [3, 6, 1, False]
    assert summary["labels_per_query"] == {"min": 1, "median": 2, "mean": 2, "max": 3}
    words = summary["words"]
    assert words["mean"] == 2 and words["percentiles"]["50"] == 2 and words["max"] == 3
    labels = found["labels"]
    spread = labels["queries_per_label"]
    assert (labels["count"], spread["min"], spread["max"], spread["mean"]) == (4, 0, 3, 1.5)
    assert (labels["share_without_queries"], labels["share_rare"]) == (0.25, 1.0)
    assert labels["words"]["max"] == 3


def test_every_suspicious_thing_is_found_with_its_row() -> None:
    train = split(["x y", "y", "cat", "x z"], [[0], [1], [], [0]])
    test = split(["new", "x z", "x y", "x z"], [[0], [], [1], [1]])
    found = describe(dataset(train, test))
    assert rows(finding(found, "rows_without_labels", "train")) == [3]
    assert rows(finding(found, "rows_without_labels", "test")) == [2]
    assert rows(finding(found, "labels_without_rows", "labels")) == [3, 4]
    duplicates = finding(found, "duplicate_label_texts", "labels")
    assert (duplicates["count"], duplicates["of"], rows(duplicates)) == (1, 4, [3])
    assert "'c' has the text of 'a': 'cat'" in duplicates["examples"][0]["shown"]
    repeated = finding(found, "texts_in_train", "test")
    assert (repeated["count"], rows(repeated)) == (3, [2, 3, 4])
    assert repeated["examples"][0]["shown"] == "train row 4: 'x z'"
    assert rows(finding(found, "queries_that_are_labels", "train")) == [3]


def test_queries_that_are_labels_are_suspicious_if_they_neither_have_nor_ignore_one() -> None:
    texts = ["cat", "cat", "cat", "dog", "no label"]
    found = describe(dataset(split(texts, [[1], [0], [1], [1], [0]], [[0, 2], [2], [0], [], []])))
    same = finding(found, "queries_that_are_labels", "train")
    # 1: both cats ignored; 2: one right, one ignored; 3: the second cat is neither; 4: dog is a right answer.
    assert (same["count"], rows(same)) == (1, [3]) and "label 'c': 'cat'" in same["examples"][0]["shown"]


def test_people_read_only_what_was_found_and_machines_read_everything() -> None:
    found = describe(dataset(split(["x", "cat"], [[0, 1], [2, 3]])))
    lines = "\n".join(lines_of(found))
    assert "labels with the text of an earlier label: 1 of 4" in lines
    assert "row 2: label 'a': 'cat'" in lines
    assert "without a label" not in lines
    restored = json.loads(json.dumps(found))
    assert restored["splits"]["train"]["queries"] == 2
    assert "rows_without_labels" in {one["kind"] for one in restored["suspicious"] if one["count"] == 0}


def test_a_clean_dataset_has_nothing_suspicious() -> None:
    labels = LabelCatalogue(["a", "b"], ["cat", "dog"])
    train = Split(Texts.of(["x"]), Relevance.from_lists([[0, 1]], 2), Relevance.empty(1, 2))
    assert lines_of(describe(Dataset.of("clean", labels, train)))[-1] == "suspicious  nothing"
