"""What a worker writes: its lease, acceptances, ends of attempts, logs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from locktender.base.changes import End, Order
from locktender.base.model import LogRow, WorkerRow
from locktender.store.protocol.base import StoreBase


class Heartbeat(msgspec.Struct, frozen=True):
    """A worker joins or renews its lease, and reports its free capacity."""

    worker: WorkerRow
    lease_us: int
    renews: bool = False
    """It has joined before: without its row nothing is written. A renewal may come after it has left."""


class Renewed(msgspec.Struct, frozen=True):
    lease_until: int
    """0: it was declared lost, or has left; it must stop its tasks and join under a new id."""
    now: int


class OfferNotice(msgspec.Struct, frozen=True):
    """What woke a worker. Only a hint: the rows decide."""

    offers: list[tuple[int, int]]
    """(task, token), where the notification itself carried them."""
    look: bool
    """There may be more orders: read them."""


class Accept(msgspec.Struct, frozen=True):
    worker: str
    tasks: list[tuple[int, int]]
    """(task, token)"""


class Started(NamedTuple):
    """An accepted task with all it needs to run."""

    task: int
    token: int
    node: int
    idx: int
    """The item's index; −1 for a plain step."""
    attempt: int
    input: bytes | None
    """As in the task's row."""
    shared: bytes | None
    """The node's input that all items share."""
    run_id: str
    graph: str
    trace: str | None = None
    """The submitter's (W3C `traceparent`)."""


class Finish(msgspec.Struct, frozen=True):
    worker: str
    ended: list[End]


class Working(StoreBase, Protocol):
    async def heartbeat(self, heartbeat: Heartbeat) -> Renewed: ...
    async def leave(self, worker: str) -> None: ...
    async def orders(self, worker: str) -> list[Order]: ...
    async def accept(self, accept: Accept) -> list[Started]:
        """The tasks that were still offered to this worker; they are running from now on."""
        ...

    async def finish(self, finish: Finish) -> list[tuple[int, int]]:
        """The (task, token) pairs that were stale: they changed nothing."""
        ...

    async def keep_logs(self, rows: list[LogRow]) -> None:
        """Stores what attempts have logged so far; a row with more lines takes the place of one with fewer.

        Not fenced: a stale attempt's lines belong to that attempt. Each attempt occurs once in `rows`.
        """
        ...

    async def wait_for_offers(self, worker: str, timeout_us: int) -> OfferNotice:
        """Waits for orders that another process sends to this worker, for at most `timeout_us`.

        Misses no notification between two calls while the store is open. Notifications sent while
        the connection was down are lost: read the orders then.
        """
        ...
