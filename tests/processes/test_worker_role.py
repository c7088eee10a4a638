"""Workers under a database role that may do a worker's work and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.cli_harness import CommandResult, locktender
from tests.support.cluster import Cluster
from tests.support.fleet import FILES, TIMEOUT, ended, fleet
from tests.support.leases import KEPT, lapse
from tests.support.roles import as_role, made_role

from locktender.store.postgres import PostgresPlace
from locktender.testing import Overlap, eventually
from locktender.testing.postgres_server import connected, run

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
STEPS = Path(__file__).parents[1] / "steps" / "role_steps.py"


@pytest.fixture
def store() -> str:
    return "postgres"


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A role that has no right yet."""
    making = made_role(postgres_url)
    with asyncio.Runner() as loop:
        yield loop.run(making.__aenter__())
        loop.run(making.__aexit__(None, None, None))


@pytest.fixture
def role_url(postgres_url: str, role: str) -> str:
    """The url of a worker's role."""
    run(PostgresPlace(postgres_url).grant("worker", role, revokes=False))
    return as_role(postgres_url, role)


async def users(url: str) -> set[str]:
    """The roles of the connections of locktender."""
    async with connected(url) as raw:
        rows = await raw.fetch(
            "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name = 'locktender'"
            " AND datname = current_database()"
        )
    return {row[0] for row in rows}


def test_a_bounded_load_runs_whole_under_the_role(
    role_url: str, role: str, cluster: Cluster, tmp_path: Path, overlap: Overlap
):
    cluster.server(**KEPT).ready()
    workers = [
        cluster.worker(*FILES, STEPS, url=role_url, metrics=True, **KEPT).ready() for _ in range(2)
    ]
    client = cluster.client()
    client.pools.set("left", limit=2)
    client.pools.set("right", limit=2)
    runs = [client.submit(fleet.mixed, 6) for _ in range(4)]
    assert ended(runs) == {"succeeded"}
    for name in ("left", "right"):
        assert overlap.peak(name) == 2

    # By name: traced by a worker, in every executor, with a log, a retry and a value stored as a blob.
    whole = client.submit("of every kind", {"size": 400_000})
    assert whole.result(TIMEOUT) == [400_000] * 3
    assert [line.message for line in whole.logs()] == ["said in a body"] * 2
    assert run(users(cluster.url)) == {"postgres", role}
    # What a service manager asks for.
    metrics = workers[0].said["metrics"]
    with urlopen(f"{metrics}/health", timeout=60) as answer:
        health = json.loads(answer.read())
    assert (health["status"], health["store"]) == ("ok", "ok"), health
    with urlopen(f"{metrics}/metrics", timeout=60) as answer:
        assert b"locktender_worker_claim_size" in answer.read()
    # What code declares.
    eventually(lambda: [each.name for each in client.schedules.list()] == ["declared at night"])

    # One that dies is declared lost, and its work goes on; the other leaves in good order.
    latch = tmp_path / "latch"
    held = client.submit(fleet.holding, str(latch))
    eventually(lambda: overlap.count("held") == 1)
    [pid] = [span.pid for span in overlap.spans("held")]
    victim, other = sorted(workers, key=lambda node: node.pid != pid)
    victim.kill()
    lapse(cluster.url, victim)
    latch.touch()
    assert held.result(TIMEOUT) == 0
    assert other.close() == 0
    for node in workers:
        assert "permission denied" not in node.log


def test_limits_in_its_settings_are_left_to_the_server(role_url: str, cluster: Cluster):
    cluster.server(**KEPT).ready()
    worker = cluster.worker(*FILES, url=role_url, max_concurrent_runs=3, **KEPT).ready()
    client = cluster.client()
    assert client.submit(fleet.ticks, [1, 2]).result(TIMEOUT) == 2
    assert "max_concurrent_runs" not in [each.name for each in client.limits.history()]
    assert "are not declared" in worker.log


def test_the_commands_grant_print_and_say_what_is_wrong(
    postgres_url: str, role: str, tmp_path: Path
):
    def db(*words: str, url: str = postgres_url) -> CommandResult:
        return locktender("db", *words, "--url", url, cwd=tmp_path)

    shown = db("grant-submit", role, "--print")
    assert shown.code == 0, shown.err
    function = '"locktender".submit_run(text, bytea, boolean)'
    assert f'GRANT EXECUTE ON FUNCTION {function} TO "{role}";' in shown.out
    given = db("grant-worker", role)
    assert given.code == 0, given.err
    assert "may now do a worker's work" in given.out.replace("\n", " ")
    again = db("grant-worker", role, "--json")
    assert again.data == {"role": role, "purpose": "worker", "granted": True}
    refused = db("grant-submit", role, url=as_role(postgres_url, role))
    assert refused.code == 2
    assert "Nothing was changed" in refused.err.replace("\n", " ")
    assert db("grant-worker", role, "--revoke", "--json").data["granted"] is False
    nobody = db("grant-worker", "nobody_here")
    assert nobody.code == 2
    assert "has no role 'nobody_here'" in nobody.err
    file = db("grant-worker", "me", url=str(tmp_path / "x.db"))
    assert file.code == 2
    assert "it has no roles" in file.err.replace("\n", " ")
    assert not (tmp_path / "x.db").exists()
