"""Pools as users write them: `"db"`, `"api[acme]"`, `"api[{tenant}]"`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from locktender.base import names
from locktender.base.errors import InvalidFlow

_POOL = re.compile(r"([^\[\]{}]+)(?:\[(.+)\])?")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_HINT = "Write 'db', 'api[acme]', or 'api[{tenant}]' with an argument's name or a tag in braces."


@dataclass(frozen=True, slots=True)
class Placeholder:
    """`{name}` in a pool's key: an argument of the step, or a tag of the run."""

    name: str


@dataclass(frozen=True, slots=True)
class PoolText:
    """A pool as written, taken apart."""

    name: str
    slots: int
    key: tuple[str | Placeholder, ...] = ()


def parse_pools(pool: object, pools: object) -> tuple[PoolText, ...]:
    """The pools of `pool="db"` and `pools={"db": 2}` together; the same one twice is refused."""
    found: list[PoolText] = []
    if pool is not None:
        found.append(_parse(pool, 1, "pool"))
    if pools is not None:
        if not isinstance(pools, Mapping):
            raise InvalidFlow(
                "pools must be a mapping of names to slots.",
                field="pools",
                got=pools,
                hint='e.g. pools={"db": 2}; for one slot of one pool: pool="db".',
            )
        pairs: list[tuple[object, object]] = list(pools.items())  # pyright: ignore[reportUnknownArgumentType]
        found += [_parse(name, slots, f"pools.{name}") for name, slots in pairs]
    seen: set[tuple[str, tuple[str | Placeholder, ...]]] = set()
    for each in found:
        if (each.name, each.key) in seen:
            raise InvalidFlow(
                f"pool {each.name!r} is named twice.",
                field="pools",
                got=each.name,
                hint="Give it in pool= or in pools=, not in both.",
            )
        seen.add((each.name, each.key))
    return tuple(found)


def _parse(text: object, slots: object, field: str) -> PoolText:
    written = names.name(text, field)
    match = _POOL.fullmatch(written)
    if match is None:
        raise InvalidFlow(
            f"{written!r} is not a pool's name.", field=field, got=written, hint=_HINT
        )
    key = () if match[2] is None else _parse_key(match[2], written, field)
    return PoolText(
        name=names.name(match[1], field), slots=names.count(slots, f"{field}.slots"), key=key
    )


def _parse_key(text: str, written: str, field: str) -> tuple[str | Placeholder, ...]:
    # split() with one group alternates literal text and the names in braces.
    pieces = _PLACEHOLDER.split(text)
    parts: list[str | Placeholder] = []
    for index, piece in enumerate(pieces):
        named = index % 2 == 1
        if (named and not piece.strip()) or (not named and set(piece) & set("[]{}*")):
            raise InvalidFlow(
                f"the key of pool {written!r} cannot be read.", field=field, got=written, hint=_HINT
            )
        if named:
            parts.append(Placeholder(piece.strip()))
        elif piece:
            parts.append(piece)
    return tuple(parts)
