"""The PostgreSQL back end."""

from typing import cast

from locktender.store.blobs_elsewhere import BlobsElsewhere
from locktender.store.postgres.options import parse
from locktender.store.postgres.place import PostgresPlace
from locktender.store.postgres.store import PostgresStore

__all__ = ["PostgresBlobsElsewhere", "PostgresPlace", "PostgresStore", "parse"]


class PostgresBlobsElsewhere(BlobsElsewhere, PostgresStore):
    async def identity(self) -> str:
        row = await self._look(lambda tx: tx.one("store_identity"))
        return cast("str", row[0]) if row else ""
