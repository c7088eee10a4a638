"""`sleep` and `sleep_until` in a flow: a run that only sleeps holds nothing (G1, G2, G5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from locktender import (
    Client,
    InvalidFlow,
    RunCancelled,
    RunFailed,
    RunState,
    RunTimedOut,
    embedded,
    flow,
    sleep,
    sleep_until,
    step,
)
from locktender.observe.checkpoint import audit
from locktender.store.open import settings_for, store_for
from locktender.store.postgres.server_clock import ServerClock
from locktender.testing import VirtualClock, check_history, eventually
from locktender.testing.fixtures import LONG_LEASE

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
TIMEOUT = "60s"
CLEANED: list[int] = []
WAITED_ONCE = ["queued", "running", "waiting", "queued", "running", "succeeded"]

ALL_TRANSPORTS = "long"


@step
async def double(n: int) -> int:
    return 2 * n


@step
async def total(ns: list[int]) -> int:
    return sum(ns)


@step
async def pair(a: Any, b: Any) -> list[Any]:
    return [a, b]


@step
async def large(n: int) -> dict[str, Any]:
    return {"n": n, "text": "x" * 400_000}


@step
async def text(value: Any) -> str:
    return str(value)


@step
async def clean(n: int) -> None:
    CLEANED.append(n)


@flow
def in_a_diamond(n: int) -> list[Any]:
    first = double(n)
    return pair(sleep("200ms", first), double(first))


@flow
def between(n: int, pause: str) -> int:
    return double(sleep(pause, double(n)))


@flow
def asleep(n: int) -> int:
    return double(sleep("1h", n))


@flow
def asleep_with_clean_up(n: int) -> int:
    slept = sleep("1h", n)
    clean.with_options(run_if="always", after=slept)(n)
    return double(slept)


@flow
def behind_maps(ns: list[int]) -> int:
    doubled = double.map(ns)
    return total(sleep("50ms", double.map(sleep("50ms", doubled))))


@flow
def until_moments(moment: datetime) -> list[Any]:
    a = sleep_until(moment, double(1), name="soon")
    b = sleep_until(datetime(2001, 1, 1, tzinfo=UTC), double(2), name="long ago")
    return pair(a, b)


@flow(sequential=True)
def in_order(n: int) -> list[Any]:
    first = double(n)
    sleep("50ms")
    return pair(first, double(first))


@flow
def by_result(given: str) -> int:
    return double(sleep(text(given), 3))  # pyright: ignore[reportArgumentType]


@flow
def of_a_large_value(n: int) -> list[Any]:
    slept = sleep("50ms", large(n))
    return pair(slept["n"], sleep("10ms", after=slept))


@flow
def on_condition(n: int) -> list[Any]:
    first = double(n)
    slept = sleep("50ms", first, when=first > 10)
    return pair.with_options(run_if="always")(slept, first)


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    CLEANED.clear()
    # Leases that nobody loses, also where a test moves the time.
    with embedded(
        store_url, grace="2s", worker_lease=LONG_LEASE, leader_lease=LONG_LEASE
    ) as client:
        yield client
    check_history(store_url)


def states(run: Any) -> list[str]:
    return [event.after for event in run.events() if event.subject == "run"]


def test_g1_a_sleep_passes_its_value_on_when_its_time_has_come(client: Client):
    run = client.submit(between, 1, "200ms")
    assert run.result(TIMEOUT) == 4
    assert states(run) == WAITED_ONCE
    assert client.submit(in_a_diamond, 1).result(TIMEOUT) == [2, 4]
    assert client.submit(behind_maps, [1, 2, 3]).result(TIMEOUT) == 24
    moment = datetime.now(UTC) + timedelta(milliseconds=200)
    assert client.submit(until_moments, moment).result(TIMEOUT) == [2, 4]
    assert client.submit(in_order, 1).result(TIMEOUT) == [2, 4]
    assert client.submit(by_result, "30ms").result(TIMEOUT) == 6
    assert client.submit(of_a_large_value, 7).result(TIMEOUT) == [7, None]
    assert client.submit(on_condition, 3).result(TIMEOUT) == [None, 6]


def test_a_run_is_woken_once_where_the_reckoned_time_lags(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """A busy server answers late, so what is reckoned from its answers is behind its time."""

    async def behind(clock: ServerClock, ask: Callable[[], Awaitable[int]]) -> int:
        return await reckoned(clock, ask) - 150_000

    reckoned = ServerClock.now
    monkeypatch.setattr(ServerClock, "now", behind)
    with embedded(postgres_url, grace="2s") as client:
        runs = [client.submit(between, n, f"{200 + 20 * n}ms") for n in range(5)]
        assert [run.result(TIMEOUT) for run in runs] == [0, 4, 8, 12, 16]
        assert [states(run) for run in runs] == [WAITED_ONCE] * 5
    check_history(postgres_url)


def test_a_sleep_is_over_at_the_instant_it_ends(engine_clock: VirtualClock, engine: Client):
    """Time that stands still then: nothing moves it one microsecond on."""
    run = engine.submit(asleep, 1)
    eventually(lambda: run.status() is RunState.WAITING, 60)
    engine_clock.move("1h")
    assert run.result(TIMEOUT) == 2


def test_g5_a_run_that_sleeps_gives_back_its_place(client: Client):
    client.limits.set_max_concurrent_runs(1)
    client.limits.set_tag("team", limit=1)
    waiting = [client.submit(asleep, n, tags={"team": "a"}) for n in range(3)]
    for run in waiting:
        eventually(lambda run=run: run.status() is RunState.WAITING, 60)
    assert client.submit(in_a_diamond, 5, tags={"team": "a"}).result(TIMEOUT) == [10, 20]
    assert "sleeps until " in str(waiting[0].why())
    for run in waiting:
        run.cancel()
    for run in waiting:
        with pytest.raises(RunCancelled):
            run.result(TIMEOUT)


def test_a_waiting_run_that_is_ended_cleans_up(store_clock: VirtualClock, client: Client):
    store_clock.add(client)
    cancelled = client.submit(asleep_with_clean_up, 1)
    late = client.submit(asleep_with_clean_up, 2, deadline="30m")
    for run in (cancelled, late):
        eventually(lambda run=run: run.status() is RunState.WAITING, 60)
    store_clock.move("31m")  # past the deadline, and not past the sleep
    with pytest.raises(RunTimedOut):
        late.result(TIMEOUT)
    assert cancelled.status() is RunState.WAITING
    cancelled.cancel()
    with pytest.raises(RunCancelled):
        cancelled.result(TIMEOUT)
    assert sorted(CLEANED) == [1, 2]
    forced = client.submit(asleep_with_clean_up, 3)
    eventually(lambda: forced.status() is RunState.WAITING, 60)
    client.runs.cancel(forced.id, force=True)
    assert forced.wait(60)
    assert sorted(CLEANED) == [1, 2]


def test_g1_a_sleep_over_a_restart(store_url: str):
    with embedded(store_url) as client:
        run = client.submit(in_a_diamond, 2)
        long = client.submit(asleep, 3)
        eventually(lambda: long.status() is RunState.WAITING, 60)
    with embedded(store_url) as client:
        assert client.runs.get(run.id).result(TIMEOUT) == [4, 8]
        again = client.runs.get(long.id)
        assert again.status() is RunState.WAITING
        again.cancel()
        assert again.wait(60)
        again.retry()
        eventually(lambda: again.status() is RunState.WAITING, 60)
        again.cancel()
        assert again.wait(60)
    check_history(store_url)


def test_a_result_that_is_no_time_fails_the_run(client: Client):
    with pytest.raises(RunFailed, match="sleep is not a duration"):
        client.submit(by_result, "whenever").result(TIMEOUT)


@pytest.mark.parametrize(
    ("duration", "words"),
    [(-1, "more than zero"), ("0s", "more than zero"), ("21000w", "under 100 years"), ("x", "not")],
)
def test_a_sleep_that_cannot_be_is_refused(engine: Client, duration: Any, words: str):
    @flow(name="refused sleep")
    def refused() -> None:
        return sleep(duration)

    with pytest.raises(InvalidFlow, match=words):
        engine.submit(refused)


NAIVE = datetime(2031, 1, 1)  # noqa: DTZ001
FAR = datetime(2631, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("moment", ["tomorrow", NAIVE, FAR])
def test_a_moment_that_cannot_be_is_refused(engine: Client, moment: Any):
    @flow(name="refused moment")
    def refused() -> None:
        return sleep_until(moment)

    with pytest.raises(InvalidFlow, match="sleep_until"):
        engine.submit(refused)


def test_a_sleep_outside_a_flow_is_refused():
    with pytest.raises(InvalidFlow, match="outside a flow"):
        sleep("1s")


@flow
def map_beside_sleep(n: int) -> list[Any]:
    return pair(total(double.map(list(range(n)))), sleep("1h", n))


def test_a_map_beside_a_sleep_goes_on(store_url: str):
    """Also where its items are asked for in a later cycle than the sleep is."""
    with embedded(store_url) as client:
        runs = client.submit_many(map_beside_sleep, [600, 600])
        for run in runs:
            eventually(lambda run=run: sum(each.state == "completed" for each in run.tasks()) > 600)
            run.cancel("enough")


async def test_a_stopped_store_with_waiting_runs_has_lost_none(store_url: str):
    await asyncio.to_thread(leave_waiting, store_url)
    store = store_for(settings_for(store_url, {}))
    await store.open()
    assert (await audit(store)).violations == []
    await store.close()


def leave_waiting(store_url: str) -> None:
    with embedded(store_url) as client:
        runs = [client.submit(map_beside_sleep, 1), client.submit(map_beside_sleep, 1, delay="1h")]
        for run in runs:
            eventually(lambda run=run: run.status() is RunState.WAITING)
