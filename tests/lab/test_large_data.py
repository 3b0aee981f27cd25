"""`python -m lab data make` on miniatures of its sources; clients of the registries are stand-ins that copy files."""

import gzip
import io
import json
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from lab.__main__ import lab
from lab.data import make, reverse_dictionary
from lab.data.dictionaries import read_gcide, read_wordnet
from lab.data.npm_dependents import as_words, family
from lab.data.packages import DEBIAN, package
from lab.data.reverse_dictionary import MASK, content, mask

from umpteen.data.dataset import open_dataset
from umpteen.data.describe import describe
from umpteen.errors import BadInput

DOG = r"""Dog \Dog\ (d[add]g or d[o^]g), n. [AS. docga; akin to D. dog
   mastiff.] [Written also {dogge}.]
   1. (Zool.) A quadruped of the genus {Canis}, esp. the
      domestic dog ({Canis familiaris}). See {Wolf}.
      [1913 Webster]

   Note: The dog is distinguished for docility.
         [1913 Webster]

   2. A mean, worthless fellow; as, a sly dog. [Obs.]
      "He is a dog." --Shak.
      [1913 Webster]

            What is thy servant, which is but a dog?
                                                  --2 Kings.
      [1913 Webster]

   3. (Mech.)
      (a) A grappling iron with claws, for raising heavy
          articles; -- called also {dog hook}.
      (b) A catch or clutch in machinery. It is of r[^o]le.
          [1913 Webster]

   {Dog cabbage}, or {Dog's cabbage} (Bot.), a succulent herb,
      native to the Mediterranean region.

   {Dog shark}. (Zool.) See {Dogfish}.

   {To give to the dogs}, to throw away as useless.
      [1913 Webster]

   Syn: hound; cur.

"""
WEIR = r"""Wier \Wier\, n.
   Same as {Weir}.
   [1913 Webster]

"""
SOME_ANIMALS = (
    "cat cow fox owl bee ant elk emu yak hen ram sow pig eel cod carp newt toad frog wasp moth mole hare lynx"
)
SOME_TRAITS = (
    "velvet crimson gentle thunder marble copper silent hollow ragged golden bitter narrow winter velour purple"
)
ANIMALS, TRAITS = SOME_ANIMALS.split(), SOME_TRAITS.split()


