"""A wrong value in a row of another table than those of runs: everything else goes on. Acceptance F3.

The run, worker, pool or request that the row belongs to is named.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.steps import held_steps as flows
from tests.support.db_stores import judged
from tests.support.fault_injector import Injector
from tests.support.leases import KEPT
from tests.support.table_faults import (
    HURT,
    KEY,
    OWNERS,
    RATED,
    StoredRow,
    TableFault,
    faults,
    inject,
    limit_rows,
    rows,
    store_rows,
    write,
)

from locktender import Client, Run, RunState, connect, embedded
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.postgres"]

SEED = 12
PUT_IN = (
    *(
        "orders",
        "reservation",
        "linger",
        "unplaced",
        "waiting",
        "silence",
        "request",
        "lost_worker",
    ),
    *("worker", "asked_worker", "active_key", "provisioner", "limit_rule", "bucket"),
)
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT})
PATIENCE = 60
TERMS = "SELECT count(DISTINCT term) FROM {}event WHERE term BETWEEN 1 AND 1000000"
SETTINGS: dict[str, Any] = {"grace": "2s", "max_concurrent_runs": -1, **KEPT}
"""A term that fails is given up at once. No other is: terms are counted."""
WAITED_FOR = {"leader_lease": "20s"}
"""Where the end of the last lease cannot be read: a leader stands when one of its own has passed."""


def prepare(store_url: str) -> tuple[Injector, Run[int], list[StoredRow]]:
    """A queued run, and the rows whose faults are tried."""
    injector = Injector(store_url)
    with connect(store_url) as client:
        client.pools.set(RATED, limit=5, rate="1000/s", burst=1000)
        # Before it is submitted: rules make lanes.
        store_rows(injector, list(limit_rows()))
        client.pools.set(RATED, limit=6)  # others read the rules again
        one = client.submit(flows.through_rate, 1, key=KEY)
        client.submit(flows.ordinary, 1)
    [[seq, now]] = injector.query("SELECT seq, queued_at FROM {}run WHERE id = ?", one.id)
    wanted = list(rows(injector, seq, now))
    store_rows(injector, wanted)
    return injector, one, wanted


def all_faults(store_url: str) -> list[str]:
    injector, _, wanted = prepare(store_url)
    found = [str(fault) for fault in faults(injector, wanted)]
    clear(store_url, injector)
    return found


def clear(store_url: str, injector: Injector) -> None:
    """Without the rows that were put in; what waits is worked off."""
    for table in PUT_IN:
        injector.query(f"DELETE FROM {{}}{table}")
    with embedded(store_url, **SETTINGS) as engine:
        for run in engine.runs.list(status=["queued", "running"]):
            assert engine.runs.get(run.id).wait(PATIENCE)


def judge(store_url: str, *names: str) -> str:
    """What became of the run that the rows belong to; raises where anything else did not go on."""
    injector, one, wanted = prepare(store_url)
    found = {str(each): each for each in faults(injector, wanted)}
    chosen = [found[name] for name in names]
    [[terms]] = injector.query(TERMS)
    before = [inject(injector, fault) for fault in chosen]
    state = _others_finish(store_url, one, chosen)
    for fault, value in zip(chosen, before, strict=True):
        if fault.row.table == "event":  # the history is checked with it
            write(injector, fault.row, fault.column, value)
    [[later]] = injector.query(TERMS)
    assert later - terms <= 4, names
    clear(store_url, injector)
    return state


def _others_finish(store_url: str, one: Run[int], chosen: list[TableFault]) -> str:
    row_of_lease = any((each.row.table, each.column) == ("leader", "expires_at") for each in chosen)
    with embedded(store_url, **SETTINGS | (WAITED_FOR if row_of_lease else {})) as engine:
        others = [engine.submit(flows.ordinary, n) for n in range(2)]
        for run in others:
            assert isinstance(run.result(PATIENCE), int), chosen
        for fault in chosen:
            _is_named(engine, fault)
        assert isinstance(engine.submit(flows.through_rate, 5).result(PATIENCE), int), chosen
        run = engine.runs.get(one.id)
        eventually(lambda: run.status() in {RunState.HELD, *ENDED}, PATIENCE)
        state = run.status()
        if state == RunState.HELD:
            assert "held: " in run.why().text(), chosen
            run.cancel()
            assert run.wait(PATIENCE), chosen
        engine.workers.list()
        engine.limits.list()
        engine.pools.list()
    return state


def _is_named(engine: Client, fault: TableFault) -> None:
    """A pool and a tag whose rule cannot be read stay shut; what waits for them says why."""
    kind, name = fault.row.key.get("kind"), fault.row.key.get("name")
    if fault.row.table != "limit_rule" or fault.column != "live":
        return
    through = flows.through_rate if kind == "tag" else flows.through_hurt
    waits = engine.submit(through, 1)
    if kind in ("pool", "tag"):
        text = f"the live rule of {kind} {name} cannot be read, so it is shut"
        assert text in waits.why().text(), (fault, waits.why().text())
        if kind == "pool":
            engine.pools.set(HURT, limit=2)
            engine.pools.resume(HURT)
        else:
            engine.limits.set_tag("tenant", limit=2)
            engine.limits.resume("tenant")
    assert isinstance(waits.result(PATIENCE), int), fault


def test_every_table_has_an_owner(store_url: str):
    with connect(store_url):
        pass
    injector = Injector(store_url)
    if injector.typed:
        found = injector.query(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = 'locktender'"
        )
    else:
        found = injector.query(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
    assert {name for (name,) in found} <= OWNERS.keys()


def test_a_fault_in_a_row_of_every_table_at_once(store_url: str):
    by_row: dict[str, list[str]] = {}
    for name in all_faults(store_url):
        by_row.setdefault(name.partition("].")[0], []).append(name)
    draw = random.Random(SEED)
    judge(store_url, *(draw.choice(names) for names in by_row.values()))
    assert asyncio.run(judged(store_url))[0] == []


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_column_of_every_table(store_url: str):
    ended: dict[str, int] = {}
    for name in all_faults(store_url):
        state = judge(store_url, name)
        ended[state] = ended.get(state, 0) + 1
    assert asyncio.run(judged(store_url))[0] == []
