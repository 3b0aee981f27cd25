"""What the commands say to people. Light, since every command loads it; tables and progress bars are in console.py."""

import re
from typing import Any

import click

from umpteen.catalogue.changes import UNSEEN

_UNSEEN = re.compile(rf"[{UNSEEN}\ud800-\udfff]")


def visible(text: object) -> str:
    """The text in one line that a terminal only shows: characters that would steer it stand as escapes."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def say(line: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Prints a line, which may hold anybody's data; JSON for machines needs no such care."""
    click.secho(visible(line), err=err, nl=nl, **style)
