"""Reading the history for an audit: page by page, from where the last audit ended.

The checker's state is stored when an audit has read the history. The next one
goes on there, so its time depends on what has happened since. The state is
only ever a shortcut: one that is missing, of another version, damaged or no
longer true is passed over, and the audit starts from the beginning.
It is not true any more if

    runs were pruned whose last events lie behind it   it would take them for active
    it holds violations, and something was pruned      they may be of runs that are gone
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from locktender.base.errors import LocktenderError, NotFound
from locktender.base.events import EventRow, unpack
from locktender.base.graph import Graph, read_graph
from locktender.observe.checker import RULES, History
from locktender.observe.checker.audit import Recall, Replay
from locktender.observe.checker.saved import StateUnreadable, read, version
from locktender.store.protocol import AuditState, EventFilter, Store

log: logging.Logger = logging.getLogger(__name__)
ROWS_PER_PAGE = 1_000
"""Of the history, in memory at one time."""
ROWS_PER_STATE = 500_000
"""After so many rows the state is stored: an audit that is stopped goes on there."""
MAX_GRAPHS_KEPT = 200
MAX_STATE_BYTES = 64 << 20
"""A larger state is not stored: the next audit reads everything."""


@dataclass(frozen=True, slots=True)
class AuditBegin:
    """Where an audit began."""

    seq: int = 0
    """It read what is behind this; 0: everything."""
    at: int = 0
    """When the earlier audit ended there."""
    events: int = 0
    """How many events were read from there on."""


async def pages(store: Store, where: EventFilter) -> AsyncIterator[list[EventRow]]:
    while rows := await store.events(where):
        yield rows
        where = msgspec.structs.replace(where, after=rows[-1].seq)


async def at_once() -> None:
    """The pace of an audit that a caller waits for."""


class HistoryReading:
    """One audit's way through the history. It needs memory for one page and for what is open."""

    def __init__(
        self,
        store: Store,
        batches: int,
        checked: int,
        thinned: int,
        slack_us: int,
        pace: Callable[[], Awaitable[None]] = at_once,
    ) -> None:
        """`pace` is called after every row: an audit beside other work rests there."""
        self._store = store
        self._batches = batches
        self._checked = checked
        self._thinned = thinned
        self._pace = pace
        self.caught_up: bool = False
        """The last read came to the end of what is settled."""
        self._version = f"{version()}.{slack_us}"
        self._slack_us = slack_us
        self.began: AuditBegin = AuditBegin()
        self._unreadable: set[str] = set()
        self._start()

    def _start(self) -> None:
        self._graphs: dict[str, Graph] = {}
        history = History(
            (),
            self._graphs,
            slack_us=self._slack_us,
            checked=self._checked,
            thinned=self._thinned,
        )
        self.replaying: Replay = Replay(history, RULES)

    async def resume(self) -> None:
        """Goes on where an earlier audit ended, if its state can be used."""
        state = await self._store.audit_state()
        if state is None or state.version != self._version or state.seq < self._checked:
            return
        try:
            saved = read(state.body)
            for digest in saved.graphs:
                await self._add_graph(digest)
            self.replaying.resume(saved)
            # The rows name a seq; so does the state. Where they differ one of them was changed.
            usable = self.replaying.world.last_seq == state.seq
        except (StateUnreadable, NotFound) as error:
            log.warning(
                "failed to read the last audit's state, reading the whole history: %s", error
            )
            usable = False
        if not usable or (self.replaying.violations and state.batches != self._batches):
            self._start()
            return
        self.began = AuditBegin(state.seq, state.at)

    async def read(self, most: int | None = None) -> bool:
        """Up to the end of what is settled, or about `most` rows. False: runs were pruned meanwhile.

        It goes on where the last call ended.
        """
        world = self.replaying.world
        before, kept, rows_read = world.events, 0, 0
        where = EventFilter(after=world.last_seq, limit=ROWS_PER_PAGE, settled=True)
        self.caught_up = False
        try:
            async for rows in pages(self._store, where):
                await self._read_page(rows)
                kept += len(rows)
                rows_read += len(rows)
                if kept >= ROWS_PER_STATE:
                    kept = 0
                    await self.keep()
                if most is not None and rows_read >= most:
                    break
            else:
                self.caught_up = True
        except NotFound:
            return False  # a graph is gone with the runs that name it
        read_now = world.events - before
        self.began = replace(self.began, events=read_now)
        return True

    async def _read_page(self, rows: list[EventRow]) -> None:
        replaying = self.replaying
        if len(self._graphs) > MAX_GRAPHS_KEPT:
            self._graphs.clear()
            replaying.world.forget_plans()
        for run in replaying.forgotten(row.run for row in rows):
            await self._recall(run, rows[0].seq)
        await self._add_graphs(rows)
        for row in rows:
            replaying.feed(unpack(row))
            await self._pace()
        replaying.world.forget()

    async def _recall(self, run: int, before: int) -> None:
        """Reads the events of a forgotten run up to a seq again."""
        recalled = Recall(self.replaying.world, run)
        async for rows in pages(self._store, EventFilter(run=run, limit=ROWS_PER_PAGE)):
            earlier = [row for row in rows if row.seq < before]
            await self._add_graphs(earlier)
            for row in earlier:
                recalled.feed(unpack(row))
                await self._pace()
            if len(earlier) < len(rows):
                break
        recalled.finish()

    async def _add_graphs(self, rows: Iterable[EventRow]) -> None:
        for row in rows:
            if b'"graph"' not in row.body:
                continue
            for event in unpack(row):
                await self._add_graph(event.data.get("graph") or "")

    async def _add_graph(self, digest: str) -> None:
        if not digest or digest in self._graphs or digest in self._unreadable:
            return
        try:
            self._graphs[digest] = read_graph(await self._store.graph(digest))
        except (msgspec.MsgspecError, UnicodeError) as error:
            # A rule reports each run that names it. They are checked without it, and all others as ever.
            log.warning("failed to read graph %s: %s", digest, error)
            self._unreadable.add(digest)

    async def keep(self) -> None:
        """Stores the state for the next audit. If that fails, the next one reads more."""
        body = self.replaying.save()
        if len(body) > MAX_STATE_BYTES:
            log.warning("the audit's state is too large to be stored: %s bytes", len(body))
            return
        seq, now = self.replaying.world.last_seq, await self._store.now()
        try:
            await self._store.keep_audit_state(
                AuditState(seq, now, self._version, self._batches, body)
            )
        except LocktenderError as error:
            log.warning("failed to store the audit's state: %s", error)
