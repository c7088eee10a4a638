"""A map whose leader ends while it is half expanded: the next one goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.support.db_stores import judged
from tests.support.fault_injector import Injector

from locktender import Run, RunState, connect, embedded, flow, step
from locktender.kernel import expansion
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.postgres"]

SLICE, ITEMS = 4, 30
PATIENCE = 60
SHUT = "shut"


@step(pool=SHUT)
async def twice(x: int) -> int:
    return 2 * x


@step
async def total(xs: list[int]) -> int:
    return sum(xs)


@step
async def cleaned() -> None:
    pass


@flow
def doubled(n: int):
    made = total(twice.map(list(range(ITEMS))))
    cleaned.with_options(after=[made], run_if="always")()
    return made


@pytest.fixture
def half(store_url: str) -> Iterator[Run[int]]:
    """Four of its items and the last one have rows, and nobody leads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expansion, "ITEMS_PER_CYCLE", SLICE)
        patch.setattr(expansion.ItemBudget, "renew", lambda _: None)
        with embedded(store_url) as engine:
            engine.pools.set(SHUT, limit=2)
            engine.pools.pause(SHUT)
            run = engine.submit(doubled, 1)
            eventually(lambda: len(run.tasks()) == SLICE + 1, PATIENCE)
    with connect(store_url) as client:
        states = [(task.index, task.state) for task in client.runs.get(run.id).tasks()]
        client.pools.resume(SHUT)
        assert states == [*((n, "requested") for n in range(SLICE)), (ITEMS - 1, "pending")]
        yield client.runs.get(run.id)
    assert asyncio.run(judged(store_url))[0] == []


def numbers(store_url: str) -> list[tuple[int, int]]:
    """(item, its number in the run) of the map."""
    rows = Injector(store_url).query("SELECT idx, id FROM {}task WHERE node = 0 ORDER BY id")
    return [(idx, number % (1 << 20)) for idx, number in rows]


def test_the_next_leader_goes_on_under_the_same_numbers(store_url: str, half: Run[int]):
    before = numbers(store_url)
    with embedded(store_url):
        assert half.result(PATIENCE) == sum(range(ITEMS)) * 2
    assert numbers(store_url) == [(n, n) for n in range(ITEMS)]
    assert set(before) <= set(numbers(store_url))


def test_it_is_cancelled_with_all_its_items(store_url: str, half: Run[int]):
    half.cancel()
    with embedded(store_url):
        assert half.wait(PATIENCE)
        assert half.status() == RunState.CANCELLED
    states = [task.state for task in half.tasks() if task.name == "twice"]
    assert len(states) == ITEMS
    assert set(states) <= {"cancelled", "skipped"}
    assert [task.state for task in half.tasks() if task.name == "cleaned"] == ["completed"]


def test_it_is_retried_after_it_was_held(store_url: str, half: Run[int]):
    injector = Injector(store_url)
    [[state]] = injector.query("SELECT state FROM {}task WHERE idx = 0")
    injector.query("UPDATE {}task SET state = 'bogus' WHERE idx = 0")
    with embedded(store_url) as engine:
        eventually(lambda: half.status() == RunState.HELD, PATIENCE)
        injector.query("UPDATE {}task SET state = ? WHERE idx = 0", state)
        engine.runs.retry([half.id])
        assert half.result(PATIENCE) == sum(range(ITEMS)) * 2
    assert numbers(store_url) == [(n, n) for n in range(ITEMS)]


def test_why_and_the_list_of_tasks_show_it(half: Run[int]):
    assert half.why().text()
    assert len(half.tasks()) == SLICE + 1
