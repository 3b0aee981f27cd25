"""Labels for the texts of a file, however many: read, answered and written chunk by chunk, at constant memory.

While it goes on, OUTPUT.predicting holds the chunks that are done, each a file that is whole or not there and says how
far it is; the output is put together of them at the end. A kill costs the chunk that was being worked on.

Several machines share a file out by its chunks: each answers those that begin in its part of the file's bytes, and
OUTPUT.shard.json says from where to where it read. Shards that meet there make up the whole output.
"""

import csv
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from umpteen.data.formats.reading import BadRow, InputRows, Row
from umpteen.errors import BadFile, BadInput, NotSaved, Stopped, UmpteenError
from umpteen.files.progress import silent
from umpteen.files.storage import Workspace, atomic_file, open_workspace, sha256_of, write_atomically
from umpteen.model.classifier import LIMITS, Classifier, Prediction, answer

BEGUN = "begun.json"
FORMAT = 6  # of the unfinished work
TEXTS_AT_A_TIME = 4096
BYTES_AT_A_TIME = 2**24  # of the input: a chunk of long texts has fewer of them

Progress = Callable[[int, int, str], None]
Shard = tuple[int, int]  # which of how many, from 1 on


@dataclass(frozen=True)
class Wanted:
    """What is asked of a file of texts."""

    k: int | None = None
    min_probability: float | None = None
    precision: float | None = None
    rule: str | None = None
    field: str | None = None  # by its name
    id_field: str | None = None
    skip_bad: bool = False


@dataclass(frozen=True)
class State:
    """How far it is."""

    chunks: int = 0
    rows: int = 0  # of the input up to here, good or bad
    texts: int = 0
    labels: int = 0  # given
    digest: str = ""  # of the input's lines up to here
    rows_before: int = 0  # which other shards answer
    digest_before: str = ""

    @property
    def bad(self) -> int:
        return self.rows - self.rows_before - self.texts


def folder_of(output: Path) -> Path:
    """Where a prediction keeps what is done."""
    return Path(f"{output}.predicting")


def bad_rows_of(output: Path) -> Path:
    return Path(f"{output}.bad.jsonl")


def record_of(output: Path) -> Path:
    """Where a shard's output has what merging needs to know of it."""
    return Path(f"{output}.shard.json")


def shard_of(output: Path, shard: Shard) -> Path:
    """Where a shard of an output is written."""
    number, count = shard
    return output.parent / f"{output.stem}-{number:05}-of-{count:05}{output.suffix}"


def _there(output: Path) -> Path | None:
    """What stands in the place of the output, or else of its bad rows."""
    return next((path for path in (output, bad_rows_of(output)) if path.exists()), None)


