"""G3 in one process, on a clock that the test moves: ticks become runs once, as overlap and catch-up say."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.support.beside import opened

from locktender import (
    Client,
    InvalidFlow,
    InvalidInput,
    NotFound,
    RunState,
    connect_async,
    embedded,
    flow,
    step,
    wait_event,
)
from locktender.base.errors import StoreUnreachable
from locktender.base.schedules import ScheduleRow
from locktender.client.schedules import ScheduleInfo
from locktender.store.open import store_for
from locktender.store.protocol import SetSchedule
from locktender.store.sqlite.store import SqliteStore
from locktender.testing import VirtualClock, eventually
from locktender.testing.postgres_server import run as run_async

pytest_plugins = ["locktender.testing.plugin"]

_go_on = threading.Event()

ALL_TRANSPORTS = "long"


@step
def note(n: int) -> int:
    return n


@step
def hold() -> int:
    _go_on.wait(60)
    return 1


@flow(name="sched plain")
def plain(n: int = 1) -> int:
    return note(n)


@flow(name="sched held")
def held() -> int:
    return hold()


@flow(name="sched declared", schedule={"every": "1h", "args": {"n": 4}})
def declared(n: int) -> int:
    return note(n)


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    _go_on.clear()
    yield
    _go_on.set()


@pytest.fixture
def ticking(engine_clock: VirtualClock, engine: Client) -> Callable[..., ScheduleInfo]:
    """Moves the time on until the schedule has decided on so many ticks."""

    def move(name: str, ticks: int, by: str = "1h") -> ScheduleInfo:
        engine_clock.move(by)

        def decided() -> ScheduleInfo | None:
            engine_clock.move("1ms")
            info = engine.schedules.get(name)
            return info if len(info.last) >= ticks else None

        found = eventually(decided, timeout="60s")
        assert found is not None
        return found

    return move


def outcomes(info: ScheduleInfo) -> list[str]:
    return [tick.outcome for tick in reversed(info.last)]


def test_g3_each_tick_is_one_run(ticking: Callable[..., ScheduleInfo], engine: Client):
    engine.schedules.set("s", plain, {"n": 7}, every="1h", jitter="1s")
    info = ticking("s", 1, "3602s")
    assert info.last[0].run is not None
    assert (
        engine.runs.get(info.last[0].run).result("60s") == 7
    )  # else the next tick finds it active
    info = ticking("s", 2)
    assert outcomes(info) == ["ran", "ran"]
    runs = engine.runs.list(tags={"schedule": "s"})
    assert {run.id for run in runs} == {tick.run for tick in info.last}
    for run in runs:
        assert engine.runs.get(run.id).result("60s") == 7
        assert (run.key or "").startswith("schedule:s:")
    assert info.why.startswith("scheduled: next tick ")
    assert len(info.next) == 5


def test_g3_overlap_skips_queues_and_replaces(ticking: Callable[..., ScheduleInfo], engine: Client):
    for overlap in ("skip", "queue", "replace", "allow"):
        engine.schedules.set(overlap, held, every="1h", overlap=overlap)  # pyright: ignore[reportArgumentType]
    for name in ("skip", "replace", "allow"):
        ticking(name, 1, "3602s" if name == "skip" else "1ms")
    first = engine.schedules.get("skip").last[0].run
    skipped = ticking("skip", 2)
    assert skipped.last[0].reason == f"run {first} still ran"
    assert skipped.why.endswith(f"; the last was skipped because run {first} still ran")
    replaced = ticking("replace", 2, "1ms")
    assert outcomes(replaced) == ["ran", "ran"]
    assert outcomes(ticking("allow", 2, "1ms")) == ["ran", "ran"]
    assert "waits for the run before it" in engine.schedules.get("queue").why
    queued = ticking("queue", 2)
    assert queued.last[0].reason == "another tick waits already for the run before it"
    _go_on.set()
    assert outcomes(ticking("queue", 3, "1ms")) == ["ran", "ran", "missed"]
    old = engine.runs.get(str(replaced.last[1].run))
    eventually(lambda: old.status() == "cancelled")


@flow(name="sched approval")
def approval() -> Any:
    return wait_event("approved", timeout="2d")


def test_why_of_a_scheduled_run_uses_its_zone(engine: Client):
    engine.schedules.set("s", approval, cron="0 3 * * 1-5", tz="Europe/Berlin")
    run = engine.schedules.run_now("s")
    eventually(lambda: run.status() is RunState.WAITING)
    [wait] = run.waits()
    assert wait.until is not None
    shown = f"{wait.until.astimezone(ZoneInfo('Europe/Berlin')):%A %Y-%m-%d %H:%M:%S}"
    [reason] = run.why().reasons
    assert reason.text.startswith("has waited for event `approved` for ")
    assert f", times out {shown} (Europe/Berlin) (" in reason.text
    run.cancel()


def test_g3_a_tick_at_the_ceiling_is_missed_with_its_reason(
    ticking: Callable[..., ScheduleInfo], engine: Client
):
    engine.limits.set_max_active(1)
    blocker = engine.submit(held)
    engine.schedules.set("s", plain, every="1h")
    info = ticking("s", 1, "3602s")
    assert info.last[0].reason == "refused at the ceiling max_active: 1 of 1 runs were active"
    _go_on.set()
    assert blocker.result("60s") == 1
    assert outcomes(ticking("s", 2)) == ["missed", "ran"]


def test_a_schedule_whose_flow_is_gone_is_paused_and_not_lost(
    ticking: Callable[..., ScheduleInfo], engine: Client
):
    engine.schedules.set("s", plain, every="1h", overlap="allow", catch_up="all")
    store = store_for(engine.settings)

    async def forget() -> None:
        await store.open()
        assert await store.forget_flow("sched plain")
        await store.close()

    run_async(forget())
    info = ticking("s", 5, "18002s")
    assert set(outcomes(info)) == {"missed"}
    assert info.last[0].reason == "no worker has announced flow sched plain"
    assert info.paused
    assert info.why.startswith("paused by the engine: 5 ticks in a row were missed")
    [stopped, *_] = engine.schedules.history("s")
    assert (stopped.who, stopped.what) == ("leader", "stopped")
    assert "no worker has announced flow sched plain" in stopped.reason
    engine.schedules.set("other", plain, every="1h")  # announces it again
    engine.schedules.resume("s")
    assert outcomes(ticking("s", 6, "3602s"))[-1] == "ran"


def test_a_schedule_that_cannot_be_read_stops_no_other(
    ticking: Callable[..., ScheduleInfo], engine: Client, caplog: pytest.LogCaptureFixture
):
    for name in ("args", "spec", "state", "well"):
        engine.schedules.set(name, plain, every="1h")
    with opened(str(engine.settings.url)) as db:
        spoilt = b'{"flow":"sched plain","every_us":3600000000,"args":[1]}'
        db.execute("UPDATE schedule SET live = ? WHERE name = 'args'", [spoilt])
        db.execute("UPDATE schedule SET live = ? WHERE name = 'spec'", [b"{"])
        db.execute("UPDATE schedule SET state = ? WHERE name = 'state'", [b"[]"])
    assert outcomes(ticking("well", 1, "3602s")) == ["ran"]
    for name in ("args", "spec", "state"):
        assert f"failed to decide on schedule {name}" in caplog.text
    # They are shown, and nothing but a new setting or a deletion changes them.
    shown = {each.name: each.why for each in engine.schedules.list()}
    assert shown["spec"].startswith("it cannot be read: ")
    assert engine.schedules.get("state").paused
    for change in (engine.schedules.pause, engine.schedules.resume, engine.schedules.reset):
        with pytest.raises(InvalidInput, match="cannot be read") as refused:
            change("spec")
        assert refused.value.field == "schedule"
    engine.schedules.set("spec", plain, every="1h")
    engine.schedules.delete("state")
    assert "state" not in [each.name for each in engine.schedules.list()]
    assert outcomes(ticking("spec", 1, "3602s")) == ["ran"]


def test_a_hundred_unreadable_schedules_keep_none_from_its_ticks(
    ticking: Callable[..., ScheduleInfo], engine: Client
):
    engine.schedules.set("zz well", plain, every="1h")
    with opened(str(engine.settings.url)) as db:
        spoilt = [(f"spoilt {n}", (n % 2 and 1) or "?") for n in range(250)]
        db.executemany(
            "INSERT INTO schedule (name, version, next_at, live, state)"
            " VALUES (?, 1, ?, X'7b', X'7b7d')",
            spoilt,
        )
    assert outcomes(ticking("zz well", 1, "3602s")) == ["ran"]
    assert len(engine.schedules.list()) >= 251  # none is lost


def test_code_declares_a_schedule_and_an_operator_overrides_it(engine: Client):
    name = "sched declared"
    info = eventually(lambda: next((s for s in engine.schedules.list() if s.name == name), None))
    assert info is not None
    assert (info.every, info.args, info.source) == (3600.0, {"n": 4}, "declared")
    engine.schedules.set(name, declared, {"n": 5}, cron="0 3 * * 1-5", tz="Europe/Berlin")
    assert engine.schedules.get(name).source == "live"
    engine.schedules.pause(name)
    assert engine.schedules.get(name).paused
    engine.schedules.reset(name)
    back = engine.schedules.get(name)
    assert (back.args, back.source, back.paused) == ({"n": 4}, "declared", False)
    assert engine.schedules.run_now(name).result("60s") == 4
    history = engine.schedules.history(name)
    assert [each.what for each in history] == ["reset", "paused", "set", "declared"]
    assert history[-1].who == "code"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 0 31 4,6 *"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 3 * * *", "tz": "Europe/Berlim"}, "tz"),
        ({"at": "2020-01-01T00:00"}, "at"),
        ({"at": datetime(2020, 1, 1, tzinfo=UTC)}, "at"),
        ({"at": "noon"}, "at"),
        ({"every": "10ms"}, "every"),
        ({"every": "1h", "cron": "0 3 * * *"}, "cron"),
        ({}, "cron"),
        ({"every": "1h", "overlap": "stack"}, "overlap"),
        ({"every": "1h", "catch_up": "some"}, "catch_up"),
        ({"every": "1h", "max_active": 0}, "max_active"),
        ({"every": "1h", "args": {"m": 1}}, "m"),
        ({"every": "1h", "args": {"n": "x"}}, "n"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(engine: Client, given: dict[str, Any], field: str):
    with pytest.raises(InvalidInput) as refused:
        engine.schedules.set("s", plain, **given)
    assert refused.value.field == field
    with pytest.raises(NotFound):
        engine.schedules.get("s")


WITHOUT_ZONES = """
import sys
sys.modules["tzdata"] = None
from locktender.base.errors import InvalidInput
from locktender.base.ticks import CronExpression
print(next(CronExpression("0 3 * * *", "UTC").ticks(0)))
try:
    CronExpression("0 3 * * *", "Europe/Berlin")
