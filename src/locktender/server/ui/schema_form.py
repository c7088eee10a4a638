"""A form for a value that a JSON schema describes, and the value that a sent form makes.

Plain properties of an object have fields of their own. What a form cannot ask for well, lists and objects in
objects, is asked for as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from locktender.base.errors import InvalidInput
from locktender.server.ui.dialogs import FormField

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
        # What is left out has its default when it is delivered; a text whose default was cleared is empty.
        cleared = (
            _kind(inner) == "text" and bool(inner.get("default")) and f"{WHOLE}.{name}" in sent
        )
        if text or name in required or cleared:
            made[name] = _read(name, text, inner)
    return made


def _resolved(schema: Any, root: Schema) -> Schema:
    """Without references, and of `X | None` the X; with the default and the words that stand beside those."""
    found = cast("dict[str, Any]", schema if isinstance(schema, Mapping) else {})
    beside: dict[str, Any] = {}
    for _ in range(10):
        told = {key: found[key] for key in ("default", "description") if found.get(key) is not None}
        beside = told | beside
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
    return found | beside


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
        # A required one has no first value of ours: people choose.
        shown = "" if default is None else json.dumps(default)
        choices = options if required or shown else (("", "–"), *options)
        return FormField(name, label, "choice", shown, hint, required, choices)
    if kind == "area":
        shown = "" if default is None else json.dumps(default, ensure_ascii=False)
        nested = "" if not schema else " Schema: " + json.dumps(schema, ensure_ascii=False)[:300]
        return FormField(name, label, "area", shown, f"{hint} JSON.{nested}".strip(), required)
    shown = "" if default is None else str(default)
    whole = schema.get("type") != "number"
    return FormField(name, label, kind, shown, hint, required, whole=whole)


def _read(name: str, text: str, schema: Schema) -> Any:
    if _kind(schema) == "text":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidInput(
            f"{name} cannot be read as JSON.", field=name, got=text[:80], hint='For text: "…".'
        ) from None
