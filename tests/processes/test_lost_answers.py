"""A commit whose answer is lost, of the leader and of a worker: repeated, never lost, never twice (C2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cluster import Cluster
from tests.support.failover import QUICK, STEPS_FILE, Load, recorded_once, steps, works
from tests.support.postgres_proxy import Proxy
from tests.support.proxied import proxied

from locktender import connect
from locktender.testing import Overlap, eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
CUT_SECONDS = 120.0
"""The longest that a number of cuts may take."""
ACCEPT = b"attempt = t.attempt + 1"
FINISH = b"error = v.error, held = NULL"
COMMIT = b"AND cycle < $"
SUBMIT = b"dispatch_deadline_us, params, consts, trace\n"
"""What the statements of these verbs, and of no others, have in their text."""


def cut(proxy: Proxy, times: int, overlap: Overlap) -> None:
    """Cuts the connection at one answer after another, and lets some work be done in between."""
    for number in range(times):
        done = len(overlap.lines())
        eventually(lambda n=done: len(overlap.lines()) > n + 2, CUT_SECONDS, "some work")
        proxy.armed = True
        eventually(lambda n=number: proxy.cut > n, CUT_SECONDS, "an answer to cut off")


@pytest.mark.parametrize(
    ("whose", "what"),
    [("worker", ACCEPT), ("worker", FINISH), ("leader", COMMIT)],
    ids=["accept", "finish", "commit"],
)
def test_c2_the_answer_of_a_verb_is_lost(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, whose: str, what: bytes
):
    """It was written each time; whoever wrote it does not know."""
    client = cluster.client()
    with proxied(cluster.url, tmp_path / "proxy") as proxy:
        proxy.only = what
        ways = {"leader": cluster.url, "worker": cluster.url, whose: proxy.url}
        cluster.worker(STEPS_FILE, lead=True, url=ways["leader"], total_permits=1, **QUICK).ready()
        cluster.worker(STEPS_FILE, url=ways["worker"], **QUICK).ready()
        with Load(client) as load:
            cut(proxy, 5, overlap)
            eventually(lambda: len(load.runs) >= 6, "60s")
        load.check(overlap)
        works(client)
    recorded_once(cluster.url)


def test_c2_answers_of_a_leader_that_works_too_are_lost(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """Whichever comes first: of commits, beats, reads, elections, and of what its listener hears."""
    client = cluster.client()
    with proxied(cluster.url, tmp_path / "proxy") as proxy:
        cluster.worker(STEPS_FILE, lead=True, url=proxy.url, **QUICK).ready()
        with Load(client) as load:
            cut(proxy, 12, overlap)
            eventually(lambda: len(load.runs) >= 6, "60s")
        load.check(overlap)
        works(client)
    recorded_once(cluster.url)


def test_c2_the_answer_of_a_submission_is_lost(cluster: Cluster, tmp_path: Path):
    """Whoever submits hears nothing of it, and there are as many runs as were meant."""
    with proxied(cluster.url, tmp_path / "proxy") as proxy, connect(proxy.url) as client:
        proxy.only = SUBMIT
        meant = [client.submit(steps.many, [0], 0.001)]
        for number in range(1, 6):
            proxy.armed = True
            meant.append(client.submit(steps.many, [number], 0.001))
            meant += client.submit_many(steps.many, [([number], 0.001)] * 3)
        proxy.armed = False
        assert proxy.cut >= 5
        assert sorted(each.id for each in meant) == sorted(
            row.id for row in client.runs.list(limit=1_000)
        )
    cluster.worker(STEPS_FILE, lead=True).ready()
    again = cluster.client()
    assert sum(again.runs.get(each.id).result("90s")[0] for each in meant) == 2 * 4 * sum(range(6))
    recorded_once(cluster.url)
