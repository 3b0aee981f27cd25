"""The routes of labels and of examples: what there are, how they came to be, and, with a token, how they change."""

import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Depends, FastAPI, Query, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from numpy.typing import NDArray

from umpteen.errors import BadInput
from umpteen.model.changes import Add, Change, Rename, Retire
from umpteen.rerank.ranker import LATER, Ranker
from umpteen.service import schemas
from umpteen.service.schemas import ASKED, SENT, Refusal, at_most, errors
from umpteen.service.service import GivenUp, Service

_LARGEST_ROW = 2**31 - 1
_CONFLICTS = ("duplicate_key", "last_label", "nothing_to_undo", "contradiction")
_STATUS = {"unknown_key": 404, "unknown_version": 404} | dict.fromkeys(_CONFLICTS, 409)
Sort = Literal["", "newest", "frequent", "rare"]
_bearer = HTTPBearer(auto_error=False, description="The token the service was started with.")


def add_labels(app: FastAPI, service: Service) -> None:
    @app.get("/labels", responses=errors(*ASKED), summary="Search and browse labels")
    async def list_labels(
        search: Annotated[str, Query(max_length=1000, description="Part of a key or a text, whatever the case.")] = "",
        start: Annotated[int, Query(ge=0, le=_LARGEST_ROW)] = 0,
        count: Annotated[int, Query(ge=1, le=500)] = 50,
        retired: Annotated[bool, Query(description="Retired ones too.")] = False,
        sort: Annotated[Sort, Query(description="Newest, or by how many training texts they have.")] = "",
    ) -> schemas.LabelPage:
        labels, ranker = service.classifier.listed

        def find(given_up: GivenUp) -> NDArray[np.int64]:
            rows = np.arange(len(labels)) if retired else np.flatnonzero(labels.active)
            if search:
                found = labels.find_rows(search, retired=retired, stop=given_up.is_set)
                rows = np.fromiter(takewhile(lambda _: not given_up.is_set(), found), np.int64)
            if given_up.is_set():
                raise Refusal(503, "not_ready", "the service ends")  # who gave up earlier does not hear it
            if sort in ("", "newest"):
                return rows[::-1] if sort else rows
            counts = _counts(ranker, rows)
            return rows[np.argsort(counts if sort == "rare" else -counts, kind="stable")]

        rows = await service.look_up(find) if search or sort else find(GivenUp())
        shown = rows[start : start + count]
        listed = [
            schemas.ListedLabel(**labels.entry(row)._asdict(), texts=None if texts == LATER else texts)
            for row, texts in zip(shown.tolist(), _counts(ranker, shown).tolist(), strict=True)
        ]
        return schemas.LabelPage(version=labels.version, total=len(rows), labels=listed)

    @app.get("/labels/texts", responses=errors(*ASKED), summary="Training texts that have a label")
    async def texts(key: str, count: Annotated[int, Query(ge=1, le=100)] = 5) -> schemas.LabelTexts:
        """Some of them; none if the model has no ranker that kept them, or if the label was renamed since."""
        labels, ranker = service.classifier.listed
        with _refusing(lambda _: "key"):
            row = labels.row(key)
        memory = None if ranker is None or _counts(ranker, np.array([row])) == LATER else ranker.memory
        found = [] if memory is None else await service.look_up(lambda _: memory.texts_with(row, count))
        return schemas.LabelTexts(texts=found)

    @app.get("/labels/history", responses=errors(*ASKED), summary="The versions of the labels")
    async def history(count: Annotated[int, Query(ge=1, le=10_000)] = 100) -> schemas.History:
        # Versions are only ever appended, so a look at them need not wait for its turn, nor make predictions wait.
        version = service.classifier.version
        lines = await service.look_up(lambda _: service.classifier.history())
        newest = sorted(lines, key=lambda line: line.version, reverse=True)[:count]
        return schemas.History(version=version, versions=newest)


