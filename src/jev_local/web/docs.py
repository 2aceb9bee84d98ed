"""`/docs`: the OpenAPI document as one page of plain HTML, made once, with no script and nothing to load.

The usual viewers come from a CDN. This service also runs on machines without a network, and a page that shows
nothing there is worse than a plain one.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from starlette.responses import Response

Json = dict[str, Any]

_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
pre{overflow-x:auto;padding:.75rem;border:1px solid #8886;border-radius:.4rem;font-size:.85rem;line-height:1.4}
code{font-family:ui-monospace,monospace}h2{margin-top:2.5rem;border-top:1px solid #8886;padding-top:1.5rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0}
th{border-bottom:1px solid #8886}td:first-child{white-space:nowrap}details{margin:.3rem 0}summary{cursor:pointer}
@media(max-width:40rem){td:first-child{white-space:normal;overflow-wrap:anywhere}}
"""

# The page runs nothing and loads nothing; the one style is named by its hash.
_HEADERS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def docs_page(document: Json) -> Callable[[], Response]:
    """Makes the page for an OpenAPI document; what is returned answers with it."""
    page = "".join(_page(document)).encode()
    return lambda: Response(page, headers=_HEADERS, media_type="text/html")


def _page(document: Json) -> Iterator[str]:
    info = document["info"]
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        '<p>The same for programs: <a href="/openapi.json">/openapi.json</a>. Everything under <code>/v1/</code> wants '
        "the API key, as <code>Authorization: Bearer KEY</code> or <code>X-API-Key: KEY</code>.</p>"
    )
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _operation(method.upper(), path, operation)
    yield "<h2>Schemas</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)
    yield "</body></html>"


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"<h2><code>{method} {escape(path)}</code></h2><p>{escape(operation['summary'])}.</p>"
    if "description" in operation:
        yield f"<p>{escape(operation['description'])}</p>"
    if "requestBody" in operation:
        for kind, content in operation["requestBody"]["content"].items():
            yield f"<p>Body, <code>{escape(kind)}</code>: {_type(content['schema'])}</p>{_code(content['example'])}"
    yield "<table><tr><th>Status</th><th>Meaning</th></tr>"
    for status, response in sorted(operation["responses"].items()):
        content = response["content"]["application/json"]
        yield (
            f"<tr><td>{status}</td><td>{escape(response['description'])}"
            f"<details><summary>Example</summary>{_code(content['example'])}{_headers(response['headers'])}</details>"
            "</td></tr>"
        )
    yield "</table>"


def _headers(headers: Json) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(header['description'])}</td></tr>"
        for name, header in headers.items()
    )
    return f"<table><tr><th>Header</th><th>Meaning</th></tr>{rows}</table>"


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield f'<h3 id="{escape(name)}"><code>{escape(name)}</code></h3>'
    if "description" in schema:
        yield f"<p>{escape(schema['description'])}</p>"
    required = schema.get("required", ())
    yield "<table><tr><th>Field</th><th>Type</th><th>Meaning</th></tr>"
    for field, inner in schema.get("properties", {}).items():
        mark = "" if field in required else " (optional)"
        yield (
            f"<tr><td><code>{escape(field)}</code>{mark}</td><td>{_type(inner)}</td>"
            f"<td>{escape(inner.get('description', ''))}</td></tr>"
        )
    yield "</table>"


def _type(schema: Json) -> str:
    """A schema in a few words of HTML."""
    if "$ref" in schema:
        return _link(schema)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(map(_type, schema[key]))
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "anything")
    inner = schema.get("items") or schema.get("additionalProperties")
    of = f" of {_type(inner)}" if isinstance(inner, dict) else ""
    bounds = [schema.get(f"{end}{what}") for what in ("Items", "Properties") for end in ("min", "max")]
    size = "".join(f" ({low} to {high})" for low, high in (bounds[:2], bounds[2:]) if high is not None)
    return f"{escape(kind)}{size}{of}"


def _link(schema: Json) -> str:
    name = escape(schema["$ref"].rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'


def _code(example: Any) -> str:
    return f"<pre><code>{escape(json.dumps(example, indent=2, ensure_ascii=False))}</code></pre>"
