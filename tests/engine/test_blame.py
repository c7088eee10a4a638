"""H3 with real bodies: `blame` adds up to the wall time, and charges a wait to its gate."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support import cli_harness

from locktender import Client, Retry, Run, embedded, flow, sleep, step
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
