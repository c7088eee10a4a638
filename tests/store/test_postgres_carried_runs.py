"""The notification of a small submission carries its rows, so that a leader need not read them.

What is carried proves nothing: any program that can connect can notify.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from locktender import Client, connect, embedded, flow, step
from locktender.base.clock import SECOND
from locktender.base.events import Event, unpack
from locktender.base.limits import Limits
from locktender.base.model import NewRun, RunRow
from locktender.kernel.scheduler import Scheduler
from locktender.leader.queue_reader import QueueReader
from locktender.store.carried_runs import MAX_CARRIED_BYTES, read_carried
from locktender.store.postgres.listener import Listener
from locktender.store.postgres.options import parse
from locktender.store.postgres.store import PostgresStore
from locktender.store.protocol import BEGINNING, ChangeNotice, Gather, Submit
from locktender.testing import check_history, eventually
from locktender.testing.conformance.world import DIGEST, GRAPH, new_run
from locktender.testing.postgres_server import connected, execute, run

pytest_plugins = ["locktender.testing.postgres"]
TIMEOUT = "60s"
UNUSUAL = msgspec.structs.replace(
    new_run(),
    flow='a "name" of three words\n– and a line',
    tags={"tenant": "ä b", "zone": "1"},
    params=b'{"x":"\xc3\xa4"}',
    priority=-3,
    deadline_us=60 * SECOND,
    queue_timeout_us=7,
    dispatch_deadline_us=9,
    trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


@step
async def double(n: int) -> int:
    return 2 * n


@flow
def doubled(n: int) -> int:
    return double(n)


@asynccontextmanager
async def two_stores(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """A leader's, which listens, and a submitter's that knows the graph."""
    async with _opened(url) as leader, _opened(url) as submitter:
        await leader.wait_for_changes(0)
        async with asyncio.timeout(60):
            while leader.options.channel not in leader._opened.listener.channels:
                await leader.wait_for_changes(5_000)
        await submitter.submit(Submit([new_run()], {DIGEST: GRAPH}))
        yield leader, submitter


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def heard(
    leader: PostgresStore, submitter: PostgresStore, *runs: NewRun
) -> tuple[ChangeNotice, list[NewRun]]:
    """What the leader is told of these runs, submitted under new ids until one statement did."""
    async with asyncio.timeout(60):
        while True:
            given = [msgspec.structs.replace(each, id=new_run().id) for each in runs]
            [*_, last] = await submitter.submit(Submit(given, {}))
            told = await leader.wait_for_changes(SECOND)
            if last.seq in told.queued:
                return told, given


@pytest.mark.parametrize("given", [[new_run()], [UNUSUAL], [new_run(), new_run()]])
async def test_small_rows_are_carried_as_they_are_stored(postgres_url: str, given: list[NewRun]):
    async with two_stores(postgres_url) as (leader, submitter):
        told, submitted = await heard(leader, submitter, *given)
        carried = list(told.carried)[-len(given) :]
        assert carried == await leader.arrivals(list(told.queued)[-len(given) :])
        assert [row.id for row in carried] == [each.id for each in submitted]


@pytest.mark.parametrize("count", [MAX_CARRIED_BYTES, MAX_CARRIED_BYTES - 200])
async def test_larger_rows_are_named(postgres_url: str, count: int):
    large = msgspec.structs.replace(new_run(), params=b'{"x":"' + b"x" * count + b'"}')
    async with two_stores(postgres_url) as (leader, submitter):
        told, _ = await heard(leader, submitter, large)
        assert not told.carried


@pytest.mark.parametrize("text", ["", "x", "[]", "[[]]", "[[1,2]]", '{"a":1}', "[" * 10_000])
def test_what_cannot_be_read_is_left_out(text: str):
    assert read_carried(5, 5, text) == []


@pytest.mark.parametrize("text", ["\x00", "\ud800"])
def test_what_postgres_has_in_no_text_is_left_out(text: str):
    assert read_carried(5, 5, _rows(flow=text)) == []


def _rows(**changed: Any) -> str:
    row: dict[str, Any] = {
        "id": new_run().id,
        "kind": "flow",
        "flow": "demo",
        "graph": DIGEST,
        "tags": "{}",
        "priority": 0,
        "lane": 1,
        "queued_at": 5,
        "deadline_at": None,
        "queue_timeout_us": None,
        "dispatch_deadline_us": None,
        "params": "e30=",
        "consts": "W10=",
        "trace": None,
    }
    return json.dumps([list({**row, **changed}.values())])


@pytest.mark.parametrize(
    "wrong",
    [{"priority": 10**9}, {"lane": -1}, {"tags": "no"}, {"kind": "other"}, {"queued_at": -1}],
)
def test_what_no_row_may_have_is_unreadable(wrong: dict[str, Any]):
    [good] = read_carried(5, 5, _rows())
    assert not good.unreadable
    [row] = read_carried(5, 5, _rows(**wrong))
    assert row.unreadable


def _notify(url: str, seq: int, rows: str) -> None:
    channel = parse(url).channel
    payload = f"somebody submit {seq} {seq} {rows}".replace("'", "''")
    run(execute(url, f"SELECT pg_notify('{channel}', '{payload}')"))


def _notify_until(
    url: str, text: str, rows: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Again and again: where the leader reads the history anyway, it takes nothing of a notification."""

    def logged() -> bool:
        _notify(url, _last(client) + 1, rows)
        return text in caplog.text

    eventually(logged, TIMEOUT)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs whose rows the leader has read."""
    found: list[int] = []
    arrivals = PostgresStore.arrivals

    async def noting(self: PostgresStore, runs: Sequence[int]) -> list[RunRow]:
        found.extend(runs)
        return await arrivals(self, runs)

    monkeypatch.setattr(PostgresStore, "arrivals", noting)
    return found


def _last(client: Client) -> int:
    return len(client.runs.list(limit=100))


def test_the_leader_does_not_read_what_was_carried(postgres_url: str, read: list[int]):
    with embedded(postgres_url, grace="2s"), connect(postgres_url) as client:
        assert client.submit(doubled, 1).result(TIMEOUT) == 2  # the first goes another way

        def unread() -> bool:
            """It is read if the history told of it first."""
            assert client.submit(doubled, 4).result(TIMEOUT) == 8
            return _last(client) not in read

        eventually(unread, TIMEOUT)
    check_history(postgres_url)


class LateNotices:
    """Notifications of submissions are given to the leader when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kept: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self.at_once = False
        received = Listener._receive

        def receive(listener: Listener, connection: Any, pid: int, channel: str, payload: object):
            text = str(payload)
            give = functools.partial(received, listener, connection, pid, channel, payload)
            if " submit " not in text or len(text) < 100:
                return give()
            self._kept.append((asyncio.get_running_loop(), give))
            if self.at_once:
                return give()
            # Another process has committed something: the leader reads the history, this submission too.
            return received(listener, connection, pid, channel, "another finish")

        monkeypatch.setattr(Listener, "_receive", receive)

    def give(self) -> int:
        """How many were given."""
        kept, self._kept = self._kept, []
        for loop, give in kept:
            loop.call_soon_threadsafe(give)
        return len(kept)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_notification_may_come_late_or_twice(
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at_once: bool,
):
    """The run was started before: the leader neither starts it again nor loses its term for it."""
    notices = LateNotices(monkeypatch)
    notices.at_once = at_once
    caplog.set_level(logging.WARNING)
    with embedded(postgres_url, grace="2s"), connect(postgres_url) as client:
        assert client.submit(doubled, 1).result(TIMEOUT) == 2  # the first goes another way

        def given() -> int:
            assert client.submit(doubled, 4).result(TIMEOUT) == 8
            return notices.give()

        for _ in range(5):
            eventually(given, TIMEOUT)
        assert client.submit(doubled, 6).result(TIMEOUT) == 12
    assert "the notification of its submission" not in caplog.text
    check_history(postgres_url)


