"""Notifications that never come: work is late by a poll, and not lost (D8)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.failover import (
    POOLS,
    QUICK,
    STEPS_FILE,
    Load,
    query,
    recorded_once,
    result,
    steps,
)

from locktender.base.clock import SECOND
from locktender.testing import Overlap, eventually
from locktender.testing.postgres_server import with_options

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
END_LISTENERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'locktender'"
    # What it said last: to what it listens or does no more, or whether anybody is there.
    " AND (query ~ '^(UN)?LISTEN ' OR query = 'SELECT 1')"
)
LISTENERS = END_LISTENERS.replace("pg_terminate_backend", "")
LISTENER_PIDS = LISTENERS.replace("(pid)", "pid")
END_BOTH_LISTENERS = (
    f"WITH found AS MATERIALIZED ({LISTENER_PIDS}) SELECT pg_terminate_backend(pid) FROM found"
    " WHERE (SELECT count(*) FROM found) >= 2"
)
POLL_MS = 200


@pytest.mark.parametrize("deaf", ["leader", "both"])
def test_d8_all_notifications_are_lost(
    cluster: Cluster, overlap: Overlap, record_property: Any, deaf: str
):
    """Each change waits for a poll, of the leader or of the worker: it comes."""
    client = cluster.client()
    cluster.slack_us = 2 * SECOND
    silent = with_options(cluster.url, listen="off")
    poll = {"poll": f"{POLL_MS}ms"}
    cluster.worker(STEPS_FILE, lead=True, labels={"who": "leads"}, url=silent, **poll).ready()
    cluster.worker(STEPS_FILE, url=cluster.url if deaf == "leader" else silent, **poll).ready()

    for pool, limit in POOLS.items():
        client.pools.set(pool, limit=limit)
    began = time.monotonic()
    run = client.submit(steps.light, [1, 2, 3])
    assert result(run) == 9
    record_property("seconds", time.monotonic() - began)
    with Load(client) as load:
        eventually(lambda: len(load.runs) > 6, "60s")
    load.check(overlap)
    recorded_once(cluster.url)


def test_d8_listeners_are_killed_in_the_middle(cluster: Cluster, overlap: Overlap):
    """They are replaced; what was not heard meanwhile is found by a poll."""
    client = cluster.client()
    cluster.server(**QUICK).ready()
    cluster.worker(STEPS_FILE, **QUICK).ready()
    with Load(client) as load:
        for number in range(3):
            eventually(lambda n=number: len(load.runs) > 5 * (n + 1))
            # One statement: between two, a listener may have left by itself.
            eventually(lambda: len(query(cluster.url, END_BOTH_LISTENERS)) >= 2)
    load.check(overlap)
    eventually(lambda: len(query(cluster.url, LISTENERS)) >= 2)
    recorded_once(cluster.url)


def test_d8_a_new_listener_hears(cluster: Cluster, overlap: Overlap):
    """Nobody polls for longer than the test waits."""
    client = cluster.client()
    cluster.server(poll="10m").ready()
    cluster.worker(STEPS_FILE, poll="10m").ready()
    assert result(client.submit(steps.hold, "", 1)) == 1
    for item in range(2):
        eventually(lambda: len(query(cluster.url, LISTENERS)) >= 2)
        old = set(query(cluster.url, LISTENER_PIDS))
        query(cluster.url, END_LISTENERS)
        eventually(lambda old=old: len(set(query(cluster.url, LISTENER_PIDS)) - old) >= 2)
        assert result(client.submit(steps.hold, "", item)) == item
