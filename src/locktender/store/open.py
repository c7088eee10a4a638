"""A url as a store, or as a place that is not opened; settings around it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from locktender.base import config
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.base.settings_files import check_path
from locktender.store.protocol import Store

if TYPE_CHECKING:
    from locktender.store.copying import StorePlace

Url = str | os.PathLike[str]
_SUPPORTED = (
    "Use a SQLite file, e.g. .locktender/locktender.db, postgresql://…, or https://… of a server."
)


def settings_for(url: Url | None, overrides: Mapping[str, object]) -> Settings:
    """Settings from file, environment and arguments; `url` is one of the arguments."""
    if url is not None and not isinstance(url, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("url must be text or a path.", field="url", got=url, hint=_SUPPORTED)
    given = dict(overrides)
    if url is not None:
        given["url"] = os.fspath(url)
    settings = config.load(Path.cwd(), os.environ, given)
    if url is not None and "work_dir" not in settings.sources and "://" not in settings.url:
        # The work directory of a file is beside it and named after it: another name may be the user's.
        settings = msgspec.structs.replace(settings, work_dir=f"{Path(settings.url)}-work")
    return settings


def is_server(url: str) -> bool:
    """Whether `url` names a server, which is asked by HTTP, and not a store."""
    return url.partition("://")[0].lower() in ("http", "https")


def needs_database(what: str, url: str) -> InvalidInput:
    return InvalidInput(
        f"{what} needs the database itself, and {url} is a server.",
        field="url",
        got=url,
        hint="Give the address of the database that the server uses: postgresql://…, or its SQLite file.",
    )


def store_for(settings: Settings) -> Store:
    """The store that `settings.url` names, not opened yet."""
    kind = _kind_of(settings.url)
    if not settings.blob_url:
        return kind(settings.url)
    # Only here: fsspec is an extra, and slow to import.
    from locktender.store import stored_files  # noqa: PLC0415
    from locktender.store.blob_url import BlobPlace  # noqa: PLC0415
    from locktender.store.blobs_elsewhere import BlobsElsewhere  # noqa: PLC0415

    made: Any = type(f"{kind.__name__}BlobsElsewhere", (BlobsElsewhere, kind), {})
    store = made(settings.url)
    store.blob_place = BlobPlace(settings.blob_url)
    stored_files.use(settings.blob_url)
    return store


def _kind_of(url: str) -> type[Any]:
    if _is_postgres(url):
        return _postgres().PostgresStore
    # Only here: a client of PostgreSQL does without it.
    from locktender.store.sqlite.store import SqliteStore  # noqa: PLC0415

    return SqliteStore


def place_for(url: str) -> StorePlace:
    """The store that `url` names, for its status, migration and copies."""
    if _is_postgres(url):
        return _postgres().PostgresPlace(url)
    # Only here: most commands open a store and copy none.
    from locktender.store.sqlite.place import SqlitePlace  # noqa: PLC0415

    return SqlitePlace(url)


def schema_of(url: str) -> str | None:
    """The schema of a store on PostgreSQL; None: a file."""
    return _postgres().parse(url).schema if _is_postgres(url) else None


def _is_postgres(url: str) -> bool:
    """Whether `url` names PostgreSQL; False: the path of a SQLite file. Refuses everything else."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    if scheme in {"postgresql", "postgres"}:
        return True
    if is_server(url):
        # `got` without the rest, which may hold a password.
        raise needs_database("this", f"{scheme}://…")
    if scheme:
        raise InvalidInput(
            f"{scheme}:// is not a kind of store.",
            field="url",
            got=f"{scheme}://…",
            hint=_SUPPORTED,
        )
    check_path(url)
    return False


def _postgres() -> ModuleType:
    try:
        # Only here: the driver is an extra, and SQLite must start without it.
        from locktender.store import postgres  # noqa: PLC0415

        import_module("asyncpg")
    except ImportError as error:
        raise InvalidInput(
            "postgresql:// needs a driver that is not installed.",
            field="url",
            got="postgresql://…",
            hint="Try: pip install 'locktender[postgres]'.",
        ) from error
    return postgres
