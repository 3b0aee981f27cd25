"""Where a long prediction keeps what is done: OUTPUT.predicting, filled chunk by chunk, each whole or not there.

The output appears in one step at the end. A kill costs the chunk that was being worked on.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import scipy.sparse
from scipy.sparse import csr_array

from umpteen.errors import BadInput, NotSaved
from umpteen.retrieval.ranking import Ranking
from umpteen.retrieval.streamed_csr import write_csr
from umpteen.storage import Workspace, open_workspace, write_atomically

ANSWERS, BAD, STATE = "answers.jsonl", "bad.jsonl", "progress.json"


@dataclass
class State:
    """How far it is, and what it belongs to."""

    identity: dict[str, Any]
    rows: int = 0  # of the input, good or bad
    texts: int = 0
    labels: int = 0  # given
    digest: str = ""  # of the input's lines up to here
    chunks: int = 0
    answers_bytes: int = 0
    bad_bytes: int = 0
    replaces: bool = False  # an output that was there at the beginning
    finished: bool = False

    @property
    def bad(self) -> int:
        return self.rows - self.texts


class Work:
    """One prediction's folder beside its output."""

    def __init__(self, output: Path, state: State, workspace: Workspace) -> None:
        self.output = output
        self.state = state
        self.folder = workspace.folder
        self._workspace = workspace

    def append(self, answers: list[str], bad: list[str], ranking: Ranking | None) -> None:
        """Keeps the answers of a chunk; the state, which vouches for them, is written by `advance`."""
        self.state.answers_bytes = self._extend(ANSWERS, self.state.answers_bytes, answers)
        self.state.bad_bytes = self._extend(BAD, self.state.bad_bytes, bad)
        if ranking is not None:
            ranking.save(self._chunk(self.state.chunks))
        self.state.chunks += 1

    def advance(self) -> None:
        write_atomically(self.folder / STATE, json.dumps(asdict(self.state)))

    def finish(self, labels: int | None) -> None:
        """The output appears; with a number of labels it is the chunks' matrices below each other."""
        if not self.state.finished:
            if self.output.exists() and not self.state.replaces:
                raise NotSaved(
                    f"{self.output}: has appeared meanwhile and is left alone; {self.folder} has the answers"
                )
            if labels is not None:
                self._join_chunks(labels)
            else:
                (self.folder / ANSWERS).touch()  # there may have been bad rows only
            self.state.finished = True
            self.advance()
        if (self.folder / BAD).exists():
            _move(self.folder / BAD, bad_rows_of(self.output))
        elif self.state.replaces and self.state.bad == 0:
            bad_rows_of(self.output).unlink(missing_ok=True)  # of the output that is replaced now
        made = self.folder / self._answers()
        if made.exists():
            _move(made, self.output)
        self._workspace.remove()

    def _answers(self) -> str:
        return f"answers{self.output.suffix}"

    def _join_chunks(self, labels: int) -> None:
        def parts() -> Iterator[csr_array]:
            return (csr_array(scipy.sparse.load_npz(self._chunk(number))) for number in range(self.state.chunks))

        write_csr(self.folder / self._answers(), parts, (self.state.rows, labels), self.state.labels)

    def _chunk(self, number: int) -> Path:
        return self.folder / f"chunk-{number:08}.npz"

    def _extend(self, name: str, size: int, lines: list[str]) -> int:
        """The file is cut to its known size first: what a kill left behind it is no whole chunk."""
        path = self.folder / name
        if not lines and not path.exists():
            return size
        try:
            with path.open("ab") as file:
                file.truncate(size)
                file.seek(size)
                file.write("".join(f"{line}\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
                return file.tell()
        except OSError as error:
            raise NotSaved(
                f"{path}: could not be written: {error.strerror or error}; {self.state.texts:,} texts are done, and "
                "--resume goes on from there"
            ) from error


def folder_of(output: Path) -> Path:
    return Path(f"{output}.predicting")


def bad_rows_of(output: Path) -> Path:
    """Where skipped rows are listed."""
    return Path(f"{output}.bad.jsonl")


@contextmanager
def opened(output: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool) -> Iterator[Work | None]:
    """The work of this output, begun or gone on with; None if the output is there and nothing is left to do."""
    folder = folder_of(output)
    _refuse_losses(output, resume=resume, overwrite=overwrite)
    if output.exists() and resume and not folder.exists():
        yield None
        return
    with open_workspace(folder, "umpteen predict", anew=overwrite) as workspace:
        if workspace.begun and not resume:
            raise BadInput(f"{folder} holds an unfinished prediction; --resume goes on, --overwrite discards it")
        state = _read(folder, output, identity) or State(identity, replaces=overwrite)
        if output.exists() and not (state.replaces or state.finished):
            raise BadInput(f"{output} exists already, and {folder} was not begun to replace it; move one of them away")
        work = Work(output, state, workspace)
        work.advance()
        yield work


def _refuse_losses(output: Path, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise BadInput("--resume goes on with an unfinished prediction and --overwrite discards it; give one of them")
    if output.is_dir():
        raise BadInput(f"{output} is a folder; name a file to write")
    if output.exists() and not (resume or overwrite):
        raise BadInput(f"{output} exists already; give another --output, or --overwrite to replace it at the end")


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
    for name, size in ((ANSWERS, state.answers_bytes), (BAD, state.bad_bytes)):
        there = (folder / name).stat().st_size if (folder / name).exists() else 0
        if there < size and not state.finished:
            raise BadInput(
                f"{folder / name}: has {there:,} of the {size:,} bytes that were written; what is lost cannot be made "
                f"up, and --overwrite begins {output} again"
            )
    return state


def _move(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except OSError as error:
        raise NotSaved(f"{target}: could not be written: {error.strerror or error}; it lies in {source}") from error
