"""The made-up dataset of the t* experiment: random words, and one word that names its label."""

from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import LabelCatalogue, Relevance
from umpteen.encoders.folder import TOKENIZER_FILE, TextTokenizer, locate

STAR_LABELS = 5  # the labels of a query with t*; only the first of them has t* in its text


@dataclass(frozen=True)
class Sizes:
    queries: int
    star_queries: int  # the first of them begin with t*
    labels: int
    test_queries: int
    words: int  # in a text


def whole_words(source: str) -> list[str]:
    """The words of a model's vocabulary that its tokenizer keeps whole, in alphabetical order."""
    vocabulary = Tokenizer.from_file(str(locate(source, weights=False) / TOKENIZER_FILE)).get_vocab()
    words = sorted(word for word in vocabulary if len(word) > 2 and word.isascii() and word.isalpha())
    pieces = TextTokenizer.load(source, max_length=8, special_tokens=False)(words)
    return [word for word, ids in zip(words, pieces, strict=True) if ids == [vocabulary[word]]]


def make_dataset(sizes: Sizes, words: list[str], seed: int) -> Dataset:
    """Random texts by seed. New queries with t* are drawn twice: validation is watched, test is looked at once.

    The paper leaves two things open. A query without t* carries one label, drawn from those that queries with t* do
    not carry; and t* stands nowhere but where it is put.
    """
    random = np.random.default_rng(seed)
    star, *others = random.permutation(words).tolist()

    def texts(count: int) -> list[list[str]]:
        rows: list[list[str]] = random.choice(others, (count, sizes.words)).tolist()
        return rows

    labels, train, watched = texts(sizes.labels), texts(sizes.queries), texts(sizes.test_queries)
    labels[0].append(star)
    drawn = random.integers(STAR_LABELS, sizes.labels, sizes.queries - sizes.star_queries)
    tagged = [list(range(STAR_LABELS))] * sizes.star_queries + [[label] for label in drawn.tolist()]
    test = texts(sizes.test_queries)
    for query in (*train[: sizes.star_queries], *watched, *test):
        query[0] = star
    new = [
        Split.of([" ".join(query) for query in some], Relevance.from_lists([[0]] * len(some), sizes.labels))
        for some in (watched, test)
    ]
    return Dataset.of(
        f"token-star-{seed}",
        LabelCatalogue([f"label-{row}" for row in range(sizes.labels)], map(" ".join, labels)),
        Split.of([" ".join(query) for query in train], Relevance.from_lists(tagged, sizes.labels)),
        validation=new[0],
        test=new[1],
    )
