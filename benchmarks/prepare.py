"""Benchmark: preparing many long documents stays within memory, and a process killed midway goes on where it was.

The work is done in child processes (`python -m benchmarks.prepare DATA CACHE MAX_LENGTH`), so that one can be killed
and its memory measured.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from umpteen.data.dataset import open_dataset
from umpteen.data.prepared import own_cache
from umpteen.data.tokens import SMALL, TokenTable, tokenise
from umpteen.encoders.folder import TextTokenizer
from umpteen.errors import BadInput
from umpteen.files.progress import Advance, Progress

MEMORY_LIMIT = 2_000_000_000  # bytes
MODEL = "all-MiniLM-L6-v2"
LABELS = 1_000
LABELS_PER_DOCUMENT = 3
WRITTEN_AT_ONCE = 1_000  # documents
SAMPLED = 2_000  # documents compared with a table that was never interrupted


def run(
    documents: int = 500_000,
    words: int = 200,
    *,
    seed: int = 0,
    max_length: int = 256,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes the documents below `folder` (a temporary one), prepares them with one kill, and checks the outcome."""
    if documents < SMALL:
        raise BadInput(f"{documents:,} documents are tokenised in memory; give {SMALL:,} or more")
    tell = progress or (lambda stage, done, total: None)
    with TemporaryDirectory(prefix="umpteen-prepare-", dir=folder) as scratch:
        data, cache = Path(scratch, "data"), Path(scratch, "cache")
        began = time.monotonic()
        _write_dataset(data, documents, words, np.random.default_rng(seed), tell)
        written = time.monotonic() - began
        killed = _prepare(data, cache, max_length, tell, kill_midway=True)
        resumed = _prepare(data, cache, max_length, tell, kill_midway=False)
        tokens, compared, equal = _compare(data, cache, max_length, resumed.first, seed)
    peak = max(killed.peak_memory, resumed.peak_memory)
    return {
        "documents": documents,
        "words": words,
        "tokens": tokens,
        "max_length": max_length,
        "seconds": {"write": written, "until_kill": killed.seconds, "after_resume": resumed.seconds},
        "killed_at": killed.last,
        "resumed_at": resumed.first,
        "peak_memory_bytes": peak,
        "memory_limit_bytes": MEMORY_LIMIT,
        "within_memory": peak < MEMORY_LIMIT,
        "compared": compared,
        "equal": equal,
    }


class _Run(NamedTuple):
    """One child: where its tokenising began, what it last reported, how long it ran and what it needed."""

    first: int
    last: int
    seconds: float
    peak_memory: int


def _write_dataset(folder: Path, documents: int, words: int, rng: np.random.Generator, tell: Progress) -> None:
    """A native dataset of invented words, the r-th of them about as frequent as 1/r, as in natural text."""
    folder.mkdir()
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    vocabulary = np.array(["".join(rng.choice(syllables, 1 + rank % 4)) for rank in range(20_000)], dtype=object)
    shares = np.cumsum(1 / np.arange(1, len(vocabulary) + 1))
    with (folder / "labels.jsonl").open("w", encoding="utf-8") as file:
        for label in range(LABELS):
            file.write(json.dumps({"key": str(label), "text": f"{vocabulary[label]} {label}"}) + "\n")
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for start in range(0, documents, WRITTEN_AT_ONCE):
            count = min(WRITTEN_AT_ONCE, documents - start)
            drawn = vocabulary[np.searchsorted(shares, rng.random((count, words)) * shares[-1])].tolist()
            labels = rng.integers(LABELS, size=(count, LABELS_PER_DOCUMENT)).astype(str).tolist()
            for text, keys in zip(drawn, labels, strict=True):
                file.write(json.dumps({"text": " ".join(text), "labels": sorted(set(keys))}) + "\n")
            tell("writing", start + count, documents)


def _prepare(data: Path, cache: Path, max_length: int, tell: Progress, *, kill_midway: bool) -> _Run:
    """Runs a child to its end, or kills it as soon as half of the documents are tokenised."""
    command = [sys.executable, "-m", "benchmarks.prepare", str(data), str(cache), str(max_length)]
    began = time.monotonic()
    first, last, peak = -1, 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for report in _reports(child):
            peak = max(peak, report["peak_memory"])
            tell(report["stage"], report["done"], report["total"])
            if report["stage"] != "tokenising":
                continue
            first, last = report["done"] if first < 0 else first, report["done"]
            if kill_midway and report["total"] / 2 <= last < report["total"]:
                child.kill()
    if kill_midway and child.returncode == 0:
        raise BadInput("all documents were tokenised before the process could be killed; give more or longer ones")
    wanted = -signal.SIGKILL if kill_midway else 0
    if child.returncode != wanted:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode} instead of {wanted}")
    return _Run(first, last, time.monotonic() - began, peak)


def _reports(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith("\n"):  # a kill may cut the last one
            yield json.loads(line)


def _compare(data: Path, cache: Path, max_length: int, resumed_at: int, seed: int) -> tuple[int, int, bool]:
    """Tokens in all, how many documents were tokenised again in one go, and whether all of them came out the same."""
    tokenizer = TextTokenizer.load(MODEL, max_length, special_tokens=True)
    with own_cache(cache):
        texts = open_dataset(data).train.texts
        table = tokenise(texts, tokenizer)
    around = np.arange(max(0, resumed_at - 10), min(len(texts), resumed_at + 10))
    drawn = np.random.default_rng(seed).choice(len(texts), min(SAMPLED, len(texts)), replace=False)
    rows = np.union1d(around, drawn)
    again = TokenTable.of(tokenizer([texts[row] for row in rows.tolist()]), tokenizer.vocabulary_size)
    pairs = zip(table.batch(rows), again.batch(np.arange(len(rows))), strict=True)
    return int(table.lengths.sum()), len(rows), all(ours.equal(theirs) for ours, theirs in pairs)


def _peak_memory() -> int:
    """The most this process ever held, in bytes; unlike getrusage, without what its parent held before it started."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _child(data: str, cache: str, max_length: str) -> None:
    """Reads and tokenises, reporting each step as a line of JSON."""

    def report(stage: str) -> Advance:
        def tell(done: int, total: int) -> None:
            told = {"stage": stage, "done": done, "total": total, "peak_memory": _peak_memory()}
            print(json.dumps(told), flush=True)

        return tell

    tokenizer = TextTokenizer.load(MODEL, int(max_length), special_tokens=True)
    with own_cache(Path(cache)):
        tokenise(open_dataset(data, progress=report("reading")).train.texts, tokenizer, report("tokenising"))


if __name__ == "__main__":
    _child(*sys.argv[1:])
