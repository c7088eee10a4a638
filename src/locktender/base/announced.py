"""Flows as workers announce them, so that a client without their code can submit runs of them by name.

`check_arguments` checks the arguments of a submission against the announced JSON schema. It knows what msgspec
and Pydantic write into schemas of plain types; what it does not know it lets pass, because the worker that traces
the flow reads every argument by its annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from locktender.base.errors import InvalidInput
from locktender.base.names import did_you_mean
from locktender.base.secrets import SECRET_KEY

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Of one flow: larger schemas are announced without details."""
MAX_DEPTH: Final = 50
Schema = Mapping[str, Any]


class AnnouncedFlow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of a flow that it knows."""

    name: str
    signature: str
    spoken: str = ""
    """As its author wrote it: `build(accessions: list[str])`."""
    parameters: dict[str, Any] = {}
    """JSON schema of the object of its parameters."""
    result: dict[str, Any] = {}
    """JSON schema of its result; empty: any."""
    tags: dict[str, str] = {}
    priority: int = 0
    deadline_us: int | None = None
    queue_timeout_us: int | None = None
    dispatch_deadline_us: int | None = None


read_flow: Callable[[bytes], AnnouncedFlow] = msgspec.json.Decoder(AnnouncedFlow).decode


def check_arguments(flow: AnnouncedFlow, given: Mapping[str, Any]) -> None:
    """Raises `InvalidInput` naming the argument that does not fit the announced parameters."""
    schema = flow.parameters
    known: Mapping[str, Any] = schema.get("properties", {})
    for name in given:
        if name not in known and schema.get("additionalProperties") is False:
            raise InvalidInput(
                f"flow {flow.name!r} has no parameter {name!r}.",
                field=name,
                got=given[name],
                hint=did_you_mean(name, known) or f"It takes none: {flow.spoken}.",
            )
    for name in schema.get("required", ()):
        if name not in given:
            raise InvalidInput(
                f"flow {flow.name!r} needs the argument {name!r}.",
                field=name,
                hint=f"It is {flow.spoken}." if flow.spoken else None,
            )
    hint = f"It is {flow.spoken}." if flow.spoken else None
    check = _Check("argument", f"flow {flow.name!r}", hint, schema.get("$defs", {}))
    others = schema.get("additionalProperties")
    for name, value in given.items():
        wanted = known.get(name, others if isinstance(others, Mapping) else {})
        check.value(value, cast("Schema", wanted), name)


def value_fault(schema: Schema, value: Any, of: str) -> InvalidInput | None:
    """What of a payload does not fit its schema, with the field; None: nothing. `of`: what it belongs to."""
    try:
        _Check("field", of, None, schema.get("$defs", {})).value(value, schema, "payload")
    except InvalidInput as error:
        return error
    return None


def with_defaults(schema: Schema, value: Any) -> Any:
    """`value` with the schema's default for each member of an object that was left out; else the same object.

    A path into the value (`review.by`) finds then what a type with defaults promises.
    """
    return _filled(value, schema, schema.get("$defs", {}), 0)


def _filled(value: Any, schema: Schema, defs: Mapping[str, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        return value
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    if SECRET_KEY in given:
        return given
    if "$ref" in schema:
        found = defs.get(str(schema["$ref"]).rpartition("/")[2], {})
        return _filled(given, cast("Schema", found), defs, depth + 1)
    several = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if len(several) == 1:  # X | None; which one of several is meant is not known here
        return _filled(given, several[0], defs, depth + 1)
    made = dict(given)
    for name, each in cast("dict[str, Any]", schema.get("properties", {})).items():
        if name in made:
            made[name] = _filled(made[name], each, defs, depth + 1)
        elif "default" in each:
            made[name] = _filled(each["default"], each, defs, depth + 1)
    return given if made == given else made


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list, tuple),
    "object": (dict,),
}
_FORMATS: Final[dict[str, tuple[type, Callable[[str], object], str]]] = {
    "date-time": (
        datetime,
        datetime.fromisoformat,
        "a moment such as '2027-01-31T09:00:00+01:00'",
    ),
    "date": (date, date.fromisoformat, "a date such as '2027-01-31'"),
    "time": (time, time.fromisoformat, "a time such as '09:00:00'"),
    "uuid": (UUID, UUID, "a UUID"),
}
"""What msgspec reads a text as, or, for Pydantic, which is more lenient, the standard library. Others pass."""
_BOUNDS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (lambda value, bound: value >= bound, "at least"),
    "maximum": (lambda value, bound: value <= bound, "at most"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "more than"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "less than"),
}
_SIZES: Final[dict[str, tuple[Callable[[int, int], bool], str]]] = {
    **{name: (lambda size, bound: size >= bound, "at least") for name in ("minLength", "minItems")},
    **{name: (lambda size, bound: size <= bound, "at most") for name in ("maxLength", "maxItems")},
}


class _Check:
    def __init__(self, noun: str, of: str, hint: str | None, defs: Mapping[str, Any]) -> None:
        self._noun = noun
        self._of = of
        self._hint = hint
        self._defs = defs

    def value(self, value: Any, schema: Schema, field: str, depth: int = 0) -> None:
        if depth > MAX_DEPTH or (isinstance(value, dict) and SECRET_KEY in value):
            return  # a secret's value is read by the annotation where it is known: in the worker
        if "$ref" in schema:
            schema = self._defs.get(str(schema["$ref"]).rpartition("/")[2], {})
            self.value(value, schema, field, depth + 1)
            return
        for several in (schema.get("anyOf"), schema.get("oneOf")):
            if several:
                self._one_of(value, several, field, depth)
        self._type(value, schema, field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._bounds(value, schema, field, _BOUNDS, "")
        if isinstance(value, str) and (form := _FORMATS.get(str(schema.get("format")))):
            self._form(value, field, *form)
        if isinstance(value, str | list | tuple):
            sized = cast("Sequence[Any]", value)
            self._bounds(len(sized), schema, field, _SIZES, " long")
        if isinstance(value, list | tuple):
            self._items(cast("Sequence[Any]", value), schema, field, depth)
        if isinstance(value, dict):
            self._members(cast("dict[str, Any]", value), schema, field, depth)

    def _refuse(self, field: str, got: object, wanted: str) -> InvalidInput:
        return InvalidInput(
            f"{self._noun} {field!r} of {self._of} must be {wanted}.",
            field=field,
            got=got,
            hint=self._hint,
        )

    def _one_of(self, value: Any, several: Sequence[Schema], field: str, depth: int) -> None:
        refused: list[InvalidInput] = []
        for each in several:
            try:
                self.value(value, each, field, depth + 1)
            except InvalidInput as error:
                refused.append(error)
            else:
                return
        # The one that came furthest into the value knows most of it.
        raise max(refused, key=lambda error: (error.field or "").count("."))

    def _type(self, value: Any, schema: Schema, field: str) -> None:
        if "enum" in schema and value not in schema["enum"]:
            raise self._refuse(field, value, "one of " + ", ".join(map(repr, schema["enum"])))
        if "const" in schema and value != schema["const"]:
            raise self._refuse(field, value, repr(schema["const"]))
        kind = schema.get("type")
        kinds: list[str] = [kind] if isinstance(kind, str) else list(kind or ())
        if not kinds:
            return
        allowed = tuple(each for name in kinds for each in _TYPES.get(name, (object,)))
        fits = isinstance(value, allowed) and (
            not isinstance(value, bool) or bool in allowed or object in allowed
        )
        if not fits and not (
            "integer" in kinds and isinstance(value, float) and value.is_integer()
        ):
            raise self._refuse(field, value, " or ".join(map(_spoken, kinds)))

    def _form(
        self, value: str, field: str, kind: type, read: Callable[[str], object], words: str
    ) -> None:
        with suppress(msgspec.ValidationError):
            msgspec.convert(value, kind)
            return
        try:
            read(value)
        except ValueError:
            raise self._refuse(field, value, words) from None

    def _bounds(
        self,
        value: float,
        schema: Schema,
        field: str,
        bounds: Mapping[str, tuple[Callable[[Any, Any], bool], str]],
        unit: str,
    ) -> None:
        for key, (holds, words) in bounds.items():
            if key in schema and not holds(value, schema[key]):
                raise self._refuse(field, value, f"{words} {schema[key]}{unit}")

    def _items(self, value: Sequence[Any], schema: Schema, field: str, depth: int) -> None:
        first: Sequence[Schema] = schema.get("prefixItems", ())
        rest: Any = schema.get("items", {})
        for index, each in enumerate(value):
            wanted = first[index] if index < len(first) else rest
            if isinstance(wanted, Mapping) and wanted:
                self.value(each, cast("Schema", wanted), f"{field}.{index}", depth + 1)

    def _members(self, value: dict[str, Any], schema: Schema, field: str, depth: int) -> None:
        for name in schema.get("required", ()):
            if name not in value:
                raise InvalidInput(
                    f"{self._noun} {field!r} of {self._of} needs the field {name!r}.",
                    field=f"{field}.{name}",
                    got=value,
                    hint=self._hint,
                )
        known: Mapping[str, Any] = schema.get("properties", {})
        others: Any = schema.get("additionalProperties", {})
        for name, each in value.items():
            wanted = known.get(name, others)
            if isinstance(wanted, Mapping) and wanted:
                self.value(each, cast("Schema", wanted), f"{field}.{name}", depth + 1)


def _spoken(kind: str) -> str:
    words = {"null": "null", "integer": "a whole number", "array": "a list", "object": "an object"}
    return words.get(kind, f"a {kind}")
