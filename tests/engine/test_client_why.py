"""`why` and what is rebuilt like it: true for large values, for tags, and for runs that replace others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.steps import client_flows as flows

from locktender import Client, embedded, flow, step

LARGE = 400_000

ALL_TRANSPORTS = True


@step(pools={"db": 1})
def hold(x: str) -> int:
    assert flows.GATE.wait(60)
    return len(x)


@step
def length(x: str) -> int:
    return len(x)


@step
def many() -> list[str]:
    return ["y" * 1_000] * 400


@flow
def over_params(xs: list[str], big: str) -> Any:
    return hold.map(xs), length(big)


@flow
def over_consts() -> Any:
    return hold.map(["c" * 1_000] * 400)


@flow
def over_output() -> Any:
    return hold.map(many())


@pytest.mark.parametrize(
    ("called", "args"),
    [(over_params, (["a" * 1_000] * 400, "z" * LARGE)), (over_consts, ()), (over_output, ())],
)
def test_runs_with_large_values_are_explained(tmp_path: Path, called: Any, args: tuple[Any, ...]):
    flows.GATE.clear()
    try:
        with embedded(tmp_path / "locktender.db", work_dir=tmp_path / "work") as engine:
            engine.pools.set("db", limit=1)
            run = engine.submit(called, *args)
            _until(lambda: engine.pools.get("db").used == 1)
            _until(lambda: engine.pools.get("db").waiting == 399)
            why = run.why()
            assert [(group.step, group.count) for group in why.waiting] == [("hold", 399)]
            assert "pool db" in str(why)
            run.cancel()
            flows.GATE.set()
    finally:
        flows.GATE.set()


def test_at_a_tag_those_of_other_values_are_not_ahead(engine: Client):
    flows.GATE.clear()
    try:
        engine.limits.set_max_concurrent_runs(3)
        engine.limits.set_tag("t", limit=1, per_value=True)
        first = [engine.submit(flows.waits, 1, tags={"t": "a"}) for _ in range(30)]
        second = [engine.submit(flows.waits, 1, tags={"t": "b"}) for _ in range(3)]
        _until(lambda: second[0].status() == "running")
        why = second[2].why()
        [reason] = why.reasons
        assert (reason.gate, reason.ahead) == ("tag:t=*b", 1)
        assert why.position == 31
        # Nothing has ended yet: nothing is known to estimate by.
        assert why.estimate_us is None
        [reason] = first[29].why().reasons
        assert (reason.ahead, first[29].why().estimate_us) == (28, None)
        engine.runs.cancel([run.id for run in first + second])
    finally:
        flows.GATE.set()


def test_a_replacing_run_names_every_gate(engine: Client):
    flows.GATE.clear()
    try:
        engine.limits.set_max_concurrent_runs(2)
        engine.limits.set_tag("squad", limit=1)
        kept = engine.submit(flows.waits, 0, tags={"squad": "x"})
        replaced = engine.submit(flows.waits, 1, key="k")
        _until(lambda: replaced.status() == "running")
        run = engine.submit(flows.waits, 2, key="k", on_duplicate="replace", tags={"squad": "y"})
        why = run.why()
        gates = {reason.gate: reason for reason in why.reasons}
        assert set(gates) == {"key", "runs:max_concurrent_runs", "tag:squad"}
        assert replaced.id in gates["key"].text
        assert [holder.run for holder in gates["key"].holders] == [replaced.id]
        engine.runs.cancel([kept.id, run.id])
    finally:
        flows.GATE.set()


def _until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("alike", [False, True])
def test_a_queued_run_is_estimated_from_its_own_flow(engine: Client, alike: bool):
    engine.limits.set_max_concurrent_runs(1)
    if alike:
        flows.GATE.set()
        engine.submit(flows.waits, 0).result(60)
    engine.submit(flows.doubled, 1).result(60)
    flows.GATE.clear()
    try:
        first = engine.submit(flows.waits, 1)
        _until(lambda: first.status() == "running")
        (reason,) = engine.submit(flows.waits, 2).why().reasons
        assert reason.gate == "runs:max_concurrent_runs"
        assert (reason.estimate_us is not None) is alike
    finally:
        flows.GATE.set()