def _counts(ranker: Ranker | None, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many training texts these labels have; LATER if nobody counted."""
    counts, known = np.full(len(rows), LATER), rows < (0 if ranker is None else len(ranker.texts))
    if ranker is not None:
        counts[known] = ranker.texts[rows[known]]
    return counts


def add_editing(app: FastAPI, service: Service, token: str) -> None:
    """What changes the model, and examples, which are people's texts: for whoever sends the token."""
    classifier, most = service.classifier, service.settings.limits.labels

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]) -> None:
        if given is None or not hmac.compare_digest(given.credentials.encode("latin-1"), token.encode()):
            what = "no token was sent" if given is None else "the token is wrong"
            reason = f"{what}; send `Authorization: Bearer` with the token the service was started with"
            raise Refusal(401, "unauthorized", reason, headers={"WWW-Authenticate": "Bearer"})

    guarded: dict[str, Any] = {"dependencies": [Depends(check)], "responses": errors(401, *SENT)}

    async def change(changes: Sequence[Change]) -> schemas.Changed:
        def field(problem: BadInput) -> str | None:
            if problem.place is None:
                return None
            name = "text" if problem.code == "bad_text" else "key"
            return f"labels[{problem.place}].{name}" if isinstance(changes[problem.place], Add) else name

        with _refusing(field):
            version = await service.change(lambda kept: classifier.change_labels(changes, patience=0, encoded=kept))
        return schemas.Changed(version=version)

    @app.post("/labels", summary="Add labels", **guarded)
    async def add(message: schemas.AddLabels) -> schemas.Changed:
        """All of them or none; a retired label comes back. The next request can find them."""
        at_most(len(message.labels), most, "labels", "at once")
        return await change([Add(label.key, label.text) for label in message.labels])

    @app.post("/labels/undo", summary="Go back to an older version", **guarded)
    async def undo(message: schemas.UndoLabels | None = None) -> schemas.Changed:
        """A new version whose labels are those of an older one; nothing is forgotten."""
        to_version = None if message is None else message.to_version
        with _refusing(lambda _: None if to_version is None else "to_version"):
            version = await service.change(lambda _: classifier.undo(to_version, patience=0))
        return schemas.Changed(version=version)

    @app.patch("/labels/{key:path}", summary="Rename a label", **guarded)
    async def rename(key: str, message: schemas.RenameLabel) -> schemas.Changed:
        """It keeps its key and gets another text, whose vector is computed at once."""
        return await change([Rename(key, message.text)])

    @app.delete("/labels/{key:path}", summary="Retire a label", **guarded)
    async def retire(key: str) -> schemas.Changed:
        """No request finds it from now on; adding its key again brings it back."""
        return await change([Retire(key)])

    @app.get("/examples", summary="What was learnt", **guarded)
    async def examples(limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> schemas.Examples:
        found = await service.look_up(lambda _: classifier.examples())
        newest = [schemas.LearntExample(**example._asdict()) for example in found[::-1][:limit]]
        return schemas.Examples(count=len(found), examples=newest)

    @app.post("/examples", summary="Learn from corrections", **guarded)
    async def learn(message: schemas.LearnExamples) -> schemas.Learnt:
        """All of them or none. The next request for such a text, or one near to it, is answered accordingly."""
        given = message.examples
        at_most(len(given), most, "examples", "at once")
        taught = [one.text for one in given], [one.labels for one in given], [one.wrong for one in given], message.note
        with _refusing(lambda problem: None if problem.place is None else f"examples[{problem.place}]"):
            learnt = await service.change(lambda kept: classifier.learn(*taught, patience=0, encoded=kept))
        return schemas.Learnt(learnt=learnt, count=len(classifier.examples()))

    @app.post("/examples/undo", summary="Undo what was learnt last", **guarded)
    async def undo_examples() -> schemas.Undone:
        """What the last request, or the last file, taught counts no more."""
        with _refusing(lambda _: None):
            undone = await service.change(lambda _: classifier.undo_examples(patience=0))
        return schemas.Undone(undone=undone, count=len(classifier.examples()))


@contextmanager
def _refusing(field: Callable[[BadInput], str | None]) -> Iterator[None]:
    """What cannot be used is refused, by the field of the message that it stands in."""
    try:
        yield
    except BadInput as problem:
        raise Refusal(_STATUS.get(problem.code, 422), problem.code, str(problem), field=field(problem)) from problem
