"""A dataset: labels, and queries with their relevant labels, apart for training, validation, test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from umpteen.data import formats
from umpteen.data.formats import hugging_face, xc_repository
from umpteen.data.formats.reading import ENDINGS
from umpteen.data.labels import LabelCatalogue, Relevance, Split
from umpteen.data.prepared import content_fingerprint, merging, open_prepared, prepare
from umpteen.data.texts import Texts, values_of
from umpteen.errors import BadInput, installed
from umpteen.files.progress import Advance, silent
from umpteen.files.storage import atomic_folder, can_hold

__all__ = ["Dataset", "Split", "bundled_names", "open_dataset", "write_native"]

BUNDLED = Path(__file__).parent / "bundled"
ASKED = ("text", "labels", "separator")  # what may be said of files with columns
ROWS_BETWEEN_REPORTS = 1024


@dataclass(frozen=True)
class Dataset:
    """One catalogue of labels and up to three splits over it.

    The fingerprint names the content that was read; taking a validation split out of train leaves it as it is.
    `open_dataset` gives one; a split has `texts` and `relevance`, row by row.

    >>> from umpteen import open_dataset
    >>> train = open_dataset("wordnet-nouns").train
    >>> len(train.texts) == len(train.relevance)
    True
    """

    name: str
    labels: LabelCatalogue
    train: Split
    validation: Split | None
    test: Split | None
    fingerprint: str
    validation_was_taken: bool = False  # out of train, by with_validation
    labels_are_named: bool = False  # by the queries, not by a catalogue of their own
    told: tuple[str, ...] = ()  # what was guessed of its files, for people
    is_one_file: bool = False  # which is its train split

    def __post_init__(self) -> None:
        for name, split in self.splits().items():
            for relevance in (split.relevance, split.filtered):
                if relevance.labels != len(self.labels):
                    both = f"{relevance.labels:,} labels but the catalogue has {len(self.labels):,}"
                    raise BadInput(f"{name} knows {both}; they must agree")

    @classmethod
    def of(
        cls, name: str, labels: LabelCatalogue, train: Split, validation: Split | None = None, test: Split | None = None
    ) -> Dataset:
        """A dataset from its parts, fingerprinted by their content."""
        made = cls(name, labels, train, validation, test, "")
        return replace(made, fingerprint=content_fingerprint(Texts.of(labels.keys), labels.texts, made.splits()))

    def splits(self) -> dict[str, Split]:
        """Those that are there, by name."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in every.items() if split is not None}

    def with_validation(self, fraction: float, seed: int) -> Dataset:
        """Train gives up a share of its queries, of those with labels to find if there are some, drawn by seed; a
        dataset that brings its own keeps it."""
        if self.validation is not None:
            return self
        if not 0 < fraction < 1:
            raise BadInput(f"validation fraction {fraction} must lie between 0 and 1, for example 0.1")
        queries = len(self.train)
        labelled = np.flatnonzero(np.diff(self.train.relevance.without(self.train.filtered).matrix.indptr))
        rows = labelled if len(labelled) else np.arange(queries)
        count = max(1, round(fraction * len(rows)))
        if count >= queries:
            taken = f"{count:,} of {queries:,} training queries for validation"
            raise BadInput(f"{taken} leave none to train on; add queries or lower the fraction")
        chosen = np.zeros(queries, dtype=bool)
        chosen[rows[np.random.default_rng(seed).choice(len(rows), count, replace=False)]] = True
        held_out = {self.train.texts[row] for row in np.flatnonzero(chosen).tolist()}
        same = np.fromiter((text in held_out for text in self.train.texts), dtype=bool, count=queries)
        if not same.all():  # the same text on both sides would be known by heart
            chosen = same
        train, validation = self.train.take(~chosen), self.train.take(chosen)
        return replace(self, train=train, validation=validation, validation_was_taken=True)

    def with_validation_in_train(self) -> Dataset:
        """For the final fit: validation goes back into train, to its old places when it came from there."""
        if self.validation is None:
            return self
        return replace(self, train=self.train.join(self.validation), validation=None, validation_was_taken=False)

    def to_hugging_face(self) -> Any:
        """A DatasetDict of Hugging Face's `datasets`, in memory: a text, its labels, classes named by their keys, and
        their texts; weights and labels to ignore where there are some. A label that no query has is a name only."""
        library = installed("datasets", "this needs Hugging Face's datasets: pip install datasets")
        keys, texts = self.labels.keys, dict(zip(self.labels.keys, self.labels.texts, strict=True))
        splits = {name: list(_queries(keys, split)) for name, split in self.splits().items()}
        rows = list(chain(*splits.values()))
        known = {key for row in rows for key in row["labels"]}
        for row in rows:
            row["ignore"] = [key for key in row.get("ignore", ()) if key in known] or None
            row["label_texts"] = [texts[key] for key in (*row["labels"], *(row["ignore"] or ()))]
        classes, strings = [library.ClassLabel(names=keys)], [library.Value("string")]
        kinds = {"text": strings[0], "labels": classes, "label_texts": strings, "weights": [library.Value("float32")]}
        there = {field for row in rows for field, value in row.items() if value is not None}
        kinds = {field: kind for field, kind in {**kinds, "ignore": classes}.items() if field in there}
        features = library.Features(kinds)
        columns = {name: {field: [row.get(field) for row in own] for field in features} for name, own in splits.items()}
        return library.DatasetDict({name: library.Dataset.from_dict(own, features) for name, own in columns.items()})


