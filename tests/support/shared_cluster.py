"""A server and three workers that stand for a whole module, once on each store; its history is judged at the end.

Starting four processes takes longer than most tests. Each test finds the records
of the bodies empty and the limits at their defaults, and leaves nothing active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.cluster import Cluster
from tests.support.fleet import Fleet, start

from locktender.testing import eventually
from locktender.testing.overlap import VARIABLE, Overlap
from locktender.testing.postgres_server import copy_of

STORES = ("sqlite", "postgres")


@pytest.fixture(scope="module", params=STORES)
def fleet_of_three(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    overlap = Overlap(folder / "overlap.jsonl")
    with ExitStack() as opened:
        url = str(folder / "locktender.db")
        if request.param == "postgres":
            server: str = request.getfixturevalue("postgres_server")
            url = opened.enter_context(
                copy_of(server, request.getfixturevalue("postgres_template"))
            )
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        patch.setenv(VARIABLE, str(overlap.path))
        cluster = Cluster(url, folder, overlap, grace="5s")
        opened.callback(cluster.end)
        # Offers are answered late on a busy machine, not refused.
        workers = start(cluster, 3, process_permits=2, server={"offer_ttl": "10m"})
        yield Fleet(cluster, cluster.client(), overlap, workers)
        cluster.close()


@pytest.fixture
def standing(fleet_of_three: Fleet) -> Iterator[Fleet]:
    fleet_of_three.overlap.path.write_bytes(b"")
    yield fleet_of_three
    client = fleet_of_three.client
    assert [node.returncode for node in fleet_of_three.workers] == [None] * 3
    left = client.runs.list(status=["queued", "running", "cancelling"])
    for run in left:  # of a test that failed: the next one is not to fail for it
        client.runs.cancel(run.id)
    eventually(fleet_of_three.idle)
    used = [pool.name for pool in client.pools.list() if pool.used]
    for pool in client.pools.list():
        client.pools.delete(pool.name)
    for limit in client.limits.list():
        if limit.live is not None and limit.kind != "pool":
            client.limits.reset(limit.name)
    assert (left, used) == ([], [])


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Keeps a figure with the test: `--junitxml` shows it."""
    return lambda name, value: request.node.user_properties.append((name, value))
