"""The notification of a small submission carries its rows, so that a leader need not read them.

What is carried proves nothing: any program that can connect can notify.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from locktender import Client, connect, embedded, flow, step
from locktender.base.clock import SECOND
from locktender.base.model import NewRun, RunRow
from locktender.store.carried_runs import MAX_CARRIED_BYTES, read_carried
from locktender.store.postgres.options import parse
from locktender.store.postgres.store import PostgresStore
from locktender.store.protocol import ChangeNotice, Submit
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


async def heard(leader: PostgresStore, submitter: PostgresStore, *runs: NewRun) -> ChangeNotice:
    # The first of its kind goes another way, which makes its lane known.
    await submitter.submit(Submit([msgspec.structs.replace(runs[0], id=new_run().id)], {}))
    [*_, last] = await submitter.submit(Submit(list(runs), {}))
    async with asyncio.timeout(60):
        while last.seq not in (told := await leader.wait_for_changes(60 * SECOND)).queued:
            pass
    return told


@pytest.mark.parametrize("given", [[new_run()], [UNUSUAL], [new_run(), new_run()]])
async def test_small_rows_are_carried_as_they_are_stored(postgres_url: str, given: list[NewRun]):
    async with two_stores(postgres_url) as (leader, submitter):
        told = await heard(leader, submitter, *given)
        carried = list(told.carried)[-len(given) :]
        assert carried == await leader.arrivals(list(told.queued)[-len(given) :])
        assert [row.id for row in carried] == [each.id for each in given]


@pytest.mark.parametrize("count", [MAX_CARRIED_BYTES, MAX_CARRIED_BYTES - 200])
async def test_larger_rows_are_named(postgres_url: str, count: int):
    large = msgspec.structs.replace(new_run(), params=b'{"x":"' + b"x" * count + b'"}')
    async with two_stores(postgres_url) as (leader, submitter):
        told = await heard(leader, submitter, large)
        assert not told.carried


@pytest.mark.parametrize("text", ["", "x", "[]", "[[]]", "[[1,2]]", '{"a":1}', "[" * 10_000])
def test_what_cannot_be_read_is_left_out(text: str):
    assert read_carried(5, 5, text) == []


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
        first = client.submit(doubled, 1)
        assert first.result(TIMEOUT) == 2
        seen = list(read)
        assert [client.submit(doubled, n).result(TIMEOUT) for n in range(5)] == [0, 2, 4, 6, 8]
        assert read == seen
    check_history(postgres_url)


def test_a_run_that_nobody_submitted_does_not_start(
    postgres_url: str, caplog: pytest.LogCaptureFixture
):
    """The leader has decided on it; its commit is refused, and it reads everything again."""
    with embedded(postgres_url, grace="2s"), connect(postgres_url) as client:
        assert client.submit(doubled, 1).result(TIMEOUT) == 2
        graph = run(_graph(postgres_url))
        with caplog.at_level(logging.WARNING):
            _notify(postgres_url, _last(client) + 1, _rows(graph=graph))
            eventually(lambda: "the notification of its submission" in caplog.text, TIMEOUT)
        assert client.submit(doubled, 4).result(TIMEOUT) == 8
        assert _last(client) == 2
    check_history(postgres_url)


def test_what_cannot_be_used_of_a_notification_is_read(postgres_url: str, read: list[int]):
    """Neither the run nor the term is to blame."""
    with embedded(postgres_url, grace="2s"), connect(postgres_url) as client:
        assert client.submit(doubled, 1).result(TIMEOUT) == 2
        seq = _last(client) + 1
        _notify(postgres_url, seq, _rows(graph="unknown"))
        eventually(lambda: seq in read, TIMEOUT)
        later = client.submit(doubled, 4)
        assert later.result(TIMEOUT) == 8
        assert {each.state for each in client.runs.list(limit=10)} == {"succeeded"}
    check_history(postgres_url)


async def _graph(url: str) -> str:
    async with connected(url) as conn:
        return await conn.fetchval("SELECT graph FROM locktender.run ORDER BY seq DESC LIMIT 1")
