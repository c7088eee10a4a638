"""A wrong value in the rows of one run: the others finish, and that one is named. Acceptance F3."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.steps import held_steps as flows
from tests.support.db_stores import judged
from tests.support.fault_injector import Fault, Injector
from tests.support.leases import KEPT

from locktender import Client, Run, RunState, connect, embedded
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.postgres"]

SEED = 12
SAMPLE = 3
"""Faults of each stage in `make test`."""
OTHERS = 3
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT})
Prepare = Callable[[str, Path, int], tuple[Run[int], list[Run[int]]]]


def submit(client: Client, others: int, path: str = "") -> tuple[Run[int], list[Run[int]]]:
    several = [client.submit(flows.ordinary, n, path) for n in range(others)]
    middle = client.submit(flows.victim, 100, path)
    return middle, several + [client.submit(flows.ordinary, n, path) for n in range(others)]


def queued(store_url: str, tmp_path: Path, others: int) -> tuple[Run[int], list[Run[int]]]:
    """Nobody has read them yet."""
    del tmp_path
    with connect(store_url) as client:
        return submit(client, others)


def executing(store_url: str, tmp_path: Path, others: int) -> tuple[Run[int], list[Run[int]]]:
    """Some steps completed, some wait, and their leader is gone."""
    del tmp_path
    with embedded(store_url, grace="2s", max_concurrent_runs=-1) as engine:
        engine.pools.set(flows.GATE, limit=4)
        engine.pools.pause(flows.GATE)
        runs = submit(engine, others)
        for run in (runs[0], *runs[1]):
            eventually(lambda run=run: any(task.name == "second" for task in run.tasks()), 60)
    # Only now: nothing may go on before its rows are changed.
    with connect(store_url) as client:
        client.pools.resume(flows.GATE)
    return runs


def retried(store_url: str, tmp_path: Path, others: int) -> tuple[Run[int], list[Run[int]]]:
    """They failed, and were queued again with the rows of their first try."""
    path = tmp_path / f"there-{random.random()}"
    with embedded(store_url, grace="2s", max_concurrent_runs=-1) as engine:
        runs = submit(engine, others, str(path))
        for run in (runs[0], *runs[1]):
            assert run.wait(60)
    path.touch()
    with connect(store_url) as client:
        client.runs.retry([run.id for run in (runs[0], *runs[1])])
    return runs


STAGES: dict[str, Prepare] = {"queued": queued, "executing": executing, "retried": retried}


def seq_of(injector: Injector, run: Run[int]) -> int:
    return injector.query("SELECT seq FROM {}run WHERE id = ?", run.id)[0][0]


def known_faults(store_url: str, tmp_path: Path, stage: str) -> list[Fault]:
    one, _ = STAGES[stage](store_url, tmp_path, 0)
    injector = Injector(store_url)
    found = list(injector.faults(seq_of(injector, one)))
    with embedded(store_url, max_concurrent_runs=-1) as engine:
        assert engine.runs.get(one.id).result(60) == flows.result_of(100)
    return found


def judge(store_url: str, tmp_path: Path, stage: str, fault: Fault, others: int) -> str:
    """What became of the run; raises where the others did not finish, or it is not named."""
    one, several = STAGES[stage](store_url, tmp_path, others)
    injector = Injector(store_url)
    seq = seq_of(injector, one)
    body = injector.value("graph", "body", seq)
    injector.inject(fault, seq)
    terms = injector.query("SELECT term FROM {}leader")[0][0]
    # A term that fails is given up at once: only those are counted.
    with embedded(store_url, grace="2s", max_concurrent_runs=-1, **KEPT) as engine:
        for run in several:
            assert isinstance(engine.runs.get(run.id).result("60s"), int), (fault, run.id)
        run = engine.runs.get(one.id)
        eventually(lambda: run.status() in {RunState.HELD, *ENDED}, 60)
        state = run.status()
        if state == RunState.HELD:
            assert run.id in [each.id for each in engine.runs.list(status="held")]
            assert "held: " in run.why().text(), fault
            assert any(event.after == "held" for event in run.events())
            run.tasks()
            run.cancel()
            assert run.wait("60s"), fault
            assert run.status() == RunState.CANCELLED
    # One for its fault, one for each term that found more of it: it does not go on for ever.
    assert injector.query("SELECT term FROM {}leader")[0][0] - terms <= 4, fault
    # The others' history is checked with it; the graph is that of no other run.
    injector.write("graph", "body", seq, body)
    return state


@pytest.mark.parametrize("stage", list(STAGES))
def test_a_fault_in_one_run_leaves_the_others_alone(store_url: str, tmp_path: Path, stage: str):
    faults = known_faults(store_url, tmp_path, stage)
    for fault in random.Random(SEED).sample(faults, SAMPLE):
        judge(store_url, tmp_path, stage, fault, OTHERS)
    assert asyncio.run(judged(store_url))[0] == []


def test_an_unreadable_deadline_holds_the_run(store_url: str, tmp_path: Path):
    fault = Fault("run", "deadline_at", "negative")
    assert judge(store_url, tmp_path, "queued", fault, OTHERS) == RunState.HELD
    assert asyncio.run(judged(store_url))[0] == []


def test_an_overdue_run_whose_graph_cannot_be_read_ends_once(store_url: str, tmp_path: Path):
    with connect(store_url) as client:
        submitted = client.submit(flows.victim, 1, deadline="1ms")
    injector = Injector(store_url)
    body = injector.value("graph", "body", 1)
    injector.inject(Fault("graph", "body", "broken"), 1)
    with embedded(store_url) as engine:
        run = engine.runs.get(submitted.id)
        eventually(lambda: run.status() in {RunState.HELD, *ENDED}, 60)
    injector.write("graph", "body", 1, body)
    assert asyncio.run(judged(store_url))[0] == []


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("stage", list(STAGES))
def test_every_column_and_every_field(store_url: str, tmp_path: Path, stage: str):
    ended: dict[str, int] = {}
    for fault in known_faults(store_url, tmp_path, stage):
        state = judge(store_url, tmp_path, stage, fault, 50)
        ended[state] = ended.get(state, 0) + 1
    assert ended.get(RunState.HELD, 0) > 20, ended
    assert asyncio.run(judged(store_url))[0] == []
