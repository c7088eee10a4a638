"""A store whose large values are at `blob_url`: the same verbs, over the store of rows.

Values that were stored before `blob_url` was set stay where they are, are read from
there, and are swept there.
"""

from __future__ import annotations

import asyncio
import logging
from heapq import nsmallest
from typing import Any, Protocol

from locktender.base.errors import NotFound
from locktender.store.blob_url import BlobPlace
from locktender.store.protocol import Discard, Discarded, StoredContent

log: logging.Logger = logging.getLogger(__name__)


class RowStore(Protocol):
    """What is below."""

    async def identity(self) -> str:
        """The same for every process that uses this store, another one for each copy of it."""
        ...

    async def get_blob(self, digest: str) -> bytes: ...
    async def stored_content(self, put_before: int, after: str, limit: int) -> StoredContent: ...
    async def discard(self, discard: Discard) -> Discarded: ...


class BlobsElsewhere:
    """Before the class of a store among the bases."""

    blob_place: BlobPlace
    _owns: bool | None = None

    async def put_blob(self, data: bytes) -> str:
        await self._owned()
        return await asyncio.to_thread(self.blob_place.put, data)

    async def get_blob(self, digest: str) -> bytes:
        try:
            return await asyncio.to_thread(self.blob_place.get, digest)
        except NotFound as error:
            if error.code != NotFound.code:
                raise
            try:
                return await self._rows().get_blob(digest)
            except NotFound:
                raise error from None

    async def stored_content(self, put_before: int, after: str, limit: int) -> StoredContent:
        found = await self._rows().stored_content(put_before, after, limit)
        if not await self._owned():
            return found
        names = await asyncio.to_thread(self._names, put_before, after, limit)
        ends = [each for each in (found.after, names[-1] if len(names) == limit else "") if each]
        last = min(ends, default="")
        return StoredContent(
            {name for name in found.graphs if not last or name <= last},
            {name for name in (*found.blobs, *names) if not last or name <= last},
            last,
        )

    async def discard(self, discard: Discard) -> Discarded:
        done = await self._rows().discard(discard)
        if not discard.blobs or not await self._owned():
            return done
        removed = await asyncio.to_thread(self._remove, discard)
        return Discarded(done.graphs, done.blobs + removed)

    def _names(self, put_before: int, after: str, limit: int) -> list[str]:
        found = {name for name in self.blob_place.put_before(put_before) if name > after}
        return nsmallest(limit, found)

    def _remove(self, discard: Discard) -> int:
        return sum(self.blob_place.remove(each, discard.put_before) for each in discard.blobs)

    async def _owned(self) -> bool:
        """Whether this store may remove what is there."""
        if self._owns is None:
            mine = await self._rows().identity()
            owner = await asyncio.to_thread(self.blob_place.owner, mine)
            self._owns = owner == mine
            if not self._owns:
                log.warning(
                    "large values at %s belong to another store (%s): this one removes none there."
                    " Give it a blob_url of its own.",
                    self.blob_place.url,
                    owner,
                )
        return self._owns

    def _rows(self) -> RowStore:
        below: Any = super()
        return below
