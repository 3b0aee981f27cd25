"""reverse-dictionary: a definition → the words that it defines, of WordNet and GCIDE.

Both define much the same words in words of their own, so many words have several definitions: some train, some test.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations

from lab.data.dictionaries import Definition, read_gcide, read_wordnet
from lab.data.made import Made, Queries, describe, in_drawn_order
from lab.data.packages import DEBIAN, Package
from umpteen.errors import BadInput

NEEDS = (
    (DEBIAN, "wordnet-base", "WordNet 3.0 licence: free use and copies, which must carry its notice"),
    (DEBIAN, "dict-gcide", "GPL-2 or later: what is made of it may be passed on under the same terms only"),
)
CORE = 10_000  # labels that all queries of a dataset made with `labels` have theirs among
TEST_SHARE = 0.1
MASK = "~"
SHARED = 20  # a text that defines more words than this defines none of them
LONGEST_TEXT, LONGEST_LABEL = 64, 8  # words: what is longer is a list or an essay, or a wrongly read line
ALIKE = 0.8  # of the fewer content words of two definitions of a word: so many shared, and they stay on one side

# What a definition can be full of and say nothing.
_EMPTY_WORDS = """
a an the of or and to in on at by for from with without as is are was be been being that which who whom whose this these
those it its one one's any some such not no so than then when where while into upon out up off over under also esp
especially usually often very more most other another etc used pertaining relating having made act state quality manner
if but may can will has have had he his she her they their them you your
"""
STOP_WORDS = frozenset(_EMPTY_WORDS.split())
_TOKEN = re.compile(r"[A-Za-z0-9]+(?:'[a-z]+)?")
_LABEL = re.compile(r"[^\[\]{};]*[a-z0-9][^\[\]{};]*")
_SUFFIX = re.compile(r"(?<=...)(?:'s|ing|ied|ies|ed|es|s)$")


@dataclass
class Query:
    text: str
    source: str
    labels: set[int]


def build(packages: Sequence[Package], labels: int | None) -> Made:
    """The whole of both dictionaries; with a number of labels, a part that is the same whatever the number."""
    words, queries, facts = gather(_definitions(*packages))
    test = hold_out(queries)
    if labels is None:
        used = sorted({label for row, query in enumerate(queries) if row not in test for label in query.labels})
        core = []
        rows = list(range(len(queries)))
    else:
        core = _core(queries)
        used = _with_distractors(core, words, labels)
        rows = _rows_within(queries, test, set(core))
    new_row = {label: row for row, label in enumerate(used)}
    train_side, test_side = Queries(), Queries()
    row_of = {_key(word): row for row, word in enumerate(words)}
    for row in rows:
        query = queries[row]
        side = test_side if row in test else train_side
        itself = row_of.get(_key(re.sub("^(?:an?|the|to) ", "", query.text.lower())))
        if itself in new_row and itself not in query.labels:
            side.ignored.append((len(side.texts), new_row[itself]))
        side.add(query.text, query.source, (new_row[label] for label in query.labels))
    names = [words[label] for label in used]
    facts |= {"test queries that share a word with a label": _sharing(test_side, names)}
    about = describe("reverse_dictionary", mask=MASK, core=len(core), longest=LONGEST_TEXT)
    return Made(names, names, train_side, test_side, facts, about)


def _definitions(wordnet: Package, gcide: Package) -> Iterator[Definition]:
    for data in wordnet.read(*(f"usr/share/wordnet/data.{part}" for part in ("noun", "verb", "adj", "adv"))):
        yield from read_wordnet(data)
    yield from read_gcide(*gcide.read("usr/share/dictd/gcide.index", "usr/share/dictd/gcide.dict.dz"))


def gather(definitions: Iterable[Definition]) -> tuple[list[str], list[Query], dict[str, int]]:
    """The words, and the queries that say what they mean with those words masked; equal texts are one query."""
    words, row_of = list[str](), dict[str, int]()
    by_text = dict[str, Query]()
    facts = Counter[str]()
    for source, defined, text in definitions:
        rows = set()
        for spelled in defined:
            word = _as_label(spelled, row_of)
            if _LABEL.fullmatch(word) and len(word.split()) <= LONGEST_LABEL:
                row = row_of.setdefault(_key(word), len(words))
                if row == len(words):
                    words.append(word)
                rows.add(row)
        masked = mask(text, [words[row] for row in rows])
        facts["definitions read"] += 1
        facts["definitions with a mask"] += MASK in masked
        if not rows or len(masked.split()) > LONGEST_TEXT:
            facts["definitions left out: too long, or of no word"] += 1
            continue
        if len(content(masked)) < (3 if MASK in masked else 2):
            facts["definitions left out: too little besides the word itself"] += 1
            continue
        query = by_text.setdefault(" ".join(re.findall("[a-z]+", masked.lower())), Query(masked, source, set()))
        query.labels |= rows
    queries = [query for query in by_text.values() if len(query.labels) <= SHARED]
    facts["texts left out: they define too many words"] = len(by_text) - len(queries)
    return words, queries, dict(facts)


def _as_label(word: str, known: dict[str, int]) -> str:
    """In lower case; "to give up" and "the dickens" of GCIDE are WordNet's "give up" and "dickens"."""
    word = " ".join(re.sub('["`*]', "", word.lower()).split()).strip(" ,.;:")  # without marks of pronunciation
    bare = re.sub(r"^(?:to|the) (?=\w)", "", word)
    return word if _key(word) in known else bare


