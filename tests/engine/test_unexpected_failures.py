"""No thread or task of ours ends in silence: an unexpected exception is logged, and the work goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.leases import KEPT
from tests.support.server_harness import fetch, process, served, until

from locktender import embedded_async, flow, step
from locktender.base import background
from locktender.base.clock import SystemClock
from locktender.client.bridge import Bridge
from locktender.client.guard import ClientClosed
from locktender.client.run_waiter import RunWaiter
from locktender.leader.leader import Leader
from locktender.leader.sweep import Sweep
from locktender.provision.controller import ProvisionController
from locktender.server import web
from locktender.store.lease_thread import LeaseThread
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.loop_lag import LoopLag
from locktender.worker.membership import Membership

pytest_plugins = ["locktender.testing.postgres"]


@step
async def double(n: int) -> int:
    return 2 * n


@flow
def doubled(n: int) -> int:
    return double(n)


class Fault:
    """Lets the next call of a method, once it is armed, raise."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.error: BaseException | None = None
        self.raised = threading.Event()
        real = getattr(owner, name)
        fault = self

        if asyncio.iscoroutinefunction(real):

            async def called(*args: Any, **kwargs: Any) -> Any:
                fault.hit()
                return await real(*args, **kwargs)
        else:

            def called(*args: Any, **kwargs: Any) -> Any:
                fault.hit()
                return real(*args, **kwargs)

        patch.setattr(owner, name, called)

    def hit(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            self.raised.set()
            raise error


KINDS: dict[str, tuple[Any, str, BaseException, str]] = {
    "election": (
        SqliteStore,
        "elect",
        OSError("no route"),
        "failed to (lead|keep the leader lease)",
    ),
    "election, cancelled beneath": (
        SqliteStore,
        "load",
        asyncio.CancelledError("its thread ended"),
        "failed to lead: what it waited for was cancelled",
    ),
    "notification wait": (
        SqliteStore,
        "wait_for_changes",
        OSError("no route"),
        "failed to wait for commits",
    ),
    "pickup": (SqliteStore, "wait_for_offers", OSError("no route"), "failed to read offers"),
    "sweep timer": (Leader, "worker_changed", OSError("odd"), "failed to begin a sweep"),
    "sweep": (Sweep, "expire", OSError("odd"), "because 1 term failed: internal: OSError: odd"),
    "pressure": (Membership, "_check_pressure", OSError("odd"), "failed to read the pressure"),
    "renewal": (SqliteStore, "heartbeat", OSError("odd"), "failed to keep"),
    "lease thread": (
        LeaseThread,
        "_renew_in_time",
        SystemExit(3),
        "thread locktender-lease failed",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_engine_goes_on_and_says_why(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    owner, name, error, line = KINDS[kind]
    fault = Fault(monkeypatch, owner, name)
    settings = KEPT | {"worker_lease": "60s", "heartbeat": "50ms", "leader_renew": "50ms"}
    async with embedded_async(tmp_path / "locktender.db", **settings) as engine:
        assert await (await engine.submit(doubled, 1)).result("60s") == 2
        fault.error = error
        if kind == "election, cancelled beneath":
            engine._core.engine.leader.close()  # a new term loads again
        await until(fault.raised.is_set, "the fault")
        await until(lambda: _logged(caplog, line), line)
        assert await (await engine.submit(doubled, 4)).result("60s") == 8


def _logged(caplog: pytest.LogCaptureFixture, line: str) -> bool:
    return any(
        re.search(line, record.getMessage()) and record.levelno >= logging.ERROR
        for record in caplog.records
    )


async def test_joining_again_is_repeated_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    ends = Fault(monkeypatch, Membership, "_end_lost")
    joins = Fault(monkeypatch, Membership, "_new_lease")
    monkeypatch.setattr("locktender.worker.membership.RETRY_JOIN_SECONDS", 0.01)
    async with embedded_async(tmp_path / "locktender.db", **KEPT) as engine:
        membership = engine._core.engine.membership
        assert membership is not None
        first = membership.worker.id
        ends.error, joins.error = OSError("first"), OSError("second")
        membership.lease_lost("the test says so")
        await until(lambda: not membership.lost.is_set(), "the new worker")
        assert membership.worker.id != first
        assert _logged(caplog, "failed to end the lost worker")
        assert _logged(caplog, "failed to join again")
        assert await (await engine.submit(doubled, 4)).result("60s") == 8


async def test_a_listener_that_fails_is_replaced(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    from locktender.store.postgres.listener import Listener

    fault = Fault(monkeypatch, Listener, "_listen")
    fault.error = RuntimeError("an error of the driver")
    async with embedded_async(postgres_url, **KEPT) as engine:
        await until(fault.raised.is_set, "the fault")
        listener = engine._core.store._state.listener  # type: ignore[attr-defined]
        assert _logged(caplog, "failed to listen, polling instead: internal error")
        assert not listener._task.done()
        assert await (await engine.submit(doubled, 4)).result("60s") == 8


async def test_the_controller_goes_on_after_a_failed_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    fault = Fault(monkeypatch, ProvisionController, "_store_result")
    began = Fault(monkeypatch, ProvisionController, "_plan_safely")
    async with embedded_async(
        tmp_path / "locktender.db", max_workers=1, start_timeout="20m", **KEPT
    ):
        fault.error = OSError("odd")
        await until(fault.raised.is_set, "the fault")
        await until(lambda: _logged(caplog, "failed to request workers"), "the line")
        began.error = OSError("the next step has begun")
        await until(began.raised.is_set, "the next step")


async def test_a_waiting_client_is_woken_after_a_failed_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("locktender.client.run_waiter.POLL_SECONDS", 0.01)
    woken = asyncio.Event()

    class Odd:
        async def wait_for_ends(self, timeout_us: int) -> None:
            raise OSError("no route")

        async def forget_ends(self) -> bool:
            return False

    monkeypatch.setattr("locktender.client.run_waiter.ATTENTIVE_SECONDS", 0.0)
    waiter = RunWaiter(Odd(), None, None)  # type: ignore[arg-type]
    waiter._waiters[1] = [woken]
    waiter._watch()
    async with asyncio.timeout(60):
        await woken.wait()
    assert _logged(caplog, "failed to wait for ends of runs, polling")
    assert waiter._watcher is not None
    assert not waiter._watcher.done()
    waiter._waiters.clear()
    await waiter._watcher


async def test_an_http_server_that_fails_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(web, "RESTART_SECONDS", 0.01)
    fault = Fault(monkeypatch, web._Server, "on_tick")
    async with (
        process(tmp_path / "locktender.db", lead=False, work=False) as (core, _),
        served(core) as port,
    ):
        assert (await fetch(port, "/health")).data
        fault.error = OSError("odd")
        await until(fault.raised.is_set, "the fault")
        await until(lambda: _logged(caplog, "failed to answer by HTTP"), "the line")
        assert (await fetch(port, "/health")).data


async def test_the_watch_on_the_loop_goes_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    fault = Fault(monkeypatch, LoopLag, "_late")
    lag = LoopLag(
        asyncio.get_running_loop(), threading.main_thread(), lambda: None, SystemClock(), 2_000
    )
    lag.start()
    fault.error = OSError("odd")
    while not fault.raised.is_set():
        fault.raised.wait(0.05)
        await asyncio.sleep(0)
    await until(lambda: _logged(caplog, "failed to find what holds"), "the line")
    assert lag._thread.is_alive()
    lag.stop()


def test_a_client_whose_loop_fails_is_closed(caplog: pytest.LogCaptureFixture):
    bridge = Bridge()

    def leave() -> None:
        raise SystemExit(3)

    bridge.run_soon(leave)
    bridge._thread.join(60)
    assert _logged(caplog, "the event loop of this client failed")
    with pytest.raises(ClientClosed):
        bridge.call(asyncio.sleep(0))


async def test_a_failed_task_is_logged_and_acted_on(caplog: pytest.LogCaptureFixture):
    ended = asyncio.Event()

    async def fails() -> None:
        raise OSError("odd")

    background.start_task(fails(), "do it", failed=ended.set)
    async with asyncio.timeout(60):
        await ended.wait()
    assert _logged(caplog, "failed to do it")


def test_a_failed_thread_is_logged_and_acted_on(caplog: pytest.LogCaptureFixture):
    seen: list[BaseException] = []

    def fails() -> None:
        raise OSError("odd")

    background.start_thread(fails, "a-thread", failed=seen.append).join(60)
    assert isinstance(seen[0], OSError)
    assert _logged(caplog, "thread a-thread failed")


async def test_a_cancelled_repetition_ends():
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(background.repeat_forever(work, "work", 0.01))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_watchdog_that_fails_ends_its_child():
    """The process of a body: nothing else would end it when its worker is gone."""
    from locktender.worker.executors import child

    class Odd:
        def passed(self, now_us: int) -> bool:
            raise OSError("odd")

    pid = os.fork()
    if pid == 0:
        os.setsid()
        child.watch(os.getppid(), Odd())  # type: ignore[arg-type]
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
