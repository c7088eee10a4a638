"""Notifications that never come: work is late by a poll, never lost (D8)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.processes.scenes import QUICK, STEPS_FILE, Load, query, recorded_once, result, steps

from locktender.base.clock import SECOND
from locktender.testing import Overlap, eventually
from locktender.testing.cluster import Cluster
from locktender.testing.postgres_server import with_options

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
END_LISTENERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
)
LISTENERS = END_LISTENERS.replace("pg_terminate_backend", "")
POLL_SECONDS = 1.0


@pytest.mark.parametrize("deaf", ["leader", "both"])
def test_d8_nobody_hears_anything(
    cluster: Cluster, overlap: Overlap, record_property: Any, deaf: str
):
    """Each change waits for a poll, of the leader or of the worker, and for nothing else."""
    client = cluster.client()
    cluster.slack_us = 2 * SECOND
    silent = with_options(cluster.url, listen="off")
    cluster.worker(STEPS_FILE, lead=True, labels={"who": "leads"}, url=silent).ready()
    cluster.worker(STEPS_FILE, url=cluster.url if deaf == "leader" else silent).ready()

    began = time.monotonic()
    run = client.submit(steps.light, [1, 2, 3])
    assert result(run) == 9
    record_property("seconds", time.monotonic() - began)
    # Submitted, and three steps behind each other that may go to the other process and back.
    assert time.monotonic() - began < (1 + 3 * 2) * POLL_SECONDS + 2
    with Load(client) as load:
        eventually(lambda: len(load.runs) > 6, "60s")
    load.check(overlap)
    recorded_once(cluster.url)


def test_d8_listeners_are_killed_in_the_middle(cluster: Cluster, overlap: Overlap):
    """They are replaced, and hear again."""
    client = cluster.client()
    cluster.server(**QUICK).ready()
    cluster.worker(STEPS_FILE, **QUICK).ready()
    ended = 0
    with Load(client) as load:
        for number in range(4):
            eventually(lambda n=number: len(load.runs) > 5 * (n + 1), "60s")
            eventually(lambda: len(query(cluster.url, LISTENERS)) >= 2, "60s")
            ended += len(query(cluster.url, END_LISTENERS))
    load.check(overlap)
    assert ended >= 8
    eventually(lambda: len(query(cluster.url, LISTENERS)) >= 2)
    recorded_once(cluster.url)
    fastest = min(_seconds(client) for _ in range(5))
    assert fastest < POLL_SECONDS / 2


def _seconds(client: Any) -> float:
    began = time.monotonic()
    assert result(client.submit(steps.hold, "", 1)) == 1
    return time.monotonic() - began