async def test_what_was_told_wrongly_of_a_run_is_replaced(postgres_url: str):
    """A gate blocks it. In the next turn its own row is read, and nothing is left of the notification."""
    async with two_stores(postgres_url) as (leader, submitter):
        reader, scheduler = QueueReader(leader), Scheduler(Limits(max_concurrent_runs=0), 1, "test")
        reader.begin([], 1)
        await submitter.submit(Submit([new_run()], {}))
        [row] = await leader.arrivals([2])
        [wrong] = read_carried(2, 2, _rows(params="WzddCg==", deadline_at=5))
        reader.notified([2], [wrong])
        await reader.fill(scheduler, is_behind=False)
        assert scheduler.ledger.heads[2].row == wrong
        assert not reader.has_read(2)
        assert reader.needs_reading

        await reader.fill(scheduler, is_behind=False)
        assert scheduler.ledger.heads[2].row == row
        assert reader.has_read(2)
        assert not scheduler.cycle(row.queued_at + SECOND).commit.runs_ended


async def test_a_run_that_is_not_there_is_forgotten(postgres_url: str):
    """When one of that number comes, it is read."""
    async with two_stores(postgres_url) as (leader, submitter):
        reader, scheduler = QueueReader(leader), Scheduler(Limits(max_concurrent_runs=0), 1, "test")
        reader.begin([], 1)
        reader.notified([2], read_carried(2, 2, _rows()))
        await reader.fill(scheduler, is_behind=False)
        assert 2 in scheduler.ledger.heads
        await reader.fill(scheduler, is_behind=False)
        assert 2 not in scheduler.ledger.heads

        await submitter.submit(Submit([new_run()], {}))
        gathered = await leader.gather(Gather(BEGINNING, "test", 1_000))
        for event in (event for row in gathered.events for event in unpack(row)):
            reader.arrived(event)
        await reader.fill(scheduler, is_behind=False)
        assert [scheduler.ledger.heads[2].row] == await leader.arrivals([2])


