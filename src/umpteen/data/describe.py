"""What a dataset holds, and what in it looks like a mistake; texts are streamed, only their digests stay in memory.

Rows count from 1 here, like the lines of a file: row 1 is a split's first query.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umpteen.data.dataset import Dataset
from umpteen.data.labels import Split
from umpteen.data.texts import Texts

EXAMPLES = 3
RARE = 5  # training queries
PERCENTILES = (5, 50, 95, 99)

Described = dict[str, Any]  # as JSON has it
Ids = NDArray[np.int64]  # a number for each text


def describe(dataset: Dataset) -> Described:
    """Sizes, frequencies and lengths, and everything that looks like a mistake; reads each text once.

    `suspicious` lists every check, also those that found nothing: how often, out of how many, where first, and what to
    make of it.
    """
    splits = dataset.splits()
    words, ids = _scan({"labels": dataset.labels.texts, **{name: split.texts for name, split in splits.items()}})
    counts = dataset.train.relevance.label_counts()
    findings = [*_labels_to_look_at(dataset, ids["labels"], counts)]
    for name, split in splits.items():
        findings += _queries_to_look_at(dataset, name, split, ids)
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "labels": {
            "count": len(dataset.labels),
            "words": _lengths(words["labels"]),
            "queries_per_label": _spread(counts),  # training queries
            "share_without_queries": float(np.mean(counts == 0)),
            "share_rare": float(np.mean(counts <= RARE)),  # labels without a query included
        },
        "splits": {
            name: {
                "queries": len(split),
                "pairs": split.relevance.pairs,
                "ignored_pairs": split.filtered.pairs,
                "graded": split.relevance.graded,
                "labels_per_query": _spread(np.diff(split.relevance.matrix.indptr)),
                "words": _lengths(words[name]),
            }
            for name, split in splits.items()
        },
        "suspicious": findings,
    }


def lines_of(described: Described) -> list[str]:
    """For people: of what is suspicious, only what was found."""

    def words(of: Described) -> str:
        shares = ", ".join(f"{share} % up to {value:,.0f}" for share, value in of["words"]["percentiles"].items())
        return f"  words     mean {of['words']['mean']:,.1f}, {shares}, max {of['words']['max']:,}"

    def spread(of: Described) -> str:
        return f"min {of['min']:,}, median {of['median']:,.4g}, mean {of['mean']:,.1f}, max {of['max']:,}"

    labels = described["labels"]
    lines = [
        described["name"],
        f"labels      {labels['count']:,}",
        f"  queries   {spread(labels['queries_per_label'])} (in train; {labels['share_without_queries']:.1%} of the "
        f"labels have none, {labels['share_rare']:.1%} at most {RARE})",
        words(labels),
    ]
    for name, split in described["splits"].items():
        graded = ", graded" if split["graded"] else ""
        ignored = f", {split['ignored_pairs']:,} pairs to ignore" if split["ignored_pairs"] else ""
        lines += [
            f"{name:<11} {split['queries']:,} queries, {split['pairs']:,} relevant pairs{graded}{ignored}",
            f"  labels    {spread(split['labels_per_query'])}",
            words(split),
        ]
    found = [finding for finding in described["suspicious"] if finding["count"]]
    lines.append("suspicious (rows count from 1)" if found else "suspicious  nothing")
    for finding in found:
        lines.append(f"  {finding['what']}: {finding['count']:,} of {finding['of']:,}")
        lines += [f"    row {example['row']:,}: {example['shown']}" for example in finding["examples"]]
    return lines


def _spread(counts: NDArray[np.integer[Any]]) -> Described:
    """How a count is distributed."""
    median, mean = float(np.median(counts)), float(counts.mean())
    return {"min": int(counts.min()), "median": median, "mean": mean, "max": int(counts.max())}


def _lengths(words: NDArray[np.int64]) -> Described:
    """Words in a text, divided at white space."""
    percentiles = dict(zip(map(str, PERCENTILES), np.percentile(words, PERCENTILES).tolist(), strict=True))
    return {"mean": float(words.mean()), "percentiles": percentiles, "max": int(words.max())}


def _scan(parts: Mapping[str, Texts]) -> tuple[dict[str, NDArray[np.int64]], dict[str, Ids]]:
    """The number of words of each text, and a number that equal texts share, whatever part they are in."""

    def scan(text: str) -> tuple[int, bytes]:
        return len(text.split()), hashlib.blake2b(text.encode(), digest_size=16).digest()

    scans = [np.fromiter(map(scan, texts), dtype="i8,S16", count=len(texts)) for texts in parts.values()]
    ids = np.unique(np.concatenate([scan["f1"] for scan in scans]), return_inverse=True)[1]
    apart = np.split(ids, np.cumsum([len(scan) for scan in scans])[:-1])
    return {name: scan["f0"] for name, scan in zip(parts, scans, strict=True)}, dict(zip(parts, apart, strict=True))


def _labels_to_look_at(dataset: Dataset, ids: Ids, counts: NDArray[np.int64]) -> Iterator[Described]:
    keys, texts = dataset.labels.keys, dataset.labels.texts
    look, first = partial(_finding, "labels", texts), _first_rows(ids, ids)
    what, again = "labels with the text of an earlier label", first < np.arange(len(ids))
    yield look("duplicate_label_texts", what, again, lambda row: f"{keys[row]!r} has the text of {keys[first[row]]!r}")
    yield look("labels_without_rows", "labels without a training query", counts == 0, lambda row: repr(keys[row]))


def _queries_to_look_at(dataset: Dataset, name: str, split: Split, ids: Mapping[str, Ids]) -> Iterator[Described]:
    look, keys = partial(_finding, name, split.texts), dataset.labels.keys
    yield look("rows_without_labels", f"{name} queries without a label", np.diff(split.relevance.matrix.indptr) == 0)
    if name != "train":
        what, first = f"{name} texts that stand in train", _first_rows(ids["train"], ids[name])
        yield look("texts_in_train", what, first >= 0, lambda row: f"train row {first[row] + 1:,}")
    # The model must push down a label that reads exactly like the query.
    of_id: dict[int, list[int]] = {}  # labels whose text some query has
    for label in np.flatnonzero(np.isin(ids["labels"], ids[name])).tolist():
        of_id.setdefault(int(ids["labels"][label]), []).append(label)
    twins: dict[int, int] = {}  # of a query, its first such label
    for row in np.flatnonzero(np.isin(ids[name], ids["labels"])).tolist():
        known = {*split.relevance.of(row).tolist(), *split.filtered.of(row).tolist()}
        if (twin := next((label for label in of_id[int(ids[name][row])] if label not in known), None)) is not None:
            twins[row] = twin
    wrong = np.isin(np.arange(len(split)), list(twins))
    what = f"{name} queries with the text of a label that they neither have nor ignore"
    yield look("queries_that_are_labels", what, wrong, lambda row: f"label {keys[twins[row]]!r}")


def _finding(
    split: str, texts: Texts, kind: str, what: str, wrong: NDArray[np.bool_], beside: Callable[[int], str] | None = None
) -> Described:
    rows = np.flatnonzero(wrong).tolist()
    before = ["" if beside is None else f"{beside(row)}: " for row in rows[:EXAMPLES]]
    examples = [{"row": row + 1, "shown": said + _shown(texts[row])} for row, said in zip(rows, before, strict=False)]
    return {"kind": kind, "split": split, "what": what, "count": len(rows), "of": len(wrong), "examples": examples}


def _first_rows(ids: Ids, wanted: Ids) -> Ids:
    """Where each of the wanted ids stands first, or -1."""
    known, first = np.unique(ids, return_index=True)
    at = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[at] == wanted, first[at], -1)


def _shown(text: str, width: int = 80) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
