"""Parts of a result by its annotation: `handle.path` of a dataclass, `handle[0]` of a list."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any, cast

import msgspec


def field_of(annotation: Any, name: str) -> tuple[str | int, Any] | None:
    """Where attribute `name` of a value of this type stands in its JSON, and the attribute's own type."""
    kind: Any = typing.get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return None
    key = _key(kind, name)
    return None if key is None else (key, _hints(kind).get(name, Any))


def _key(kind: Any, name: str) -> str | int | None:
    if issubclass(kind, msgspec.Struct):
        renamed = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
        return renamed.get(name)
    if dataclasses.is_dataclass(kind):
        return name if name in kind.__dataclass_fields__ else None
    if named := cast("tuple[str, ...]", getattr(kind, "_fields", ())):  # a NamedTuple is an array
        return named.index(name) if name in named else None
    field = cast("dict[str, Any]", getattr(kind, "model_fields", {})).get(name)
    return None if field is None else field.serialization_alias or name


def element_of(annotation: Any, key: str | int) -> Any:
    """The type of `value[key]`, or Any."""
    kind: Any = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if typing.is_typeddict(kind):
        return _hints(kind).get(str(key), Any)
    if not isinstance(kind, type) or not arguments:
        return Any
    if kind is tuple and ... not in arguments:
        return dict(enumerate(arguments)).get(cast("int", key), Any)
    return arguments[-1] if issubclass(kind, dict) else arguments[0]


@functools.lru_cache(maxsize=1024)
def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError):
        return {}
