"""`/health` and its neighbours when something is wrong; answers that are shared; connections that stall."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import asyncpg
import psutil
import pytest
from tests.support.fault_injector import Injector
from tests.support.server_harness import fetch, process, served, until

from locktender import connect_async, flow, step
from locktender.kernel.scheduler import Scheduler
from locktender.observe.rebuilt import rebuild
from locktender.server import connections, state
from locktender.server.state import Fresh
from locktender.store.protocol import Snapshot, Store

pytest_plugins = ["locktender.testing.postgres"]


@step
async def quick(item: int) -> int:
    return item


@flow
def quickly(items: int):
    return quick.map(range(items))


async def test_a_worker_that_lost_its_lease_is_not_fit(tmp_path: Path):
    url = tmp_path / "locktender.db"
    async with (
        process(url, lead=False, work=True) as (core, engine),
        served(core) as port,
    ):
        # nobody leads: that is told, and is no fault of this process
        answer = await fetch(port, "/health")
        assert answer.status == 200
        assert (answer.data["status"], answer.data["problems"]) == (
            "degraded",
            ["there is no leader"],
        )
        assert engine.membership is not None
        engine.membership.lost.set()
        answer = await fetch(port, "/health")
        assert answer.status == 503
        assert answer.data["worker"]["lease"] == "lost"
        assert "the worker has lost its lease" in answer.data["problems"]
        engine.membership.lost.clear()
        assert (await fetch(port, "/health")).status == 200


async def test_rows_that_cannot_be_read_are_named(tmp_path: Path):
    url = tmp_path / "locktender.db"
    async with (
        process(url, lead=True, work=False) as (core, engine),
        served(core) as port,
    ):
        await until(lambda: engine.leads, "the lead")
        assert (await fetch(port, "/health")).data["problems"] == []
        injector = Injector(str(url))
        injector.query("INSERT INTO limit_rule (kind, name, live) VALUES ('pool', 'db', ?)", b"?")

        async def named() -> bool:
            problems = (await fetch(port, "/health")).data["problems"]
            text = "the live rule of pool db cannot be read, so it is shut"
            return any(each.startswith(text) for each in problems)

        await until(named, "the rule")


async def test_a_store_that_cannot_be_read(tmp_path: Path):
    async with (
        process(tmp_path / "locktender.db", lead=False, work=False) as (core, _),
        served(core) as port,
    ):
        await core.store.close()
        health = await fetch(port, "/health")
        assert (health.status, health.data["store"]) == (503, "unreachable")
        demand = await fetch(port, "/api/v1/demand")
        assert (demand.status, demand.data["code"]) == (503, "unavailable")
        assert demand.headers["retry-after"] == "1"
        assert (await fetch(port, "/metrics")).status == 200
        await core.store.open()


async def test_a_store_that_does_not_answer_is_not_waited_for(postgres_url: str):
    async with (
        process(postgres_url, lead=True, work=False) as (core, engine),
        served(core) as port,
    ):
        await until(lambda: engine.metrics.term, "the lead")
        backends = await _backends(postgres_url)
        if not all(psutil.pid_exists(pid) for pid in backends):
            pytest.skip("PostgreSQL runs on another machine")
        # when its connections stand still
        try:
            for pid in backends:
                os.kill(pid, signal.SIGSTOP)

            async def told() -> bool:
                health = await fetch(port, "/health")
                return (health.status, health.data["store"]) == (503, "unreachable")

            # then that is said, while they still stand, and asked once more it is said again
            await until(told, "what was answered before to grow old")
            assert await told()
        finally:
            for pid in backends:
                os.kill(pid, signal.SIGCONT)

        async def well() -> bool:
            return (await fetch(port, "/health")).data["store"] == "ok"

        await until(well, "an answer of the store")


async def _backends(url: str) -> list[int]:
    conn = await asyncpg.connect(url)
    try:
        rows = await conn.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        return [row["pid"] for row in rows]
    finally:
        await conn.close()


async def test_demand_from_rows_leaves_the_rows_alone(tmp_path: Path):
    """A server that does not lead decides in a copy: nothing it thinks is written."""
    url = tmp_path / "locktender.db"
    async with process(url, lead=True, work=False) as (_, leader):
        await until(lambda: leader.metrics.term, "the lead")
        async with (
            process(url, lead=True, work=False) as (core, _),
            served(core) as port,
            connect_async(url) as client,
        ):
            run = await client.submit(quickly, 3)

            async def three() -> bool:
                return (await fetch(port, "/api/v1/demand")).data["total"] == 3

            await until(three, "the demand")
            assert {task.state for task in await run.tasks()} == {"requested"}
            # when a worker comes, they are its to run, not the copy's
            async with process(url, lead=False, work=True):
                assert await run.result(60) == [0, 1, 2]


async def test_health_does_not_wait_for_a_standbys_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The rebuild stands still in the middle: everything else on the server's loop goes on."""
    url = tmp_path / "locktender.db"
    begun, go_on = threading.Event(), threading.Event()
    made = 0

    async def slow(store: Store) -> tuple[Scheduler, Snapshot]:
        nonlocal made
        made += 1
        begun.set()
        assert go_on.wait(60)
        return await rebuild(store)

    monkeypatch.setattr(state, "rebuild", slow)
    monkeypatch.setattr(state, "DEMAND_KEPT_SECONDS", 600.0)
    async with process(url, lead=True, work=False) as (_, leader):
        await until(lambda: leader.metrics.term, "the lead")
        async with process(url, lead=True, work=False) as (core, _), served(core) as port:
            asking = asyncio.create_task(fetch(port, "/api/v1/demand"))
            try:
                await until(begun.is_set, "the rebuild")
                health = await fetch(port, "/health")
                assert (health.status, health.data["leads"]) == (200, False)
            finally:
                go_on.set()
            await asyncio.wait({asking})
            asking.exception()  # on a busy machine it has given up by now

            async def told() -> bool:
                return (await fetch(port, "/api/v1/demand")).status == 200

            await until(told, "the demand")
            # then one rebuild has served all who asked
            assert made == 1


async def test_a_connection_that_stalls_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)
    async with (
        process(tmp_path / "locktender.db", lead=True, work=False) as (core, _),
        served(core) as port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        monkeypatch.undo()  # who asks properly has all the time
        assert (await fetch(port, "/health")).status == 200


# -- shared answers --------------------------------------------------------------------------------


async def test_all_who_ask_at_once_get_one_answer():
    asked = 0
    go = asyncio.Event()

    async def make() -> int:
        nonlocal asked
        asked += 1
        await go.wait()
        return asked

    fresh = Fresh(make, 60)
    waiting = [asyncio.create_task(fresh.get(60)) for _ in range(10)]
    await asyncio.sleep(0)
    # one who goes away takes nobody's answer with it
    waiting[0].cancel()
    with pytest.raises(TimeoutError):
        await fresh.get(0.01)
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [1] * 9
    assert await fresh.get(60) == asked == 1
    await fresh.close()


async def test_an_old_answer_is_made_anew_and_errors_are_kept():
    asked = 0

    async def make() -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ValueError
        return asked

    fresh = Fresh(make, 0.0)
    with pytest.raises(ValueError):
        await fresh.get(60)
    async with asyncio.timeout(60):
        while True:
            try:
                if await fresh.get(60) > 2:
                    break
            except ValueError:
                await asyncio.sleep(0)
