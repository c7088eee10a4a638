"""Annotations as canonical text: the same on every Python version, however they are written.

A worker announces the signature of each step, and a run stores it; both are compared as text. The text that Python
itself shows differs between its versions (`Optional[int]` is `int | None` from 3.14 on, `pathlib.Path` was
`pathlib._local.Path` in 3.13), so it is built from the structure of the annotation.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, cast

import msgspec

_PLAIN = (str, bytes, int, float, bool, type(None))


def canonical(annotation: Any) -> str:
    """`annotation` as text in which equal types are equal: `Optional[int]`, `Union[None, int]`, `int | None`."""
    return _text(annotation, ())


def _text(annotation: Any, within: tuple[Any, ...]) -> str:
    """`within`: the type aliases that are being spelled out, which may name themselves."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is ...:
        return "..."
    if isinstance(annotation, str):
        return _source(annotation)
    if isinstance(annotation, typing.ForwardRef):
        return _source(annotation.__forward_arg__)
    if isinstance(annotation, list):  # the parameters of a Callable
        several = [_text(each, within) for each in cast("list[Any]", annotation)]
        return f"[{', '.join(several)}]"
    if isinstance(annotation, typing.NewType):
        return _text(annotation.__supertype__, within)
    origin: Any = typing.get_origin(annotation)
    if origin is None:
        return _single(annotation, within)
    arguments = typing.get_args(annotation)
    if origin is typing.Union or origin is types.UnionType:
        return " | ".join(sorted({_text(each, within) for each in arguments}))
    if origin is typing.Literal:
        return f"Literal[{', '.join(sorted(_value(each) for each in arguments))}]"
    if origin is typing.Annotated:
        shown = [_text(arguments[0], within), *(_value(each) for each in arguments[1:])]
        return f"Annotated[{', '.join(shown)}]"
    inner = f"[{', '.join(_text(each, within) for each in arguments)}]" if arguments else ""
    return f"{_text(origin, within)}{inner}"


def _single(annotation: Any, within: tuple[Any, ...]) -> str:
    """What has no parts: a class, an alias of `type X = …`, a special form of typing, a type variable."""
    generic: Any = getattr(annotation, "__pydantic_generic_metadata__", None) or {}
    # The name of such a class contains the repr of its arguments.
    if generic.get("origin") is not None:
        inner = ", ".join(_text(each, within) for each in generic["args"])
        return f"{_name(generic['origin'])}[{inner}]"
    if hasattr(annotation, "__value__"):
        if any(annotation is each for each in within):
            return _name(annotation)
        return _text(annotation.__value__, (*within, annotation))
    return _name(annotation)


def _name(named: Any) -> str:
    """The name with its module, as another process finds it."""
    name = getattr(named, "__qualname__", None) or getattr(named, "__name__", None)
    if not isinstance(name, str):
        named = cast("type[Any]", type(named))
        name = named.__qualname__
    module = str(getattr(named, "__module__", ""))
    if module == "builtins":
        return name
    if module == "__main__":  # elsewhere it is imported by its stem
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    first, *rest = module.split(".")
    if first in sys.stdlib_module_names:  # Python moves its classes between its private modules
        module = ".".join([first, *(each for each in rest if not each.startswith("_"))])
    return f"{module}.{name}"


def _source(text: str) -> str:
    """An annotation that is only text: one that does not resolve."""
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval"))
    except (SyntaxError, ValueError):
        return text.strip()


def _value(value: Any) -> str:
    """A value inside an annotation; of an object that is not plain data only its class: its repr may differ."""
    if isinstance(value, Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return (
            "{" + ", ".join(sorted(f"{_value(key)}: {_value(each)}" for key, each in pairs)) + "}"
        )
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_value(each) for each in cast("set[Any]", value))) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in cast('list[Any]', value))}]"
    if isinstance(value, msgspec.Meta):
        return _with_fields(value, [each for each in dir(value) if not each.startswith("_")])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_fields(value, [each.name for each in dataclasses.fields(value)])
    return _name(value if isinstance(value, type) else type(value))


def _with_fields(value: Any, names: list[str]) -> str:
    given = {name: getattr(value, name, None) for name in sorted(names)}
    shown = [f"{name}={_value(each)}" for name, each in given.items() if each is not None]
    return f"{_name(type(value))}({', '.join(shown)})"


_MISSING = re.compile(r"field `([^`]+)`")
_PLACE = re.compile(r" - (?:at|key in) `\$\.?([^`]*)`")


def wrong_field(error: BaseException | None) -> str:
    """The field that a decoder's error is about, with its path: `items[0].price`; '' where it names none."""
    while error is not None:
        if callable(errors := getattr(error, "errors", None)):  # Pydantic's
            first = cast("list[dict[str, Any]]", errors())[0]
            return ".".join(str(each) for each in first["loc"])
        if error.__cause__ is None:
            break
        error = error.__cause__
    text = str(error or "")
    place, missing = _PLACE.search(text), _MISSING.search(text)
    return ".".join(found[1] for found in (place, missing) if found is not None and found[1])


def model_in(annotation: Any) -> type | None:
    """The first class with fields in `annotation`: a struct, a dataclass, an attrs class, a Pydantic model …"""
    kind: object = typing.get_origin(annotation) or annotation
    if isinstance(kind, type) and any(hasattr(kind, mark) for mark in _MODEL_MARKS):
        return kind
    value: Any = getattr(annotation, "__value__", None)
    parts: tuple[Any, ...] = (value,) if value is not None else typing.get_args(annotation)
    return next((found for found in map(model_in, parts) if found is not None), None)


_MODEL_MARKS = (
    "__struct_fields__",
    "__dataclass_fields__",
    "__attrs_attrs__",
    "model_validate_json",
    "__required_keys__",  # TypedDict
    "_fields",  # NamedTuple
)


def schema_of(hint: Any) -> dict[str, Any]:
    """JSON schema of one annotation; empty where there is none that could be checked."""
    defs: dict[str, Any] = {}

    def model(kind: type) -> dict[str, Any]:
        make: Any = getattr(kind, "model_json_schema", None)
        found = cast("dict[str, Any]", {} if make is None else make())
        defs.update(found.pop("$defs", {}))
        return found

    try:
        schema = msgspec.json.schema(hint, schema_hook=model)
    except Exception:  # noqa: BLE001 — of a user's own type anything may be wrong
        return {}
    inner = {**schema.pop("$defs", {}), **defs}
    return {**schema, "$defs": inner} if inner else schema
