"""Runs that applications submit inside their own transactions: the leader takes them up one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from locktender.base.model import Failure, NewRun
from locktender.store.protocol.base import StoreBase
from locktender.store.protocol.submitting import Submitted


class OutboxRun(msgspec.Struct, frozen=True, array_like=True):
    """What an application writes: a run, and its graph as it is stored."""

    run: NewRun
    graph: bytes
    unset: tuple[str, ...] = ()
    """Options that the flow decides, as workers announced it: its submitter could not read that."""


class OutboxAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no run of this id."""

    submitted: Submitted | None = None
    """It was refused at a ceiling or for its key, or another run stands for it."""
    failure: Failure | None = None
    """It cannot be a run at all."""


class OutboxEntry(msgspec.Struct, frozen=True):
    """A row of the outbox."""

    n: int
    id: str
    at: int
    body: bytes
    """An `OutboxRun` (msgpack)."""
    answer: bytes | None = None
    """An `OutboxAnswer` (JSON)."""
    answered_at: int | None = None


class OutboxMove(msgspec.Struct, frozen=True):
    """What the leader makes of an entry: a run, or an answer."""

    entry: OutboxEntry
    run: NewRun | None = None
    graph: bytes = b""
    failure: Failure | None = None


class Outbox(StoreBase, Protocol):
    async def outbox(self, limit: int) -> list[OutboxEntry]:
        """The first entries that have no answer."""
        ...

    async def outbox_newest(self, limit: int) -> list[OutboxEntry]:
        """Entries with and without an answer, the newest first."""
        ...

    async def outbox_entry(self, run_id: str) -> OutboxEntry | None: ...

    async def outbox_used(self) -> bool:
        """Whether any application has ever written into it."""
        ...

    async def move_outbox(self, term: int, moves: Sequence[OutboxMove]) -> int:
        """Moves entries into the queue, under the same ceilings as a submission. Returns how many became runs."""
        ...
