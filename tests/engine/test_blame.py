"""H3 with real bodies: `blame` adds up to the wall time, and charges a wait to its gate."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support import cli_harness
from tests.support.fault_injector import Injector

from locktender import Client, Retry, Run, connect, embedded, flow, sleep, step, wait_event
from locktender.observe.blame import Blame
from locktender.testing import check_history, eventually

pytest_plugins = ["locktender.testing.postgres"]
TIMEOUT = "60s"
MILLISECOND = 1_000
RUNS, ALL_RUNS = 6, 25
"""On each store."""
TRIED: set[str] = set()


@step(pool="db")
async def use(item: int) -> int:
    await asyncio.sleep(0.001 * (item % 3))
    return item


@step(retries=1, retry_delay="10ms")
async def second_time(key: str) -> str:
    if key not in TRIED:
        TRIED.add(key)
        raise Retry(after="5ms")
    return key


@step(executor="thread")
def collect(parts: list[int], other: Any = None) -> int:
    return len(parts)


@flow
def some(items: list[int], key: str, nap: float) -> int:
    used = use.map(items, window=2)
    return collect(used, sleep(nap, second_time(key)))


@step(pool="db", executor="thread")
def hold(latch: str) -> None:
    eventually(Path(latch).exists)


@flow
def held(latch: str) -> None:
    return hold(latch)


@step
async def echo(value: int) -> int:
    return value


@flow
def asking() -> int:
    return echo(wait_event("answer", timeout="1h"))


@flow
def plain(items: list[int]) -> int:
    return collect(use.map(items))


def adds_up(run: Run[Any]) -> Blame:
    """Own work, gates and hand-off are the wall time; so they are of each task."""
    blame, info = run.blame(), run.info()
    assert blame.work_us + blame.hand_off_us + sum(each.us for each in blame.gates) == blame.wall_us
    assert sum(part.us for part in blame.path) == blame.wall_us
    for task in blame.tasks:
        assert task.work_us + task.hand_off_us + sum(task.gates.values()) == task.wall_us
    if info.ended_at is not None:
        wall = (info.ended_at - info.queued_at).total_seconds() * 1_000_000
        assert abs(wall - blame.wall_us) <= MILLISECOND
    return blame


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = str(tmp_path / "blame.db")
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with embedded(url, max_concurrent_runs=2, work_dir=tmp_path / "work") as client:
        client.pools.set("db", limit=2)
        yield client
    check_history(url)


@pytest.mark.parametrize("count", [RUNS, pytest.param(ALL_RUNS, marks=pytest.mark.long)])
def test_h3_the_blame_of_real_runs_adds_up(engine: Client, count: int):
    draw = random.Random(count)
    runs: list[Run[Any]] = []
    for number in range(count):
        items = list(range(draw.randint(0, 6)))
        runs.append(engine.submit(some, items, f"{count}-{number}", draw.choice([0.001, 0.03])))
    for run in runs:
        run.result(TIMEOUT)
    gates = {each.gate for run in runs for each in adds_up(run).gates}
    assert {"runs:max_concurrent_runs", "time"} <= gates


def test_h3_a_wait_that_goes_on_is_blamed_on_its_gate(engine: Client):
    with engine.slots("db", 2):
        run = engine.submit(plain, [1, 2, 3])
        eventually(lambda: any(task.state == "requested" for task in run.tasks()))
        waiting = adds_up(run)
        assert [each.gate for each in waiting.gates] == ["pool:db"]
        assert waiting.state == "running"
    assert run.result(TIMEOUT) == 3
    ended = adds_up(run)
    lost = {each.gate: each.us for each in ended.gates}
    assert lost["pool:db"] >= waiting.gates[0].us
    assert {task.name for task in ended.tasks if task.critical} == {"use", "collect"}


def recorded(engine: Client, gate: str) -> None:
    """The leader has written that something waits there; `blame` of what waits asks the rules, maybe before."""
    eventually(lambda: gate in {each.after for each in engine.events.latest()})


def test_h3_waits_of_the_whole_run_are_blamed(engine: Client):
    """A pause, a delay, an event, a retry and the end of a run in the queue."""
    engine.submit(plain, [1]).result(TIMEOUT)
    engine.flows.pause(f"{__name__}:plain")
    paused = engine.submit(plain, [1])
    recorded(engine, "paused:pause")
    engine.flows.resume(f"{__name__}:plain")
    paused.result(TIMEOUT)
    assert "paused" in {each.gate for each in adds_up(paused).gates}
    assert "paused" in {each.gate for each in engine.limits.cost("1h")}

    engine.limits.set_max_concurrent_runs(1)
    with engine.slots("db", 2):
        first, second = engine.submit(plain, [1]), engine.submit(plain, [1])
        eventually(lambda: first.status() == "running")
        recorded(engine, "runs:max_concurrent_runs")
        before = adds_up(second).gates[0].us
        second.pause("later")
        both = {"runs:max_concurrent_runs", "paused"}
        eventually(lambda: {each.gate for each in second.blame().gates} == both)
        lost = {each.gate: each.us for each in adds_up(second).gates}
        assert lost["runs:max_concurrent_runs"] >= before
        second.resume()
    second.result(TIMEOUT)
    engine.limits.set_max_concurrent_runs(2)

    delayed = engine.submit(plain, [1], delay="30ms")
    delayed.result(TIMEOUT)
    assert {each.gate: each.us for each in adds_up(delayed).gates}["time"] >= 29 * MILLISECOND

    asks = engine.submit(asking)
    eventually(lambda: asks.status() == "waiting")
    assert [each.gate for each in adds_up(asks).gates] == ["event:answer"]
    asks.send("answer", 5)
    assert asks.result(TIMEOUT) == 5
    assert "event:answer" in {each.gate for each in adds_up(asks).gates}

    asks.retry(from_step="echo")
    asks.result(TIMEOUT)
    again = adds_up(asks)
    assert "event:answer" not in {each.gate for each in again.gates}

    engine.limits.pause()
    queued = engine.submit(plain, [1])
    recorded(engine, "paused:max_concurrent_runs")
    queued.cancel()
    queued.wait(TIMEOUT)
    assert {each.gate for each in adds_up(queued).gates} == {"paused:max_concurrent_runs"}
    engine.limits.resume()


def test_h3_a_throttled_run_is_blamed(engine: Client):
    _, throttled = [engine.submit(plain, [1], key="k", throttle="1/1h") for _ in range(2)]
    gate = "throttle:key k, 1/1h00m"
    eventually(lambda: throttled.status() == "waiting")
    assert [each.gate for each in adds_up(throttled).gates] == [gate]
    throttled.cancel()
    throttled.wait(TIMEOUT)
    ended = adds_up(throttled)
    assert (ended.work_us, [each.gate for each in ended.gates]) == (0, [gate])


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
def test_h3_a_held_run_is_blamed(place: str, tmp_path: Path, request: pytest.FixtureRequest):
    """Its graph cannot be read: it waits for an operator, who ends it."""
    url = str(tmp_path / "blame.db")
    if place == "postgres":
        url = request.getfixturevalue("postgres_url")
    with connect(url) as client:
        submitted = client.submit(plain, [1, 2])
    injector = Injector(url)
    [[seq]] = injector.query("SELECT seq FROM {}run WHERE id = ?", submitted.id)
    graph = injector.value("graph", "body", seq)
    injector.write("graph", "body", seq, b"[[")
    with embedded(url, work_dir=tmp_path / "work") as client:
        run = client.runs.get(submitted.id)
        eventually(lambda: run.status() == "held")
        before = {each.gate: each.us for each in adds_up(run).gates}
        run.cancel()
        run.wait(TIMEOUT)
        after = {each.gate: each.us for each in adds_up(run).gates}
        assert after["held"] > before["held"] > 0
        # Nothing that an operator asks about it fails.
        assert run.logs() == []
        assert run.tasks() == []
    injector.write("graph", "body", seq, graph)
    check_history(url)


def test_h3_a_wait_is_charged_to_those_who_held_the_gate(engine: Client, tmp_path: Path):
    """Two runs hold the pool one after the other; a third waits for both."""
    latches = [tmp_path / name for name in ("first", "second")]
    engine.limits.set_max_concurrent_runs(3)
    engine.pools.set("db", limit=1)
    holders: list[Run[Any]] = []
    for latch, tenant in zip(latches, ("acme", "globex"), strict=True):
        holders.append(engine.submit(held, str(latch), tags={"tenant": tenant}))
        eventually(lambda: holders[-1].tasks() != [])
    eventually(lambda: holders[0].tasks()[0].state == "running")
    waiter = engine.submit(plain, [0])
    eventually(lambda: waiter.tasks() != [])
    began = waiter.tasks()[0].requested_at
    assert began is not None
    for holder, latch in zip(holders, latches, strict=True):
        # Who holds a gate is written at most ten times a second.
        eventually(lambda holder=holder: _lasts(holder, 0.5, since=began))
        latch.touch()
        holder.result(TIMEOUT)
    waiter.result(TIMEOUT)
    pool = next(each for each in adds_up(waiter).gates if each.gate == "pool:db")
    assert {each.tags["tenant"] for each in pool.to} == {"acme", "globex"}
    assert sum(each.us for each in pool.to) == pool.us
    held_by = {each.run: each.us for each in pool.to}
    # How long exactly is a matter of simulated time (tests/property/test_blame.py).
    assert set(held_by) == {holder.id for holder in holders}
    assert min(held_by.values()) > 0
    waited = sum(
        task.gates.get("pool:db", 0) for run in (*holders, waiter) for task in run.blame().tasks
    )
    eventually(lambda: _cost(engine, "pool:db") == waited)
    cost = {each.gate: each for each in engine.limits.cost("1h")}
    assert cost["pool:db"].to[0].run in held_by
    # The same as the command says.
    json_cost = cli_harness.locktender(
        "limits", "cost", "--last", "1h", "--json", "--url", engine.settings.url, cwd=tmp_path
    )
    assert [each["us"] for each in json_cost.data if each["gate"] == "pool:db"] == [waited]


def _lasts(run: Run[Any], seconds: float, since: datetime) -> bool:
    """Whether it has run for so long, after `since`."""
    [task] = run.tasks()
    if task.started_at is None:
        return False
    return (datetime.now(UTC) - max(task.started_at, since)).total_seconds() >= seconds


def _cost(engine: Client, gate: str) -> int:
    return sum(each.us for each in engine.limits.cost("1h") if each.gate == gate)


def test_h4_every_waiter_has_its_wait_when_it_begins(engine: Client):
    """Items behind others of their line, and a run behind another run's line: each has an event of its own."""
    items = 12
    with engine.slots("db", 2):
        first = engine.submit(plain, list(range(items)))
        second = engine.submit(plain, [1])
        eventually(lambda: second.tasks() != [])
        for run, count in ((first, items), (second, 1)):
            waits = [event for event in run.events() if event.slot == "waiting"]
            assert len({event.task for event in waits}) == count
            assert {event.after for event in waits} == {"pool:db"}
            asked = {e.task: e.at for e in run.events() if e.after == "requested"}
            assert all(event.at == asked[event.task] for event in waits)
    assert first.result(TIMEOUT) == items
    assert second.result(TIMEOUT) == 1
    for event in first.events():
        if event.slot == "claimed":
            assert event.data["pools"] == {"db": 1}
            assert event.data["waited_us"] == sum(event.data["waits"].values()) > 0
    released = [event for event in first.events() if event.slot == "released"]
    assert [event.data["released"] for event in released] == [{"db": 1}] * items


def test_h3_the_command_says_the_same(tmp_path: Path):
    url = str(tmp_path / "blame.db")
    with embedded(url, work_dir=tmp_path / "work") as client:
        run = client.submit(plain, [1, 2])
        run.result(TIMEOUT)
        said = cli_harness.locktender("blame", run.id[:20], "--json", "--url", url, cwd=tmp_path)
        assert json.loads(said.out)["wall_us"] == adds_up(run).wall_us
        text = cli_harness.locktender("blame", run.id, "--url", url, cwd=tmp_path).out
    assert "own work" in text
    assert "Critical path" in text
