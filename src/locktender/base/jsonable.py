"""Which values have a JSON form: the hooks beyond msgspec's own types, and what is wrong with a value, and where.

`base.codec` writes and reads; this module is asked only about types msgspec
does not know, and about values whose bytes look suspicious.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, cast

import msgspec

from locktender.base.errors import Unserialisable
from locktender.base.model import Failure
from locktender.base.secrets import REFERENCE_IN_JSON, SECRET_KEY, Secret

MAX_DEPTH = 100
BLOB_KEY = "$locktender.blob"
ERROR_KEY = "$locktender.error"


class StepError(msgspec.Struct, frozen=True):
    """What a failed item of `on_error="collect"` hands on in place of its result, and what `on_failure` is given.

    It does not name the item: a map's results are in the order of its items.
    """

    # One field: it is read and written as the reserved JSON object at the codec's own speed, also inside values.
    failure: Failure = msgspec.field(name=ERROR_KEY)
    """All that is known of the failure."""

    @classmethod
    def of(cls, type: str, message: str, node: str | None = None) -> StepError:  # noqa: A002
        """A failure made by hand, for tests of steps that take collected lists."""
        return cls(Failure(type=type, message=message, node=node))

    @property
    def type(self) -> str:
        """The class of the exception, or `capacity`, `queue_timeout`, `worker_lost` …"""
        return self.failure.type

    @property
    def message(self) -> str:
        """The message of the exception."""
        return self.failure.message

    @property
    def node(self) -> str | None:
        """The step that failed, as the flow names it."""
        return self.failure.node

    def __str__(self) -> str:
        return self.failure.text()


class Unreadable(TypeError):
    """An annotation that says nothing about JSON: no value fits it and none contradicts it."""


def to_json(value: Any) -> Any:
    """What msgspec cannot write itself. Pydantic is known by its methods, so that it is never imported."""
    kind = cast("Any", type(value))
    if hasattr(kind, "model_dump") and hasattr(kind, "model_validate"):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, PurePath):
        return str(value)
    # Subclasses of plain types travel as the plain type. (msgspec asks for a plain tuple only as a key.)
    for plain in _PLAIN:
        if isinstance(value, plain) and kind is not plain:
            return plain(value)
    raise TypeError(f"objects of type {kind.__name__} have none")


def from_json(wanted: Any, value: Any) -> Any:
    """What msgspec cannot read itself."""
    kind: Any = typing.get_origin(wanted) or wanted
    if hasattr(kind, "model_validate_json"):
        # JSON mode, so that a strict model still takes its dates from text.
        return kind.model_validate_json(msgspec.json.encode(value))
    if isinstance(kind, type):
        if issubclass(kind, PurePath | str | int | float):
            return kind(value)
        if isinstance(value, kind):
            return value
    raise Unreadable(f"no way to make {spoken(wanted)} from JSON")


def spoken(annotation: Any) -> str:
    """An annotation as a person wrote it."""
    if annotation is type(None):
        return "None"
    is_plain_class = isinstance(annotation, type) and not typing.get_args(annotation)
    return annotation.__name__ if is_plain_class else str(annotation)


_REFERENCE_HINT = (
    'Hand over secret("env:NAME") itself, alone or as a part of a list, a dict or a dataclass.'
)
_PLAIN: tuple[Any, ...] = (str, int, float, list, tuple)
_SCALARS = (str, int, float, bool, type(None), bytes, bytearray, Enum)
_encode = msgspec.json.Encoder(enc_hook=to_json).encode


def refuse(value: object, field: str) -> None:
    """Raises `Unserialisable` at the first part of `value` that would not come back as it went in, if any."""
    # A stack of our own: the values to be refused include those that are nested too deeply to recurse.
    stack: list[tuple[object, str, int]] = [(value, field, 1)]
    while stack:
        part, path, depth = stack.pop()
        if isinstance(part, float) and not math.isfinite(part):
            raise Unserialisable(
                f"{path} is {part}, which JSON cannot hold.",
                field=path,
                got=part,
                hint="Use None or a text in its place.",
            )
        if isinstance(part, str):
            _check_text(part, path)
        if isinstance(part, str | bytes | bytearray):
            _check_encoded(part, path)
        children = _children(part, path)
        if depth > MAX_DEPTH and not isinstance(part, _SCALARS):
            raise Unserialisable(
                f"{field} is nested more than {MAX_DEPTH} deep (or contains itself).",
                field=field,
                got=type(value).__name__,
                hint="Flatten it, or hand over a file's path.",
            )
        stack.extend((child, where, depth + 1) for where, child in reversed(children))


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unserialisable(
            f"{path} has half a character (a lone surrogate) in it.",
            field=path,
            got=text,
            hint='Decode file names with errors="replace", or hand over bytes.',
        ) from None


def _check_encoded(value: str | bytes | bytearray, path: str) -> None:
    """A secret that was encoded before it was handed over would stay a reference: no worker looks into a text."""
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if REFERENCE_IN_JSON.search(raw) is not None:
        raise Unserialisable(
            f"{path} is a secret, or holds one, that is already encoded: no worker would find it.",
            field=path,
            got=type(value).__name__,
            hint=_REFERENCE_HINT,
        )


def _decoded(part: msgspec.Raw, path: str) -> Any:
    try:
        return msgspec.json.decode(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unserialisable(
            f"{path} is a msgspec.Raw that is not JSON: {error}.",
            field=path,
            got=f"{len(bytes(part)):,} bytes",
            hint="Make it with msgspec.Raw(msgspec.json.encode(value)).",
        ) from None


def _children(part: Any, path: str) -> list[tuple[str, Any]]:
    """The parts of `part` with their paths; none for a scalar. Raises for what has no JSON form at all."""
    if isinstance(part, (*_SCALARS, StepError, Secret)):
        return []
    if isinstance(part, msgspec.Raw):
        return [(path, _decoded(part, path))]
    if isinstance(part, dict):
        mapping = cast("dict[Any, Any]", part)
        for key in mapping:
            _check_key(key, path)
        return [(f"{path}.{key}", each) for key, each in mapping.items()]
    if isinstance(part, list | tuple):
        return [(f"{path}[{index}]", each) for index, each in enumerate(cast("list[Any]", part))]
    if isinstance(part, set | frozenset):
        return [(f"{path}{{…}}", each) for each in cast("set[Any]", part)]
    if names := _field_names(part):
        return [(f"{path}.{name}", getattr(part, name)) for name in names if hasattr(part, name)]
    try:
        _encode(part)
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        raise Unserialisable(
            f"{path} is a {type(part).__name__}, which has no JSON form.",
            field=path,
            got=type(part).__name__,
            hint=_hint_for(part),
        ) from error
    return [(path, to_json(part))] if hasattr(part, "model_dump") else []


def _field_names(part: Any) -> list[str]:
    """Names of the fields of a struct, a dataclass or an attrs object."""
    if isinstance(part, type):
        return []
    if isinstance(part, msgspec.Struct):
        return list(part.__struct_fields__)
    if hasattr(part, "__dataclass_fields__"):
        return list(cast("Mapping[str, object]", part.__dataclass_fields__))
    return [attribute.name for attribute in getattr(part, "__attrs_attrs__", ())]


def _check_key(key: object, path: str) -> None:
    if isinstance(key, str):
        _check_text(key, f"a key of {path}")
        if key in {BLOB_KEY, ERROR_KEY, SECRET_KEY}:
            raise Unserialisable(
                f"{path} uses the key {key!r}, which is reserved.",
                field=f"{path}.{key}",
                got=key,
                hint=_REFERENCE_HINT
                if key == SECRET_KEY
                else "Rename the key: names that begin with '$locktender.' are ours.",
            )
        return
    if isinstance(key, float) and not math.isfinite(key):
        raise Unserialisable(
            f"{path} has the key {key}, which JSON cannot hold.", field=path, got=key
        )
    try:
        _encode({key: None})
    except (TypeError, ValueError) as error:
        raise Unserialisable(
            f"{path} has a key of type {type(key).__name__}; keys in JSON are text.",
            field=path,
            got=key,
            hint="Use text or whole numbers as keys, or hand over a list of pairs.",
        ) from error


def _hint_for(part: object) -> str:
    if hasattr(part, "__next__") or isinstance(part, range) or hasattr(part, "mapping"):
        return "Make a list of it: list(...)."
    if callable(part):
        return "Functions are not data: call it first, or make it a step."
    return "Hand over plain data, a dataclass or a Pydantic model; open connections and files in the step."
