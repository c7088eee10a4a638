"""The PostgreSQL back end. Each name is loaded on first use: a command that reads loads no verbs that write."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from locktender.store.postgres import (
        client_verbs,
        commits,
        leader_verbs,
        quick_wake,
        recovery,
        stuck,
        worker_verbs,
    )
    from locktender.store.postgres.options import parse
    from locktender.store.postgres.place import PostgresPlace
    from locktender.store.postgres.store import PostgresStore

__all__ = [
    "PostgresPlace",
    "PostgresStore",
    "client_verbs",
    "commits",
    "leader_verbs",
    "load_verbs",
    "parse",
    "quick_wake",
    "recovery",
    "stuck",
    "worker_verbs",
]
_HOMES = {
    "PostgresPlace": "place",
    "PostgresStore": "store",
    "parse": "options",
}
_VERBS = (
    "client_verbs",
    "commits",
    "leader_verbs",
    "quick_wake",
    "recovery",
    "stuck",
    "submit_batcher",
    "worker_verbs",
)
"""Modules of verbs that write."""


def __getattr__(name: str) -> object:
    if name in _VERBS:
        return import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def load_verbs() -> None:
    """All of them, for a process that stays: an upgrade may replace their files while it runs."""
    for name in _VERBS:
        import_module(f"{__name__}.{name}")
