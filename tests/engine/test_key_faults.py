"""A wrong key in one row of one table: everything else goes on, and the fault is named. Acceptance F3."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import asyncpg
import pytest
from tests.engine.test_held_faults import ENDED, STAGES, seq_of
from tests.engine.test_table_faults import PATIENCE, prepare
from tests.engine.test_table_faults import SETTINGS as MANY_RUNS
from tests.steps import held_steps as flows
from tests.support.fault_injector import SHIFT, WRONG_KEYS, Injector
from tests.support.table_faults import inject_key, key_faults

from locktender import Client, Run, RunState, connect, connect_async, embedded
from locktender.base.config import Settings
from locktender.store.open import store_for
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.postgres"]

SAMPLE = (
    "queue[].run-nobody",
    "bucket['rated'].pool-bytes",
    "limit_rule['pool', 'hurt'].name-empty",
    "limit_rule['tag', 'tenant'].kind-bytes",
    "meta['workers_version'].name-word",
    "lane[].id-negative",
)
RUN_SAMPLE = (
    ("queued", "run", "seq", "negative"),
    ("executing", "run", "seq", "negative"),
    ("executing", "task", "id", "outside"),
    ("executing", "task", "id", "nobody"),
)


def stores(store_url: str, tmp_path: Path, number: int) -> str:
    """A store of its own for each fault: a wrong key stays."""
    if not store_url.startswith("postgres"):
        return str(tmp_path / f"{number}.db")
    Injector(store_url).query("DROP SCHEMA IF EXISTS locktender CASCADE")
    return store_url


def judge_table(store_url: str, name: str) -> str:
    """What became of the run whose rows these are; raises where anything else did not go on."""
    injector, one, wanted = prepare(store_url)
    fault = {str(each): each for each in key_faults(injector, wanted)}.get(name)
    if fault is None or not inject_key(injector, fault):
        return "refused"
    terms = injector.query("SELECT term FROM {}leader")[0][0]
    with embedded(store_url, **MANY_RUNS) as engine:
        for n in range(2):
            assert isinstance(engine.submit(flows.ordinary, n).result(PATIENCE), int), name
        assert isinstance(engine.submit(flows.through_rate, 5).result(PATIENCE), int), name
        engine.workers.list()
        engine.limits.list()
        engine.pools.list()
        state = _named(engine, engine.runs.get(one.id))
        [[later]] = injector.query("SELECT term FROM {}leader")
        assert later - terms <= 4, name
    return state


def _named(engine: Client, run: Run[int]) -> str:
    """It ended, or it is held and says why."""
    eventually(lambda: run.status() in {RunState.HELD, *ENDED}, PATIENCE)
    state = run.status()
    if state == RunState.HELD:
        assert run.id in [each.id for each in engine.runs.list(status="held")]
        assert "held: " in run.why().text()
        run.cancel()
        assert run.wait(PATIENCE)
    return state


def judge_run(
    store_url: str, tmp_path: Path, fault: tuple[str, str, str, str], log: pytest.LogCaptureFixture
) -> None:
    stage, table, column, kind = fault
    [value] = [each for *names, each in WRONG_KEYS if tuple(names) == fault[1:]]
    one, several = STAGES[stage](store_url, tmp_path, 2)
    injector = Injector(store_url)
    seq = seq_of(injector, one)
    if (table, kind) == ("task", "outside"):
        value += seq * SHIFT
    try:
        injector.write(table, column, seq, value)
    except (sqlite3.IntegrityError, asyncpg.PostgresError, asyncpg.DataError):
        return
    log.clear()
    [[terms]] = injector.query("SELECT term FROM {}leader")
    with embedded(store_url, **MANY_RUNS) as engine:
        for run in several:
            assert isinstance(engine.runs.get(run.id).result(PATIENCE), int), fault
        assert isinstance(engine.submit(flows.ordinary, 3).result(PATIENCE), int), fault
        engine.runs.list()
        if (column, kind) in (("seq", "negative"), ("seq", "zero")):
            # Nothing of it can be written: not even that it is held.
            assert f"run {one.id} is left out: its seq cannot be read: {value}" in log.text
        elif column != "id" or table == "task":
            _named(engine, engine.runs.get(one.id))
    [[later]] = injector.query("SELECT term FROM {}leader")
    assert later - terms <= 4, fault


@pytest.mark.parametrize("name", SAMPLE)
def test_a_wrong_key_in_a_table_leaves_the_rest_alone(store_url: str, name: str):
    state = judge_table(store_url, name)
    assert state in {"refused", *ENDED, RunState.HELD}
    if name.startswith("queue"):
        assert state == RunState.HELD


@pytest.mark.parametrize("fault", RUN_SAMPLE)
def test_a_wrong_key_of_one_run_leaves_the_others_alone(
    store_url: str,
    tmp_path: Path,
    fault: tuple[str, str, str, str],
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.WARNING, "locktender")
    judge_run(store_url, tmp_path, fault, caplog)


def test_a_run_that_the_queue_lacks_is_started_by_a_retry(store_url: str):
    with connect(store_url) as client:
        lost = client.submit(flows.ordinary, 1)
    Injector(store_url).query("DELETE FROM {}queue")
    with embedded(store_url) as engine:
        run = engine.runs.get(lost.id)
        eventually(lambda: run.status() == RunState.HELD, PATIENCE)
        assert "its place in the queue cannot be read" in run.why().text()
        engine.runs.retry([lost.id])
        assert run.result(PATIENCE) == flows.result_of(1)


async def test_only_a_new_leader_looks_for_runs_that_the_queue_lacks(store_url: str):
    async with connect_async(store_url) as client:
        lost = await client.submit(flows.ordinary, 1)
    await asyncio.to_thread(Injector(store_url).query, "DELETE FROM {}queue")
    store = store_for(Settings(url=store_url))
    await store.open()
    try:
        assert [each.id for each in (await store.load()).held] == [lost.id]
        assert (await store.load(lost=False)).held == []
    finally:
        await store.close()


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_key_of_every_table(store_url: str, tmp_path: Path):
    injector, _, wanted = prepare(stores(store_url, tmp_path, 0))
    names = [str(fault) for fault in key_faults(injector, wanted)]
    ended: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        state = judge_table(stores(store_url, tmp_path, number), name)
        ended[state] = ended.get(state, 0) + 1
    assert ended.keys() >= {"refused", RunState.HELD}, ended


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("stage", list(STAGES))
def test_every_key_of_a_run(
    store_url: str, tmp_path: Path, stage: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "locktender")
    for number, (table, column, kind, _) in enumerate(WRONG_KEYS):
        fault = (stage, table, column, kind)
        judge_run(stores(store_url, tmp_path, number), tmp_path, fault, caplog)
