"""Events: sent to runs and topics, and read by the leader for the tasks that wait for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from locktender.base.events import NO_RUN, pack
from locktender.base.model import Mail
from locktender.store.history import CLIENT
from locktender.store.mailing import judge_send, sent_event
from locktender.store.postgres.composed_sql import Parts, columns
from locktender.store.postgres.listener import MAIL
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import MAX_MAIL, EventSent, EventWaiter, SendEvent

if TYPE_CHECKING:
    from locktender.base.commits import Commit

T = TypeVar("T")
NUMBER = 2**62
"""It stands for the event's number, which the statement gives."""


class PostgresMailing:
    """A part of `PostgresStore`."""

    def _write(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _read(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    async def send(self, event: SendEvent) -> EventSent:
        return await self._write(lambda tx: _send(tx, event))

    async def mail_ready(self, runs: Sequence[int]) -> list[Mail]:
        rows = await self._read(lambda tx: tx.all("mail_ready", list(runs)))
        return [Mail(*row) for row in rows]

    async def topic_waiters(self, numbers: Sequence[int]) -> list[int]:
        rows = await self._read(lambda tx: tx.all("topic_waiters", list(numbers)))
        return [row[0] for row in rows]

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


async def _send(tx: PostgresSession, event: SendEvent) -> EventSent:
    if event.run is not None and await _sent_quickly(tx, event, event.run):
        return EventSent("sent")
    async with tx.transaction():
        # Two that send to one run come one after the other: numbers are in the order of commits.
        await tx.row("mail_turn", event.run or f"topic {event.name}")
        if event.run is None:
            run = NO_RUN
            [[now]], [[version]] = await tx.several(("now", ()), ("limits_version", ()))
            limits = await tx.limits(version)
            await tx.run("mail_forget", event.name, now - limits.topic_retention_us)
            [repeated] = await tx.row("mail_sent", event.name, event.id)
            answer = EventSent("repeated" if repeated else "sent")
        else:
            named = event.run, event.name, event.id, event.task, event.since
            [[now]], targets = await tx.several(("now", ()), ("mail_target", named))
            target = targets[0] if targets else None
            run, answer = 0 if target is None else target[0], judge_send(target)
        if answer.outcome == "sent":
            values = run, event.name, event.id, event.match, now, event.payload, event.task
            [n] = await tx.row("mail_add", *values)
            parts = Parts()
            parts.add("now", alias="clock")
            parts.add("open_fence", alias="fence")
            parts.add("events_given", [run], [pack([sent_event(event, n)])], alias="told")
            parts.add("event_add", now, 0, 0, CLIENT)
            parts.add("wake", *tx.hint(f"{MAIL} {run} {n}" if run != NO_RUN else MAIL))
            await tx.compose(parts)
    return answer


async def _sent_quickly(tx: PostgresSession, event: SendEvent, run: str) -> bool:
    """In one round trip, where nothing speaks against it. False: nothing was written."""
    before, _, behind = pack([sent_event(event, NUMBER)]).decode().partition(str(NUMBER))
    parts = Parts()
    parts.add("now", alias="clock")
    named, wait = (event.name, event.id), (event.task, event.since)
    parts.add("quick_mail_target", run, *named, MAX_MAIL // 2, *wait, alias="target")
    parts.add("quick_mail_add", *named, event.payload, event.task, alias="added")
    parts.add("quick_mail_fence", alias="fence")
    parts.add("quick_mail_told", before, behind, alias="told")
    parts.add("event_add", None, 0, 0, CLIENT)
    parts.add("quick_mail_answer", *tx.hint(MAIL))
    return bool(await tx.compose(parts))


async def _secret(tx: PostgresSession, fresh: bytes) -> bytes:
    # Two statements: the second sees what another process has stored meanwhile.
    await tx.run("event_key_add", fresh)
    return bytes((await tx.row("event_key"))[0])


def mail_parts(commit: Commit) -> list[tuple[str, list[Any]]]:
    """Of a leader's commit: waits that begin and end, and the events that ended them."""
    found: list[tuple[str, list[Any]]] = []
    # In this order: of a retried run, the wait of an earlier try is over and opened again.
    if commit.waits_over:
        found.append(("event_wait_remove", [sorted(commit.waits_over)]))
    if commit.waits_opened:
        found.append(("event_wait_add", columns(sorted(commit.waits_opened), 6)))
    if commit.mail_taken:
        found.append(("mail_take", columns(sorted(commit.mail_taken), 3)))
    return found
