"""The PostgreSQL back end. Each name is loaded on first use: a command does without the place and its copies."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from locktender.store.postgres.options import parse
    from locktender.store.postgres.place import PostgresPlace
    from locktender.store.postgres.store import PostgresStore

__all__ = ["PostgresPlace", "PostgresStore", "parse"]
_HOMES = {
    "PostgresPlace": "place",
    "PostgresStore": "store",
    "parse": "options",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
