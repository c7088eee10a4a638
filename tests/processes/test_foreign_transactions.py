"""F7: transactions of other programs, and a server that is replaced by an older copy: work goes on."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.support.cluster import Cluster
from tests.support.database import Database, own_database
from tests.support.failover import QUICK, STEPS_FILE, patiently, query, result, steps

from locktender.client.bridge import Bridge
from locktender.testing import Overlap, eventually
from locktender.testing.postgres_server import copy_of

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
TIMEOUT = "90s"
MANY_TRANSACTIONS = (
    "DO 'BEGIN FOR n IN 1..2000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END'"
)


@contextmanager
def transaction(url: str, *statements: str) -> Generator[int]:
    """A session of another program inside of a transaction; its number."""
    bridge = Bridge()
    conn: asyncpg.Connection[Any] = bridge.call(asyncpg.connect(url))
    try:
        for statement in ("SET application_name = 'their report'", "BEGIN", *statements):
            bridge.call(conn.execute(statement))
        yield conn.get_server_pid()
    finally:
        conn.terminate()
        bridge.stop()


def get(port: object, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_an_open_transaction_of_another_program_delays_no_run(
    cluster: Cluster, overlap: Overlap, postgres_server: str, postgres_template: str
):
    client = cluster.client()
    client.pools.set("db", limit=3)
    client.pools.set("api", limit=4)
    server = cluster.server().ready()
    cluster.worker(STEPS_FILE).ready()
    with (
        copy_of(postgres_server, postgres_template) as elsewhere,
        transaction(elsewhere, "CREATE TABLE public.theirs (n integer)") as pid,
    ):
        runs = [client.submit(steps.light, list(range(6))) for _ in range(3)]
        assert {result(run) for run in runs} == {sum(range(1, 7))}
        assert [event.after for event in runs[0].events()][-1] == "succeeded"
        # What does wait for it is named, with its number.
        port = server.said["port"]
        eventually(lambda: f'holds="history",pid="{pid}"' in get(port, "/metrics"), TIMEOUT)
        health = msgspec.json.decode(get(port, "/health"))
        assert health["status"] == "ok"
        assert health["history_lag_seconds"] > 0
        named = [each for each in health["held_up_by"] if each["holds"] == "history"]
        assert [(each["pid"], each["application"]) for each in named] == [(pid, "their report")]
    assert overlap.peak("db") <= 3
    assert overlap.peak("api") <= 4


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_a_lock_of_another_program_is_named(cluster: Cluster, store_url: str):
    client = cluster.client()
    server = cluster.server().ready()
    cluster.worker(STEPS_FILE).ready()
    assert result(client.submit(steps.light, [1])) == 2
    with transaction(store_url, "SELECT FROM locktender.leader FOR UPDATE") as pid:
        run = client.submit(steps.light, [2])
        eventually(lambda: f"Session {pid} (their report" in run.why().text(), TIMEOUT)
        said = f"Session {pid} (their report"
        eventually(lambda: said in get(server.said["port"], "/health"), TIMEOUT)
    assert result(run) == 3


def copied(source: Path, target: Path) -> None:
    """With their owner: the server may run as another user than the test."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


@pytest.fixture
def database() -> Iterator[Database]:
    with own_database() as database:
        yield database


def test_a_lagging_copy_takes_over(database: Database, overlap: Overlap, tmp_path: Path):
    """The leader has written nothing since the copy was made, but it has read what the copy does not have."""
    cluster = Cluster(database.url, tmp_path, overlap, grace="5s", **QUICK)
    data, copy = database.folder, tmp_path / "copy"
    try:
        client = cluster.client()
        cluster.server().ready()
        cluster.worker(STEPS_FILE).ready()
        assert result(client.submit(steps.light, [1])) == 2
        terms = "SELECT max(term) FROM locktender.event"
        database.kill()
        copied(data, copy)
        database.start()
        # Numbers of events go up a long way, and the leader reads one of those.
        query(cluster.url, MANY_TRANSACTIONS)
        cluster.worker(STEPS_FILE).ready()
        eventually(lambda: len(patiently(client.workers.list)) == 2, TIMEOUT)
        before = query(cluster.url, terms)[0][0]
        database.kill()
        shutil.rmtree(data)
        copied(copy, data)
        database.start()

        runs = [patiently(lambda n=n: client.submit(steps.light, [n])) for n in range(3)]

        assert [result(run) for run in runs] == [1, 2, 3]
        # Terms, and with them tokens, go on behind those that the copy does not know of.
        assert query(cluster.url, terms)[0][0] > before
    except BaseException:
        cluster.end()
        raise
    cluster.close()
