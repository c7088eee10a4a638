"""A form for a value that a JSON schema describes, and the value that a sent form makes.

Plain properties of an object have fields of their own. What a form cannot ask for well, lists and objects in
objects, is asked for as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from locktender.base.errors import InvalidInput
from locktender.server.ui.pages import FormField

WHOLE: Final = "payload"
"""The field of a value that has no fields of its own."""
_BOOLEANS: Final = (("true", "yes"), ("false", "no"))
Schema = Mapping[str, Any]


def form_fields(schema: Schema) -> tuple[FormField, ...]:
    """What a dialog asks for; empty schema: any JSON."""
    found = _resolved(schema, schema)
    properties = _properties(found)
    if properties is None:
        return (_field(WHOLE, "Payload", found, required=bool(found)),)
    required = set(cast("list[str]", found.get("required", [])))
    fields = [
        _field(f"{WHOLE}.{name}", name, _resolved(each, schema), required=name in required)
        for name, each in properties.items()
    ]
    return tuple(sorted(fields, key=lambda each: not each.required))


def form_value(schema: Schema, sent: Mapping[str, str]) -> Any:
    """The value of a form that was sent. Raises `InvalidInput` for what cannot be read."""
    found = _resolved(schema, schema)
    properties = _properties(found)
    if properties is None:
        text = sent.get(WHOLE, "").strip()
        if not text and _kind(found) not in ("text", "check"):
            return None
        return _read(WHOLE, text, found)
    made: dict[str, Any] = {}
    required = set(cast("list[str]", found.get("required", [])))
    for name, each in properties.items():
        text = sent.get(f"{WHOLE}.{name}", "").strip()
        inner = _resolved(each, schema)
        if text or name in required:
            made[name] = _read(name, text, inner)
    return made


def example(schema: Schema) -> Any:
    """A value of that form, for commands to copy."""
    found = _resolved(schema, schema)
    properties = _properties(found)
    if properties is None:
        return _example(found)
    return {name: _example(_resolved(each, schema)) for name, each in properties.items()}


def _example(schema: Schema) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    plain: dict[str, Any] = {"text": "…", "number": 1, "check": True}
    return plain.get(_kind(schema))


def _resolved(schema: Any, root: Schema) -> Schema:
    """Without references, and of `X | None` the X."""
    found = cast("dict[str, Any]", schema if isinstance(schema, Mapping) else {})
    for _ in range(10):
        reference = found.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            found = cast("dict[str, Any]", root.get("$defs", {}).get(reference[8:], {}))
            continue
        several = [
            cast("dict[str, Any]", each)
            for each in found.get("anyOf", [])
            if isinstance(each, Mapping) and cast("dict[str, Any]", each).get("type") != "null"
        ]
        if len(several) != 1:
            break
        found = several[0]
    return found


def _properties(schema: Schema) -> dict[str, Any] | None:
    found = schema.get("properties")
    return cast("dict[str, Any]", found) if isinstance(found, dict) and found else None


def _kind(schema: Schema) -> Literal["text", "number", "area", "check", "choice"]:
    if schema.get("enum"):
        return "choice"
    kinds: dict[Any, Literal["text", "number", "check"]] = {
        "string": "text",
        "integer": "number",
        "number": "number",
        "boolean": "check",
    }
    kind = schema.get("type")
    return kinds.get(kind, "area") if isinstance(kind, str) else "area"


def _field(name: str, label: str, schema: Schema, *, required: bool) -> FormField:
    kind, hint = _kind(schema), str(schema.get("description", "" if required else "optional"))
    default = schema.get("default")
    if kind == "choice" or kind == "check":
        options = _BOOLEANS
        if kind == "choice":
            options = tuple((json.dumps(each), str(each)) for each in schema["enum"])
        shown = "" if default is None else json.dumps(default)
        choices = options if required else (("", "–"), *options)
        return FormField(name, label, "choice", shown or choices[0][0], hint, required, choices)
    if kind == "area":
        shown = "" if default is None else json.dumps(default, ensure_ascii=False)
        nested = "" if not schema else " Schema: " + json.dumps(schema, ensure_ascii=False)[:300]
        return FormField(name, label, "area", shown, f"{hint} JSON.{nested}".strip(), required)
    return FormField(name, label, kind, "" if default is None else str(default), hint, required)


def _read(name: str, text: str, schema: Schema) -> Any:
    if _kind(schema) == "text":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidInput(
            f"{name} cannot be read as JSON.", field=name, got=text[:80], hint='For text: "…".'
        ) from None
