"""A default that decides is named: once per process in the log, and in what `why` and a failure say."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from locktender import RunFailed, embedded, flow, step
from locktender.base.clock import ManualClock
from locktender.base.config import Settings
from locktender.base.limits import Limits
from locktender.kernel.demand import Demand
from locktender.kernel.ledger import Ledger
from locktender.leader import sweep
from locktender.testing import eventually

GATE = threading.Event()


@step
def hold() -> None:
    GATE.wait(120)


@step(pool="keyed[{n}]")
def take_keyed(n: int) -> int:
    return n


@flow
def takes_keyed() -> list[int]:
    return take_keyed.map([1, 2])


@flow
def holding() -> None:
    hold()


@step(pool="forgotten")
async def taking() -> int:
    return 1


@flow
def takes() -> int:
    return taking()


@step
async def heavy() -> str:
    return "x" * (2 * 1024 * 1024)


@flow
def heavily() -> str:
    return heavy()


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweep, "_warned", set())
    monkeypatch.setattr(sweep, "_warned_pools", set())
    GATE.clear()
    yield
    GATE.set()


def said(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    texts = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    return [text for text in texts if word in text]


def test_runs_that_wait_at_the_default_say_so(url: Path, caplog: pytest.LogCaptureFixture):
    with embedded(url, thread_permits=10, grace="1s") as engine:
        runs = [engine.submit(holding) for _ in range(12)]
        eventually(lambda: "10 of 10 runs execute (a default" in str(runs[-1].why()))
        assert "locktender limits set max_concurrent_runs" in str(runs[-1].why())
        eventually(lambda: said(caplog, "max_concurrent_runs"))
        # Whoever sets the same number has chosen it.
        engine.limits.set_max_concurrent_runs(10)
        eventually(lambda: "10 of 10 runs execute" in str(runs[-1].why()))
        assert "a default" not in str(runs[-1].why())
        GATE.set()
        for run in runs:
            run.wait(60)
    assert len(said(caplog, "max_concurrent_runs")) == 1


def test_a_pool_nobody_set_is_named_once(url: Path, caplog: pytest.LogCaptureFixture):
    with embedded(url) as engine:
        assert engine.submit(takes).result(60) == 1
        eventually(lambda: said(caplog, "pool 'forgotten' is in use and was never set"))
        assert engine.submit(takes).result(60) == 1
    with embedded(url) as engine:
        assert engine.submit(takes).result(60) == 1
    assert len(said(caplog, "is in use and was never set")) == 1


def test_every_pool_that_nobody_set_is_named(url: Path, caplog: pytest.LogCaptureFixture):
    with embedded(url) as engine:
        assert engine.submit(takes).result(60) == 1
        assert engine.submit(takes_keyed).result(60) == [1, 2]
        eventually(lambda: len(said(caplog, "is in use and was never set")) == 2)
    [text] = said(caplog, "pool 'keyed[*]' is in use and was never set")
    assert "locktender pools set 'keyed[*]' N" in text


def test_a_pool_that_was_set_is_not_named(url: Path, caplog: pytest.LogCaptureFixture):
    with embedded(url, pools={"forgotten": 3}) as engine:
        run = engine.submit(takes)
        assert run.result(60) == 1
        held = engine.submit(holding)
        eventually(lambda: said(caplog, "nobody") or held.info().state == "running")
        GATE.set()
    assert said(caplog, "is in use and was never set") == []


def test_a_result_over_the_default_names_the_setting(url: Path):
    with embedded(url) as engine, pytest.raises(RunFailed, match=r"max_value, a default"):
        engine.submit(heavily).result(60)


def test_tasks_that_lack_a_worker_for_long_name_the_deadline(caplog: pytest.LogCaptureFixture):
    clock = ManualClock()
    ledger = Ledger(Limits())
    chosen = sweep.DefaultWarnings(
        Settings(dispatch_deadline_us=9, sources={"dispatch_deadline": "file"}), clock
    )
    default = sweep.DefaultWarnings(Settings(), clock)
    for seconds in (0, 30, 29):
        clock.advance(seconds * 1_000_000)
        chosen.warn(ledger, Demand(2))
        default.warn(ledger, Demand(2))
    assert said(caplog, "dispatch_deadline") == []
    default.warn(ledger, Demand(0))
    for seconds in (0, 60, 60):
        clock.advance(seconds * 1_000_000)
        chosen.warn(ledger, Demand(2))
        default.warn(ledger, Demand(2))
    [text] = said(caplog, "dispatch_deadline")
    assert "2 tasks lack a worker" in text
    assert "4h" in text
