"""Database roles for tests, and one call of every verb of a store, made from its annotations."""

from __future__ import annotations

import dataclasses
import inspect
import os
import typing
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import NoneType, UnionType
from typing import Any, Literal, Union
from urllib.parse import urlsplit, urlunsplit

import msgspec

from locktender.base.commits import Commit
from locktender.store.protocol import Cursor, Store
from locktender.testing.postgres_server import connected


def as_role(url: str, role: str) -> str:
    """`url` with another user, who needs no password on the tests' own server."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}:secret@{host}"))


@asynccontextmanager
async def made_role(url: str, options: str = "") -> AsyncGenerator[str]:
    """A role of this test alone. It may do nothing yet."""
    name = f"lt_role_{os.urandom(5).hex()}"
    async with connected(url) as raw:
        await raw.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret' {options}")
        try:
            yield name
        finally:
            await raw.execute(f"DROP OWNED BY {name} CASCADE")
            await raw.execute(f"DROP ROLE {name}")


def verbs() -> dict[str, Callable[..., Any]]:
    """Every verb of the protocol by its name."""
    found: dict[str, Callable[..., Any]] = {}
    for protocol in Store.__mro__:
        if protocol.__module__.startswith("locktender.store.protocol"):
            found |= {
                name: value
                for name, value in vars(protocol).items()
                if inspect.iscoroutinefunction(value) and not name.startswith("_")
            }
    return found


def arguments(verb: Callable[..., Any]) -> list[Any]:
    """One value for each parameter that has no default."""
    hints = typing.get_type_hints(verb, localns={"Commit": Commit})
    return [
        value_of(hints[name])
        for name, parameter in inspect.signature(verb).parameters.items()
        if name != "self" and parameter.default is parameter.empty
    ]


def value_of(kind: Any) -> Any:
    """Something of this type: lists have one entry."""
    origin, given = typing.get_origin(kind), typing.get_args(kind)
    plain = {int: 1, str: "x", bytes: b"{}", bool: False, float: 1.0, NoneType: None, Any: "x"}
    if kind in plain:
        made: Any = plain[kind]
    elif origin in (Union, UnionType):
        made = None if NoneType in given else value_of(given[0])
    elif origin is Literal:
        made = given[0]
    elif origin is tuple:
        several = given[:1] if Ellipsis in given else given
        made = tuple(value_of(each) for each in several)
    elif origin is not None and issubclass(origin, Mapping):
        made = {value_of(given[0]): value_of(given[1])}
    elif origin is not None and issubclass(origin, set | frozenset):
        made = {value_of(given[0])}
    elif origin is not None and issubclass(origin, Sequence):
        made = [value_of(given[0])]
    elif kind is Cursor:
        made = Cursor("")
    elif hasattr(kind, "__supertype__"):
        made = value_of(kind.__supertype__)
    elif isinstance(kind, type) and hasattr(kind, "__members__"):
        made = next(iter(kind))  # type: ignore[call-overload]
    else:
        made = kind(**{name: value_of(hint) for name, hint in _required(kind)})
    return made


def _required(kind: Any) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return [
            (each.name, hints[each.name])
            for each in dataclasses.fields(kind)
            if each.default is missing and each.default_factory is missing
        ]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return [(each.name, hints[each.name]) for each in fields if each.required]
    optional = getattr(kind, "_field_defaults", {})
    return [(name, hints[name]) for name in kind._fields if name not in optional]
