"""GET /labels and GET /labels/history: what labels there are, and how they came to be."""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated

from fastapi import FastAPI, Query

from umpteen.catalogue.live import LabelEntry, LiveLabels
from umpteen.service.documentation import errors
from umpteen.service.lookups import GivenUp
from umpteen.service.messages import History, LabelPage, ListedLabel, VersionLine
from umpteen.service.refusals import Refusal
from umpteen.service.service import Service

LARGEST_ROW = 2**31 - 1


def add_labels(app: FastAPI, service: Service) -> None:
    """Adds the routes that read labels."""

    @app.get("/labels", responses=errors(422, 429, 503, 504), summary="Search and browse labels")
    async def list_labels(
        search: Annotated[str, Query(max_length=1000, description="Part of a key or a text, whatever the case.")] = "",
        start: Annotated[int, Query(ge=0, le=LARGEST_ROW)] = 0,
        count: Annotated[int, Query(ge=1, le=500)] = 50,
        retired: Annotated[bool, Query(description="Retired ones too.")] = False,
    ) -> LabelPage:
        labels = service.classifier.labels  # a snapshot: nothing changes under the search
        if search:
            total, entries = await service.lookups.run(
                lambda given_up: _found(
                    labels.find_rows(search, retired=retired, stop=given_up.is_set), labels, start, count, given_up
                )
            )
        else:
            total = len(labels) if retired else labels.count()
            entries = labels.page(start=start, count=count, retired=retired)
        listed = [ListedLabel(key=one.key, text=one.text, origin=one.origin, retired=one.retired) for one in entries]
        return LabelPage(version=labels.version, total=total, labels=listed)

    @app.get("/labels/history", responses=errors(422, 429, 503, 504), summary="The versions of the labels")
    async def history(count: Annotated[int, Query(ge=1, le=10_000)] = 100) -> History:
        # Versions are only ever appended, so a look at them need not wait for its turn, nor make predictions wait.
        version = service.classifier.version
        lines = await service.lookups.run(lambda _: service.classifier.history())
        newest = sorted(lines, key=lambda line: line.version, reverse=True)
        return History(version=version, versions=[VersionLine(**line._asdict()) for line in islice(newest, count)])


def _found(
    rows: Iterable[int], labels: LiveLabels, start: int, count: int, given_up: GivenUp
) -> tuple[int, list[LabelEntry]]:
    """How many rows there are, and some of them; a million matches take no memory."""
    total, shown = 0, []
    for row in rows:
        if start <= total < start + count:
            shown.append(labels.entry(row))
        total += 1
        if given_up.is_set():
            break
    if given_up.is_set():
        raise Refusal(503, "not_ready", "the service ends")  # who gave up earlier does not hear it
    return total, shown
