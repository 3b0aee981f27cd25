"""Labels for the texts of a file, however many: read, answered and written chunk by chunk, at constant memory.

While it goes on, OUTPUT.predicting holds the chunks that are done, each whole or not there; the output appears in one
step at the end. A kill costs the chunk that was being worked on.
"""

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from umpteen.data.formats.reading import BadRow, InputRows, Row
from umpteen.errors import BadFile, BadInput, NotSaved, Stopped, UmpteenError
from umpteen.files.storage import Workspace, flush_to_disk, open_workspace, write_atomically
from umpteen.model.classifier import LIMITS, Classifier, Prediction, answer
from umpteen.search.ranking import write_csr

BAD, STATE = "bad.jsonl", "progress.json"
MATRIX = {"data": np.float32, "indices": np.int32, "indptr": np.int64}  # its arrays, a file each until it is whole
FORMAT = 4  # of the unfinished work
TEXTS_AT_A_TIME = 4096
CHARACTERS_AT_A_TIME = 2**24  # a chunk of long texts has fewer of them

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Wanted:
    """What is asked of a file of texts."""

    k: int | None = None
    min_probability: float | None = None
    precision: float | None = None
    rule: str | None = None
    field: str = "text"
    id_field: str | None = None
    skip_bad: bool = False


@dataclass
class State:
    """How far it is, and what it belongs to."""

    identity: dict[str, Any]
    rows: int = 0  # of the input, good or bad
    texts: int = 0
    labels: int = 0  # given
    digest: str = ""  # of the input's lines up to here
    sizes: dict[str, int] = field(default_factory=dict)  # of the files of answers and of bad rows, in bytes
    replaces: bool = False  # an output that was there at the beginning
    finished: bool = False

    @property
    def bad(self) -> int:
        return self.rows - self.texts


def folder_of(output: Path) -> Path:
    """Where a prediction keeps what is done."""
    return Path(f"{output}.predicting")


def bad_rows_of(output: Path) -> Path:
    return Path(f"{output}.bad.jsonl")


def _there(output: Path) -> Path | None:
    """What stands in the place of the output, or else of its bad rows."""
    return next((path for path in (output, bad_rows_of(output)) if path.exists()), None)


