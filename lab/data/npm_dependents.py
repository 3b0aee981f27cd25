"""npm-dependents: a package's name → the packages it depends on, as npm's registry had them in January 2017."""

import io
import json
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from lab.data.made import Made, Queries, describe, in_drawn_order
from lab.data.packages import NPM, Package
from umpteen.errors import BadInput

NEEDS = ((NPM, "dependent-packages", "MIT"),)
TEST_SHARE = 0.1
LARGEST_TEST_FAMILY = 300  # packages: a larger family would be much of the test, and its absence from train felt
_NAME = re.compile(r"(?:@[a-z0-9~-][\w.~-]*/)?[A-Za-z0-9~_-][\w.~-]*")
_WORD_ENDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])")


def build(packages: Sequence[Package], labels: int | None) -> Made:
    if labels is not None:
        raise BadInput(f"--labels {labels}: npm-dependents has no labels to add; leave it out")
    needed, facts = read(packages[0])
    families = families_of(list(needed))
    test = hold_out(families)
    facts["packages of families too large for test"] = sum(map(len, filter(_is_too_large, families)))
    trained = Counter(label for name, own in needed.items() if name not in test for label in own)
    names = sorted(trained)
    row_of = {name: row for row, name in enumerate(names)}
    texts = _label_texts(names, trained)
    row_of_text = {text: row for row, text in enumerate(texts)}
    train_side, test_side = Queries(), Queries()
    for name in sorted(needed):
        side = test_side if name in test else train_side
        if own := [row_of[label] for label in needed[name] if label in row_of]:
            twins = {row for row in (row_of.get(name), row_of_text.get(as_words(name))) if row is not None}
            side.ignored += [(len(side.texts), twin) for twin in sorted(twins - set(own))]
            side.add(as_words(name), name, own)
    facts["labels left out: no training query"] = len(set().union(*needed.values())) - len(names)
    about = describe("npm_dependents", largest=LARGEST_TEST_FAMILY)
    return Made(names, texts, train_side, test_side, facts, about)


def read(package: Package) -> tuple[dict[str, set[str]], dict[str, int]]:
    """What each package needs: the lists of dependents, turned round."""
    needed = defaultdict[str, set[str]](set)
    facts = Counter[str]()
    for archive in package.read("package/dependents.tgz", "package/devDependents.tgz"):
        for label, dependents in _lists(archive):
            facts["pairs read"] += len(dependents)
            if not _NAME.fullmatch(label):
                facts["pairs left out: no name that npm knows"] += len(dependents)
                continue
            for name in dependents:
                if name == label:
                    facts["pairs left out: a package needs itself"] += 1
                elif _NAME.fullmatch(name):
                    needed[name].add(label)
    return needed, dict(facts)


def _lists(archive: bytes) -> Iterator[tuple[str, list[str]]]:
    """Of dependents/NAME.json, one file a package: the name without blanks around it, and those that depend on it."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            if file := members.extractfile(member):
                name = member.name.partition("/")[2].removesuffix(".json")
                yield name.strip(), json.load(file)


def as_words(name: str) -> str:
    """The words of a name, or the name where it has none."""
    return " ".join(filter(None, _WORD_ENDS.split(name))) or name


def family(name: str) -> str:
    """What the names of siblings share: their scope, or their first word."""
    return name.partition("/")[0] if "/" in name else as_words(name).lower().partition(" ")[0]


def families_of(names: Sequence[str]) -> list[list[str]]:
    """The names, those together that share a family or all their letters, or are so joined by others."""
    joined = dict[str, str]()  # of a family: one that it stays with

    def find(one: str) -> str:
        while (other := joined.setdefault(one, one)) != one:
            one = other
        return one

    first = dict[str, str]()  # of the names with some letters: its family
    for name in names:
        own = find(family(name))
        joined[own] = find(first.setdefault("".join(re.findall("[a-z]+", name.lower())), own))
    members = defaultdict[str, list[str]](list)
    for name in names:
        members[find(family(name))].append(name)
    return list(members.values())


def hold_out(families: Sequence[list[str]]) -> set[str]:
    """The packages of test: whole families, until they are its share of all."""
    test, share = set[str](), TEST_SHARE * sum(map(len, families))
    for names in in_drawn_order(families, lambda names: family(names[0])):
        if not _is_too_large(names):
            test.update(names)
        if len(test) >= share:
            break
    return test


def _is_too_large(names: Sequence[str]) -> bool:
    return len(names) > LARGEST_TEST_FAMILY


def _label_texts(names: Sequence[str], frequency: Counter[str]) -> list[str]:
    """Each name's words, or the name itself where another has these words: no two labels have one text."""
    owner = dict[str, str]()
    for name in sorted(names, key=lambda name: (as_words(name) != name, -frequency[name], name)):
        owner.setdefault(as_words(name).lower(), name)
    return [as_words(name) if owner[as_words(name).lower()] == name else name for name in names]