def open_dataset(source: str | Path | Any, *, cache: Path | None = None, progress: Advance = silent) -> Dataset:
    """A folder in any known format, a file of texts and labels, or a bundled dataset by name.

    It is read once, and memory-mapped ever after. It may be said which columns count: FILE?text=body&labels=tags.
    A Dataset or DatasetDict of Hugging Face's `datasets` is read as if it had been saved.

    `cache` is where the binary copy goes: by default $UMPTEEN_CACHE, else $XDG_CACHE_HOME/umpteen, else
    ~/.cache/umpteen. `progress` hears of bytes read and bytes in all.

    >>> from umpteen import open_dataset
    >>> dataset = open_dataset("wordnet-nouns")
    >>> dataset.name, len(dataset.labels) > 1000
    ('wordnet-nouns', True)
    """
    if hasattr(source, "save_to_disk"):
        with TemporaryDirectory(prefix="umpteen-") as home:  # what is mapped stays when the names of the files go
            source.save_to_disk(f"{home}/dataset")
            return open_dataset(f"{home}/dataset", cache=Path(home), progress=progress)
    place, asked = asked_of(str(source))
    folder = _locate(place)
    form = next((form for form in formats.FORMATS if form.recognises(folder)), None)  # told by the names of the files
    if form is None:
        names = sorted(path.name for path in folder.iterdir())
        found = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
        raise BadInput(f"{folder} is in no known dataset format. It holds: {found}. Looked for:\n{formats.LOOKED_FOR}")
    if asked and form is xc_repository:
        raise BadInput(f"{source}: the format of {place} has no columns that could be named; leave out ?…")
    prepared = prepare(folder, form, asked, cache, progress)
    is_one = folder.is_file() or (form is hugging_face and hugging_face.is_split(folder))
    return Dataset(**open_prepared(prepared), is_one_file=is_one)


def asked_of(source: str) -> tuple[str, dict[str, str]]:
    """FILE?text=body&labels=tags as the file and what is asked of it; values may be quoted as in addresses."""
    path, mark, query = source.rpartition("?")
    if not mark or Path(source).exists():
        return source, {}
    asked = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in query.split("&"))}
    for name, value in asked.items():
        if name not in ASKED or not value:
            raise BadInput(f"{source}: {name}={value} is none of {', '.join(f'{known}=…' for known in ASKED)}")
    return path, asked


def with_asked(source: str, asked: Mapping[str, str | None]) -> str:
    """The other way round; what the source says already stays, unless it is asked otherwise."""
    place, wanted = asked_of(source)
    wanted |= {name: value for name, value in asked.items() if value}
    said = "&".join(f"{name}={quote(value, safe='+')}" for name, value in wanted.items())
    return f"{place}?{said}" if said else place


def bundled_names() -> list[str]:
    return sorted(path.parent.name for path in BUNDLED.glob("*/labels.*"))


def _locate(source: str) -> Path:
    path, names = Path(source).expanduser(), bundled_names()
    if path.is_file() and not path.name.endswith(ENDINGS):
        raise BadInput(f"{path} is none of the files that are read: {', '.join(ENDINGS)}; or give a folder")
    if path.exists():
        return path.resolve()
    if source in names:
        return BUNDLED / source
    raise BadInput(f"there is no file or folder {path}, nor a bundled dataset of that name ({', '.join(names)})")


