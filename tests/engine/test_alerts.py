"""H6, C6: each alert fires when its fault is injected, and not otherwise.

The faults are real: a worker that does not answer, a transaction that stays open, a lead that is lost. The scrapes
are answers of `/metrics`. The rules of `deploy/prometheus/alerts.yml` judge them here, and in `promtool` where
it is installed (Debian's package `prometheus` has it).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml
from tests.support.fault_injector import Injector
from tests.support.promql import Scrapes, names_in, samples
from tests.support.server_harness import PATIENCE, fetch, process, served, until

from locktender import AdmissionRejected, connect_async, flow, step
from locktender.base.model import WorkerRow
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.engine import Engine
from locktender.kernel.dag import RunGraph
from locktender.kernel.node_state import NOTHING, Advance
from locktender.leader.continuous_audit import ContinuousAudit
from locktender.server import app
from locktender.store.protocol import Elect, Gathered, Heartbeat

pytest_plugins = ["locktender.testing.postgres"]
DEPLOY = Path(__file__).parents[2] / "deploy"
RULE_FILE = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
HOUR_US = 3_600_000_000
OF_A_BUSY_MACHINE = {"LocktenderSlowStateChanges"}
"""One commit of few that took more than a second is enough: only its own test asks for it."""
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULE_FILE.read_text())["groups"]
    for rule in group["rules"]
}


@step
async def add(x: int) -> int:
    return x + 1


@flow
def chain(x: int):
    return add(add(x))


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture(autouse=True)
def answers_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("METRICS_SECONDS", "SESSIONS_SECONDS", "OPEN_RUNS_SECONDS"):
        monkeypatch.setattr(app, name, 0.05)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "locktender.db")


class Site:
    """A server, and what Prometheus would know of it."""

    def __init__(self, core: Core, engine: Engine, port: int) -> None:
        self.core = core
        self.engine = engine
        self._port = port
        self._first = self._last = ""

    async def scrape(self) -> str:
        answer = await fetch(self._port, "/metrics")
        assert answer.status == 200, answer.text
        self._last = answer.text
        self._first = self._first or self._last
        return self._last

    async def firing(self) -> set[str]:
        await self.scrape()
        seen = Scrapes({"a": [self._first, self._last]})
        return {name for name, rule in RULES.items() if seen.holds(rule["expr"])}

    async def fires(self, *names: str) -> None:
        """These alerts and no others, from one scrape on."""
        ignored = OF_A_BUSY_MACHINE.difference(names)

        async def found() -> bool:
            return await self.firing() - ignored == set(names)

        try:
            await until(found, f"the alerts {names}")
        except AssertionError as error:
            raise AssertionError(f"{error}; firing: {await self.firing()}") from error
        if PROMTOOL is not None:
            await asyncio.to_thread(self._judge, set(names))

    def _judge(self, names: set[str]) -> None:
        """The same by Prometheus itself: ten minutes of the first scrape, then the fault goes on."""
        before, after = samples(self._first, "a"), samples(self._last, "a")
        rising = {each for name in names for each in names_in(RULES[name]["expr"])}
        series = [
            {
                "series": _written(*key),
                "values": _values(
                    before.get(key), after[key], rises=key[0] in rising and _counts(key[0])
                ),
            }
            for key in after
        ]
        cases: list[dict[str, Any]] = []
        for minute, firing in ((9, set[str]()), (19, names)):
            for name, rule in RULES.items():
                expected = {
                    "exp_labels": rule["labels"],
                    "exp_annotations": rule["annotations"],
                }
                cases.append(
                    {
                        "eval_time": f"{minute}m",
                        "alertname": name,
                        "exp_alerts": [expected] if name in firing else [],
                    }
                )
        test = {
            "rule_files": [str(RULE_FILE)],
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": cases}],
        }
        run_promtool("test", "rules", "/dev/stdin", stdin=json.dumps(test))


def _counts(name: str) -> bool:
    return name.endswith(("_total", "_bucket"))


def _written(name: str, labels: frozenset[tuple[str, str]]) -> str:
    inside = ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(labels))
    return f"{name}{{{inside}}}"


def _values(before: float | None, after: float, *, rises: bool) -> str:
    """`rises`: what it rose by, it rises by with every scrape."""
    first = "_x9" if before is None else f"{before}x9"
    step = after - before if rises and before is not None else 0.0
    return f"{first} {after}{step:+}x20"


def run_promtool(*arguments: str, stdin: str | None = None) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, input=stdin)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@asynccontextmanager
async def site(url: str | Path, *, work: bool = False, **settings: object) -> AsyncGenerator[Site]:
    """A server that leads, with no alert firing."""
    async with (
        process(url, lead=True, work=work, **settings) as (core, engine),
        served(core) as port,
    ):
        found = Site(core, engine, port)
        await until(lambda: engine.metrics.sweep_age_us, "the first sweep")
        assert await found.firing() == set()
        yield found


# -- the faults ------------------------------------------------------------------------------------


async def test_c6_stuck_in_scheduled(path: str) -> None:
    """A worker keeps its lease and answers nothing."""
    async with site(path, offer_ttl="200ms") as server, connect_async(path) as client:
        silent = WorkerRow("silent", "h", 1, "0", {"async": 5}, -1, 5, steps=None)
        await server.core.store.heartbeat(Heartbeat(silent, HOUR_US))
        await client.submit(chain, 1)
        await server.fires("LocktenderStuckInScheduled")
        await server.core.store.leave("silent")
        async with process(path, lead=False, work=True):
            await until(lambda: not server.engine.metrics.silent, "its absence")


async def test_c6_slow_changes_of_state(tmp_path: Path) -> None:
    """The leader reads what its worker wrote more than a second late."""
    url = tmp_path / "locktender.db"
    async with (
        site(url) as server,
        process(url, lead=False, work=True),
        connect_async(url) as client,
    ):
        leader = server.engine.leader
        assert leader is not None
        changes = leader._changes  # pyright: ignore[reportPrivateUsage]
        gather, store = changes.gather, server.core.store
        ended_at = 0

        async def late(scheduler: Any) -> Gathered:
            nonlocal ended_at
            found = await gather(scheduler)
            if any(b"completed" in row.body for row in found.events):
                ended_at = ended_at or await store.now()
                while await store.now() < ended_at + 1_200_000:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return found

        changes.gather = late  # type: ignore[method-assign]
        run = await client.submit(chain, 1)
        assert await run.result(PATIENCE) == 3
        assert ended_at
        await server.fires("LocktenderSlowStateChanges")


async def test_c6_successors_not_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step completes, and nothing follows from it."""
    url = tmp_path / "locktender.db"
    async with site(url, work=True) as server, connect_async(url) as client:

        def nothing(*_: object) -> Advance:
            return NOTHING

        monkeypatch.setattr(RunGraph, "completed", nothing)
        await client.submit(chain, 1)
        await server.fires("LocktenderSuccessorsNotRequested")


