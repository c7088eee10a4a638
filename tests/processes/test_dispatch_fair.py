"""Fair turns, age boost and keys over processes: which run is next, and what `why` says of it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.sampled import one_store

from locktender import DuplicateKey, RunState, Submission
from locktender.testing import Overlap, eventually, load_history
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

HERE = Path(__file__).parents[1] / "steps"
FILES = (HERE / "dispatch_steps.py", HERE / "engine_steps.py")
steps: Any = load(source(FILES[0]))
engine: Any = load(source(FILES[1]))
MANY = {"sqlite": 20_000, "postgres": 100_000}
SOME = 5_000
AT_ONCE = 4
MODEST = 3


@pytest.mark.parametrize(
    "many", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_thousands_of_runs_do_not_delay_another_tenant(
    cluster: Cluster, overlap: Overlap, store: str, many: bool
):
    count = MANY[store] if many else SOME
    client = cluster.client()
    client.limits.set_max_active(-1)
    client.limits.set_max_concurrent_runs(AT_ONCE)
    client.limits.set_fair("tenant")
    greedy = [Submission((n, 0.01), tags={"tenant": "greedy"}) for n in range(count)]
    assert len(client.submit_many(steps.steadily, greedy, partial=True)) == count
    nodes = [cluster.server(), cluster.worker(FILES[0])]
    for node in nodes:
        node.ready()
    eventually(lambda: overlap.count("steady") > AT_ONCE)

    # Those of another tenant come while nobody may start: who is next then is the queue's doing alone.
    client.limits.pause()
    eventually(lambda: not client.runs.list(status="running", limit=1))
    later = [
        client.submit(steps.steadily, -n, 0.01, tags={"tenant": "modest"})
        for n in range(1, MODEST + 1)
    ]
    modest = {run.info().number for run in later}
    assert len(client.runs.list(status="queued", limit=100)) == 100
    last = max(event.seq for event in load_history(cluster.url).events)
    client.limits.resume()
    assert [run.result("90s") for run in later] == [-n for n in range(1, MODEST + 1)]
    client.limits.pause()

    started = [
        event.run
        for event in load_history(cluster.url).events
        if event.seq > last and (event.subject, event.after) == ("run", "running")
    ]
    # two tenants take turns: each of its runs is the next, or the one after it
    assert [number in modest for number in started[: 2 * MODEST]].count(True) == MODEST


@one_store("sqlite")
def test_turns_are_shared_by_weight_and_told(cluster: Cluster, overlap: Overlap, tmp_path: Path):
    client = cluster.client()
    client.limits.set_max_concurrent_runs(1)
    client.limits.set_fair("tenant", weights={"a": 2})
    cluster.server().ready()
    cluster.worker(*FILES).ready()
    latch = tmp_path / "latch"
    first = client.submit(engine.hold, str(latch), 99, tags={"tenant": "z"})
    eventually(lambda: overlap.count("held") == 1)
    runs = client.submit_many(
        steps.single,
        [
            Submission((100 * number + n,), tags={"tenant": tenant})
            for number, tenant in enumerate("abc")
            for n in range(6)
        ],
    )

    last = str(runs[-1].why())
    assert "fair turn: 3 values of tenant wait and take turns, 'c' with weight 1" in last
    assert "5 with tenant=c before it" in last
    assert "1 of 1 runs execute; 17 ahead" in last
    # a has two turns to each of b's and c's
    assert "1 of 1 runs execute; 5 ahead" in str(runs[7].why())  # b, 3 of a (older at a tie), c
    latch.touch()

    assert {run.wait("90s") for run in [first, *runs]} == {RunState.SUCCEEDED}
    order = [int(label) // 100 for label in overlap.labels("brief")]
    # two of a for each of the others, as long as all of them wait
    for head in (order[:4], order[4:8], order[8:12]):
        assert sorted(head) == [0, 0, 1, 2]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_age_buys_priority(cluster: Cluster, overlap: Overlap, tmp_path: Path):
    client = cluster.client()
    client.limits.set_max_concurrent_runs(1)
    client.limits.set("age_boost", "1h")
    cluster.server().ready()
    cluster.worker(*FILES).ready()
    latch = tmp_path / "latch"
    first = client.submit(engine.hold, str(latch))
    eventually(lambda: overlap.count("held") == 1)
    # one step of priority is worth an hour of age: these came within it
    runs = [client.submit(steps.single, 1)]
    assert len(client.queue.list()) == 1  # a moment: a read of the store
    runs.append(client.submit(steps.single, 2, priority=1))
    eventually(lambda: [each.position for each in client.queue.list()] == [1, 2])
    assert [each.run.id for each in client.queue.list()] == [runs[1].id, runs[0].id]
    client.limits.set("age_boost", "1ms")  # and now a step is worth nothing
    eventually(lambda: [e.run.id for e in client.queue.list()] == [run.id for run in runs])
    latch.touch()

    assert {run.wait("90s") for run in [first, *runs]} == {RunState.SUCCEEDED}
    assert overlap.labels("brief") == ["1", "2"]


@one_store("postgres")
def test_a_replacement_waits_at_the_key_and_says_so(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    client = cluster.client()
    client.limits.set_max_active(2)
    server = cluster.server().ready()
    cluster.worker(*FILES).ready()
    latch = tmp_path / "latch"
    old = client.submit(engine.hold_in_thread, str(latch), 1, key="k")
    eventually(lambda: overlap.count("held") == 1)
    assert client.submit(engine.hold_in_thread, str(latch), 1, key="k").id == old.id
    with pytest.raises(DuplicateKey, match="another item"):
        client.submit(engine.hold_in_thread, str(latch), 2, key="k")

    server.close()  # nobody leads: the cancel is not carried out yet
    new = client.submit(engine.hold_in_thread, str(latch), 3, key="k", on_duplicate="replace")
    assert f"key 'k': run {old.id}, which goes before it, has not ended" in str(new.why())
    # at the ceiling of two attaching works still, to the one that has the key now
    assert client.submit(engine.hold_in_thread, str(latch), 3, key="k").id == new.id
    assert new.status() == RunState.QUEUED
    cluster.server().ready()

    assert old.wait("90s") == RunState.CANCELLED
    eventually(lambda: overlap.count("held") == 2)
    assert overlap.peak("held") == 1
    latch.touch()
    assert new.result("90s") == 3
    again = client.submit(
        engine.hold_in_thread, str(latch), 3, key="k", on_duplicate="skip_if_finished"
    )
    assert again.id == new.id
    with pytest.raises(Exception, match="succeeded"):
        new.retry()
    assert [key for key, _ in groupby(overlap.labels("held"))] == ["1", "3"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_b2_placement_is_switched_live(cluster: Cluster, overlap: Overlap):
    client = cluster.client()
    cluster.server(offer_ttl="10m").ready()
    workers = [cluster.worker(FILES[0]).ready() for _ in range(3)]

    def where(first: int) -> list[int]:
        for n in range(first, first + 6):
            assert client.submit(steps.single, n).result("90s") == n
        return [span.pid for span in overlap.spans("brief") if int(span.label) >= first]

    assert set(where(0)) == {worker.pid for worker in workers}  # spread: light load too
    client.limits.set("placement", "pack")
    assert set(where(10)) == {workers[0].pid}
    client.limits.reset("placement")
    assert workers[0].pid not in where(20)  # the others have had less
