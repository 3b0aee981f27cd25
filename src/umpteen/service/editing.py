"""The routes that change labels. They exist only if the service was given a token."""

from collections.abc import Sequence

from fastapi import Depends, FastAPI

from umpteen.catalogue.changes import Add, Change, Rename, Retire, check_key, check_text
from umpteen.catalogue.live import LiveLabels
from umpteen.errors import BadInput
from umpteen.service.documentation import errors
from umpteen.service.messages import AddLabels, Changed, RenameLabel, UndoLabels
from umpteen.service.refusals import Refusal
from umpteen.service.security import holder_of
from umpteen.service.service import Service


def add_editing(app: FastAPI, service: Service, token: str) -> None:
    """Adds the routes, each behind the token."""
    guarded = [Depends(holder_of(token))]
    always = (400, 401, 408, 409, 413, 422, 429, 503, 504)

    async def change(changes: Sequence[Change]) -> Changed:
        classifier = service.classifier
        try:
            version = await service.change(lambda kept: classifier.change_labels(changes, patience=0, encoded=kept))
            return Changed(version=version)
        except BadInput as problem:
            raise _refusal(problem, changes, classifier.labels) from problem

    @app.post("/labels", dependencies=guarded, responses=errors(*always), summary="Add labels")
    async def add(message: AddLabels) -> Changed:
        """All of them or none; a retired label comes back. The next request can find them."""
        most = service.settings.limits.labels
        if len(message.labels) > most:
            reason = f"labels: {len(message.labels):,} at once, {most:,} are the most"
            raise Refusal(422, "over_limit", reason, field="labels")
        return await change([Add(label.key, label.text) for label in message.labels])

    @app.post(
        "/labels/undo", dependencies=guarded, responses=errors(404, *always), summary="Go back to an older version"
    )
    async def undo(message: UndoLabels | None = None) -> Changed:
        """A new version whose labels are those of an older one; nothing is forgotten."""
        to_version = None if message is None else message.to_version
        try:
            return Changed(version=await service.change(lambda _: service.classifier.undo(to_version, patience=0)))
        except BadInput as problem:
            if to_version is None:
                raise Refusal(409, "nothing_to_undo", str(problem)) from problem
            raise Refusal(404, "unknown_version", str(problem), field="to_version") from problem

    @app.patch("/labels/{key:path}", dependencies=guarded, responses=errors(404, *always), summary="Rename a label")
    async def rename(key: str, message: RenameLabel) -> Changed:
        """It keeps its key and gets another text, whose vector is computed at once."""
        return await change([Rename(key, message.text)])

    @app.delete("/labels/{key:path}", dependencies=guarded, responses=errors(404, *always), summary="Retire a label")
    async def retire(key: str) -> Changed:
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
