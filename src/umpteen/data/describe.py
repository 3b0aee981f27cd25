"""What a dataset holds, and what in it looks like a mistake; texts are streamed, only their hashes stay in memory.

Rows count from 1 here, like the lines of a file: row 1 is a split's first query.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umpteen.data.dataset import Dataset, Split
from umpteen.data.labels import LabelCatalogue, Relevance
from umpteen.data.texts import Texts

QUERIES_AT_ONCE = 65_536


class Scan(NamedTuple):
    """What one pass over texts leaves: words in each, and a hash that holds within this process."""

    words: NDArray[np.int64]
    hashes: NDArray[np.int64]


def scan(texts: Texts) -> Scan:
    """Reads each text once and keeps 16 bytes of it."""
    both = np.fromiter(((len(text.split()), hash(text)) for text in texts), dtype="i8,i8", count=len(texts))
    return Scan(both["f0"], both["f1"])


class TextIndex:
    """Texts that can be looked up by content."""

    def __init__(self, texts: Texts, hashes: NDArray[np.int64]) -> None:
        self._texts = texts
        self._rows = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._rows]

    def first_twins(self, texts: Texts, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each text the first row here that equals it, or -1."""
        twins = np.full(len(texts), -1, dtype=np.int64)
        starts, ends = self._ranges(hashes)
        for row in np.flatnonzero(starts < ends).tolist():
            text = texts[row]
            candidates = (int(self._rows[at]) for at in range(starts[row], ends[row]))
            twins[row] = next((candidate for candidate in candidates if self._texts[candidate] == text), -1)
        return twins

    def earlier_twins(self, texts: Texts, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each of the indexed texts the first one that equals it, or -1 if that is itself."""
        twins = self.first_twins(texts, hashes)
        return np.where(twins < np.arange(len(twins)), twins, -1)

    def all_twins(self, texts: Texts, hashes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All pairs (row of `texts`, row here) of equal texts, ascending."""
        starts, ends = self._ranges(hashes)
        row = np.repeat(np.arange(len(hashes)), ends - starts)
        offsets = np.cumsum(ends - starts) - (ends - starts)
        twin = self._rows[np.arange(len(row)) + np.repeat(starts - offsets, ends - starts)]
        pairs = zip(row.tolist(), twin.tolist(), strict=True)
        same = np.fromiter((texts[one] == self._texts[other] for one, other in pairs), dtype=bool, count=len(row))
        return row[same], twin[same]

    def _ranges(self, hashes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, ends = (np.searchsorted(self._sorted, hashes, side) for side in ("left", "right"))
        return starts, ends


class TwinLabels(NamedTuple):
    """Queries whose text is also a label's, the first such label, and how the dataset deals with it."""

    queries: NDArray[np.int64]
    labels: NDArray[np.int64]
    ignored: int  # all twins are among the pairs to ignore
    right: int  # some are right answers instead
    uncovered: int  # some are neither: the model must push down a label that reads exactly like the query


def twin_labels(split: Split, hashes: NDArray[np.int64], labels: TextIndex) -> TwinLabels:
    """Looks every query up among the labels, a part of the queries at a time."""
    queries, firsts, ignored, right, uncovered = [], [], 0, 0, 0
    for start in range(0, len(split), QUERIES_AT_ONCE):
        part = np.arange(start, min(start + QUERIES_AT_ONCE, len(split)))
        query, label = labels.all_twins(split.texts.take(part), hashes[part])
        is_ignored = _holds(split.filtered.take(part), query, label)
        is_right = _holds(split.relevance.take(part), query, label)
        hit, first, group = np.unique(query, return_index=True, return_inverse=True)
        open_twins = np.bincount(group, weights=~(is_ignored | is_right), minlength=len(hit)) > 0
        right_twins = np.bincount(group, weights=~is_ignored & is_right, minlength=len(hit)) > 0
        queries.append(hit + start)
        firsts.append(label[first])
        uncovered += int(open_twins.sum())
        right += int((right_twins & ~open_twins).sum())
        ignored += int((~right_twins & ~open_twins).sum())
    none = np.empty(0, dtype=np.int64)
    return TwinLabels(np.concatenate([none, *queries]), np.concatenate([none, *firsts]), ignored, right, uncovered)


def _holds(relevance: Relevance, query: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these pairs are in the matrix, whatever their weight."""
    matrix = relevance.matrix
    owner = np.repeat(np.arange(len(relevance)), np.diff(matrix.indptr))
    return np.isin(query * relevance.labels + label, owner * relevance.labels + matrix.indices.astype(np.int64))


EXAMPLES = 3
RARE = 5  # training queries
PERCENTILES = (5, 50, 95, 99)


@dataclass(frozen=True)
class Spread:
    """How a count is distributed."""

    min: int
    median: float
    mean: float
    max: int

    @classmethod
    def of(cls, counts: NDArray[np.integer[Any]]) -> "Spread":
        if len(counts) == 0:
            return cls(0, 0.0, 0.0, 0)
        return cls(int(counts.min()), float(np.median(counts)), float(counts.mean()), int(counts.max()))

    def __str__(self) -> str:
        return f"min {self.min:,}, median {self.median:,.4g}, mean {self.mean:,.1f}, max {self.max:,}"


@dataclass(frozen=True)
class Lengths:
    """Words in a text, divided at white space."""

    mean: float
    percentiles: dict[str, float]
    max: int

    @classmethod
    def of(cls, words: NDArray[np.integer[Any]]) -> "Lengths":
        words = words if len(words) else np.zeros(1, dtype=np.int64)
        found = np.percentile(words, PERCENTILES).tolist()
        percentiles = {str(share): value for share, value in zip(PERCENTILES, found, strict=True)}
        return cls(float(words.mean()), percentiles, int(words.max()))

    def __str__(self) -> str:
        shares = ", ".join(f"{share} % up to {value:,.0f}" for share, value in self.percentiles.items())
        return f"mean {self.mean:,.1f}, {shares}, max {self.max:,}"


@dataclass(frozen=True)
class LabelSummary:
    count: int
    words: Lengths
    queries_per_label: Spread  # training queries
    share_without_queries: float
    share_rare: float  # with at most RARE training queries, none included


@dataclass(frozen=True)
class SplitSummary:
    queries: int
    pairs: int
    ignored_pairs: int
    graded: bool
    labels_per_query: Spread
    words: Lengths


@dataclass(frozen=True)
class Example:
    row: int
    shown: str


@dataclass(frozen=True)
class Finding:
    """Something that may be a mistake: how often, out of how many, where first, and what to make of it."""

    kind: str
    split: str
    what: str
    count: int
    of: int
    examples: tuple[Example, ...]
    note: str = ""


@dataclass(frozen=True)
class Description:
    """A dataset in figures; `suspicious` lists every check, also those that found nothing."""

    name: str
    fingerprint: str
    labels: LabelSummary
    splits: dict[str, SplitSummary]
    suspicious: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def lines(self) -> list[str]:
        """For people."""
        labels = self.labels
        lines = [
            self.name,
            f"labels      {labels.count:,}",
            f"  queries   {labels.queries_per_label} (in train; {labels.share_without_queries:.1%} of the labels "
            f"have none, {labels.share_rare:.1%} at most {RARE})",
            f"  words     {labels.words}",
        ]
        for name, split in self.splits.items():
            graded = ", graded" if split.graded else ""
            ignored = f", {split.ignored_pairs:,} pairs to ignore" if split.ignored_pairs else ""
            lines += [
                f"{name:<11} {split.queries:,} queries, {split.pairs:,} relevant pairs{graded}{ignored}",
                f"  labels    {split.labels_per_query}",
                f"  words     {split.words}",
            ]
        found = [finding for finding in self.suspicious if finding.count]
        lines.append("suspicious (rows count from 1)" if found else "suspicious  nothing")
        for finding in found:
            note = f"; {finding.note}" if finding.note else ""
            lines.append(f"  {finding.what}: {finding.count:,} of {finding.of:,}{note}")
            lines += [f"    row {example.row:,}: {example.shown}" for example in finding.examples]
        return lines


def describe(dataset: Dataset) -> Description:
    """Sizes, frequencies and lengths, and everything that looks like a mistake; reads each text once."""
    splits = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    present = {name: split for name, split in splits.items() if split is not None}
    labels = scan(dataset.labels.texts)
    scans = {name: scan(split.texts) for name, split in present.items()}
    counts = dataset.train.relevance.label_counts()
    label_index = TextIndex(dataset.labels.texts, labels.hashes)
    train_index = TextIndex(dataset.train.texts, scans["train"].hashes)

    findings = [
        _duplicate_labels(dataset.labels, label_index.earlier_twins(dataset.labels.texts, labels.hashes)),
        _labels_without_rows(dataset.labels, counts),
    ]
    for name, split in present.items():
        findings += [_empty_texts(name, split.texts, scans[name].words), _rows_without_labels(name, split)]
        if name != "train":
            findings.append(
                _texts_in_train(name, split.texts, train_index.first_twins(split.texts, scans[name].hashes))
            )
        findings.append(_queries_that_are_labels(name, split, dataset.labels, scans[name].hashes, label_index))

    summary = LabelSummary(
        count=len(dataset.labels),
        words=Lengths.of(labels.words),
        queries_per_label=Spread.of(counts),
        share_without_queries=float(np.mean(counts == 0)),
        share_rare=float(np.mean(counts <= RARE)),
    )
    summaries = {name: _summary(split, scans[name].words) for name, split in present.items()}
    return Description(dataset.name, dataset.fingerprint, summary, summaries, tuple(findings))


def _summary(split: Split, words: NDArray[np.int64]) -> SplitSummary:
    return SplitSummary(
        queries=len(split),
        pairs=split.relevance.matrix.nnz,
        ignored_pairs=split.filtered.matrix.nnz,
        graded=split.relevance.graded,
        labels_per_query=Spread.of(np.diff(split.relevance.matrix.indptr)),
        words=Lengths.of(words),
    )


def _empty_texts(name: str, texts: Texts, words: NDArray[np.int64]) -> Finding:
    rows = np.flatnonzero(words == 0)
    examples = tuple(Example(row + 1, repr(texts[row])) for row in _first(rows))
    return Finding("empty_texts", name, f"{name} texts that are empty", len(rows), len(texts), examples)


def _duplicate_labels(labels: LabelCatalogue, twins: NDArray[np.int64]) -> Finding:
    rows = np.flatnonzero(twins >= 0)
    examples = tuple(
        Example(
            row + 1, f"{labels.keys[row]!r} has the text of {labels.keys[twins[row]]!r}: {_shown(labels.texts[row])}"
        )
        for row in _first(rows)
    )
    what = "labels with the text of an earlier label"
    return Finding("duplicate_label_texts", "labels", what, len(rows), len(labels), examples)


def _labels_without_rows(labels: LabelCatalogue, counts: NDArray[np.int64]) -> Finding:
    rows = np.flatnonzero(counts == 0)
    examples = tuple(Example(row + 1, f"{labels.keys[row]!r}: {_shown(labels.texts[row])}") for row in _first(rows))
    what = "labels without a training query"
    return Finding("labels_without_rows", "labels", what, len(rows), len(labels), examples)


def _rows_without_labels(name: str, split: Split) -> Finding:
    rows = np.flatnonzero(np.diff(split.relevance.matrix.indptr) == 0)
    examples = tuple(Example(row + 1, _shown(split.texts[row])) for row in _first(rows))
    what = f"{name} queries without a label"
    return Finding("rows_without_labels", name, what, len(rows), len(split), examples)


def _texts_in_train(name: str, texts: Texts, twins: NDArray[np.int64]) -> Finding:
    rows = np.flatnonzero(twins >= 0)
    examples = tuple(Example(row + 1, f"train row {twins[row] + 1:,}: {_shown(texts[row])}") for row in _first(rows))
    what = f"{name} texts that stand in train"
    return Finding("texts_in_train", name, what, len(rows), len(texts), examples)


def _queries_that_are_labels(
    name: str, split: Split, labels: LabelCatalogue, hashes: NDArray[np.int64], index: TextIndex
) -> Finding:
    twins = twin_labels(split, hashes, index)
    examples = tuple(
        Example(row + 1, f"label {labels.keys[label]!r}: {_shown(split.texts[row])}")
        for row, label in zip(_first(twins.queries), _first(twins.labels), strict=True)
    )
    note = (
        f"{twins.ignored:,} ignore that label, {twins.right:,} have it as a right answer, {twins.uncovered:,} neither"
        + (": make it one, or ignore it" if twins.uncovered else "")
    )
    what = f"{name} queries with the text of a label"
    return Finding("queries_that_are_labels", name, what, len(twins.queries), len(split), examples, note)


def _first(rows: NDArray[np.int64]) -> Iterator[int]:
    return iter(rows[:EXAMPLES].tolist())


def _shown(text: str, width: int = 80) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
