"""Waits for events: which are open, for which runs events have to be read, and what an event may carry.

Events that were sent are rows; the kernel keeps none of them. When a wait is opened or restored, and when
something was sent to its run, the run is *wanted*: the leader reads the first event that each of its waits can
take and hands them over (`Scheduler.put_mail`) before the next decision. Until then the run does not leave the
leader's memory: so an event that was sent before its wait is found, and the history tells of one that is sent
later.

Delivery, timeout and cancel are decided one after another by one leader, so the first of them ends the wait: the
commit that completes the task removes the wait and says which event it took.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from locktender.base.announced import value_fault, with_defaults
from locktender.base.commits import Commit, EventWait
from locktender.base.errors import InvalidInput, UnreadableRow
from locktender.base.graph import AwaitedEvent
from locktender.base.model import Mail
from locktender.kernel.entries import TaskEntry
from locktender.kernel.waits import matched_by, wake_instant

MAX_READY = 1_000


class Mailboxes:
    def __init__(self) -> None:
        self.wanted: set[int] = set()
        """Runs with waits that an event may have come for: it has to be read what was sent to them."""
        self.ready: dict[int, list[Mail]] = {}
        """What was read for queued runs that go on from their rows: delivered when they do. Of at most `MAX_READY`
        runs; for others it is read when they have begun."""
        self._opened: set[int] = set()
        """Runs with waits of this cycle. Their rows come with its commit, so what is read before finds nothing."""

    def put_ready(self, runs: Iterable[int], mails: Iterable[Mail]) -> None:
        """What waits of these queued runs can take. Whatever comes later is read when they have begun."""
        for run in runs:
            self.ready.pop(run, None)
        for mail in mails:
            if mail.run in self.ready or len(self.ready) < MAX_READY:
                self.ready.setdefault(mail.run, []).append(mail)

    def begin(self, entry: TaskEntry, call: bytes, now: int, commit: Commit) -> int:
        """A wait begins. Returns when it is over, unless an event comes before."""
        assert entry.spec.wait is not None  # noqa: S101
        until = wake_instant(entry.spec.wait, call, now)
        if (event := entry.spec.event) is not None:
            match = matched_by(call)
            opened = EventWait(entry.id, entry.run.seq, event.name, match, now, until)
            commit.waits_opened.append(opened)
        return until

    def want(self, entry: TaskEntry) -> None:
        """A wait stands: events may have come before it."""
        if entry.spec.event is not None:
            self._opened.add(entry.run.seq)

    def take_wanted(self, most: int) -> list[int]:
        """The next runs whose events are to be read. Taken before that: a read may miss what is sent meanwhile."""
        taken = list(islice(self.wanted, most))
        self.wanted.difference_update(taken)
        return taken

    def may_get(self, run: int) -> bool:
        """Whether an event may have come for it that was not read yet."""
        return run in self.wanted or run in self._opened

    def end_cycle(self) -> None:
        """The commit is complete: what is read behind it knows the waits that it opens."""
        if self._opened:
            self.wanted |= self._opened
            self._opened.clear()

    def end(self, entry: TaskEntry, commit: Commit) -> None:
        """A task of a run that waits has ended."""
        if entry.spec.event is not None:
            commit.waits_opened = [each for each in commit.waits_opened if each.task != entry.id]
            commit.waits_over.append(entry.id)


def payload_fault(event: AwaitedEvent, payload: bytes) -> InvalidInput | None:
    """What of a payload does not fit the schema of the wait; None: it fits."""
    if not event.schema:
        return None
    return value_fault(event.schema, _read(event, payload), f"event {event.name!r}")


def delivered_value(event: AwaitedEvent, payload: bytes) -> bytes:
    """The result of a wait: its payload, with the schema's defaults where it leaves members of objects out."""
    if not event.schema or not payload.lstrip().startswith(b"{"):
        return payload
    value = _read(event, payload)
    filled = with_defaults(event.schema, value)
    if filled is value:
        return payload
    # Not by msgspec: it encodes no whole number beyond 64 bits, and a payload may have one.
    return json.dumps(filled, ensure_ascii=False, separators=(",", ":")).encode()


def _read(event: AwaitedEvent, payload: bytes) -> Any:
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UnreadableRow(
            f"the payload of event {event.name!r} cannot be read: {error}"
        ) from error
