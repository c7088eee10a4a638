"""The SQLite back end."""

from locktender.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