@pytest.mark.parametrize("told", ["history", "snapshot", "start"])
async def test_a_row_is_used_only_of_a_run_that_is_new(postgres_url: str, told: str):
    """Of one that the leader may have been told of before, the notification is late."""
    async with two_stores(postgres_url) as (leader, _):
        reader, scheduler = QueueReader(leader), Scheduler(Limits(max_concurrent_runs=0), 1, "test")
        reader.begin([], 9 if told == "snapshot" else 1)
        if told == "start":
            reader.leave([9])
        if told == "history":
            event = Event(1, 1, 0, 0, "client", 9, "run", 0, "", "queued", 0, {})
            reader.arrived(event)
        reader.notified([9], read_carried(9, 9, _rows()))
        await reader.fill(scheduler, is_behind=False)
        assert not scheduler.ledger.heads
        reader.notified([10], read_carried(10, 10, _rows()))
        await reader.fill(scheduler, is_behind=False)
        assert list(scheduler.ledger.heads) == [10]


def test_a_run_is_not_held_for_what_a_notification_said(
    postgres_url: str, caplog: pytest.LogCaptureFixture
):
    """Its arguments cannot be read: the term ends, and the next one reads the row."""
    with embedded(postgres_url, grace="2s"), connect(postgres_url) as client:
        assert client.submit(doubled, 1).result(TIMEOUT) == 2  # the first goes another way
        graph = run(_graph(postgres_url))
        with caplog.at_level(logging.WARNING):
            wrong = _rows(graph=graph, params="eA==")
            _notify_until(postgres_url, "it was known from the notification", wrong, client, caplog)
        assert client.submit(doubled, 4).result(TIMEOUT) == 8
        assert "held" not in caplog.text
    check_history(postgres_url)


def test_a_run_that_nobody_submitted_does_not_start(
    postgres_url: str, caplog: pytest.LogCaptureFixture
):
    """The leader has decided on it; its commit is refused, and it reads everything again."""
    with embedded(postgres_url, grace="2s"), connect(postgres_url) as client:
        assert client.submit(doubled, 1).result(TIMEOUT) == 2  # the first goes another way
        graph = run(_graph(postgres_url))
        with caplog.at_level(logging.WARNING):
            _notify_until(
                postgres_url,
                "the notification of its submission",
                _rows(graph=graph),
                client,
                caplog,
            )
        assert client.submit(doubled, 4).result(TIMEOUT) == 8
        assert _last(client) == 2
    check_history(postgres_url)


def test_what_cannot_be_used_of_a_notification_is_read(postgres_url: str, read: list[int]):
    """Neither the run nor the term is to blame."""
    with embedded(postgres_url, grace="2s"), connect(postgres_url) as client:
        assert client.submit(doubled, 1).result(TIMEOUT) == 2  # the first goes another way
        seq = _last(client) + 1

        def was_read() -> bool:
            _notify(postgres_url, seq, _rows(graph="unknown"))
            return seq in read

        eventually(was_read, TIMEOUT)
        later = client.submit(doubled, 4)
        assert later.result(TIMEOUT) == 8
        assert {each.state for each in client.runs.list(limit=10)} == {"succeeded"}
    check_history(postgres_url)


async def _graph(url: str) -> str:
    async with connected(url) as conn:
        return await conn.fetchval("SELECT graph FROM locktender.run ORDER BY seq DESC LIMIT 1")