def given_dataset(texts: Any, labels: Any, label_texts: Mapping[str, str] | None = None) -> Dataset:
    """The texts as train, and the labels that they or `label_texts` name; rows of the same text become one."""
    rows = [str(text) if isinstance(text, str) else "" for text in values_of(texts)]
    if getattr(labels, "ndim", 1) > 1:
        advice = "give each text the keys of its labels, or use umpteen.sklearn.LabelClassifier, which takes matrices"
        raise BadInput(f"labels are a table of {' × '.join(map(str, labels.shape))}; {advice}")
    keys = [_keys(row, f"labels[{number}]") for number, row in enumerate(values_of(labels))]
    for number, text in enumerate(rows):
        if not text.strip():
            raise BadInput(f"texts[{number}] is missing, empty or no string; leave it out, with its labels")
    if len(rows) != len(keys):
        raise BadInput(f"{len(rows):,} texts but {len(keys):,} rows of labels; give each text one")
    meaning = {key: key.replace("_", " ") for row in keys for key in row}
    meaning |= {str(key): str(text) for key, text in (label_texts or {}).items()}
    catalogue = LabelCatalogue(meaning, meaning.values())
    merged: dict[str, dict[int, None]] = {}
    for text, row in zip(rows, keys, strict=True):
        merged.setdefault(text, {}).update(dict.fromkeys(map(catalogue.row, row)))
    relevance = Relevance.from_lists([list(row) for row in merged.values()], len(catalogue))
    told = (merging(len(rows) - len(merged)),) if len(merged) < len(rows) else ()
    made = Dataset.of("texts", catalogue, Split.of(list(merged), relevance))
    return replace(made, labels_are_named=True, told=told, is_one_file=True)


def _keys(row: Any, name: str) -> list[str]:
    """One label or several; None, NaN and NA are none, and a whole number may be a float beside some."""
    row = row.item() if isinstance(row, np.generic) else row
    if row is None or type(row).__name__ == "NAType" or (isinstance(row, float) and np.isnan(row)):
        return []
    if isinstance(row, str | int) or (isinstance(row, float) and row.is_integer()):
        return [row if isinstance(row, str) else str(int(row))]
    if not isinstance(row, Iterable) or isinstance(row, Mapping):
        raise BadInput(f"{name} is {row!r}, which is no label; give its key, or a list of keys")
    return [key for one in values_of(row) for key in _keys(one, name)]


def write_native(dataset: Dataset, folder: Path, progress: Advance = silent) -> None:
    """labels.jsonl, dataset.toml, and one .jsonl for each split: all of them, or nothing at all."""
    if not can_hold(folder):
        raise BadInput(f"{folder} is there already and not empty; name a new folder")
    splits = dataset.splits()
    keys, texts = dataset.labels.keys, dataset.labels.texts
    labels = ({"key": key, "text": text} for key, text in zip(keys, texts, strict=True))
    files = {"labels": labels, **{name: _queries(keys, split) for name, split in splits.items()}}
    total = len(dataset.labels) + sum(map(len, splits.values()))
    done = 0
    with atomic_folder(folder) as partial:
        name = json.dumps(dataset.name, ensure_ascii=False).replace("\x7f", "\\u007f")  # as TOML wants it
        (partial / "dataset.toml").write_text(f"name = {name}\n", encoding="utf-8")
        for stem, records in files.items():
            with (partial / f"{stem}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                for record in records:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
                    done += 1
                    if done % ROWS_BETWEEN_REPORTS == 0 or done == total:
                        progress(done, total)


def _queries(keys: list[str], split: Split) -> Iterator[dict[str, Any]]:
    for query, text in enumerate(split.texts):
        record: dict[str, Any] = {"text": text, "labels": [keys[row] for row in split.relevance.of(query)]}
        weights = split.relevance.weights_of(query)
        if (weights != 1).any():
            record["weights"] = [float(str(weight)) for weight in weights]  # 0.1, not 0.10000000149011612
        ignored = split.filtered.of(query)
        if len(ignored):
            record["ignore"] = [keys[row] for row in ignored]
        yield record
