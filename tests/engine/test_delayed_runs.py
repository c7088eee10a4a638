"""Runs that are submitted with `delay` or `start_at`: they hold nothing until their time has come (G1)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from locktender import (
    AdmissionRejected,
    Client,
    InvalidInput,
    RunCancelled,
    RunState,
    Submission,
    connect,
    embedded,
    flow,
    step,
)
from locktender.testing import check_history, eventually

pytest_plugins = ["locktender.testing.postgres"]
TIMEOUT = "60s"

ALL_TRANSPORTS = "long"


@step
async def double(n: int) -> int:
    return 2 * n


@flow
def doubled(n: int) -> int:
    return double(n)


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    with embedded(store_url, grace="2s") as client:
        yield client
    check_history(store_url)


def soon(**span: float) -> datetime:
    return datetime.now(UTC) + timedelta(**span)


def test_g1_a_delayed_run_starts_at_its_time_and_not_before(client: Client):
    moment = soon(days=2)
    later = client.submit(doubled, 3, start_at=moment)
    run = client.submit(doubled, 2, delay="300ms")
    assert run.result(TIMEOUT) == 4
    states = [(event.before, event.after) for event in run.events() if event.subject == "run"]
    assert states[:3] == [("new", "waiting"), ("waiting", "queued"), ("queued", "running")]
    assert f"sleeps until {moment:%A %Y-%m-%d %H:%M:%S} UTC" in str(later.why())
    later.cancel()
    assert later.wait(60)


def test_g2_a_waiting_run_holds_nothing(client: Client):
    client.limits.set_max_concurrent_runs(1)
    client.limits.set_max_active(1)
    waiting = [client.submit(doubled, n, delay="1h") for n in range(3)]
    assert client.submit(doubled, 5).result(TIMEOUT) == 10
    assert {run.status() for run in waiting} == {RunState.WAITING}
    assert "sleeps until " in str(waiting[0].why())
    assert re.search(r"\((1h00m|[45]\dm)", str(waiting[0].why()))
    assert len(client.runs.list(status="waiting")) == 3
    assert client.queue.list() == []
    client.runs.cancel(flow=waiting[0].info().flow)
    for run in waiting:
        with pytest.raises(RunCancelled):
            run.result(TIMEOUT)


def test_g1_over_a_restart(store_url: str):
    with connect(store_url) as client:
        run = client.submit(doubled, 4, delay="200ms")
        late = client.submit(doubled, 5, delay="1h")
        assert (run.status(), late.status()) == (RunState.WAITING, RunState.WAITING)
        assert "No process leads" in str(run.why())
    with embedded(store_url) as client:
        assert client.runs.get(run.id).result(TIMEOUT) == 8
        assert client.runs.get(late.id).status() is RunState.WAITING
        client.runs.cancel(late.id)
        assert client.runs.get(late.id).wait(60)
    check_history(store_url)


def test_a_waiting_run_has_its_key(client: Client):
    run = client.submit(doubled, 1, key="k", delay="1h")
    assert client.submit(doubled, 1, key="k").id == run.id
    other = client.submit(doubled, 2, key="k", on_duplicate="replace")
    assert other.result(TIMEOUT) == 4
    assert run.status() is RunState.CANCELLED


def test_a_waiting_run_of_the_ceiling_is_refused(client: Client):
    client.limits.set("max_waiting", 1)
    run = client.submit(doubled, 1, delay="1h")
    with pytest.raises(AdmissionRejected, match="1 of 1 runs are waiting") as refused:
        client.submit(doubled, 2, delay="1h")
    assert refused.value.field == "max_waiting"
    assert "limits set max_waiting" in (refused.value.hint or "")
    assert client.submit(doubled, 3).result(TIMEOUT) == 6
    run.cancel()
    assert run.wait(60)
    runs = client.submit_many(doubled, [Submission((4,), delay="10ms"), Submission((5,))])
    assert [each.result(TIMEOUT) for each in runs] == [8, 10]


def test_a_cancelled_waiting_run_can_be_retried_at_once(client: Client):
    run = client.submit(doubled, 7, delay="1h")
    run.cancel()
    assert run.wait(60)
    run.retry()
    assert run.result(TIMEOUT) == 14


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"delay": -1}, "delay", "more than zero"),
        ({"delay": "0s"}, "delay", "more than zero"),
        ({"delay": "21000w"}, "delay", "under 100 years"),
        ({"delay": "soon"}, "delay", "not a duration"),
        ({"start_at": soon(hours=-1)}, "start_at", "in the past"),
        ({"start_at": soon(days=400 * 365)}, "start_at", "within 100 years"),
        ({"start_at": datetime(2031, 1, 1)}, "start_at", "no time zone"),  # noqa: DTZ001
        ({"start_at": "2031-01-01"}, "start_at", "must be a datetime"),
        ({"start_at": soon(hours=1), "delay": "1h"}, "start_at", "together"),
        ({"delay": "2h", "deadline": "1h"}, "deadline", "before it starts"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(
    engine: Client, options: dict[str, Any], field: str, words: str
):
    with pytest.raises(InvalidInput, match=words) as refused:
        engine.submit(doubled, 1, **options)
    assert refused.value.field == field
    assert engine.runs.list() == []


def test_a_run_whose_time_cannot_be_read_is_held(url: Path):
    with connect(url) as client:
        run = client.submit(doubled, 1, delay="1h")
    with closing(sqlite3.connect(url, isolation_level=None)) as db:
        db.execute("UPDATE waiting SET wake_at = 'tomorrow'")
    with embedded(url) as client:
        assert client.submit(doubled, 2).result(TIMEOUT) == 4
        again = client.runs.get(run.id)
        eventually(lambda: again.status() is RunState.HELD, 60)
        assert "the time it waits for cannot be read: 'tomorrow'" in str(again.why())
        again.cancel()
        assert again.wait(60)
    check_history(url)
