"""Rebuild the bundled dataset wordnet-nouns, byte for byte, from WordNet 3.0's data.noun.

    python scripts/build_wordnet_nouns.py /usr/share/wordnet/data.noun src/umpteen/data/bundled/wordnet-nouns
    python scripts/build_wordnet_nouns.py /usr/share/wordnet/data.noun wordnet-nouns-full --full

A noun synset is a query; its labels are its broader concepts. Debian ships the file in wordnet-base.
"""

import argparse
import gzip
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

DATA_NOUN_SHA256 = "fea17d2f9656611334eac790e5d69e47645fa180c4aa481fb4cd9b3520754ca2"  # wordnet-base 1:3.0-37
HYPERNYM = ("@", "@i")  # a kind of; an instance of
TOPIC = (";c",)

DRAWN = 15_000
DRAW_SEED = 1
SPLIT_SEED = 42
TEST_SHARE = 0.2
FULL_TEST_SHARE = 0.1
TOO_BROAD = 0.1  # share of all synsets below a concept that says nothing any more
LEAST_TRAINING_QUERIES = 2


@dataclass(frozen=True)
class Synset:
    """One meaning: its lemmas, its gloss, and the noun synsets it points to."""

    lemmas: tuple[str, ...]
    gloss: str
    hypernyms: tuple[str, ...]
    topics: tuple[str, ...]

    def as_query(self) -> str:
        return f"{', '.join(self.lemmas)}: {self.gloss}"

    def as_label(self) -> str:
        return f"{', '.join(self.lemmas)}: {self.gloss.split(';')[0].strip()}"


def parse(line: str) -> tuple[str, Synset]:
    """A line of data.noun reads: offset file type, lemma count (hex), lemmas, pointer count, pointers | gloss."""
    head, gloss = line.split(" | ", 1)
    fields = head.split()
    lemma_count = int(fields[3], 16)
    lemmas = tuple(lemma.replace("_", " ") for lemma in fields[4 : 4 + 2 * lemma_count : 2])
    pointers_at = 4 + 2 * lemma_count
    pointers = fields[pointers_at + 1 : pointers_at + 1 + 4 * int(fields[pointers_at])]

    def noun_targets(symbols: tuple[str, ...]) -> tuple[str, ...]:
        kinds, offsets, parts_of_speech = pointers[0::4], pointers[1::4], pointers[2::4]
        found = zip(kinds, offsets, parts_of_speech, strict=True)
        return tuple(offset for kind, offset, part_of_speech in found if kind in symbols and part_of_speech == "n")

    return fields[0], Synset(lemmas, gloss.strip(), noun_targets(HYPERNYM), noun_targets(TOPIC))


def read(path: Path) -> tuple[str, dict[str, Synset]]:
    """The licence, which stands in the indented and numbered lines at the head, and the synsets in file order."""
    licence: list[str] = []
    synsets: dict[str, Synset] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("  "):
                licence.append(line.strip().partition(" ")[2])
            else:
                key, synset = parse(line)
                synsets[key] = synset
    return "\n".join(licence) + "\n", synsets


def broader(key: str, synsets: dict[str, Synset]) -> set[str]:
    """All hypernyms, however far up, and the topics of the synset and of its hypernyms."""
    hypernyms: set[str] = set()
    to_visit = [key]
    while to_visit:
        for parent in synsets[to_visit.pop()].hypernyms:
            if parent not in hypernyms:
                hypernyms.add(parent)
                to_visit.append(parent)
    return hypernyms | {topic for concept in {key, *hypernyms} for topic in synsets[concept].topics}


def concepts_of_all(synsets: dict[str, Synset]) -> dict[str, set[str]]:
    """Every synset's broader concepts without those too broad; synsets left with none are left out."""
    concepts = {key: broader(key, synsets) for key in synsets}
    below = Counter(concept for those in concepts.values() for concept in those)
    too_broad = {concept for concept, count in below.items() if count > TOO_BROAD * len(synsets)}
    return {key: those - too_broad for key, those in concepts.items() if those - too_broad}


def split(keys: list[str], full: bool) -> tuple[list[str], list[str]]:
    """Train and test keys, each in the order of the draw; the full set is not drawn and keeps WordNet's order."""
    drawn = list(keys)
    if not full:
        random.Random(DRAW_SEED).shuffle(drawn)
        drawn = drawn[:DRAWN]
    shuffled = list(drawn)
    random.Random(SPLIT_SEED).shuffle(shuffled)
    held_out = set(shuffled[: int((FULL_TEST_SHARE if full else TEST_SHARE) * len(shuffled))])
    return [key for key in drawn if key not in held_out], [key for key in drawn if key in held_out]


def rows(
    keys: list[str], synsets: dict[str, Synset], concepts: dict[str, set[str]], labels: set[str]
) -> Iterator[dict[str, object]]:
    """Queries that have a label; a query that is itself a label ignores its twin."""
    for key in keys:
        right = sorted(concepts[key] & labels)
        if right:
            row: dict[str, object] = {"key": key, "text": synsets[key].as_query(), "labels": right}
            yield row | {"ignore": [key]} if key in labels else row


def write(path: Path, objects: Iterable[dict[str, object]]) -> int:
    """One JSON object a line, compressed without time or name, so that the same rows give the same bytes."""
    lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in objects]
    with path.open("wb") as file, gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0) as compressed:
        compressed.write("".join(lines).encode())
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_noun", type=Path, help="WordNet's data.noun")
    parser.add_argument("output", type=Path, help="the folder to write the dataset into")
    parser.add_argument(
        "--full", action="store_true", help="all synsets instead of a draw of 15,000, and a tenth of them as test"
    )
    arguments = parser.parse_args()
    if not arguments.data_noun.is_file():
        sys.exit(f"{arguments.data_noun}: no such file; Debian's package wordnet-base has it in /usr/share/wordnet")
    if hashlib.sha256(arguments.data_noun.read_bytes()).hexdigest() != DATA_NOUN_SHA256:
        print("note: not the data.noun of Debian's wordnet-base 1:3.0-37; the rows will differ", file=sys.stderr)

    licence, synsets = read(arguments.data_noun)
    concepts = concepts_of_all(synsets)
    train, test = split(list(concepts), arguments.full)
    training_queries = Counter(concept for key in train for concept in concepts[key])
    labels = {concept for concept, count in training_queries.items() if count >= LEAST_TRAINING_QUERIES}

    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "LICENSE").write_text(licence, encoding="utf-8")
    counts = {
        "labels": write(
            arguments.output / "labels.jsonl.gz",
            ({"key": key, "text": synsets[key].as_label()} for key in sorted(labels)),
        ),
        "train": write(arguments.output / "train.jsonl.gz", rows(train, synsets, concepts, labels)),
        "test": write(arguments.output / "test.jsonl.gz", rows(test, synsets, concepts, labels)),
    }
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
