"""The PostgreSQL back end."""

from locktender.store.postgres.options import parse
from locktender.store.postgres.place import PostgresPlace
from locktender.store.postgres.store import PostgresStore

__all__ = ["PostgresPlace", "PostgresStore", "parse"]
