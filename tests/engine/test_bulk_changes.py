"""Runs are cancelled, reprioritised, paused and retried by a filter, in slices."""

from __future__ import annotations

import pytest
from tests.steps import word_steps as flows

from locktender import Client, InvalidInput, Submission
from locktender.base.clock import SECOND
from locktender.client import bulk
from locktender.testing import eventually

MANY = 23

ALL_TRANSPORTS = "long"


def queued(engine: Client, tenant: str, count: int) -> None:
    engine.submit_many(
        flows.beside, [Submission((n,), tags={"tenant": tenant}) for n in range(count)]
    )


def test_slices_wait_until_the_leader_has_carried_out_the_last(
    engine: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bulk, "SLICE", 5)
    monkeypatch.setattr(bulk, "LONGEST_WAIT_US", 90 * SECOND)
    store = engine._core.store
    left: list[tuple[int, int]] = []
    ask = store.ask

    async def counted(requests: list[object]) -> None:
        rows = await store.runs(bulk.filter_of(["queued"], {"tenant": "acme"}, None, 100))
        left.append((len(requests), len(rows)))
        await ask(requests)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "ask", counted)
    engine.limits.pause()
    queued(engine, "acme", MANY)
    queued(engine, "other", 3)

    asked = engine.runs.cancel(tags={"tenant": "acme"}, status="queued")

    assert len(asked.ids) == MANY
    assert [count for count, _ in left] == [5, 5, 5, 5, 3]
    # What was asked for before is done: at no time are more than a slice open.
    assert [rows for _, rows in left] == [23, 18, 13, 8, 3]
    eventually(lambda: engine.runs.count("cancelled") == MANY)
    assert engine.runs.count("queued") == 3
    engine.limits.resume()


def test_without_a_leader_slices_are_left_for_the_next(
    url: object, monkeypatch: pytest.MonkeyPatch
):
    from locktender import connect, embedded

    monkeypatch.setattr(bulk, "SLICE", 5)
    monkeypatch.setattr(bulk, "LONGEST_WAIT_US", 1)
    with embedded(url) as engine:  # type: ignore[arg-type]
        engine.limits.pause()
        queued(engine, "acme", 12)
    with connect(url) as client:  # type: ignore[arg-type]
        asked = client.queue.cancel(tags={"tenant": "acme"})
        assert (len(asked.ids), asked.leader) == (12, False)
    with embedded(url) as engine:  # type: ignore[arg-type]
        eventually(lambda: engine.runs.count("cancelled") == 12)


def test_filters_reprioritise_pause_resume_and_retry(
    engine: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bulk, "SLICE", 4)
    engine.limits.pause()
    queued(engine, "acme", 9)
    queued(engine, "other", 2)
    engine.queue.reprioritise(None, 7, tags={"tenant": "acme"})
    eventually(lambda: sum(each.priority == 7 for each in engine.runs.list()) == 9)
    assert len(engine.runs.pause(reason="later", tags={"tenant": "acme"})) == 9
    engine.limits.resume()
    eventually(lambda: engine.runs.count("succeeded", {"tenant": "other"}) == 2)
    assert engine.runs.count("queued", {"tenant": "acme"}) == 9
    monkeypatch.setattr("locktender.client.runs_async.MAX_PAUSED", 3)
    with pytest.raises(InvalidInput, match="more than 3 runs match"):
        engine.runs.pause(tags={"tenant": "acme"})
    engine.limits.pause()
    assert len(engine.runs.resume(tags={"tenant": "acme"})) == 9
    engine.runs.cancel(tags={"tenant": "acme"})
    eventually(lambda: engine.runs.count("cancelled") == 9)
    assert len(engine.runs.retry(status="cancelled")) == 9
    engine.limits.resume()
    eventually(lambda: engine.runs.count("succeeded") == 11)
