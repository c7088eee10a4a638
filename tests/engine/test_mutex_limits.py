"""`counts_while_waiting`: a run that sleeps or waits keeps its place at that limit of a tag (G5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from locktender import Client, InvalidInput, RunState, embedded, flow, step, wait_event
from locktender.testing import Overlap, check_history, eventually, recording

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
TIMEOUT = "60s"
ACCOUNT = {"account": "x"}


@step
async def moved(n: Any) -> Any:
    with recording("moved", label=str(n)):
        return n


@flow
def transfer(n: int) -> Any:
    return moved(wait_event("go", after=moved.with_options(name="first")(n)))


@flow
def quick(n: int) -> int:
    return moved(n)


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    with embedded(store_url, grace="2s") as client:
        client.limits.set_tag("account", limit=1, per_value=True, counts_while_waiting=True)
        yield client
    check_history(store_url)


def waits(run: Any) -> None:
    eventually(lambda: run.status() is RunState.WAITING, timeout=TIMEOUT)


def test_g5_a_waiting_run_keeps_its_mutex_and_why_names_it(client: Client, overlap: Overlap):
    client.limits.set_max_concurrent_runs(1)
    first = client.submit(transfer, 1, tags=ACCOUNT)
    waits(first)
    second = client.submit(quick, 2, tags=ACCOUNT, priority=9)
    # The place at the run gate is free for others.
    assert client.submit(quick, 3, tags={"account": "y"}).result(TIMEOUT) == 3
    assert second.status() is RunState.QUEUED
    why = second.why()
    assert f"To start it needs tag account=x 1 → 2, or run {first.id} to end." in str(why)
    [reason] = why.reasons
    assert reason.gate == "tag:account=*x"
    assert f"wait and keep their place ({first.id})" in reason.text
    assert [each.run for each in reason.holders] == [first.id]
    first.send("go", 4)
    assert first.result(TIMEOUT) == 4
    assert second.result(TIMEOUT) == 2
    assert [span.label for span in overlap.spans("moved")] == ["1", "3", "4", "2"]


def test_g5_the_mutex_is_kept_over_a_restart(store_url: str, overlap: Overlap):
    with embedded(store_url, grace="2s") as client:
        client.limits.set_tag("account", limit=1, per_value=True, counts_while_waiting=True)
        run = client.submit(transfer, 1, tags=ACCOUNT)
        waits(run)
    with embedded(store_url, grace="2s") as client:
        rival = client.submit(quick, 2, tags=ACCOUNT)
        assert client.submit(quick, 3).result(TIMEOUT) == 3
        assert rival.status() is RunState.QUEUED
        first = client.runs.get(run.id)
        first.cancel()  # ended while it waits, it gives it back
        assert rival.result(TIMEOUT) == 2
    check_history(store_url)


def test_a_limit_that_counts_no_more_lets_others_start(client: Client):
    first = client.submit(transfer, 1, tags=ACCOUNT)
    waits(first)
    second = client.submit(quick, 2, tags=ACCOUNT)
    [limit] = [each for each in client.limits.list() if each.name == "account=*"]
    assert limit.value == "1 at once, counts while waiting (each value)"
    client.limits.set_tag("account", per_value=True, counts_while_waiting=False)
    assert second.result(TIMEOUT) == 2
    [limit] = [each for each in client.limits.list() if each.name == "account=*"]
    assert limit.value == "1 at once (each value)"
    first.send("go", 3)
    assert first.result(TIMEOUT) == 3


def test_counts_while_waiting_is_true_or_false(client: Client):
    with pytest.raises(InvalidInput) as error:
        client.limits.set_tag("account", limit=1, counts_while_waiting="yes")  # type: ignore[arg-type]
    assert error.value.field == "tag.counts_while_waiting"
