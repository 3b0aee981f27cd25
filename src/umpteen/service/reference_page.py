"""GET /docs: the OpenAPI document as a page of its own, without anything from elsewhere."""

import json
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

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