def predict_file(
    classifier: Classifier,
    source: Path,
    output: Path,
    wanted: Wanted,
    *,
    shard: Shard | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> State | None:
    """Writes the labels of every text of `source` to `output` (.jsonl or .csv) and returns what was done.

    `resume` goes on after a kill, and the output is then the same as without one. None if `resume` finds nothing left
    to do. Of a `shard`, `output` is where `shard_of` puts it. Progress counts bytes of the input.
    """
    if output.suffix not in (".jsonl", ".csv"):
        raise BadInput(f"--output {output}: end it in .jsonl for lines of JSON, or .csv for a table")
    for path in (output, bad_rows_of(output)):
        if path.exists() and source.exists() and path.samefile(source):
            raise BadInput(f"{path} is the input itself; give another --output")
    rows = InputRows(source, field=wanted.field, name_field=wanted.id_field)
    identity = {"format": FORMAT, **asdict(wanted), "labels_version": classifier.version}
    identity |= {"lessons": classifier.lessons, "with_ranker": classifier.ranker is not None}
    del identity["skip_bad"]  # changes no answer
    if classifier.folder is not None:
        parts = sorted(part.folder for part in classifier.parts.values())
        identity |= {"model": classifier.folder.model, "parts": parts}
    with _opened(output, identity, resume=resume, overwrite=overwrite) as work:
        if work is None:
            return None
        try:
            _answer_all(classifier, rows, work, wanted, shard or (1, 1), progress)
            work.finish(shard)
        except KeyboardInterrupt:
            message = f"stopped; {work.state.texts:,} texts are done, and the same command with --resume goes on"
            raise Stopped(message, signal=2) from None
        except UmpteenError:
            if work.state.chunks == 0:  # nothing is done that could be in the way of the corrected command
                work.workspace.remove()
            raise
        return work.state


def _answer_all(model: Classifier, rows: InputRows, work: "Work", wanted: Wanted, shard: Shard, told: Progress) -> None:
    unread, done, (number, count) = iter(rows), work.state, shard
    first, end = (-(-rows.size * edge // count) for edge in (number - 1, number))  # where its chunks begin
    limits = {name: getattr(wanted, name) for name in LIMITS}
    passed = rows.pass_over(unread, done.rows)  # answered before a kill
    if done.rows and (passed < done.rows or rows.digest != done.digest):
        problem = f"its first {done.rows:,} rows are not those that were answered"
        raise BadInput(f"{rows.path} has changed: {problem}; --overwrite begins anew")
    while rows.position < first and (others := rows.pass_over(unread, TEXTS_AT_A_TIME, BYTES_AT_A_TIME)):
        passed += others
    if done.chunks == 0:
        work.state = done = State(0, passed, 0, 0, rows.digest, passed, rows.digest)
    while (number == count or rows.position < end) and (chunk := _read_chunk(rows, unread)):
        good = [row for row in chunk if isinstance(row, Row)]
        bad = [row for row in chunk if isinstance(row, BadRow)]
        if bad and not wanted.skip_bad:
            problem = f"{bad[0].problem}: {bad[0].content[:60]!r}; mend it and --resume, or --skip-bad"
            raise BadFile(rows.path, problem, line=bad[0].line)
        answers = model.predict([row.text for row in good], **limits)
        names = ({"line": row.line} if row.name is None else {"id": row.name} for row in good)
        is_table = work.output.suffix == ".csv"
        written = _table(names, answers, header=done.texts == 0) if is_table else _lines(map(answer, names, answers))
        counts = done.rows + len(chunk), done.texts + len(good), done.labels + sum(map(len, answers))
        done = State(done.chunks + 1, *counts, rows.digest, done.rows_before, done.digest_before)
        work.append(done, {"answers": written, "bad": _lines(row._asdict() for row in bad)})
        told(min(rows.position, end), end, f"{done.texts:,} texts")
    if done.rows == 0:
        raise BadFile(rows.path, "holds no text; was it cut short?")


def _read_chunk(rows: InputRows, unread: Iterator[Row | BadRow]) -> list[Row | BadRow]:
    chunk, start = list[Row | BadRow](), rows.offset
    while len(chunk) < TEXTS_AT_A_TIME and rows.offset - start < BYTES_AT_A_TIME and (row := next(unread, None)):
        chunk.append(row)
    return chunk


def _table(names: Iterable[dict[str, Any]], answers: list[list[Prediction]], *, header: bool) -> str:
    """A row a text, the first under a header: keys with | between them, or as a JSON list where one holds that mark."""
    made = io.StringIO()
    rows = csv.writer(made, lineterminator="\n")
    for name, found in zip(names, answers, strict=True):
        if header:
            rows.writerow([*name, "labels", "scores", "probabilities"])
            header = False
        keys = [one.key for one in found]
        joined = json.dumps(keys, ensure_ascii=False) if any("|" in key for key in keys) else "|".join(keys)
        figures = ([one.score for one in found], [one.probability for one in found if one.probability is not None])
        rows.writerow([*name.values(), joined, *("|".join(f"{value:.6g}" for value in own) for own in figures)])
    return made.getvalue()


def _lines(records: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@contextmanager
def _opened(output: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool) -> "Iterator[Work | None]":
    """The work of this output, begun or gone on with; None if the output is there and nothing is left to do."""
    folder = folder_of(output)
    if resume and overwrite:
        raise BadInput("--resume goes on with an unfinished prediction and --overwrite discards it; give one of them")
    if output.is_dir():
        raise BadInput(f"{output} is a folder; name a file to write")
    there = _there(output)
    if there and not (resume or overwrite):
        raise BadInput(f"{there} exists already; give another --output, or --overwrite to replace it at the end")
    if output.exists() and resume and not folder.exists():
        yield None
        return
    with open_workspace(folder, "umpteen predict", anew=overwrite) as workspace:
        if workspace.begun and not resume:
            raise BadInput(f"{folder} holds an unfinished prediction; --resume goes on, --overwrite discards it")
        work = Work(output, workspace, identity, replaces=overwrite)
        if there and not work.replaces:
            raise BadInput(f"{there} exists already, and {folder} was not begun to replace it; move one of them away")
        yield work


class Work:
    """One prediction's folder beside its output: what it was begun with, and the chunks that are done."""

    def __init__(self, output: Path, workspace: Workspace, identity: dict[str, Any], *, replaces: bool) -> None:
        self.output, self.workspace, self.state, self._identity = output, workspace, State(), identity
        self.replaces = replaces  # an output that was there at the beginning
        if (workspace.folder / BEGUN).exists():
            begun, self.replaces = self._read(BEGUN, "identity"), bool(self._read(BEGUN, "replaces"))
            for name, value in identity.items():
                if begun.get(name) != value:
                    both = f"was begun with {name} = {begun.get(name)!r}, not {value!r}"
                    raise BadInput(f"{workspace.folder} {both}; give the same again, or --overwrite to begin anew")
            chunks = sorted(path.name for path in workspace.folder.glob("*.chunk"))
            self.state = State(**self._read(chunks[-1], "state")) if chunks else self.state
            for name in {*map(_chunk, range(1, self.state.chunks))} - {*chunks}:
                self._read(name, "state")  # which is an error
        self._write(BEGUN, {"identity": identity, "replaces": self.replaces})

    def append(self, state: State, content: dict[str, str]) -> None:
        """Keeps the answers and bad rows of a chunk, and how far it is with them."""
        try:
            self._write(_chunk(state.chunks), {"state": asdict(state), **content})
        except NotSaved as error:
            raise NotSaved(f"{error}; {self.state.texts:,} texts are done, and --resume goes on from there") from error
        self.state = state

    def finish(self, shard: Shard | None) -> None:
        """The output appears, and what merging needs to know if it is a shard of one."""
        if (there := _there(self.output)) and not self.replaces:
            folder = self.workspace.folder
            raise NotSaved(f"{there}: has appeared meanwhile and is left alone; {folder} has the answers")
        # From here on, what stands there is its own.
        self._write(BEGUN, {"identity": self._identity, "replaces": True})
        for part, path in (("bad", bad_rows_of(self.output)), ("answers", self.output)):
            if part == "bad" and self.state.bad == 0:
                path.unlink(missing_ok=True)  # of the output that is replaced now
                continue
            with atomic_file(path) as file:
                for name in map(_chunk, range(1, self.state.chunks + 1)):
                    file.write(self._read(name, part).encode())
        if shard is not None:
            about = {"shard": shard, "state": asdict(self.state), "identity": self._identity}
            about["sha256"] = _hashes(self.output, self.state)
            write_atomically(record_of(self.output), json.dumps(about, ensure_ascii=False))
        self.workspace.remove()

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_atomically(self.workspace.folder / name, json.dumps(content, ensure_ascii=False))

    def _read(self, name: str, part: str) -> Any:
        path = self.workspace.folder / name
        try:
            return json.loads(path.read_bytes())[part]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadInput(f"{path}: is lost or damaged ({error}); --overwrite begins {self.output} again") from error


def _chunk(number: int) -> str:
    """The name of its file."""
    return f"{number:010}.chunk"


def _hashes(output: Path, state: State) -> list[str]:
    return [sha256_of(path) for path in ([output, bad_rows_of(output)] if state.bad else [output])]


def merge_shards(output: Path, *, overwrite: bool = False) -> State:
    """Puts the shards that lie beside an output together: byte for byte what one machine would have written."""
    if (there := _there(output)) and not overwrite:
        raise BadInput(f"{there} exists already; move it away, or --overwrite to replace it")
    name = re.compile(rf"{re.escape(output.stem)}-\d{{5,}}-of-(\d{{5,}}){re.escape(output.suffix)}")
    counts = {int(found[1]) for path in output.parent.glob("*") if (found := name.fullmatch(path.name))}
    if len(counts) != 1:
        lie = f"shards of {' and of '.join(map(str, sorted(counts)))} lie" if counts else "no shard lies"
        raise BadInput(f"{output}: {lie} beside it; `umpteen predict --shard` makes them, all of the same number")
    (count,) = counts
    shards = [shard_of(output, (number, count)) for number in range(1, count + 1)]
    states = list(_checked(shards))
    bad = [bad_rows_of(shard) for shard, state in zip(shards, states, strict=True) if state.bad]
    bad_rows_of(output).unlink(missing_ok=True)  # of the output that is replaced now
    for path, parts in ((bad_rows_of(output), bad), (output, shards)):
        if not parts:
            continue
        with atomic_file(path) as file:
            for part in parts:
                with part.open("rb") as lines:
                    if path.suffix == ".csv" and file.tell():
                        lines.readline()  # the header once more
                    shutil.copyfileobj(lines, file)
    texts, labels, chunks = (sum(getattr(state, name) for state in states) for name in ("texts", "labels", "chunks"))
    return State(chunks, states[-1].rows, texts, labels, states[-1].digest)


def _checked(shards: list[Path]) -> Iterator[State]:
    """What the shards say of themselves, if all are there and whole, of one kind, and each begins where one ended."""
    kind: dict[str, Any] | None = None
    end = 0, hashlib.sha256().hexdigest()
    for number, path in enumerate(shards, 1):
        which = f"{path}: shard {number} of {len(shards)}"
        again = f"copy it again with its .shard.json, or make it with --shard {number}/{len(shards)}"
        try:
            about = json.loads(record_of(path).read_bytes())
            state, identity = State(**about["state"]), dict(about["identity"])
            is_whole = (about["shard"], about["sha256"]) == ([number, len(shards)], _hashes(path, state))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadInput(f"{which} is missing or damaged ({error}); {again}") from error
        if not is_whole:
            raise BadInput(f"{which} has changed since it was made; {again}")
        kind = kind or identity
        for name in kind | identity:
            if kind.get(name) != identity.get(name):
                made = f"was made with {name} = {identity.get(name)!r}, shard 1 with {kind.get(name)!r}"
                raise BadInput(f"{which} {made}; make one of them again")
        if (state.rows_before, state.digest_before) != end:
            begins = f"it begins behind row {state.rows_before:,}, the one before it ends at row {end[0]:,}"
            raise BadInput(f"{which} is of another input: {begins}, or what was read up to there differs; {again}")
        end = state.rows, state.digest
        yield state
