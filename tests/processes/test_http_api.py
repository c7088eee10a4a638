"""The HTTP API of real servers with a worker on PostgreSQL: killed in the middle, and asked again by key."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.http_proxy import proxied
from tests.support.leases import KEPT, lapse
from tests.support.server_harness import fetch

from locktender import Client, connect
from locktender.testing import Overlap, eventually

pytestmark = pytest.mark.timeout(300)
pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
STEPS = Path(__file__).parent.parent / "steps" / "named_steps.py"
BILL = {"flow": "shop bill", "args": {"orders": [{"item": "pen", "count": 2}]}}
PATIENCE = 90.0


@pytest.fixture
def cluster(postgres_url: str, tmp_path: Path, overlap: Overlap) -> Iterator[Cluster]:
    """Its history is judged at the end."""
    made = Cluster(postgres_url, tmp_path, overlap, grace="5s", **KEPT)
    try:
        yield made
    except BaseException:
        made.end()
        raise
    made.close()


class Answered(NamedTuple):
    status: int
    data: Any


def ask(node: ClusterNode, path: str, body: object = None, **headers: str) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", int(node.said["port"]), timeout=PATIENCE)
    try:
        raw = None if body is None else json.dumps(body)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = {} if body is None else {"content-type": "application/json"}
        method = "GET" if body is None else "POST"
        connection.request(method, f"/api/v1{path}", raw, {**kind, **given})
        got = connection.getresponse()
        return Answered(got.status, json.loads(got.read()))
    finally:
        connection.close()


def result_of(node: ClusterNode, run: str) -> Any:
    found: list[Answered] = []

    def ended() -> bool:
        found.append(ask(node, f"/runs/{run}/result?wait=20"))
        return found[-1].status != 202

    eventually(ended, timeout=PATIENCE)
    return found[-1].data


def test_a_flow_whose_code_is_elsewhere_is_submitted_by_name(cluster: Cluster):
    server = cluster.server().ready()
    # given nobody has announced the flow, it is not there
    missing = ask(server, "/runs", BILL)
    assert (missing.status, missing.data["code"]) == (404, "not_found")
    cluster.worker(STEPS).ready()
    eventually(lambda: ask(server, "/flows/shop%20bill").status == 200, timeout=PATIENCE)
    # then its schema is known, and arguments are checked by it before anything is stored
    flow = ask(server, "/flows/shop%20bill").data
    assert set(flow["parameters"]["properties"]) == {"orders", "extra", "mode"}
    wrong = ask(server, "/runs", {**BILL, "args": {"orders": [{"item": 3}]}})
    assert (wrong.status, wrong.data["field"]) == (422, "orders.0.item")
    several = {"flow": "shop bill", "runs": [BILL["args"], {"orders": [{"item": 3}]}]}
    several["runs"] = [{"args": each} for each in several["runs"]]
    wrong = ask(server, "/runs/batch", several)
    assert (wrong.status, wrong.data["field"]) == (422, "runs[1].orders.0.item")
    # when it is submitted, the worker traces and runs it
    accepted = ask(server, "/runs", BILL)
    assert accepted.status == 202
    run = accepted.data["id"]
    told = result_of(server, run)
    assert told.pop("returned_by")["flow"] == "shop bill"
    assert told == {"run": run, "state": "succeeded", "result": 16}
    info = ask(server, f"/runs/{run}").data
    assert (info["tags"], info["priority"]) == ({"team": "shop"}, 4)
    nodes = ask(server, f"/runs/{run}/graph").data["nodes"]
    assert [(node["name"], node["after"]) for node in nodes[-2:]] == [
        ("price", []),
        ("total", ["price"]),
    ]


def test_i1_a_killed_server_submits_nothing_twice_by_key(cluster: Cluster):
    """Twelve clients, two servers in turns; each server is killed while they submit."""
    cluster.worker(STEPS).ready()
    servers = [cluster.server().ready() for _ in range(2)]
    eventually(lambda: ask(servers[0], "/flows/shop%20bill").status == 200, timeout=PATIENCE)
    killed, clients, each = 2, 12, 5
    turns = count()
    answered: list[str] = []
    lost: list[str] = []

    async def submit(key: str) -> str:
        while True:
            port = int(servers[next(turns) % 2].said["port"])
            try:
                answer = await fetch(port, "/api/v1/runs", "POST", BILL, {"idempotency-key": key})
            except (OSError, http.client.HTTPException):
                lost.append(key)
                await asyncio.sleep(0.01)  # nobody listens there until the next server is up
                continue
            if answer.status == 202:
                answered.append(key)
                return answer.data["id"]
            assert answer.status == 503, answer
            await asyncio.sleep(0.01)

    async def client(number: int) -> list[str]:
        return [await submit(f"{number}-{index}") for index in range(each)]

    async def world() -> list[list[str]]:
        doing = [asyncio.create_task(client(number)) for number in range(clients)]
        for round_ in range(killed):
            # in the middle: some have their answer, others are being answered
            while len(answered) < 10 + 20 * round_:  # noqa: ASYNC110 — of servers elsewhere
                await asyncio.sleep(0.001)
            victim = servers[round_ % 2]
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(lapse, cluster.url, victim)
            servers[round_ % 2] = await asyncio.to_thread(cluster.server().ready)
        return await asyncio.gather(*doing)

    runs = {run for several in asyncio.run(world()) for run in several}
    assert lost
    assert len(runs) == clients * each
    with connect(cluster.url) as store:
        assert {run.id for run in store.runs.list(limit=1_000)} == runs
        for run in runs:
            assert store.runs.get(run).result(f"{PATIENCE}s") == 16
    # a repetition after the end is the same run too
    again = ask(servers[0], "/runs", BILL, idempotency_key="0-0")
    assert (again.data["submitted"], again.data["id"] in runs) == ("repeated", True)


@pytest.mark.long
def test_a_client_of_two_killed_servers_submits_once(cluster: Cluster):
    """Six threads of one Python client, by a proxy that takes turns; each server is killed while they submit."""
    cluster.worker(STEPS).ready()
    servers = [cluster.server().ready() for _ in range(2)]
    eventually(lambda: ask(servers[0], "/flows/shop%20bill").status == 200, timeout=PATIENCE)
    threads, each = 6, 8
    made: list[str] = []
    failed: list[BaseException] = []

    def submit(client: Client) -> None:
        try:
            for _ in range(each):
                run = client.submit("shop bill", BILL["args"])
                made.append(run.id)
        except BaseException as error:
            failed.append(error)
            raise

    with (
        proxied(*(int(server.said["port"]) for server in servers)) as proxy,
        connect(proxy.url) as client,
    ):
        doing = [threading.Thread(target=submit, args=(client,)) for _ in range(threads)]
        for thread in doing:
            thread.start()
        for round_ in range(2):
            eventually(
                lambda round_=round_: failed or len(made) >= 8 + 16 * round_, timeout=PATIENCE
            )
            victim = servers[round_]
            victim.kill()
            lapse(cluster.url, victim)
            servers[round_] = cluster.server().ready()
            proxy.ports = [int(server.said["port"]) for server in servers]
        for thread in doing:
            thread.join()
        assert not failed
        assert len(set(made)) == threads * each
        assert {info.id for info in client.runs.list(limit=1_000)} == set(made)
        for run in made:
            assert client.runs.get(run).result(f"{PATIENCE}s") == 16
