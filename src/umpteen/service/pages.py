"""The page at / with its files, held in memory, and the OpenAPI document as a page at /docs."""

import hashlib
import json
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

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


_STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
:root { color-scheme: light dark; }
h2 { margin-top: 2.5rem; font-size: 1.1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
pre { overflow: auto; padding: 0.75rem; border: 1px solid #8884; border-radius: 0.4rem; }
td, th { text-align: left; padding: 0.15rem 1rem 0.15rem 0; vertical-align: top; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>umpteen: the service</title><style>{style}</style></head><body>{body}</body></html>
"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
}


def add_reference(app: FastAPI) -> None:
    """Adds the route."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference(app.openapi()), headers=_HEADERS)


def reference(document: dict[str, Any]) -> str:
    """The document as HTML."""
    about = document["info"]
    parts = [
        f"<h1>{escape(about['title'])} {escape(about['version'])}</h1>",
        f"<p>{escape(about['description'])} For programs: <a href='/openapi.json'>openapi.json</a>.</p>",
    ]
    for path, methods in document["paths"].items():
        parts += [_operation(path, method, operation, document) for method, operation in methods.items()]
    return _PAGE.format(style=_STYLE, body="".join(parts))


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    token = " · needs the token" if operation.get("security") else ""
    parts = [
        f"<h2><span class='method'>{method.upper()}</span> <code>{escape(path)}</code></h2>",
        f"<p>{escape(operation.get('summary', ''))}{token}. {escape(operation.get('description', ''))}</p>",
    ]
    if operation.get("parameters"):
        rows = [
            (one["name"], one.get("description") or one["schema"].get("type", "")) for one in operation["parameters"]
        ]
        parts.append(_table(rows))
    for content in operation.get("requestBody", {}).get("content", {}).values():
        parts.append(f"<p>Send</p>{_shape(content['schema'], document)}")
    good = operation["responses"].get("200", {}).get("content", {})
    for kind, content in good.items():
        shown = _shape(content["schema"], document) if content.get("schema") else f"<p>{escape(kind)}</p>"
        parts.append(f"<p>Get</p>{shown}")
    others = [(code, one["description"]) for code, one in operation["responses"].items() if code != "200"]
    return "".join([*parts, _table(others) if others else ""])


def _table(rows: list[tuple[str, str]]) -> str:
    cells = (f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{''.join(cells)}</table>"


def _shape(schema: dict[str, Any], document: dict[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(_outline(schema, document), indent=2, ensure_ascii=False))}</pre>"


def _outline(schema: dict[str, Any], document: dict[str, Any]) -> Any:
    """A schema as an example of itself, with types in place of values."""
    if "$ref" in schema:
        return _outline(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    if "anyOf" in schema:
        return " or ".join(str(_outline(one, document)) for one in schema["anyOf"])
    if schema.get("properties"):
        return {name: _outline(one, document) for name, one in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_outline(schema["items"], document)]
    return schema.get("type", "anything")