async def test_the_ceiling_is_near(url: str) -> None:
    async with (
        site(url, max_active=3, max_concurrent_runs=1) as server,
        connect_async(url) as client,
    ):
        await client.limits.pause()
        several = [await client.submit(chain, n) for n in range(3)]
        await server.fires("LocktenderCeilingNear")
        found = await server.scrape()
        assert 'locktender_runs{state="queued"} 3.0' in found
        assert re.search(r"^locktender_queue_oldest_seconds (?!0\.0$)", found, re.MULTILINE)
        for run in several:
            await run.cancel()
        await server.fires()


async def test_submissions_are_refused(tmp_path: Path) -> None:
    url = tmp_path / "locktender.db"
    async with site(url, max_active=20) as server:
        # By a client of this process: what others are refused, they count themselves.
        client = AsyncClient(server.core)
        with pytest.raises(AdmissionRejected):
            await client.submit_many(chain, range(21))
        await server.fires("LocktenderCeilingNear")


async def test_no_worker_fits(path: str) -> None:
    async with site(path) as server, connect_async(path) as client:
        run = await client.submit(chain, 1)
        await server.fires("LocktenderNoWorkerFits")
        async with process(path, lead=False, work=True):
            assert await run.result(PATIENCE) == 3
        await server.fires()


async def test_the_leader_flaps(path: str) -> None:
    async with site(path) as server:
        for term in range(2, 6):
            assert server.engine.leader is not None
            server.engine.leader.close()
            await until(lambda term=term: server.engine.metrics.term == term, f"term {term}")
        await server.fires("LocktenderLeaderFlapping")


