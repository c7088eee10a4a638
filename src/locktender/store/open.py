"""A url, and the settings around it, as a store.

A url as a store to be looked after or copied, without opening it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from locktender.base import config
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.base.settings_files import check_path
from locktender.store.copying import CopyPlace
from locktender.store.maintenance import Upkeep
from locktender.store.protocol import Store
from locktender.store.sqlite.copying import SqlitePlace
from locktender.store.sqlite.store import SqliteStore

Url = str | os.PathLike[str]
_SUPPORTED = "Use the path of a SQLite file, e.g. .locktender/locktender.db, or postgresql://…"


def settings_for(url: Url | None, overrides: Mapping[str, object]) -> Settings:
    """Settings from file, environment and arguments; `url` is one of the arguments."""
    if url is not None and not isinstance(url, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("url must be text or a path.", field="url", got=url, hint=_SUPPORTED)
    given = dict(overrides)
    if url is not None:
        given["url"] = os.fspath(url)
    settings = config.load(Path.cwd(), os.environ, given)
    if url is not None and "work_dir" not in settings.sources and "://" not in settings.url:
        # A store of one's own has a work directory of its own, beside it and named after it: any other
        # name there may be the user's.
        settings = msgspec.structs.replace(settings, work_dir=f"{Path(settings.url)}-work")
    return settings


def store_for(settings: Settings) -> Store:
    """The store that `settings.url` names, not opened yet."""
    url = settings.url
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in {"postgresql", "postgres"}:
        return _postgres(url)
    if scheme in {"http", "https"}:
        raise InvalidInput(
            f"{scheme}:// is not available yet in this version.",
            field="url",
            # Without what may hold a password.
            got=f"{scheme}://…",
            hint=_SUPPORTED,
        )
    if scheme:
        raise InvalidInput(
            f"{scheme}:// is no kind of store.", field="url", got=f"{scheme}://…", hint=_SUPPORTED
        )
    check_path(url)
    return SqliteStore(url)


def _postgres(url: str) -> Store:
    try:
        # Only here: the driver is an extra, and SQLite must start without it.
        from locktender.store.postgres import PostgresStore  # noqa: PLC0415
    except ImportError as error:
        raise InvalidInput(
            "postgresql:// needs a driver that is not installed.",
            field="url",
            got="postgresql://…",
            hint="Try: pip install 'locktender[postgres]'.",
        ) from error
    return PostgresStore(url)


class KeptPlace(CopyPlace, Upkeep, Protocol):
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