def _key(word: str) -> str:
    """What spellings of one word share; the hyphen of an affix counts."""
    return re.sub(r"(?<=\w)[- ]+(?=\w)", "", word)


def mask(text: str, words: Iterable[str]) -> str:
    """The text without those of the words that it holds whole, be they inflected, derived or part of a longer one."""
    tokens = [(found.start(), found.end(), found[0]) for found in _TOKEN.finditer(text)]
    hidden = set[int]()
    for word in words:
        parts = [part.lower() for part in _TOKEN.findall(word)]
        parts = [part for part in parts if part not in STOP_WORDS] or parts
        places = [[at for at, token in enumerate(tokens) if _related(token[2].lower(), part)] for part in parts]
        if all(places):
            hidden.update(chain.from_iterable(places))
    for at in sorted(hidden, reverse=True):
        start, end, _ = tokens[at]
        text = text[:start] + MASK + text[end:]
    return re.sub(rf"{MASK}(?:[\s-]*{MASK})+", MASK, text)


@cache
def stem(word: str) -> str:
    """What the inflections of a word share, roughly: running, runs and run have one stem."""
    word = _SUFFIX.sub("", word)
    word = re.sub(r"(?<=..)[eyi]$", "", word).replace("bilit", "bl")
    return re.sub(r"(?<=..)([bcdfglmnprstvz])\1$", r"\1", word) if len(word) > 3 else word


def _related(one: str, other: str) -> bool:
    """Whether one stem is at least half of the other, or both begin alike for two thirds."""
    short, long = sorted((stem(one), stem(other)), key=len)
    if short == long or (len(short) >= 4 and 2 * len(short) >= len(long) and short in long):
        return True
    alike = max(5, -(-2 * len(long) // 3))
    return short[:alike] == long[:alike]


def content(text: str) -> set[str]:
    """The stems of the words that say something."""
    return {stem(word) for word in _TOKEN.findall(text.lower()) if word not in STOP_WORDS}


def hold_out(queries: Sequence[Query]) -> set[int]:
    """The rows of test; near-copies stay together, and every label of test keeps a training query."""
    left = Counter(label for query in queries for label in query.labels)
    test = set[int]()
    for group in in_drawn_order(_near_copies(queries), lambda group: queries[group[0]].text):
        own = Counter(label for row in group for label in queries[row].labels)
        if all(left[label] > count for label, count in own.items()):
            test.update(group)
            left.subtract(own)
        if len(test) >= TEST_SHARE * len(queries):
            break
    return test


def _near_copies(queries: Sequence[Query]) -> list[list[int]]:
    """All rows, those together that define a word in nearly the same words."""
    first = list(range(len(queries)))  # of the group: follow it until it points to itself

    def find(row: int) -> int:
        while first[row] != row:
            first[row] = row = first[first[row]]
        return row

    of_label = defaultdict[int, list[int]](list)
    for row, query in enumerate(queries):
        for label in query.labels:
            of_label[label].append(row)
    said = [content(query.text) for query in queries]
    for rows in of_label.values():
        for one, other in combinations(rows, 2):
            if len(said[one] & said[other]) >= ALIKE * min(len(said[one]), len(said[other])):
                low, high = sorted((find(one), find(other)))
                first[high] = low
    groups = defaultdict[int, list[int]](list)
    for row in range(len(queries)):
        groups[find(row)].append(row)
    return list(groups.values())


def _core(queries: Sequence[Query]) -> list[int]:
    """The words with most definitions."""
    counts = Counter(label for query in queries for label in query.labels)
    return sorted(sorted(counts, key=lambda label: (-counts[label], label))[:CORE])


def _rows_within(queries: Sequence[Query], test: set[int], core: set[int]) -> list[int]:
    """The queries with all labels in the core; of test, those whose labels keep a training query there."""
    rows = [row for row, query in enumerate(queries) if query.labels <= core]
    trained = {label for row in rows if row not in test for label in queries[row].labels}
    return [row for row in rows if row not in test or queries[row].labels <= trained]


def _with_distractors(core: Sequence[int], words: Sequence[str], count: int) -> list[int]:
    if not len(core) <= count <= len(words):
        raise BadInput(f"--labels {count}: from {len(core):,} to {len(words):,} are possible")
    others = set(range(len(words))) - set(core)
    return [*core, *in_drawn_order(sorted(others), lambda label: words[label])[: count - len(core)]]


def _sharing(side: Queries, names: Sequence[str]) -> int:
    return sum(
        any(content(text) & content(names[label]) for label in own)
        for text, own in zip(side.texts, side.labels, strict=True)
    )
