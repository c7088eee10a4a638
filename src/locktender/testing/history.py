"""The history of an engine, loaded and judged: every promise, and whether the rows agree with it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.events import Event, EventRow, unpack
from locktender.base.graph import Graph, read_graph
from locktender.client.client import Client
from locktender.observe.checker import RULES, History, Rejection, Violation
from locktender.observe.checker.audit import replay
from locktender.observe.checkpoint import marks
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import BEGINNING, Counts, Follow, RunFilter, Store

Source = Client | str | os.PathLike[str]
"""An engine or a client, open or closed, or its url."""

SLACK_US = 50 * MILLISECOND
"""How long before its commit a live leader may have read the clock."""
UNHEARD_US = 5 * SECOND
"""Five times as long as a leader goes without reading what others did, where it got no notification."""
MAX_SHOWN = 20
_PAGE = 10_000
T = TypeVar("T")


class HistoryViolated(AssertionError):
    """Promises that were not kept."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        self.violations: tuple[Violation, ...] = tuple(violations)
        shown = [f"  {violation}" for violation in self.violations[:MAX_SHOWN]]
        if len(self.violations) > MAX_SHOWN:
            shown.append(f"  and {len(self.violations) - MAX_SHOWN} more")
        count = len(self.violations)
        super().__init__("\n".join([f"{count} violations in the history of {where}:", *shown]))


class Read(NamedTuple):
    """Everything that was written, at one moment without a write."""

    events: list[Event]
    graphs: dict[str, Graph]
    states: dict[int, str]
    """Run → the state in its row."""
    counts: Counts
    checked: int = 0
    """See `History.checked`."""
    thinned: int = 0

    @property
    def idle(self) -> bool:
        counts = self.counts
        return not (
            counts.queued or counts.executing or counts.waiting or any(counts.held.values())
        )


def load_history(
    source: Source,
    *,
    slack_us: int = SLACK_US,
    unheard_us: int = UNHEARD_US,
    rejections: Sequence[Rejection] = (),
) -> History:
    """All events of a store with the graphs they refer to; *complete* where nothing is active in it.

    slack_us    how far instants of two processes may contradict each other; default 50,000
    unheard_us  how long a leader may not have read what others did, in reasons; default 5,000,000
    rejections  submissions that were refused, as the test saw them; default none
    """
    return _history(_read(source), slack_us, unheard_us, rejections)


def check_history(
    source: Source,
    *,
    slack_us: int = SLACK_US,
    unheard_us: int = UNHEARD_US,
    rejections: Sequence[Rejection] = (),
) -> History:
    """Judges everything an engine has done so far. Raises `HistoryViolated` with what it finds.

    Works beside a live engine and after it. Where nothing is active, every run
    must have ended and nothing may be held. The rows and the counters must say
    what the history says. The options are those of `load_history`: `slack_us`,
    `unheard_us`, `rejections`.
    """
    read = _read(source)
    history = _history(read, slack_us, unheard_us, rejections)
    replayed = replay(history, RULES)
    found = [*replayed.violations, *_disagreements(read, replayed.world.used)]
    if found:
        raise HistoryViolated(url_of(source), found)
    return history


def url_of(source: Source) -> str:
    return source.settings.url if isinstance(source, Client) else os.fspath(source)


def _history(
    read: Read, slack_us: int, unheard_us: int, rejections: Sequence[Rejection]
) -> History:
    return History(
        events=read.events,
        graphs=read.graphs,
        rejections=rejections,
        complete=read.idle,
        slack_us=slack_us,
        unheard_us=unheard_us,
        checked=read.checked,
        thinned=read.thinned,
    )


def _read(source: Source) -> Read:
    return _on_a_loop(_read_url(url_of(source)))


async def _read_url(url: str) -> Read:
    # A store of our own, beside the engine's: it may be closed, or killed, by now.
    store = store_for(settings_for(url, {}))
    await store.open()
    try:
        return await _read_store(store)
    finally:
        await store.close()


async def _read_store(store: Store) -> Read:
    found: list[EventRow] = []
    cursor = BEGINNING
    while True:
        # Rows are read first: if the history has not moved after that, both are of one moment.
        counts = await store.counts()
        states = await _states(store)
        moved = False
        while (page := await store.follow(Follow(cursor, limit=_PAGE))).events:
            found += page.events
            cursor = page.cursor
            moved = True
        if not moved:
            break
    found.sort(key=lambda row: row.seq)
    events = [event for row in found for event in unpack(row)]
    digests = {event.data["graph"] for event in events if "graph" in event.data}
    graphs = {digest: read_graph(await store.graph(digest)) for digest in sorted(digests)}
    known = await marks(store)
    return Read(events, graphs, states, counts, known.checked, known.thinned)


async def _states(store: Store) -> dict[int, str]:
    states: dict[int, str] = {}
    before: int | None = None
    while page := await store.runs(RunFilter(limit=_PAGE, before=before)):
        states |= {row.seq: row.state for row in page}
        before = page[-1].seq
    return states


def _disagreements(read: Read, used: dict[str, int]) -> list[Violation]:
    """Where rows and counters say something else than the history."""
    last = read.events[-1].seq if read.events else 0
    found: list[Violation] = []

    def differ(message: str, run: int = 0) -> None:
        found.append(Violation("rows", last, run, 0, message))

    # Slots held by `slots()` are runs of a kind that no list shows.
    changes = [event for event in read.events if event.subject == "run"]
    holds = {event.run for event in changes if event.data.get("kind") == "hold"}
    in_history = {event.run: event.after for event in changes if event.run not in holds}
    for run in sorted(in_history.keys() | read.states.keys()):
        if in_history.get(run) != read.states.get(run):
            differ(f"its row says {read.states.get(run)}, the history {in_history.get(run)}.", run)
    held = {pool: slots for pool, slots in read.counts.held.items() if slots}
    if held != used:
        differ(f"rows hold {held}, by the history {used} are held.")
    counts = read.counts
    for name in sorted(counts.admitted.keys() | counts.closed.keys() | counts.active.keys()):
        counted = counts.admitted.get(name, 0) - counts.closed.get(name, 0)
        if counted != counts.active.get(name, 0):
            active = counts.active.get(name, 0)
            differ(f"the counter {name or 'max_active'!r} says {counted} runs, rows {active}.")
    return found


def _on_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end, also where the caller stands on an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    result: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 — raised again where it was asked for
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return result[0]
