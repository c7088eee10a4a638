"""Large values: what was put away as blobs, back in the rows of whoever looks into it.

Large values on their way: arguments fetched before a body begins, results put away when it has ended.

A store that is away for a moment costs no attempt: both are repeated while the
lease lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from locktender.base import codec
from locktender.base.changes import TaskRow
from locktender.base.errors import StoreError
from locktender.base.graph import Graph
from locktender.base.model import RunRow
from locktender.kernel import render
from locktender.kernel.dag import looked_into
from locktender.store.protocol import StoreBase


async def open_values(store: StoreBase, row: RunRow) -> RunRow:
    """`row` with parameters and constants that were put away as blobs."""
    if codec.is_blob(row.params):
        row = msgspec.structs.replace(row, params=await fetch(store, row.params))
    if codec.is_blob(row.consts):
        row = msgspec.structs.replace(row, consts=await fetch(store, row.consts))
    return row


async def open_output(store: StoreBase, graph: Graph, row: TaskRow) -> TaskRow:
    """A row of a run that is picked up, with its output in place if the graph looks into it."""
    if row.output is None or not codec.is_blob(row.output) or row.node not in looked_into(graph):
        return row
    return row._replace(output=await fetch(store, row.output))


async def fetch(store: StoreBase, value: bytes) -> bytes:
    """What a reference stands for; any other value is itself."""
    ref = codec.is_blob(value)
    return value if ref is None else await store.get_blob(ref[0])


log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_SECONDS = 0.2
_BLOB = b'"$locktender.blob"'


def has_blob(call: bytes) -> bool:
    return _BLOB in call


class BlobValues:
    def __init__(self, store: StoreBase, given_up: Callable[[], bool]) -> None:
        """`given_up`: the attempt is nobody's to carry for any more."""
        self._store = store
        self._given_up = given_up

    async def fetch(self, call: bytes) -> bytes:
        """`call` with every blob it refers to put in place, also inside lists and objects."""
        args, kwargs = codec.read_call(call)
        return codec.render_call(
            [await self._open(value) for value in args],
            {name: await self._open(value) for name, value in kwargs.items()},
        )

    async def put(self, output: bytes) -> bytes:
        """Stores it; what stands for it."""
        digest = await self._persist(lambda: self._store.put_blob(output))
        return codec.blob_ref(digest, len(output))

    async def _open(self, value: bytes) -> bytes:
        if _BLOB not in value:
            return value
        if (ref := codec.is_blob(value)) is not None:
            return await self._persist(lambda: self._store.get_blob(ref[0]))
        if value.lstrip()[:1] == b"[":
            return codec.join_list([await self._open(each) for each in codec.split_list(value)])
        members = render.split_object(value)
        return codec.join_object({key: await self._open(each) for key, each in members.items()})

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except StoreError as error:
                if self._given_up():
                    raise
                log.warning("a value cannot be moved yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
