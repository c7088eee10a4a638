"""The PostgreSQL back end."""

from locktender.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
