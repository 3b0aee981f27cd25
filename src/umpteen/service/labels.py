"""The routes of labels: what there are, how they came to be, and, with a token, how they change."""

import hmac
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from umpteen.errors import BadInput
from umpteen.model.changes import Add, Change, Rename, Retire, check_key, check_text
from umpteen.model.labels import LabelEntry, LiveLabels
from umpteen.service import schemas
from umpteen.service.schemas import Refusal, at_most, errors
from umpteen.service.service import GivenUp, Service

_LARGEST_ROW = 2**31 - 1
_bearer = HTTPBearer(auto_error=False, description="The token the service was started with.")


def add_labels(app: FastAPI, service: Service) -> None:
    @app.get("/labels", responses=errors(422, 429, 503, 504), summary="Search and browse labels")
    async def list_labels(
        search: Annotated[str, Query(max_length=1000, description="Part of a key or a text, whatever the case.")] = "",
        start: Annotated[int, Query(ge=0, le=_LARGEST_ROW)] = 0,
        count: Annotated[int, Query(ge=1, le=500)] = 50,
        retired: Annotated[bool, Query(description="Retired ones too.")] = False,
    ) -> schemas.LabelPage:
        labels = service.classifier.labels  # a snapshot: nothing changes under the search

        def find(given_up: GivenUp) -> tuple[int, list[LabelEntry]]:
            """How many rows there are, and some of them; a million matches take no memory."""
            total, shown = 0, []
            rows = labels.find_rows(search, retired=retired, stop=given_up.is_set)
            for total, row in enumerate(takewhile(lambda _: not given_up.is_set(), rows), start=1):
                if start < total <= start + count:
                    shown.append(labels.entry(row))
            if given_up.is_set():
                raise Refusal(503, "not_ready", "the service ends")  # who gave up earlier does not hear it
            return total, shown

        if search:
            total, entries = await service.lookups.run(find)
        else:
            total = len(labels) if retired else labels.count()
            entries = labels.page(start=start, count=count, retired=retired)
        listed = [schemas.ListedLabel.model_validate(one, from_attributes=True) for one in entries]
        return schemas.LabelPage(version=labels.version, total=total, labels=listed)

    @app.get("/labels/history", responses=errors(422, 429, 503, 504), summary="The versions of the labels")
    async def history(count: Annotated[int, Query(ge=1, le=10_000)] = 100) -> schemas.History:
        # Versions are only ever appended, so a look at them need not wait for its turn, nor make predictions wait.
        version = service.classifier.version
        lines = await service.lookups.run(lambda _: service.classifier.history())
        newest = sorted(lines, key=lambda line: line.version, reverse=True)[:count]
        return schemas.History(version=version, versions=[schemas.VersionLine(**line._asdict()) for line in newest])


def add_editing(app: FastAPI, service: Service, token: str) -> None:
    """Adds the routes, each for whoever sends `Authorization: Bearer` with the token."""

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]) -> None:
        if given is None or not hmac.compare_digest(given.credentials.encode("latin-1"), token.encode()):
            what = "no token was sent" if given is None else "the token is wrong"
            reason = f"{what}; send `Authorization: Bearer` with the token the service was started with"
            raise Refusal(401, "unauthorized", reason, headers={"WWW-Authenticate": "Bearer"})

    guarded = [Depends(check)]
    always = (400, 401, 408, 409, 413, 422, 429, 503, 504)

    async def change(changes: Sequence[Change]) -> schemas.Changed:
        classifier = service.classifier
        try:
            version = await service.change(lambda kept: classifier.change_labels(changes, patience=0, encoded=kept))
            return schemas.Changed(version=version)
        except BadInput as problem:
            raise _refusal(problem, changes, classifier.labels) from problem

    @app.post("/labels", dependencies=guarded, responses=errors(*always), summary="Add labels")
    async def add(message: schemas.AddLabels) -> schemas.Changed:
        """All of them or none; a retired label comes back. The next request can find them."""
        at_most(len(message.labels), service.settings.limits.labels, "labels", "at once")
        return await change([Add(label.key, label.text) for label in message.labels])

    @app.post(
        "/labels/undo", dependencies=guarded, responses=errors(404, *always), summary="Go back to an older version"
    )
    async def undo(message: schemas.UndoLabels | None = None) -> schemas.Changed:
        """A new version whose labels are those of an older one; nothing is forgotten."""
        to_version = None if message is None else message.to_version
        try:
            version = await service.change(lambda _: service.classifier.undo(to_version, patience=0))
            return schemas.Changed(version=version)
        except BadInput as problem:
            if to_version is None:
                raise Refusal(409, "nothing_to_undo", str(problem)) from problem
            raise Refusal(404, "unknown_version", str(problem), field="to_version") from problem

    @app.patch("/labels/{key:path}", dependencies=guarded, responses=errors(404, *always), summary="Rename a label")
    async def rename(key: str, message: schemas.RenameLabel) -> schemas.Changed:
        """It keeps its key and gets another text, whose vector is computed at once."""
        return await change([Rename(key, message.text)])

    @app.delete("/labels/{key:path}", dependencies=guarded, responses=errors(404, *always), summary="Retire a label")
    async def retire(key: str) -> schemas.Changed:
        """No request finds it from now on; adding its key again brings it back."""
        return await change([Retire(key)])


def _refusal(problem: BadInput, changes: Sequence[Change], labels: LiveLabels) -> Refusal:
    """Which of the catalogue's reasons it was, in the order the catalogue checks."""
    seen: set[str] = set()
    for place, change in enumerate(changes):
        adds = isinstance(change, Add)
        field = f"labels[{place}].key" if adds else "key"
        if change.key in seen or (adds and change.key in labels):
            return Refusal(409, "duplicate_key", str(problem), field=field)
        if not adds and change.key not in labels:
            return Refusal(404, "unknown_key", str(problem), field=field)
        try:
            if adds and not labels.is_retired(change.key):
                check_key(change.key)
        except BadInput:
            return Refusal(422, "bad_key", str(problem), field=field)
        try:
            if not isinstance(change, Retire):
                check_text(change.key, change.text)
        except BadInput:
            return Refusal(422, "bad_text", str(problem), field=field.replace("key", "text"))
        seen.add(change.key)
    if sum(isinstance(change, Retire) for change in changes) >= labels.count():
        return Refusal(409, "last_label", str(problem))
    return Refusal(422, "bad_input", str(problem))
