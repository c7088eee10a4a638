"""`/api/docs`: the OpenAPI document as one HTML page. It has no script and loads nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any, cast

from locktender.server.api.openapi import Json, document

POLICY = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {"content-security-policy": POLICY, "referrer-policy": "no-referrer"}
STYLE = b"""
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --accent: #0a6fb8; }
@media (prefers-color-scheme: dark) { :root { --accent: #6cb6f0; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { margin: 0 0 .25rem; } h2 { margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
a { color: var(--accent); } nav a { margin-right: 1rem; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .4rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
.method { display: inline-block; min-width: 4.5rem; color: var(--accent); font: 600 .85rem monospace; }
.path { font-family: ui-monospace, monospace; font-size: .95rem; }
.scope { float: right; font-size: .8rem; border: 1px solid var(--line); border-radius: 1rem; padding: 0 .6rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
td, th { border-bottom: 1px solid var(--line); text-align: left; padding: .25rem .5rem; vertical-align: top; }
pre { background: var(--soft); border-radius: .5rem; padding: .6rem; overflow-x: auto; }
"""


@cache
def page() -> bytes:
    found = document()
    body = "".join(_sections(found))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Locktender API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/api/docs.css"></head><body>
<h1>Locktender API</h1>
<p>{escape(found["info"]["summary"])} Version {escape(found["info"]["version"])}.
<a href="/api/v1/openapi.json">OpenAPI 3.1</a>. {escape(found["info"]["description"])}</p>
{body}</body></html>
""".encode()


def _sections(found: Json) -> Iterator[str]:
    by_tag: dict[str, list[str]] = {each["name"]: [] for each in found["tags"]}
    for path, methods in cast("dict[str, Json]", found["paths"]).items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]].append(_operation(path, method.upper(), operation))
    names = [name for name, operations in by_tag.items() if operations]
    links = (f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    yield f"<nav>{''.join(links)}<a href='#schemas'>schemas</a></nav>"
    texts = {each["name"]: each["description"] for each in found["tags"]}
    for name in names:
        yield f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(texts[name])}</p>'
        yield from by_tag[name]
    yield '<h2 id="schemas">schemas</h2>'
    for name, schema in cast("dict[str, Json]", found["components"]["schemas"]).items():
        shown = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        yield (
            f'<details id="schema-{escape(name)}"><summary class="path">{escape(name)}</summary>'
            f"<pre>{shown}</pre></details>"
        )


def _operation(path: str, method: str, operation: Json) -> str:
    rows = [
        (each["name"], each["in"], each.get("description", ""), each["schema"])
        for each in operation.get("parameters", ())
    ]
    parameters = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{where}</td><td>{escape(text)}</td>"
        f"<td>{_kind(schema)}</td></tr>"
        for name, where, text, schema in rows
    )
    answers = "".join(
        f"<tr><td>{status}</td><td>{escape(each['description'])}</td><td>{_content(each)}</td></tr>"
        for status, each in operation["responses"].items()
    )
    table = f"<table><tr><th>parameter<th>in<th><th></tr>{parameters}</table>" if rows else ""
    body = operation.get("requestBody")
    wanted = "" if body is None else f"<p>Body: {_content(body)}</p>"
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><span class="method">{method}</span>'
        f'<span class="path">{escape(path)}</span> <span class="scope">{operation["x-scope"]}</span>'
        f"<br>{escape(operation['summary'])}</summary>{table}{wanted}"
        f"<pre>{escape(_curl(path, method, body))}</pre>"
        f"<table><tr><th>status<th>meaning<th>content</tr>{answers}</table>{_shown(operation)}</details>"
    )


def _curl(path: str, method: str, body: Json | None) -> str:
    url = f"http://127.0.0.1:8470{path}"
    parts = ["curl"] if method == "GET" else ["curl", "-X", method]
    examples: dict[str, Any] = (
        {} if body is None else body["content"]["application/json"].get("examples", {})
    )
    for example in examples.values():
        sent = json.dumps(example["value"], ensure_ascii=False)
        parts += ["-H", "content-type: application/json", "-d", sent]
    return " ".join(shlex.quote(each) for each in [*parts, url])


def _shown(operation: Json) -> str:
    """The example of a good answer."""
    good = min(operation["responses"])
    content: dict[str, Json] = operation["responses"][good].get("content", {})
    examples = (
        each["value"] for kind in content.values() for each in kind.get("examples", {}).values()
    )
    texts = (json.dumps(value, indent=2, ensure_ascii=False) for value in examples)
    return "".join(f"<pre>{escape(text)}</pre>" for text in texts)


def _content(holder: Json) -> str:
    return ", ".join(_kind(each["schema"]) for each in holder.get("content", {}).values())


def _kind(schema: Json) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    several = schema.get("anyOf")
    if several:
        return " or ".join(_kind(each) for each in several)
    default = f", default {escape(json.dumps(schema['default']))}" if "default" in schema else ""
    return f"{escape(str(schema.get('type', 'any')))}{default}"