def index_number(value: int) -> str:
    """A number as dictd's indexes write it."""
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return (index_number(value // 64) if value >= 64 else "") + digits[value % 64]


def gcide_of(entries: Mapping[str, str]) -> tuple[bytes, bytes]:
    """An index and a compressed file, as dictd has them."""
    start, lines, text = 0, [], "".join(entries.values())
    for word, entry in entries.items():
        lines.append(f"{word}\t{index_number(start)}\t{index_number(len(entry))}\n")
        start += len(entry)
    return "".join(lines).encode(), gzip.compress(text.encode(), mtime=0)


def synset(number: int, lemmas: list[str], gloss: str) -> str:
    words = " ".join(f"{lemma} 0" for lemma in lemmas)
    return f"{number:08} 03 n {len(lemmas):02x} {words} 001 @ 00001740 n 0000 | {gloss}  \n"


def archive(path: Path, files: Mapping[str, bytes], compression: str = "") -> None:
    with tarfile.open(path, f"w:{compression}") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def tgz(files: Mapping[str, object], folder: Path) -> bytes:
    path = folder / "inner.tgz"
    archive(path, {name: json.dumps(content).encode() for name, content in files.items()}, "gz")
    return path.read_bytes()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that apt-get, dpkg-deb and npm serve from, and nothing else."""
    store, programs = tmp_path / "store", tmp_path / "programs"
    store.mkdir()
    programs.mkdir()
    copy = f'cp {store}/"$2"[_-][0-9]* . 2>/dev/null || {{ echo "E: Unable to locate package $2" >&2; exit 100; }}'
    for name, body in {"apt-get": copy, "npm": copy, "dpkg-deb": 'cat "$2"'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return store


@pytest.fixture
def dictionaries(registry: Path) -> Path:
    """Both dictionaries: each animal has three definitions, two of one lemma; and some that are made to leak."""
    glosses = [
        synset(row, [animal], f'a {TRAITS[row % 15]} creature of {TRAITS[(row + 4) % 15]} fields; "it ran"')
        for row, animal in enumerate(ANIMALS)
    ]
    glosses += [
        synset(90, ["cat", "true_cat"], "any of the cats, kept against thunder and mice; a small feline"),
        synset(95, ["counts/minute"], "how often a detector clicks while the hand goes round"),
        synset(91, ["ramble"], "the act of rambling"),
        synset(92, ["wicker", "caning"], "something made of interlaced slender branches"),
        synset(93, ["copycat"], "an imitator without shame or wit"),
        synset(94, ["mimic"], "An imitator, without shame or wit!"),
    ]
    licence = "  1 This software and database is being provided to you  \n"
    files = {f"./usr/share/wordnet/data.{part}": licence.encode() for part in ("noun", "verb", "adj", "adv")}
    files["./usr/share/wordnet/data.noun"] += "".join(glosses).encode()
    files["./usr/share/doc/wordnet-base/copyright"] = b"WordNet 3.0 Copyright 2006 by Princeton University.\n"
    archive(registry / "wordnet-base_1%3a3.0-37_all.deb", files)
    entries = {"Dog": DOG, "Wier": WEIR}
    for row, animal in enumerate(ANIMALS):
        first, second = (
            f"{TRAITS[(row + 7) % 15]} thing near {TRAITS[(row + 9) % 15]}",
            f"beast under {TRAITS[row % 15]} rain",
        )
        word = animal.capitalize()
        entries[word] = (
            f"{word} \\{word}\\, n.\n   1. A {first} water.\n      [1913 Webster]\n\n   2. A {second} {row}.\n\n"
        )
    entries["Wicker"] = 'Wicker \\Wick"er\\, n.\n   Something made of interlaced, slender willow branches.\n\n'
    index, text = gcide_of(entries)
    files = {"./usr/share/dictd/gcide.index": index, "./usr/share/dictd/gcide.dict.dz": text}
    files["./usr/share/doc/dict-gcide/copyright"] = b"GNU General Public License\n"
    archive(registry / "dict-gcide_0.48.5+nmu2_all.deb", files)
    return registry


@pytest.fixture
def npm(registry: Path, tmp_path: Path) -> Path:
    """Forty families of two packages that need lodash; some with needs of their own."""
    packages = [f"{animal}{kind}" for animal in (*ANIMALS, *TRAITS) for kind in ("-one", ".two")]
    dependents: dict[str, list[str]] = {"lodash": [*packages, "Cat_One", "lodash"], "cat-one": ["zebra-kit", "zebra"]}
    dependents |= {
        " express ": packages[:40],
        '"&gt;onmouseover': packages,
        "socket.io": packages,
        "socket-io": packages[:9],
    }
    files = {f"dependents/{name}.json": sorted(names) for name, names in dependents.items()}
    inside = {
        "package/package.json": b'{"license": "MIT"}',
        "package/dependents.tgz": tgz(files, tmp_path),
        "package/devDependents.tgz": tgz({"devDependents/mocha.json": ["zebra", *packages[::2]]}, tmp_path),
    }
    archive(registry / "dependent-packages-2.2.2.tgz", inside, "gz")
    return registry


def lines(folder: Path, name: str) -> list[str]:
    return (folder / "raw" / name).read_text(encoding="utf-8").splitlines()


def letters(text: str) -> str:
    return " ".join(re.findall("[a-z]+", text.lower()))


def test_an_entry_of_gcide_is_its_senses_and_collocations_and_nothing_around_them() -> None:
    found = {text: set(words) for _, words, text in read_gcide(*gcide_of({"00-info": "x\n", "Dog": DOG, "Wier": WEIR}))}
    assert found == {
        "A quadruped of the genus Canis, esp. the domestic dog (Canis familiaris)": {"Dog", "dogge"},
        "A mean, worthless fellow": {"Dog", "dogge"},
        "A grappling iron with claws, for raising heavy articles": {"Dog", "dogge", "dog hook"},
        "A catch or clutch in machinery": {"Dog", "dogge"},
        "a succulent herb, native to the Mediterranean region": {"Dog cabbage", "Dog's cabbage"},
        "to throw away as useless": {"To give to the dogs"},
    }


def test_a_gloss_of_wordnet_has_all_words_of_its_synset_and_no_examples() -> None:
    line = synset(7, ["well-off(p)", "in_clover"], 'in fortunate circumstances; "he is well-off"; "they live well"')
    (found,) = read_wordnet(f"  1 a licence  \n{line}".encode())
    assert found == ("wordnet:n00000007", ("well-off", "in clover"), "in fortunate circumstances")


@pytest.mark.parametrize(
    ("text", "word", "masked"),
    [
        ("To cause to sink; to put under water", "sink", "To cause to ~; to put under water"),
        ("one who runs, or is running, a shop", "run", "one who ~, or is ~, a shop"),
        ("The quality of being charitable", "charitableness", "The quality of being ~"),
        ("not charitable to others", "uncharitable", "not ~ to others"),
        ("a fish like a snake", "wolf fish", "a fish like a snake"),
        ("a fish with the face of a wolf", "wolf-fish", "a ~ with the face of a ~"),
        ("a form of transport", "transformation", "a form of transport"),
    ],
)
def test_a_word_is_masked_in_its_own_definition(text: str, word: str, masked: str) -> None:
    assert mask(text, [word]) == masked


def test_no_definition_holds_a_word_that_it_defines(dictionaries: Path) -> None:
    folder, _ = make("reverse-dictionary", None, None, print)
    dataset = open_dataset(str(folder))
    for split in dataset.splits().values():
        for row, text in enumerate(split.texts):
            for label in split.relevance.of(row):
                assert not content(dataset.labels.texts[label]) <= content(text), text
    assert f"any of the {MASK}, kept against thunder and mice; a small feline" in lines(folder, "trn_X.txt")
    assert "ramble" not in lines(folder, "Y.txt")  # "the act of ~" says nothing
    assert dataset.labels.texts[dataset.labels.keys.index("counts%2Fminute")] == "counts/minute"  # keys have no slashes


def test_what_defines_several_words_is_one_query_with_several_labels(dictionaries: Path) -> None:
    folder, _ = make("reverse-dictionary", None, None, print)
    train = open_dataset(str(folder)).train
    keys = lines(folder, "Y_ids.txt")
    row = lines(folder, "trn_X.txt").index("an imitator without shame or wit")
    assert [keys[label] for label in train.relevance.of(row)] == ["copycat", "mimic"]


def test_no_text_and_no_near_copy_stands_on_both_sides(dictionaries: Path) -> None:
    folder, _ = make("reverse-dictionary", None, None, print)
    train, test = lines(folder, "trn_X.txt"), lines(folder, "tst_X.txt")
    assert test and not set(map(letters, train)) & set(map(letters, test))
    wicker = [text for text in (*train, *test) if "interlaced" in text]
    assert len(wicker) == 2 and (set(wicker) <= set(train) or set(wicker) <= set(test))
    described = describe(open_dataset(str(folder)))
    assert described["labels"]["share_without_queries"] == 0  # so every label of test has one, too
    kinds = {finding["kind"]: finding["count"] for finding in described["suspicious"] if finding["count"]}
    assert kinds.keys() <= {"duplicate_label_texts"} and not kinds


def test_equal_packages_give_equal_bytes(dictionaries: Path, npm: Path, tmp_path: Path) -> None:
    for name in ("reverse-dictionary", "npm-dependents"):
        first, record = make(name, tmp_path / "first" / name, None, print)
        second, again = make(name, tmp_path / "second" / name, None, print)
        assert record == again
        for path in first.rglob("*"):
            assert path.is_dir() or path.read_bytes() == (second / path.relative_to(first)).read_bytes(), path


def test_distractors_change_neither_queries_nor_truth(dictionaries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reverse_dictionary, "CORE", 20)
    few, _ = make("reverse-dictionary", None, 20, print)
    more, _ = make("reverse-dictionary", None, 25, print)
    assert lines(more, "Y.txt")[:20] == lines(few, "Y.txt") and len(set(lines(more, "Y.txt"))) == 25
    for name in ("trn_X.txt", "tst_X.txt", "trn_ids.txt", "tst_ids.txt"):
        assert lines(more, name) == lines(few, name) != []
    small, large = open_dataset(str(few)), open_dataset(str(more))
    for split, of_large in large.splits().items():
        of_small = small.splits()[split]
        assert [list(of_large.relevance.of(row)) for row in range(len(of_large))] == [
            list(of_small.relevance.of(row)) for row in range(len(of_small))
        ]
    with pytest.raises(BadInput, match=r"--labels 9: from 20 to \d+ are possible"):
        make("reverse-dictionary", None, 9, print)


def test_licences_counts_and_the_fingerprint_are_printed_and_kept(dictionaries: Path, tmp_path: Path) -> None:
    command = ["data", "make", "reverse-dictionary", "--output", str(tmp_path / "made")]
    said = CliRunner().invoke(lab, command, catch_exceptions=False).output
    record = json.loads(CliRunner().invoke(lab, [*command, "--json"], catch_exceptions=False).stdout)
    sheet = (tmp_path / "made" / "README.md").read_text(encoding="utf-8")
    for source in record["sources"]:
        for words in (source["package"], source["version"], source["licence"]):
            assert words in sheet and words in " ".join(said.split())
    assert record["fingerprint"] in said and record["fingerprint"] in sheet and "1:3.0-37" in sheet
    assert "Princeton" in (tmp_path / "made" / "LICENCE-wordnet-base.txt").read_text(encoding="utf-8")


def test_a_package_is_fetched_once(dictionaries: Path) -> None:
    first = package(DEBIAN, "wordnet-base")
    for path in dictionaries.iterdir():
        path.unlink()
    assert package(DEBIAN, "wordnet-base") == first


def test_a_package_that_cannot_be_had_is_named_with_the_way_out(registry: Path, tmp_path: Path) -> None:
    advice = "`apt-get download wordnet-base` failed: E: Unable to locate.*update.*wordnet-base_VERSION.deb into"
    with pytest.raises(BadInput, match=advice):
        make("reverse-dictionary", tmp_path / "made", None, print)
    assert not (tmp_path / "made").exists()


def test_without_the_client_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="`npm pack dependent-packages` failed: No such file"):
        make("npm-dependents", None, None, print)


def test_a_dataset_is_made_whole_or_not_at_all(dictionaries: Path, tmp_path: Path) -> None:
    folder, record = make("reverse-dictionary", tmp_path / "made", None, print)
    kept = package(DEBIAN, "dict-gcide").path
    kept.write_bytes(kept.read_bytes()[:700])
    with pytest.raises(BadInput, match="dict-gcide"):
        make("reverse-dictionary", tmp_path / "made", None, print)
    assert json.loads((folder / "made.json").read_text(encoding="utf-8")) == record
    assert {path.name for path in tmp_path.iterdir()} == {"made", "store", "programs"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(BadInput, match="mine holds something else"):
        make("npm-dependents", tmp_path / "mine", None, print)


def test_an_unknown_dataset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="no dataset wiki to make; there is reverse-dictionary, npm-dependents"):
        make("wiki", None, None, print)


def test_siblings_and_names_equal_in_letters_never_straddle(npm: Path) -> None:
    folder, _ = make("npm-dependents", None, None, print)
    train, test = lines(folder, "trn_ids.txt"), lines(folder, "tst_ids.txt")
    assert test and not {family(name) for name in train} & {family(name) for name in test}
    assert not {letters(name).replace(" ", "") for name in train} & {letters(name).replace(" ", "") for name in test}


def test_a_package_is_its_words_and_needs_what_it_needs(npm: Path) -> None:
    folder, _ = make("npm-dependents", None, None, print)
    dataset = open_dataset(str(folder))
    keys, texts = lines(folder, "Y_ids.txt"), lines(folder, "Y.txt")
    assert keys == ["cat-one", "express", "lodash", "mocha", "socket-io", "socket.io"]
    assert texts == ["cat one", "express", "lodash", "mocha", "socket-io", "socket io"]  # all different
    names = lines(folder, "trn_ids.txt") + lines(folder, "tst_ids.txt")
    split, start = (
        (dataset.train, 0) if "cat-one" in lines(folder, "trn_ids.txt") else (dataset.test, len(dataset.train))
    )
    assert split is not None
    row = names.index("cat-one") - start
    assert split.texts[row] == "cat one"
    assert [keys[label] for label in split.relevance.of(row)] == [
        "express",
        "lodash",
        "mocha",
        "socket-io",
        "socket.io",
    ]
    assert [keys[label] for label in split.filtered.of(row)] == ["cat-one"]  # it is a label itself
    assert "lodash" not in names and as_words("@scope/fooBar_baz.js") == "scope foo Bar baz js"


def test_npm_has_no_distractors(npm: Path) -> None:
    with pytest.raises(BadInput, match="--labels 5: npm-dependents has no labels to add"):
        make("npm-dependents", None, 5, print)