async def test_no_leader(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(path) as server:
        # A process that serves no metrics, and decides nothing, is always the first to stand for election.
        store = server.core.store
        elect = store.elect

        async def second(given: Elect) -> Any:
            await elect(Elect("ghost", HOUR_US))
            return await elect(given)

        monkeypatch.setattr(store, "elect", second)
        assert server.engine.leader is not None
        server.engine.leader.close()
        await server.fires("LocktenderNoLeader")


async def test_the_history_is_held_up(postgres_url: str) -> None:
    async with site(postgres_url) as server, connect_async(postgres_url) as client:
        conn = await asyncpg.connect(postgres_url)
        try:
            transaction = conn.transaction()
            await transaction.start()
            await conn.execute("CREATE TABLE held_up (x int)")  # it has a number now
            await client.limits.pause()
            await client.submit(chain, 1)
            await server.fires("LocktenderHistoryHeldUp")
            await transaction.rollback()
            await server.fires()
        finally:
            await conn.close()


async def test_runs_are_held(path: str) -> None:
    async with site(path) as server, connect_async(path) as client:
        await client.limits.pause()
        await client.submit(chain, 1)
        await asyncio.to_thread(Injector(path).query, "UPDATE {}graph SET body = ?", b"[[")
        assert server.engine.leader is not None
        server.engine.leader.close()  # the next term reads everything
        await server.fires("LocktenderRunsHeld")


async def test_a_promise_is_broken(path: str) -> None:
    async with (
        site(path, work=True, continuous_audit=False) as server,
        connect_async(path) as client,
    ):
        run = await client.submit(chain, 1)
        await run.result(PATIENCE)
        first = "DELETE FROM {}event WHERE seq = (SELECT min(seq) FROM {}event WHERE run = 1)"
        await asyncio.to_thread(Injector(path).query, first)
        store = server.core.store
        await ContinuousAudit(store, server.engine.metrics.audit).round(store)
        await server.fires("LocktenderPromiseBroken")


# -- what they name --------------------------------------------------------------------------------


async def exported(url: Path) -> set[str]:
    """Every name that a server and a worker answer with."""
    parts = {"histogram": ("bucket", "sum", "count")}
    found: set[str] = set()
    async with process(url, lead=True, work=True) as (core, _), served(core) as port:

        async def complete() -> bool:
            for line in (await fetch(port, "/metrics")).text.splitlines():
                if line.startswith("# TYPE "):
                    name, kind = line.split()[2:]
                    found.update({name, *(f"{name}_{part}" for part in parts.get(kind, ()))})
            # These two are left out until they are measured.
            return {"locktender_worker_loop_lag_seconds", "locktender_worker_memory_ratio"} <= found

        await until(complete, "the first measures")
    return found


def expressions() -> Iterator[str]:
    for rule in RULES.values():
        yield rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


async def test_every_metric_that_is_named_is_served_and_documented(tmp_path: Path) -> None:
    served_names = await exported(tmp_path / "locktender.db")
    asked = {name for expression in expressions() for name in names_in(expression)}
    assert asked - served_names == set()
    text = OPERATIONS.read_text()
    shown = set(re.findall(r"`(locktender_\w+)`", text))
    families = {
        name for name in served_names if not re.search(r"_(bucket|sum|count|created)$", name)
    }
    assert families - shown == set()
    assert shown - served_names == set()
    assert {f"### {name}" for name in RULES} <= set(text.splitlines())
    for name, rule in RULES.items():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_takes_the_rules() -> None:
    run_promtool("check", "rules", str(RULE_FILE))


def test_a_histogram_is_judged_as_prometheus_does() -> None:
    text = "\n".join(
        f'locktender_change_delay_seconds_bucket{{le="{le}"}} {count}'
        for le, count in (("0.5", 98), ("1.0", 98), ("2.5", 100), ("+Inf", 100))
    )
    zero = re.sub(r" \d+$", " 0", text, flags=re.MULTILINE)
    rate = "sum by (le) (rate(locktender_change_delay_seconds_bucket[5m]))"
    seen = Scrapes({"a": [zero, text]})
    assert seen.holds(f"histogram_quantile(0.99, {rate}) > 1.7")
    assert not seen.holds(f"histogram_quantile(0.99, {rate}) > 1.8")
    assert not seen.holds(f"histogram_quantile(0.9, {rate}) > 0.5")
    assert not Scrapes({"a": [text, text]}).holds(f"histogram_quantile(0.99, {rate}) > 0")
