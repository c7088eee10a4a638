"""The PostgreSQL back end."""

from headgate.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
