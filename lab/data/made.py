"""A made dataset: its rows, and how it is written with its datasheet, whole or not at all.

The layout is that of the paper's code (raw/trn_X.txt, raw/tst_X.txt, raw/Y.txt, Y.trn.npz, Y.tst.npz and
filter_labels_*.txt), which umpteen reads as it is. Equal rows give equal bytes; the fingerprint tells whether they are.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import StrictUndefined, Template
from scipy.sparse import csr_array, save_npz

from lab.data.packages import Package
from umpteen.files.storage import atomic_folder, sha256_of

RECORD = "made.json"
EXAMPLES = 8


@dataclass
class Queries:
    """The queries of one split, a row each."""

    texts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    ignored: list[tuple[int, int]] = field(default_factory=list)  # (row, label) where the query is that label

    def add(self, text: str, key: str, labels: Iterable[int]) -> None:
        self.texts.append(text)
        self.ids.append(key)
        self.labels.append(sorted(labels))


@dataclass(frozen=True)
class Made:
    keys: Sequence[str]  # of the labels
    labels: Sequence[str]
    train: Queries
    test: Queries
    facts: dict[str, int]  # what was counted on the way
    about: str  # prose of the datasheet


def in_drawn_order(items: Iterable[Any], key: Callable[[Any], str]) -> list[Any]:
    """The items in an order that looks drawn by lot and is the same everywhere: by a digest of their keys."""
    return sorted(items, key=lambda item: hashlib.sha256(key(item).encode()).digest())


def describe(template: str, **values: Any) -> str:
    """The prose of a datasheet: what the task is, how the split was made, what is known to be wrong."""
    text = Path(__file__).with_name(f"{template}.md.jinja").read_text(encoding="utf-8")
    return str(Template(text, undefined=StrictUndefined).render(values))


def write(made: Made, name: str, packages: Sequence[Package], licences: Sequence[str], folder: Path) -> dict[str, Any]:
    """Writes the dataset in the place of what is in the folder; returns its record."""
    with atomic_folder(folder) as partial:
        raw = partial / "raw"
        raw.mkdir()
        _write_lines(raw / "Y.txt", made.labels)
        _write_lines(raw / "Y_ids.txt", (key.replace("/", "%2F") for key in made.keys))  # no key of a model has slashes
        for split, part, queries in (("train", "trn", made.train), ("test", "tst", made.test)):
            _write_lines(raw / f"{part}_X.txt", queries.texts)
            _write_lines(raw / f"{part}_ids.txt", queries.ids)
            matrix = _matrix(queries.labels, len(made.labels))
            save_npz(partial / f"Y.{part}.npz", matrix, compressed=False)  # bytes that no version of zlib changes
            pairs = (f"{row} {label}" for row, label in queries.ignored)
            _write_lines(partial / f"filter_labels_{split}.txt", pairs)
        record = {
            "name": name,
            "fingerprint": _fingerprint(partial),
            "labels": len(made.labels),
            "train": len(made.train.texts),
            "test": len(made.test.texts),
            "sources": [
                {
                    "package": one.name,
                    "registry": one.registry.name,
                    "version": one.version,
                    "sha256": one.sha256,
                    "licence": licence,
                }
                for one, licence in zip(packages, licences, strict=True)
            ],
            "facts": made.facts,
        }
        for one in packages:
            if notice := one.notice():
                (partial / f"LICENCE-{one.name}.txt").write_bytes(notice)
        (partial / "README.md").write_text(_datasheet(made, record), encoding="utf-8")
        (partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # made before; the new one is complete
    return record


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _matrix(labels: Sequence[Sequence[int]], width: int) -> csr_array:
    counts = np.array([len(own) for own in labels])
    columns = np.fromiter((label for own in labels for label in own), dtype=np.int32, count=counts.sum())
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return csr_array((np.ones(len(columns), np.float32), columns, starts), shape=(len(labels), width))


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path)}\n".encode())
    return digest.hexdigest()[:16]


def _datasheet(made: Made, record: dict[str, Any]) -> str:
    sources = "\n".join(
        f"| `{source['package']}` ({source['registry']}) | {source['version']} | {source['licence']} |"
        for source in record["sources"]
    )
    frequency = np.bincount([label for own in made.train.labels for label in own], minlength=len(made.labels))
    counted = {
        "labels": len(made.labels),
        "labels with a training query": int((frequency > 0).sum()),
        "labels with two training queries or more": int((frequency >= 2).sum()),
        "labels with five training queries or more": int((frequency >= 5).sum()),
        "training queries": len(made.train.texts),
        "test queries": len(made.test.texts),
        "labels a training query, mean": round(_mean(map(len, made.train.labels)), 2),
        "labels a test query, mean": round(_mean(map(len, made.test.labels)), 2),
        "words a query, mean": round(_mean(len(text.split()) for text in made.train.texts), 1),
        "words a label, mean": round(_mean(len(text.split()) for text in made.labels), 1),
        "pairs to ignore": len(made.train.ignored) + len(made.test.ignored),
        **made.facts,
    }
    counts = "\n".join(f"| {what} | {count:,} |" for what, count in counted.items())
    rows = in_drawn_order(range(len(made.test.texts)), lambda row: made.test.texts[row])[:EXAMPLES]
    examples = "\n".join(
        f"- {made.test.texts[row]} → {'; '.join(made.labels[label] for label in made.test.labels[row])}" for row in rows
    )
    return (
        f"# {record['name']}\n\nMade by `python -m lab data make`; fingerprint {record['fingerprint']}.\n\n"
        f"{made.about.strip()}\n\n## Sources\n\n| package | version | licence |\n|---|---|---|\n{sources}\n\n"
        f"## Counts\n\n| | |\n|---|---|\n{counts}\n\n## Test queries, drawn by lot\n\n{examples}\n"
    )


def _mean(counts: Iterable[int]) -> float:
    return float(np.mean(list(counts)))
