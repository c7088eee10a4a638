"""Events: sent to runs and topics, and read by the leader for the tasks that wait for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.commits import Commit
from locktender.base.events import NO_RUN
from locktender.base.model import Mail
from locktender.store.history import CLIENT
from locktender.store.mailing import judge_send, sent_event
from locktender.store.protocol import EventSent, EventWaiter, SendEvent
from locktender.store.sqlite.session import SqliteSession, listed, record

T = TypeVar("T")


class SqliteMailing:
    """A part of `SqliteStore`."""

    def _write(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _read(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    async def send(self, event: SendEvent) -> EventSent:
        return await self._write(lambda tx: _send(tx, event))

    async def mail_ready(self, runs: Sequence[int]) -> list[Mail]:
        rows = await self._read(lambda tx: tx.all("mail_ready", listed(runs)))
        return [Mail(*row) for row in rows]

    async def topic_waiters(self, numbers: Sequence[int]) -> list[int]:
        rows = await self._read(lambda tx: tx.all("topic_waiters", listed(numbers)))
        return [run for (run,) in rows]

    async def event_secret(self, fresh: bytes) -> bytes:
        return await self._write(lambda tx: _secret(tx, fresh))

    async def event_waits(
        self, run_id: str | None = None, limit: int = 10_000
    ) -> list[EventWaiter]:
        if run_id is None:
            rows = await self._query(lambda tx: tx.all("event_waits", limit))
        else:
            rows = await self._query(lambda tx: tx.all("event_waits_of", run_id, limit))
        return [EventWaiter(*row) for row in rows]


def _send(tx: SqliteSession, event: SendEvent) -> EventSent:
    now = tx.now()
    if event.run is None:
        run = NO_RUN
        tx.run("mail_forget", event.name, now - tx.limits().topic_retention_us)
        repeated = tx.row("mail_sent", event.name, event.id)[0]
        answer = EventSent("repeated" if repeated else "sent")
    else:
        target = tx.one("mail_target", event.run, event.name, event.id, event.task, event.since)
        run, answer = 0 if target is None else target[0], judge_send(target)
    if answer.outcome == "sent":
        values = run, event.name, event.id, event.match, now, event.payload, event.task
        [n] = tx.row("mail_add", *values)
        record(tx, now, CLIENT, [(run, [sent_event(event, n)])])
    return answer


def _secret(tx: SqliteSession, fresh: bytes) -> bytes:
    tx.run("event_key_add", fresh)
    return bytes(tx.row("event_key")[0])


def write_mail(tx: SqliteSession, commit: Commit) -> None:
    """Of a leader's commit: waits that begin and end, and the events that ended them."""
    # In this order: of a retried run, the wait of an earlier try is over and opened again.
    if commit.waits_over:
        tx.run("event_wait_remove", listed(commit.waits_over))
    if commit.waits_opened:
        tx.each("event_wait_add", commit.waits_opened)
    if commit.mail_taken:
        tx.each("mail_take", commit.mail_taken)
