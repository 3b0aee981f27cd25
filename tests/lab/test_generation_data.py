import numpy as np
import pytest
from lab.generation_data import Vocabulary, cut_in_two, folds, gives_away, prompts, read_vocabulary, true_labels

from umpteen.data.dataset import Dataset, Split, open_dataset
from umpteen.data.labels import LabelCatalogue, Relevance
from umpteen.errors import BadInput

LABELS = ["dog, domestic dog: a tame wolf", "animal: a living thing", "wolf: a wild dog; hunts in packs"]


def miniature() -> Dataset:
    """Test's *hound* is the label *dog* itself; a training noun has a validation noun's definition."""

    def split(texts: list[str], labels: list[list[int]], ignored: list[list[int]]) -> Split:
        return Split.of(texts, Relevance.from_lists(labels, 3), Relevance.from_lists(ignored, 3))

    return Dataset.of(
        "miniature",
        LabelCatalogue(["d", "a", "w"], LABELS),
        split(["pup: a young dog", "cub: a young wolf", "cur: a mongrel"], [[0, 1], [1, 2], [0]], [[], [], []]),
        split(["whelp: A young  dog"], [[0]], [[]]),
        split(["hound, domestic dog: a tame wolf; barks", "same: same"], [[0, 1], [1]], [[0], []]),
    )


@pytest.fixture(scope="module")
def bundled() -> Vocabulary:
    return read_vocabulary(open_dataset("wordnet-nouns"), validation=400, test=3000, seed=0)


def test_a_text_is_cut_at_its_first_colon_or_refused() -> None:
    assert cut_in_two("a, b: the first: and more") == ("a, b", "the first: and more")
    for text in ("no definition", ": nothing", "noun: "):
        with pytest.raises(BadInput, match="'noun: definition'"):
            cut_in_two(text)


def test_whatever_repeats_a_held_out_definition_is_taken_out_of_train_and_labels() -> None:
    vocabulary = read_vocabulary(miniature(), validation=9, test=9, seed=0)
    assert list(vocabulary.train.split.texts) == ["cub", "cur"]
    assert vocabulary.dropped == 1
    assert list(vocabulary.labels.texts) == ["dog, domestic dog", LABELS[1], LABELS[2]]
    assert vocabulary.cut_labels == 1
    assert vocabulary.test.definitions == ["a tame wolf; barks"]  # "same: same" gives itself away


def test_a_nouns_own_synset_is_neither_true_nor_shown_even_if_it_is_retrieved() -> None:
    test = read_vocabulary(miniature(), validation=9, test=9, seed=0).test
    tags = ["dog", "animal", "a Tame wolf indeed"]
    assert true_labels(test, [5, 9, 1], most=5) == [[1]]
    assert list(prompts(test, tags, [[0, 1, 2, -1]])) == ["Tags: animal. Noun: hound, domestic dog. Definition:"]
    assert list(prompts(test, tags, None)) == ["Noun: hound, domestic dog. Definition:"]


def test_true_tags_begin_with_the_rarest() -> None:
    train = read_vocabulary(miniature(), validation=9, test=9, seed=0).train
    assert true_labels(train, [4, 9, 2], most=1) == [[2], [0]]
    assert true_labels(train, [4, 9, 2], most=3) == [[2, 1], [0]]


def test_no_prompt_holds_the_definition_whatever_is_retrieved(bundled: Vocabulary) -> None:
    """The worst retriever there is: for each noun its own synset, and the labels whose tags its definition names."""
    for part in (bundled.test, bundled.validation):
        nouns = part.take([query for query in range(len(part)) if query % 5 == 0 or len(part.split.filtered.of(query))])
        worst = [
            [*nouns.split.filtered.of(query), *(row for row, tag in enumerate(bundled.tags) if tag in definition)]
            for query, definition in enumerate(nouns.definitions)
        ]
        assert sum(len(nouns.split.filtered.of(query)) for query in range(len(nouns))) > 10
        for prompt, definition in zip(prompts(nouns, bundled.tags, worst), nouns.definitions, strict=True):
            assert not gives_away(prompt, definition), (prompt, definition)


def test_no_encoder_reads_a_held_out_definition(bundled: Vocabulary) -> None:
    dataset = bundled.for_encoders("all")
    held_out = {text.partition(";")[0].strip().casefold() for text in bundled.test.definitions}
    assert bundled.cut_labels > 50
    for text in dataset.labels.texts:
        assert text.partition(": ")[2].casefold() not in held_out
    originals = {cut_in_two(text)[0] for text in open_dataset("wordnet-nouns").train.texts}
    assert set(dataset.train.texts) <= originals  # lemmas and nothing else
    assert dataset.validation is not None and not any(": " in text for text in dataset.validation.texts)
    assert not set(bundled.train.definitions) & set(bundled.test.definitions)


def test_limits_keep_so_many_nouns_and_the_seed_says_which() -> None:
    whole = open_dataset("wordnet-nouns")
    first, again, other = (read_vocabulary(whole, validation=20, test=30, seed=seed) for seed in (1, 1, 2))
    assert len(first.validation) <= 20 and 25 <= len(first.test) <= 30
    assert first.test.definitions == again.test.definitions != other.test.definitions


def test_folds_hold_every_row_once() -> None:
    parts = folds(11, 3, seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(11))
    assert [len(part) for part in parts] == [4, 4, 3]


def test_data_of_another_form_are_refused() -> None:
    dataset = miniature()
    with pytest.raises(BadInput, match="has no test split"):
        read_vocabulary(Dataset.of("x", dataset.labels, dataset.train), validation=1, test=1, seed=0)
