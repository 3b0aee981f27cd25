"""Labels for the texts of a file, however many: read, answered and written chunk by chunk, at constant memory."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from umpteen.batch_input import BadRow, InputRows, Row
from umpteen.batch_work import State, Work, bad_rows_of, opened
from umpteen.classifier import Classifier
from umpteen.errors import BadFile, BadInput, Stopped
from umpteen.retrieval.ranking import NO_LABEL, Ranking

TEXTS_AT_A_TIME = 4096
FORMAT = 2  # of the unfinished work
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

    def limits(self) -> dict[str, Any]:
        """As `Classifier.predict` takes them."""
        return {name: getattr(self, name) for name in ("k", "min_probability", "precision", "rule")}


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
    """Writes the labels of every text of `source` to `output` (.jsonl or .npz) and returns what was done.

    While it goes on, `output` + ".predicting" holds what is done; `resume` goes on after a kill, and the output is then
    the same as without one. None if `resume` finds nothing left to do. Progress counts bytes of the input.
    """
    _check_output(source, output, wanted)
    rows = InputRows(source, field=wanted.field, name_field=wanted.id_field)
    asked = {name: value for name, value in asdict(wanted).items() if name != "skip_bad"}  # changes no answer
    identity = {"format": FORMAT, **asked, **_model_of(classifier)}
    with opened(output, identity, resume=resume, overwrite=overwrite) as work:
        if work is None:
            return None
        try:
            if not work.state.finished:
                _answer_all(classifier, rows, work, wanted, progress)
            work.finish(len(classifier.labels) if output.suffix == ".npz" else None)
        except KeyboardInterrupt:
            message = f"stopped; {work.state.texts:,} texts are done, and the same command with --resume goes on"
            raise Stopped(message, signal=2) from None
        return work.state


def _answer_all(classifier: Classifier, rows: InputRows, work: Work, wanted: Wanted, progress: Progress | None) -> None:
    unread = iter(rows)
    _pass_over(unread, rows, work.state)
    for chunk in _chunks(unread):
        _answer(classifier, rows.path, work, chunk, wanted)
        work.state.digest = rows.digest
        work.advance()
        if progress is not None:
            progress(rows.position, rows.size, f"{work.state.texts:,} texts")
    if work.state.rows == 0:
        raise BadFile(rows.path, "holds no text; was it cut short?")


def _pass_over(unread: Iterator[Row | BadRow], rows: InputRows, state: State) -> None:
    """Rows that were answered before a kill; they must still be the same."""
    passed = sum(1 for _ in itertools.islice(unread, state.rows))
    if state.rows and (passed < state.rows or rows.digest != state.digest):
        raise BadInput(
            f"{rows.path} has changed: its first {state.rows:,} rows are not those that were answered; "
            "--overwrite begins anew"
        )


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


def _answer(classifier: Classifier, path: Path, work: Work, chunk: list[Row | BadRow], wanted: Wanted) -> None:
    good = [row for row in chunk if isinstance(row, Row)]
    bad = [row for row in chunk if isinstance(row, BadRow)]
    if bad and not wanted.skip_bad:
        first = bad[0]
        raise BadFile(
            path, f"{first.problem}: {first.content[:60]!r}; mend it and --resume, or --skip-bad", line=first.line
        )
    ranking, probabilities = classifier.select([row.text for row in good], **wanted.limits())
    skipped = [json.dumps(row._asdict(), ensure_ascii=False) for row in bad]
    if work.output.suffix == ".npz":
        work.append([], skipped, _with_empty_rows(ranking, chunk))
    else:
        work.append(_lines(classifier, good, ranking, probabilities), skipped, None)
    work.state.rows += len(chunk)
    work.state.texts += len(good)
    work.state.labels += int((ranking.rows != NO_LABEL).sum())


def _lines(classifier: Classifier, rows: list[Row], ranking: Ranking, probabilities: Any) -> list[str]:
    labels = classifier.labels
    lines = []
    for number, row in enumerate(rows):
        named: dict[str, Any] = {"line": row.line} if row.name is None else {"id": row.name}
        found = []
        for place, label in enumerate(ranking.rows[number].tolist()):
            if label == NO_LABEL:
                continue
            one = {
                "key": labels.keys[label],
                "text": labels.texts[label],
                "score": float(ranking.scores[number, place]),
            }
            if probabilities is not None:
                one["probability"] = float(probabilities[number, place])
            found.append(one)
        lines.append(json.dumps({**named, "labels": found}, ensure_ascii=False))
    return lines


def _with_empty_rows(ranking: Ranking, chunk: list[Row | BadRow]) -> Ranking:
    """One row for each row of the input: those that were skipped have no labels."""
    good = np.array([isinstance(row, Row) for row in chunk])
    rows = np.full((len(chunk), ranking.width), NO_LABEL, dtype=np.int32)
    scores = np.full(rows.shape, -np.inf, dtype=np.float32)
    rows[good], scores[good] = ranking.rows, ranking.scores
    return Ranking(rows, scores, ranking.labels)


def _check_output(source: Path, output: Path, wanted: Wanted) -> None:
    if output.suffix not in (".jsonl", ".npz"):
        raise BadInput(
            f"--output {output}: end it in .jsonl for lines of JSON, or in .npz for a sparse matrix of scores"
        )
    if output.suffix == ".npz" and wanted.id_field is not None:
        raise BadInput("--id-field is for .jsonl; row i of a matrix is row i of the input")
    for path in (output, bad_rows_of(output)):
        if path.exists() and source.exists() and path.samefile(source):
            raise BadInput(f"{path} is the input itself; give another --output")


def _model_of(classifier: Classifier) -> dict[str, Any]:
    """What must be the same for answers to be the same."""
    about: dict[str, Any] = {"labels_version": classifier.version, "with_ranker": classifier.ranker is not None}
    if classifier.folder is not None:
        about |= {"model": classifier.folder.model, "parts": sorted(part.folder for part in classifier.parts.values())}
    return about
