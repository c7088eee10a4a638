"""G3 over processes: leaders are killed while a schedule ticks, and every tick is one run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse

from locktender.testing import eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

FILE = Path(__file__).parents[1] / "steps" / "named_steps.py"


def test_g3_one_run_per_tick_over_kills_of_the_leader(cluster: Cluster):
    cluster.worker(FILE, **KEPT).ready()
    client = cluster.client()
    server = cluster.server(**KEPT).ready()
    given = {"orders": [{"item": "a"}]}
    eventually(lambda: any(w.flows for w in client.workers.list()), timeout=60)
    client.schedules.set("often", "shop bill", given, every="1s", overlap="allow", catch_up="all")
    for kills in range(1, 4):
        eventually(lambda: len(client.schedules.get("often").last) >= 2 * kills, timeout=120)  # noqa: B023
        server.kill()
        lapse(cluster.url, server)
        server = cluster.server(**KEPT).ready()
    eventually(lambda: len(client.schedules.get("often").last) >= 8, timeout=120)
    client.schedules.pause("often")
    last = client.schedules.get("often").last
    ticks = [tick.tick for tick in last]
    # no tick is left out and none is there twice; each is a run of its own
    assert len({tick.run for tick in last}) == len(last)
    assert {tick.outcome for tick in last} == {"ran"}
    steps = {(one - other).total_seconds() for one, other in pairwise(ticks)}
    assert steps == {1.0}
    runs = client.runs.list(tags={"schedule": "often"}, limit=1_000)
    assert {tick.run for tick in last} <= {run.id for run in runs}
    keys = [run.key for run in runs]
    assert len(set(keys)) == len(keys)
    for run in runs:
        assert client.runs.get(run.id).result("90s") == 13
