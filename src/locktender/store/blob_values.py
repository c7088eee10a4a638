"""Values that are too large for a row: stored as blobs, and put back where they are read.

A row holds a reference to the blob in the value's place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from locktender.base import codec
from locktender.base.changes import TaskRow
from locktender.base.errors import StoreError
from locktender.base.graph import Graph
from locktender.base.model import RunRow
from locktender.kernel import render
from locktender.kernel.render import looked_into
from locktender.store.protocol import StoreBase
from locktender.store.retry import retry_while_away

T = TypeVar("T")
PAUSE_SECONDS = 0.2
_BLOB = b'"$locktender.blob"'
FILE_MARK = b'"$locktender.blob_file":'
"""Of a `StoredFile` in a value."""


async def open_values(store: StoreBase, row: RunRow) -> RunRow:
    """`row` with the parameters and constants that were stored as blobs."""
    if codec.is_blob(row.params):
        row = msgspec.structs.replace(row, params=await fetch(store, row.params))
    if codec.is_blob(row.consts):
        row = msgspec.structs.replace(row, consts=await fetch(store, row.consts))
    return row


async def open_output(store: StoreBase, graph: Graph, row: TaskRow) -> TaskRow:
    """`row` with its output in place, if another node of the graph reads a part of it."""
    if row.output is None or not codec.is_blob(row.output) or row.node not in looked_into(graph):
        return row
    return row._replace(output=await fetch(store, row.output))


async def fetch(store: StoreBase, value: bytes) -> bytes:
    """The blob that `value` refers to; any other value is itself."""
    ref = codec.is_blob(value)
    return value if ref is None else await store.get_blob(ref[0])


def has_blob(call: bytes) -> bool:
    return _BLOB in call


class BlobValues:
    """A worker's blobs: arguments fetched before a body begins, outputs stored after it has ended.

    A store that is away for a moment costs no attempt: both are retried while the lease lives.
    """

    def __init__(self, store: StoreBase, given_up: Callable[[], bool]) -> None:
        """`given_up`: the lease is lost, so the attempt belongs to another worker."""
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
        """Stores `output` as a blob; returns the reference to it."""
        digest = await self._retry(lambda: self._store.put_blob(output), "storing a large value")
        return codec.blob_ref(digest, len(output))

    async def _open(self, value: bytes) -> bytes:
        if _BLOB not in value:
            return value
        if (ref := codec.is_blob(value)) is not None:
            return await self._retry(lambda: self._store.get_blob(ref[0]), "fetching a large value")
        if value.lstrip()[:1] == b"[":
            return codec.join_list([await self._open(each) for each in codec.split_list(value)])
        members = render.split_object(value)
        return codec.join_object({key: await self._open(each) for key, each in members.items()})

    async def _retry(self, verb: Callable[[], Awaitable[T]], what: str) -> T:
        def may_retry(_: StoreError) -> bool:
            return not self._given_up()

        return await retry_while_away(
            verb,
            what,
            may_retry,
            first_pause_seconds=PAUSE_SECONDS,
            longest_pause_seconds=PAUSE_SECONDS,
        )