def predict_file(
    classifier: Classifier,
    source: Path,
    output: Path,
    wanted: Wanted,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> State | None:
    """Writes the labels of every text of `source` to `output` (.jsonl, .csv or .npz) and returns what was done.

    `resume` goes on after a kill, and the output is then the same as without one. None if `resume` finds nothing left
    to do. Progress counts bytes of the input.
    """
    if output.suffix not in (".jsonl", ".csv", ".npz"):
        raise BadInput(
            f"--output {output}: end it in .jsonl for lines of JSON, .csv for a table, or .npz for a matrix of scores"
        )
    if output.suffix == ".npz" and wanted.id_field is not None:
        raise BadInput("--id-field is for .jsonl and .csv; row i of a matrix is row i of the input")
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
            if not work.state.finished:
                _answer_all(classifier, rows, work, wanted, progress)
            work.finish(len(classifier.labels))
        except KeyboardInterrupt:
            message = f"stopped; {work.state.texts:,} texts are done, and the same command with --resume goes on"
            raise Stopped(message, signal=2) from None
        except UmpteenError:
            if work.state.rows == 0:  # nothing is done that could be in the way of the corrected command
                work.workspace.remove()
            raise
        return work.state


def _answer_all(classifier: Classifier, rows: InputRows, work: "Work", wanted: Wanted, told: Progress | None) -> None:
    unread, state, kind = iter(rows), work.state, work.output.suffix
    limits = {name: getattr(wanted, name) for name in LIMITS}
    passed = sum(1 for _ in itertools.islice(unread, state.rows))  # answered before a kill
    if state.rows and (passed < state.rows or rows.digest != state.digest):
        raise BadInput(
            f"{rows.path} has changed: its first {state.rows:,} rows are not those that were answered; "
            "--overwrite begins anew"
        )
    for chunk in _chunks(unread):
        good = [row for row in chunk if isinstance(row, Row)]
        bad = [row for row in chunk if isinstance(row, BadRow)]
        if bad and not wanted.skip_bad:
            problem = f"{bad[0].problem}: {bad[0].content[:60]!r}; mend it and --resume, or --skip-bad"
            raise BadFile(rows.path, problem, line=bad[0].line)
        texts = [row.text for row in good]
        if kind == ".npz":
            matrix = classifier.select(texts, **limits)[0].to_csr()
            content, found = _arrays(matrix, chunk, state), matrix.nnz
        else:
            answers = classifier.predict(texts, **limits)
            names = ({"line": row.line} if row.name is None else {"id": row.name} for row in good)
            written = _table(names, answers, state) if kind == ".csv" else _lines(map(answer, names, answers))
            content, found = {f"answers{kind}": written}, sum(map(len, answers))
        work.append({**content, BAD: _lines(row._asdict() for row in bad)})
        state.labels += found
        state.rows += len(chunk)
        state.texts += len(good)
        state.digest = rows.digest
        work.advance()
        if told is not None:
            told(rows.position, rows.size, f"{state.texts:,} texts")
    if state.rows == 0:
        raise BadFile(rows.path, "holds no text; was it cut short?")


def _chunks(unread: Iterator[Row | BadRow]) -> Iterator[list[Row | BadRow]]:
    chunk: list[Row | BadRow] = []
    characters = 0
    for row in unread:
        chunk.append(row)
        characters += len(row.text if isinstance(row, Row) else row.content)
        if len(chunk) == TEXTS_AT_A_TIME or characters >= CHARACTERS_AT_A_TIME:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _arrays(matrix: csr_array, chunk: list[Row | BadRow], state: State) -> dict[str, bytes]:
    """What a chunk adds to the arrays of the whole matrix, which has a row for each row of the input."""
    lengths = np.zeros(len(chunk), dtype=np.int64)  # those that were skipped have no labels
    lengths[[isinstance(row, Row) for row in chunk]] = np.diff(matrix.indptr)
    ends = state.labels + np.cumsum(lengths)
    starts = ends if state.rows else np.concatenate([[0], ends])
    made = {"data": matrix.data, "indices": matrix.indices, "indptr": starts}
    return {name: made[name].astype(kind).tobytes() for name, kind in MATRIX.items()}


def _table(names: Iterable[dict[str, Any]], answers: list[list[Prediction]], state: State) -> bytes:
    """A row a text, under a header: keys with | between them, or as a JSON list where one holds that mark."""
    made = io.StringIO()
    rows = csv.writer(made, lineterminator="\n")
    for number, (name, found) in enumerate(zip(names, answers, strict=True)):
        if state.texts + number == 0:
            rows.writerow([*name, "labels", "scores", "probabilities"])
        keys = [one.key for one in found]
        joined = json.dumps(keys, ensure_ascii=False) if any("|" in key for key in keys) else "|".join(keys)
        figures = ([one.score for one in found], [one.probability for one in found if one.probability is not None])
        rows.writerow([*name.values(), joined, *("|".join(f"{value:.6g}" for value in own) for own in figures)])
    return made.getvalue().encode()


def _lines(records: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


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
        state = _read(folder, output, identity) or State(identity, replaces=overwrite)
        if there and not (state.replaces or state.finished):
            raise BadInput(f"{there} exists already, and {folder} was not begun to replace it; move one of them away")
        work = Work(output, state, workspace)
        work.advance()
        yield work


def _read(folder: Path, output: Path, identity: dict[str, Any]) -> State | None:
    path = folder / STATE
    if not path.exists():
        return None
    try:
        state = State(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, OSError) as error:
        raise BadInput(f"{path}: is damaged ({error}); --overwrite begins {output} again") from error
    for name, value in identity.items():
        if state.identity.get(name) != value:
            raise BadInput(
                f"{folder} was begun with {name} = {state.identity.get(name)!r}, not {value!r}; give the same again, "
                "or --overwrite to begin anew"
            )
    for name, size in state.sizes.items():
        there = (folder / name).stat().st_size if (folder / name).exists() else 0
        if there < size and not state.finished:
            raise BadInput(
                f"{folder / name}: has {there:,} of the {size:,} bytes that were written; what is lost cannot be made "
                f"up, and --overwrite begins {output} again"
            )
    return state


@dataclass
class Work:
    """One prediction's folder beside its output."""

    output: Path
    state: State
    workspace: Workspace

    def append(self, content: dict[str, bytes]) -> None:
        """Keeps the answers of a chunk, by file; the state, which vouches for them, is written by `advance`.

        A file is cut to its known size first: what a kill left behind it is no whole chunk.
        """
        for name, added in content.items():
            path, size = self.workspace.folder / name, self.state.sizes.get(name, 0)
            if not added and not path.exists():
                continue
            try:
                with path.open("ab") as file:
                    file.truncate(size)
                    file.seek(size)
                    file.write(added)
                    file.flush()
                    os.fsync(file.fileno())
                    self.state.sizes[name] = file.tell()
            except OSError as error:
                raise NotSaved(
                    f"{path}: could not be written: {error.strerror or error}; {self.state.texts:,} texts are done, "
                    "and --resume goes on from there"
                ) from error

    def advance(self) -> None:
        write_atomically(self.workspace.folder / STATE, json.dumps(asdict(self.state)))

    def finish(self, labels: int) -> None:
        """The output appears."""
        folder, state = self.workspace.folder, self.state
        made = folder / f"answers{self.output.suffix}"
        if not state.finished:
            if (there := _there(self.output)) and not state.replaces:
                raise NotSaved(f"{there}: has appeared meanwhile and is left alone; {folder} has the answers")
            if made.suffix == ".npz":
                write_csr(made, (state.rows, labels), *map(self._mapped, MATRIX))
            else:
                made.touch()  # there may have been bad rows only
            state.finished = True
            self.advance()
        if (folder / BAD).exists():
            _move(folder / BAD, bad_rows_of(self.output))
        elif state.replaces and state.bad == 0:
            bad_rows_of(self.output).unlink(missing_ok=True)  # of the output that is replaced now
        if made.exists():
            _move(made, self.output)
        elif not self.output.exists():
            raise NotSaved(f"{self.output}: was finished, and is gone since; --overwrite makes it again")
        self.workspace.remove()

    def _mapped(self, name: str) -> NDArray[Any]:
        """An array of the matrix, as it was written chunk by chunk; an empty file cannot be mapped."""
        kind, size = np.dtype(MATRIX[name]), self.state.sizes.get(name, 0)
        shape = (size // kind.itemsize,)  # what a kill left behind it does not count
        return np.memmap(self.workspace.folder / name, kind, "r", shape=shape) if size else np.empty(0, kind)


def _move(source: Path, target: Path) -> None:
    try:
        source.replace(target)
        flush_to_disk(target.parent)
    except OSError as error:
        raise NotSaved(f"{target}: could not be written: {error.strerror or error}; it lies in {source}") from error