except InvalidInput as error:
    print(error.field, error.hint)
"""


def test_utc_needs_no_time_zone_database_others_name_it():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ZONES],
        env={"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == str(3 * 3_600 * 1_000_000)
    assert second == "tz Install the system's package tzdata, or: pip install tzdata"


LISTED_WITHOUT_ZONES = """
import sys
sys.modules["tzdata"] = None
from locktender import connect
with connect(sys.argv[1]) as client:
    for each in client.schedules.list():
        print(each.name, each.at or each.next[:1], each.why, sep="|")
"""


def test_a_machine_without_the_zone_lists_all_schedules(tmp_path: Path):
    url = str(tmp_path / "locktender.db")
    with embedded(url) as client:
        eventually(lambda: client.schedules.set("plain", "sched plain", every="1000h"))
        client.schedules.set("berlin", plain, cron="0 3 * * *", tz="Europe/Berlin")
        client.schedules.set("once", plain, at="2037-07-01T09:00", tz="Europe/Berlin")
    done = subprocess.run(
        [sys.executable, "-c", LISTED_WITHOUT_ZONES, url],
        env={"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = {name: (at, why) for name, at, why in (x.split("|") for x in done.stdout.splitlines())}
    assert shown["plain"][1].startswith("scheduled: next tick")
    assert shown["once"][0] == "2037-07-01 07:00:00+00:00"
    for name in ("berlin", "once"):
        assert "no time zone database to find 'Europe/Berlin' in. Install" in shown[name][1]


def test_a_name_that_nobody_announced_is_refused(engine: Client):
    eventually(lambda: engine.schedules.set("other", "sched plain", every="1h"))
    with pytest.raises(NotFound, match="Did you mean 'sched plain'"):
        engine.schedules.set("s", "sched plan", every="1h")
    with pytest.raises(NotFound, match="Did you mean 'other'"):
        engine.schedules.pause("othr")


async def test_a_schedule_is_set_again_when_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is stored, and the connection is lost before the client learns of it."""
    lost: list[str] = []
    set_schedule = SqliteStore.set_schedule

    async def loses_the_first(self: SqliteStore, change: SetSchedule) -> ScheduleRow | None:
        row = await set_schedule(self, change)
        if change.what not in lost:
            lost.append(change.what)
            raise StoreUnreachable("the connection was lost")
        return row

    monkeypatch.setattr(SqliteStore, "set_schedule", loses_the_first)
    async with connect_async(tmp_path / "locktender.db") as client:
        await client.schedules.set("s", plain, every="1h")
        await client.schedules.pause("s")
        assert lost == ["set", "paused"]
        assert (await client.schedules.get("s")).paused
        assert len(await client.schedules.history("s")) == 2


def test_a_wrong_declared_schedule_is_refused_at_its_line():
    with pytest.raises(InvalidInput, match="time zone"):
        flow(name="x", schedule={"cron": "0 3 * * *", "tz": "Mars"})(lambda: None)
    with pytest.raises((InvalidFlow, InvalidInput), match="schedule"):
        flow(name="x", schedule={"croon": "0 3 * * *"})(lambda: None)
