"""A paused pool says who paused it and when: in `pools.get`, in the list, and in `why` of what waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from locktender import Client, embedded, flow, step
from locktender.cli.main import main
from locktender.testing import eventually


@step(pool="db")
async def use(n: int) -> int:
    return n


@step(pool="api[{tenant}]")
async def call() -> None: ...


@flow
def using(n: int) -> int:
    return use(n)


@flow
def calling() -> None:
    call()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Client]:
    with embedded(tmp_path / "s.db", pools={"db": 2, "api[*]": 3}, grace="0s") as client:
        yield client


def test_a_paused_pool_tells_who_paused_it_and_when(
    engine: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert (engine.pools.get("db").paused_by, engine.pools.get("db").paused_at) == ("", None)
    engine.pools.pause("db")
    last = engine.limits.history(1)[0]

    # Another change does not pause it again.
    engine.pools.set("db", limit=1)

    found = engine.pools.get("db")
    assert (found.paused_by, found.paused_at) == (last.who, last.at)
    assert main(["pools", "info", "db", "--url", str(tmp_path / "s.db")]) == 0
    assert f"Paused by {last.who}" in capsys.readouterr().out
    engine.pools.resume("db")
    assert engine.pools.get("db").paused_by == ""


def test_why_tells_who_paused_the_pool(engine: Client):
    engine.pools.pause("db")
    who = engine.limits.history(1)[0].who
    run = engine.submit(using, 1)
    eventually(lambda: run.why().waiting)
    [waiting] = run.why().waiting
    assert [each.text.partition(" (")[0] for each in waiting.reasons] == [
        f"pool db is paused by {who}"
    ]
    [task] = run.tasks()
    assert f"is paused by {who}" in engine.why(task.id).reasons[0].text
    engine.pools.resume("db")
    assert run.result("60s") == 1


def test_a_key_is_paused_by_the_rule_of_all_keys(engine: Client):
    engine.pools.pause("api[*]")
    who = engine.limits.history(1)[0].who
    run = engine.submit(calling, tags={"tenant": "acme"})
    eventually(lambda: run.why().waiting)
    [waiting] = run.why().waiting
    assert f"pool api[acme] is paused by {who}" in waiting.reasons[0].text
    run.cancel()
