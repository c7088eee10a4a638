"""The SQLite back end."""

from headgate.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
