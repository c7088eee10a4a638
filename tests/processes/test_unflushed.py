"""The database dies with what the leader wrote and nobody has flushed: it is decided again, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.database import Database, own_database
from tests.support.failover import STEPS_FILE, patiently, query, recorded_once, steps

from locktender.store.postgres import PostgresStore
from locktender.testing import Overlap, eventually
from locktender.testing.conformance.world import SceneLeader, submitted

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
LOST = "the store has lost cycle"


@pytest.fixture
def database() -> Iterator[Database]:
    """One that leaves it to those who commit to flush what they wrote."""
    with own_database() as database:
        database.stop_flushing()
        yield database


@pytest.mark.parametrize("ended", [False, True], ids=["it prepares", "it ends a run"])
async def test_what_only_prepares_is_not_flushed_and_what_ends_is(ended: bool, database: Database):
    store = PostgresStore(database.url)
    await store.open()
    leader = await SceneLeader.stand(store)
    run = (await submitted(store)).seq
    await leader.start(run)
    if ended:
        await leader.end(run)
    database.kill()
    database.start()
    await store.close()

    [[state]] = await asyncio.to_thread(query, database.url, "SELECT state FROM locktender.run")
    assert state == ("succeeded" if ended else "queued")


def test_a_run_that_was_started_and_not_flushed_is_started_again(
    database: Database, overlap: Overlap, tmp_path: Path
):
    # given a leader whose renewals flush nothing meanwhile, and a run for which there is no worker yet
    cluster = Cluster(database.url, tmp_path, overlap, leader_lease="300s", leader_renew="100s")
    try:
        client = cluster.client()
        cluster.server().ready()
        run = client.submit(steps.many, [1, 2, 3], 0.0)
        eventually(lambda: str(run.status()) == "running")
        # when the database dies, and as a rule forgets that it was started (a flush may have come between)
        database.kill()
        database.start()
        # then it is started again, or goes on
        cluster.worker(STEPS_FILE).ready()
        assert patiently(lambda: client.runs.get(run.id).result("90s")) == [2, 4, 6]
        recorded_once(cluster.url)
    except BaseException:
        cluster.end()
        raise
    cluster.close()


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "settings",
    [{"leader_renew": "100ms"}, {"leader_lease": "300s", "leader_renew": "100s"}],
    ids=["by its renewal", "by its commit"],
)
def test_a_leader_whose_last_cycle_is_lost_reads_all_again(
    settings: dict[str, Any], cluster: Cluster
):
    client = cluster.client()
    server = cluster.server(**settings).ready()
    run = client.submit(steps.many, [1, 2, 3], 0.0)
    eventually(lambda: str(run.status()) == "running")
    # as if the server had died in between, and come back before anybody noticed
    query(cluster.url, "UPDATE locktender.leader SET cycle = cycle - 1")
    if settings["leader_renew"] == "100ms":
        eventually(lambda: LOST in server.log)  # it has nothing to commit
    cluster.worker(STEPS_FILE).ready()
    assert run.result("90s") == [2, 4, 6]
    eventually(lambda: LOST in server.log)
