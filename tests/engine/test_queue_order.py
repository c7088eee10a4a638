"""D8: of equal runs the one that was submitted first starts first, however the leader learns of them.

On PostgreSQL a notification names a run before the history tells of it, and an older one may stand in what was not
read of the history yet. A transaction of another program that is open hides nothing of the history.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, NamedTuple

import pytest
from tests.support.server_harness import PATIENCE, process, until

from locktender import connect_async, flow, step
from locktender.client.client_async import AsyncClient
from locktender.client.run import AsyncRun
from locktender.kernel.scheduler import Scheduler
from locktender.leader.leader import Leader
from locktender.store.protocol import ChangeNotice, Gathered
from locktender.testing import check_history
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
STARTED: list[int] = []


@pytest.fixture(autouse=True)
def none_started() -> None:
    STARTED.clear()


@step
async def passed_on(n: int) -> int:
    STARTED.append(n)
    return n


@flow
def in_order(n: int) -> int:
    return passed_on(n)


class Pair(NamedTuple):
    """Two runs that are submitted one after the other."""

    first: dict[str, Any]
    second: dict[str, Any]
    order: list[int]
    """Which starts first."""
    limit: str = ""


PAIRS = {
    "equal": Pair({}, {}, [0, 1]),
    "first is more urgent": Pair({"priority": 5}, {}, [0, 1]),
    "second is more urgent": Pair({}, {"priority": 5}, [1, 0]),
    "tag limit": Pair({"tags": {"tenant": "a"}}, {"tags": {"tenant": "b"}}, [0, 1], "tag"),
    "one tag": Pair({"tags": {"tenant": "a"}}, {"tags": {"tenant": "a"}}, [0, 1], "tag"),
    "fair key": Pair({"tags": {"tenant": "b"}}, {"tags": {"tenant": "a"}}, [0, 1], "fair"),
}


Beside = Callable[[str], AbstractAsyncContextManager[None]]


def nothing(_: str) -> AbstractAsyncContextManager[None]:
    return nullcontext()


@asynccontextmanager
async def open_transaction(url: str) -> AsyncGenerator[None]:
    """Of another program: what is settled of the history ends before it."""
    async with connected(url) as conn:
        await conn.execute("BEGIN")
        await conn.execute("SELECT pg_current_xact_id()")
        yield
        await conn.execute("ROLLBACK")


WORLDS = pytest.mark.parametrize(
    ("store_url", "beside"),
    [("sqlite", nothing), ("postgres", nothing), ("postgres", open_transaction)],
    indirect=["store_url"],
)


async def limited(client: AsyncClient, limit: str) -> None:
    if limit == "tag":
        await client.limits.set_tag("tenant", limit=1, per_value=True)
    elif limit == "fair":
        await client.limits.set_fair("tenant")


async def submitted(client: AsyncClient, pair: Pair) -> tuple[list[AsyncRun[int]], int]:
    """The runs, and the number of the second."""
    runs = [
        await client.submit(in_order, n, **given)
        for n, given in enumerate((pair.first, pair.second))
    ]
    newest, _ = await client.runs.list()
    return runs, newest.number


def tell_of_the_second(notice: Callable[[ChangeNotice], None], number: int) -> None:
    notice(ChangeNotice(look=True))
    notice(ChangeNotice(look=False, queued=(number,)))


@WORLDS
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
async def test_d8_a_notified_run_waits_for_older_ones(store_url: str, pair: Pair, beside: Beside):
    """The leader reads; then two runs come, and only the second is named to it."""
    async with (
        process(store_url, lead=True, work=True, max_concurrent_runs=1) as (_, engine),
        connect_async(store_url) as client,
    ):
        await limited(client, pair.limit)
        await until(lambda: engine.leader, "a leader")
        leader = engine.leader
        assert leader is not None
        term: Any = leader
        changes = term._changes
        gather, notice = changes.gather, leader.notice
        runs: list[AsyncRun[int]] = []

        async def gather_before(scheduler: Scheduler) -> Gathered:
            found = await gather(scheduler)
            if not runs and not term._sweep_due:  # else this turn reads once more
                both, number = await submitted(client, pair)
                runs.extend(both)
                tell_of_the_second(notice, number)
            return found

        async with beside(store_url):
            changes.gather = gather_before
            leader.notice = lambda told: None  # type: ignore[method-assign]
            leader.wake()
            await until(lambda: len(runs) == 2, "two runs")
            assert [await run.result(PATIENCE) for run in runs] == [0, 1]
        assert pair.order == STARTED
        leader.notice = notice  # type: ignore[method-assign]
    check_history(store_url)


@WORLDS
async def test_d8_a_new_leader_begins_with_the_older_run(
    store_url: str, beside: Beside, monkeypatch: pytest.MonkeyPatch
):
    """It has restored what there was; then two runs come, and only the second is named to it."""
    rebuild = Leader._rebuild  # pyright: ignore[reportPrivateUsage]
    runs: list[AsyncRun[int]] = []

    async def rebuilt(leader: Leader, term: int) -> Scheduler:
        scheduler = await rebuild(leader, term)
        if not runs:
            both, number = await submitted(client, PAIRS["equal"])
            runs.extend(both)
            tell_of_the_second(leader.notice, number)
        return scheduler

    monkeypatch.setattr(Leader, "_rebuild", rebuilt)
    async with (
        connect_async(store_url) as client,
        beside(store_url),
        process(store_url, lead=True, work=True, max_concurrent_runs=1),
    ):
        await until(lambda: len(runs) == 2, "two runs")
        assert [await run.result(PATIENCE) for run in runs] == [0, 1]
    assert STARTED == [0, 1]
    check_history(store_url)
