"""`slots()`: pool slots for code outside of any flow, held by threads, tasks and other processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import broken_promises
from tests.steps import client_flows as flows
from tests.support.fault_injector import Injector

from locktender import (
    Client,
    InvalidFlow,
    InvalidInput,
    LeaseLost,
    RunCancelled,
    WaitTimeout,
    connect,
    connect_async,
    embedded,
    embedded_async,
)
from locktender.base.changes import End
from locktender.client import slot_worker
from locktender.store.protocol import Finish
from locktender.testing import Overlap

pytest_plugins = ["locktender.testing.plugin"]

ALL_TRANSPORTS = True


def test_slots_are_held_in_the_block_and_given_back_after_it(engine: Client):
    engine.pools.set("db", limit=3)
    with engine.slots("db", 2) as held:
        assert (held.pool, held.slots) == ("db", 2)
        assert engine.pools.get("db").used == 2
        assert engine.runs.get(held.run_id).info().kind == "hold"
    assert _comes_true(lambda: engine.pools.get("db").used == 0)


def test_e11_fifty_claimers_hold_one_slot_one_at_a_time(engine: Client, url: Path):
    # given an engine's own client and one that is only connected
    engine.pools.set("db", limit=1)
    lock, now, peak = threading.Lock(), 0, 0

    def claim(client: Client) -> None:
        nonlocal now, peak
        with client.slots("db", timeout="100s"):
            with lock:
                now += 1
                peak = max(peak, now)
            with lock:
                now -= 1

    with connect(url) as other:
        claimers = [
            threading.Thread(target=claim, args=([engine, other][number % 2],))
            for number in range(50)
        ]
        # when fifty ask at once
        for claimer in claimers:
            claimer.start()
        for claimer in claimers:
            claimer.join()
    # then never two have it
    assert peak == 1


def test_two_processes_never_hold_more_than_the_limit(engine: Client, url: Path, tmp_path: Path):
    marks = tmp_path / "marks"
    marks.mkdir()
    engine.pools.set("db", limit=3)
    script = [sys.executable, flows.__file__, "hold", str(url), str(marks), "db", "6", "3"]
    others = [subprocess.Popen(script) for _ in range(2)]
    assert [other.wait(100) for other in others] == [0, 0]
    held = [mark for mark in marks.iterdir() if mark.suffix != ".begun"]
    spans = [tuple(map(int, mark.read_text().split())) for mark in held]
    assert len(spans) == 48
    assert _peak(spans) == 3


def test_slots_and_steps_share_one_limit(engine: Client):
    engine.pools.set("db", limit=1)
    with engine.slots("db"):
        run = engine.submit(flows.pooled, 1)
        assert _comes_true(lambda: any(task.wait_reason == "pool:db" for task in run.tasks()))
    assert run.result(60) == 1


def test_slots_pass_while_hundreds_of_runs_queue(engine: Client):
    engine.limits.pause()
    engine.submit_many(flows.doubled, range(400))
    with engine.slots("db", timeout="60s"):
        pass
    engine.limits.resume()


def test_patience_ends_and_the_request_is_taken_back(engine: Client):
    engine.pools.set("db", limit=1)
    with engine.slots("db"):
        with (
            pytest.raises(
                WaitTimeout, match="timed out after 50ms waiting for 1 slot of pool 'db'"
            ),
            engine.slots("db", timeout="50ms"),
        ):
            pytest.fail("it was not free")
        assert _comes_true(lambda: engine.pools.get("db").waiting == 0)
    with engine.slots("db", timeout="60s"):
        pass


def test_a_keyed_pool_has_slots_per_key(engine: Client):
    engine.pools.set("api[*]", limit=1)
    with (
        engine.slots("api[acme]"),
        engine.slots("api[other]", timeout="60s"),
        pytest.raises(WaitTimeout),
        engine.slots("api[acme]", timeout="50ms"),
    ):
        pass


def test_an_operator_cancels_a_hold_and_its_body_is_told(engine: Client):
    engine.pools.set("db", limit=1)
    with pytest.raises(LeaseLost, match="cancelled"), engine.slots("db") as held:  # noqa: PT012
        engine.runs.cancel(held.run_id, reason="maintenance")
        assert held.lost.wait(60)
        with pytest.raises(LeaseLost):
            held.check()
    assert _comes_true(lambda: engine.pools.get("db").used == 0)


def test_a_waiting_request_that_is_cancelled_raises(engine: Client):
    engine.pools.set("db", limit=1)
    with engine.slots("db"):
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                with engine.slots("db"):
                    pass
            except RunCancelled as error:
                raised.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        assert _comes_true(lambda: engine.pools.get("db").waiting == 1)
        holds = engine.runs.list(status="running", flow="locktender:hold")
        [waiting] = [info for info in holds if _waits(engine, info.id)]
        engine.runs.cancel(waiting.id)
        asking.join(60)
        assert len(raised) == 1


def test_a_dead_holder_s_slots_come_back(engine: Client, url: Path, tmp_path: Path):
    engine.pools.set("db", limit=1)
    script = f"""
from locktender import connect
engine = connect({str(url)!r})
with engine.slots("db"):
    print("held", flush=True)
    import signal; signal.pause()
