"""Submissions are checked without a lock: whatever changes between check and write, the ceiling holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from locktender.store.postgres import PostgresStore, client_verbs
from locktender.testing.conformance.world import (
    SceneLeader,
    new_run,
    set_ceiling,
    set_rule,
    submit,
    submitted,
)

pytest_plugins = ["locktender.testing.postgres"]
Between = Callable[[Callable[[], Awaitable[object]]], None]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Has something done once, after the next submission has looked and before it writes."""
    judge = client_verbs._judge  # pyright: ignore[reportPrivateUsage]
    waiting: list[Callable[[], Awaitable[object]]] = []

    async def judging(*args: Any) -> Any:
        found = await judge(*args)
        if waiting:
            await waiting.pop()()
        return found

    async def never(*_: object) -> None:
        """The quick way looks and writes in one statement: there is no between."""

    monkeypatch.setattr(client_verbs, "_judge", judging)
    monkeypatch.setattr(client_verbs, "submit_quickly", never)
    return waiting.append


async def test_another_submission_reaches_the_ceiling_first(
    store: PostgresStore, other: PostgresStore, between: Between
) -> None:
    await set_ceiling(store, 2)
    await submitted(store)
    between(lambda: submitted(other))
    assert (await submitted(store)).outcome == "rejected"
    assert (await store.counts()).active[""] == 2


async def test_an_ended_run_comes_back(
    store: PostgresStore, other: PostgresStore, between: Between
) -> None:
    """It takes a place and no new number."""
    leader = await SceneLeader.stand(store)
    await set_ceiling(store, 2)
    ended, _ = await submit(store, new_run(), new_run())
    await leader.start(ended.seq)
    await leader.end(ended.seq, "failed")
    between(lambda: other.retry([ended.id]))
    assert (await submitted(store)).outcome == "rejected"
    counts = await store.counts()
    assert counts.admitted[""] - counts.closed[""] == counts.active[""] == 2


async def test_the_ceiling_is_lowered(
    store: PostgresStore, other: PostgresStore, between: Between
) -> None:
    await set_ceiling(store, 2)
    await submitted(store)
    between(lambda: set_ceiling(other, 1))
    assert (await submitted(store)).outcome == "rejected"


async def test_a_ceiling_is_set_that_counts_otherwise(
    store: PostgresStore, other: PostgresStore, between: Between
) -> None:
    await submitted(store, tags={"tenant": "a"})
    rule = {"key": "tenant", "per_value": True, "max_active": 1}
    between(lambda: set_rule(other, "tag", "tenant=*", rule))
    assert (await submitted(store, tags={"tenant": "a"})).outcome == "rejected"
    counts = await store.counts()
    assert counts.admitted["tenant=*a"] - counts.closed.get("tenant=*a", 0) == 1


@pytest.mark.parametrize("how", ["attach", "reject", "skip_if_finished"])
async def test_another_takes_the_key(
    store: PostgresStore, other: PostgresStore, between: Between, how: str
) -> None:
    await submitted(store)  # so that there is a lane, and no lock is needed
    between(lambda: submitted(other, key="k"))
    answer = await submitted(store, key="k", on_duplicate=how)
    assert answer.outcome == ("duplicate" if how == "reject" else "attached")
    assert (await store.counts()).active[""] == 2


async def test_the_same_submission_arrives_twice(
    store: PostgresStore, other: PostgresStore, between: Between
) -> None:
    """A call whose answer was lost, repeated by another process."""
    await submitted(store)
    run = new_run()
    between(lambda: submit(other, run))
    [answer] = await submit(store, run)
    assert (answer.id, answer.outcome) == (run.id, "created")
    assert (await store.counts()).active[""] == 2
