"""A commit that is refused for data of no run: its process tries again less and less often, and says so."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.steps import held_steps as flows
from tests.support.db_stores import judged
from tests.support.fault_injector import Injector

from locktender import RunState, connect, embedded
from locktender.leader import election
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.postgres"]


def refuse_events_of_nobody(injector: Injector, *, refused: bool) -> None:
    """The database itself refuses every event of a commit that concerns no run, but that a term failed."""
    if not injector.typed:
        injector.query("DROP TRIGGER IF EXISTS refuse")
        if refused:
            injector.query(
                "CREATE TRIGGER refuse BEFORE INSERT ON event"
                " WHEN new.run = 0 AND new.cycle > 0 AND instr(new.body, '\"term\"') = 0"
                " BEGIN SELECT RAISE(ABORT, 'refused here'); END"
            )
        return
    injector.query("ALTER TABLE {}event DROP CONSTRAINT IF EXISTS refuse")
    if refused:
        injector.query(
            "ALTER TABLE {}event ADD CONSTRAINT refuse CHECK"
            " (run <> 0 OR cycle <= 0 OR position('\"term\"' IN convert_from(body, 'UTF8')) > 0)"
            " NOT VALID"
        )


def test_terms_that_fail_come_less_and_less_often_and_are_named(
    store_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(election, "ELECT_EVERY_SECONDS", 0.05)
    with connect(store_url) as client:
        run = client.submit(flows.ordinary, 1)
    injector = Injector(store_url)
    refuse_events_of_nobody(injector, refused=True)

    def failed() -> list[tuple[int, str]]:
        rows = injector.query("SELECT at, body FROM {}event WHERE run = 0 ORDER BY seq")
        found = [(at, bytes(body).decode()) for at, body in rows]
        return [(at, body) for at, body in found if '"term"' in body]

    with embedded(store_url, grace="1s") as engine, connect(store_url) as other:
        eventually(lambda: len(failed()) >= 5, 120)
        # Each pause is twice as long as the last, from a twentieth of a second on.
        moments = [at for at, _ in failed()][:5]
        for number, (one, two) in enumerate(pairwise(moments)):
            assert two - one >= 50_000 * 2**number
        assert "terms in a row failed: cycle" in failed()[-1][1]
        assert "(no run is to blame; refused: events)" in failed()[-1][1]
        waiting = other.runs.get(run.id)
        assert "terms in a row failed" in waiting.why().text()
        assert waiting.status() == RunState.QUEUED  # nobody holds it for what it has not done

        refuse_events_of_nobody(injector, refused=False)
        assert isinstance(engine.runs.get(run.id).result(120), int)
        engine.pools.set(flows.GATE, limit=1)
        engine.pools.pause(flows.GATE)
        assert "failed" not in engine.submit(flows.ordinary, 1).why().text()
        engine.pools.resume(flows.GATE)
    assert asyncio.run(judged(store_url))[0] == []
