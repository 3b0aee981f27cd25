"""The page at / and its files under /page/, held in memory: only what is there can be asked for."""

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import Response

from umpteen.service.refusals import Refusal

INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and sent again only if it has changed
}


class PageFile(NamedTuple):
    content: bytes
    kind: str
    mark: str  # the ETag


def add_page(app: FastAPI) -> None:
    """Adds the routes, if the page is installed."""
    files = read_files(resources.files("umpteen.service") / "page")

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return _sent(files.get(INDEX), request)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def asset(name: str, request: Request) -> Response:
        return _sent(files.get(name), request)


def read_files(folder: Traversable, prefix: str = "") -> dict[str, PageFile]:
    """Every file of a known type under a folder, by its path."""
    found: dict[str, PageFile] = {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir():
            found |= read_files(entry, f"{prefix}{entry.name}/")
        elif (kind := TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            content = entry.read_bytes()
            found[prefix + entry.name] = PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


def _sent(file: PageFile | None, request: Request) -> Response:
    if file is None:
        raise Refusal(404, "not_found", "there is no such page")
    headers = {**HEADERS, "ETag": file.mark}
    if request.headers.get("if-none-match") == file.mark:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.kind, headers=headers)
