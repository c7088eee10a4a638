"""The store's clock is set by half a minute while a leader dies: nobody who lives is declared lost (F6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.failover import STEPS_FILE, led, result, steps

from locktender.testing import Overlap, eventually, load_history
from locktender.testing.postgres_server import execute, run

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
PROGRAM = str(Path(__file__).parents[1] / "support" / "clock_set.py")
LEASE: dict[str, Any] = {"worker_lease": "6s", "heartbeat": "300ms"}
"""Many heartbeats long, so that a busy machine loses none of it; far shorter than what the clock is set by."""
SET = """CREATE OR REPLACE FUNCTION locktender.locktender_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {seconds} * 1000000::bigint
$$"""


@pytest.mark.parametrize("seconds", [30, -30])
def test_f6_a_clock_that_is_set_while_the_leader_changes(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, seconds: int
):
    file, latch = tmp_path / "clock", tmp_path / "latch"
    file.write_text("0")
    program = (PROGRAM, str(file))
    client = cluster.client()
    client.pools.set("narrow", limit=1)
    servers = [cluster.server(program=program).ready() for _ in range(2)]
    for _ in range(2):
        cluster.worker(STEPS_FILE, program=program, **LEASE).ready()
    held = [client.submit(steps.locking, str(latch), 1) for _ in range(3)]
    eventually(lambda: "narrow" in overlap.names() and overlap.count("narrow") == 1)
    holder = overlap.spans("narrow")[0].pid

    if "://" in cluster.url:
        run(execute(cluster.url, SET.format(seconds=seconds)))
    file.write_text(str(seconds))
    leader = next(node for node in servers if f"-{node.pid}-" in led(cluster.url)[-1])
    leader.kill()
    eventually(lambda: len(led(cluster.url)) > 1)

    # Longer than a lease by anybody's clock.
    for _ in range(22):
        ends = {each.id: each.lease_until for each in client.workers.list() if each.pid == holder}
        eventually(
            lambda before=ends: all(
                client.workers.get(name).lease_until != until for name, until in before.items()
            )
        )
    assert overlap.count("narrow") == 1
    latch.touch()
    assert [result(each) for each in held] == [result(held[0])] * 3
    assert overlap.peak("narrow") == 1
    lost = [str(event.data) for event in load_history(cluster.url).events if event.after == "lost"]
    assert all(f"-{leader.pid}-" in each for each in lost)
    assert all(task.attempt == 1 for each in held for task in each.tasks())