"""
    other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    other.kill()
    other.wait()
    other.stdout.close()
    with engine.slots("db", timeout="60s"):
        pass


async def test_a_lost_lease_cancels_an_async_body(url: Path):
    async with embedded_async(url) as engine:
        await engine.pools.set("db", limit=1)
        begun = asyncio.Event()

        async def body() -> None:
            async with engine.slots("db") as held:
                begun.set()
                await engine.runs.cancel(held.run_id)
                await asyncio.Event().wait()

        with pytest.raises(LeaseLost):
            async with asyncio.timeout(60):
                await body()
        assert begun.is_set()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
    assert await asyncio.to_thread(broken_promises, url) == []


async def test_the_callers_own_cancellation_stays_one(url: Path):
    async with embedded_async(url) as engine:
        await engine.pools.set("db", limit=1)
        held = asyncio.Event()

        async def body() -> None:
            async with engine.slots("db"):
                held.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(body())
        await held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with engine.slots("db", timeout="60s"):
            pass


@pytest.mark.parametrize(
    ("arguments", "options", "error", "said"),
    [
        (("db", 4), {}, InvalidFlow, "needs 4 slots of pool 'db', whose limit is 3"),
        (("db", 0), {}, InvalidInput, "slots must be 1 or more"),
        (("db", True), {}, InvalidInput, "whole number"),
        (("",), {}, InvalidInput, "must not be empty"),
        (("../x",), {}, InvalidInput, "path"),
        (("api[*]",), {}, InvalidInput, "all keys"),
        (("api[",), {}, InvalidInput, "not a pool's name"),
        (("db",), {"timeout": "soon"}, InvalidInput, "not a duration"),
        (("db",), {"lease": "1ms"}, InvalidInput, "1s or more"),
    ],
)
def test_bad_requests_are_refused(engine: Client, arguments, options, error, said):
    engine.pools.set("db", limit=3)
    with pytest.raises(error, match=said.replace("[", r"\[")), engine.slots(*arguments, **options):
        pass


def test_closing_the_client_tells_the_body(url: Path):
    engine = embedded(url)
    with pytest.raises(LeaseLost, match="closed"), engine.slots("db") as held:  # noqa: PT012
        engine.close()
        assert held.lost.is_set()


def _waits(engine: Client, run: str) -> bool:
    return any(task.state == "requested" for task in engine.runs.get(run).tasks())


def _peak(spans: list[tuple[int, ...]]) -> int:
    """How many of the bodies' own records overlap at most."""
    changes = sorted(
        [(begun, 1) for begun, _ in spans] + [(ended, -1) for _, ended in spans],
        key=lambda change: (change[0], change[1]),
    )
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def _comes_true(condition, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_f5_a_body_that_blocks_its_loop_keeps_its_slots(
    engine: Client, url: Path, overlap: Overlap, monkeypatch: pytest.MonkeyPatch
):
    """One holder at a limit of 1: its lease is renewed by a thread, whatever its loop does."""
    # A lease that no busy machine loses, renewed every half second.
    monkeypatch.setattr(slot_worker, "RENEWALS_PER_LEASE", 1_200)
    engine.pools.set("db", limit=1)
    began = threading.Event()

    def end_of_lease() -> int:
        """Of who holds slots: the list of workers does not name it."""
        question = "SELECT max(lease_until) FROM worker WHERE lease_us = 600000000"
        return Injector(str(url)).query(question)[0][0]

    async def hold(*, block: bool) -> None:
        async with connect_async(url) as client, client.slots("db", lease="10m") as held:
            with overlap.body("db"):
                began.set()
                if block:
                    for _ in range(3):  # its loop does nothing else meanwhile
                        before = end_of_lease()
                        assert _comes_true(lambda before=before: end_of_lease() > before)
            held.check()

    threads = [
        threading.Thread(target=lambda block=block: asyncio.run(hold(block=block)), daemon=True)
        for block in (True, False)
    ]
    threads[0].start()
    assert began.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(120)
    assert overlap.count("db") == 2
    assert overlap.peak("db") == 1


async def test_f5_no_cancellation_follows_a_lost_lease(url: Path):
    """The body ends in the moment in which its slots are lost: nothing is left to be raised later."""
    async with embedded_async(url) as engine:
        await engine.pools.set("db", limit=1)
        task = asyncio.current_task()
        assert task is not None
        slots = engine.slots("db")
        with pytest.raises(LeaseLost):  # noqa: PT012
            async with slots:
                hold = slots._hold  # pyright: ignore[reportPrivateUsage]
                assert hold is not None
                hold.lose("as the test wants")  # the cancellation is pending, and the body is over
        assert task.cancelling() == 0
        for _ in range(3):
            await asyncio.sleep(0)
        with pytest.raises(LeaseLost):  # noqa: PT012
            async with engine.slots("db") as held:
                # Others have them by now: its release finds out.
                store = engine._core.store  # pyright: ignore[reportPrivateUsage]
                run = await store.run(held.run_id)
                assert run is not None
                [row] = await store.tasks(run.seq)
                await store.finish(Finish("hold", [End(row.id, row.token, "cancelled")]))
        assert task.cancelling() == 0
        for _ in range(3):
            await asyncio.sleep(0)
