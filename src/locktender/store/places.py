"""A url as a store to be looked after or copied, without opening it."""

from __future__ import annotations

from typing import Protocol

from locktender.base.errors import InvalidInput
from locktender.base.store_urls import check_path
from locktender.store.copying import Place
from locktender.store.sqlite.copying import SqlitePlace
from locktender.store.upkeep import Upkeep


class KeptPlace(Place, Upkeep, Protocol):
    """A store that can be looked at, migrated, copied from and to."""


def place_for(url: str) -> KeptPlace:
    """The store that `url` names."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if not scheme:
        check_path(url)
        return SqlitePlace(url)
    if scheme not in {"postgresql", "postgres"}:
        raise InvalidInput(
            f"{scheme}:// is no store that can be looked after from here.",
            field="url",
            got=f"{scheme}://…",
            hint="Use the path of a SQLite file, or postgresql://…",
        )
    try:
        # Only here: the driver is an extra, and SQLite must start without it.
        from locktender.store.postgres.copying import PostgresPlace  # noqa: PLC0415
    except ImportError as error:
        raise InvalidInput(
            "postgresql:// needs a driver that is not installed.",
            field="url",
            got="postgresql://…",
            hint="Try: pip install 'locktender[postgres]'.",
        ) from error
    return PostgresPlace(url)
