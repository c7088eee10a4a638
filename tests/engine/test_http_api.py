"""The HTTP API on an engine in the test's own process: what it answers, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.server_harness import Answer, fetch, process, served, until

from locktender import flow, step, wait_event
from locktender.client.core import Core
from locktender.testing import check_history

pytest_plugins = ["locktender.testing.postgres"]


@step
async def added(a: int, b: int) -> int:
    return a + b


@step(pool="http db")
async def pooled(n: int) -> int:
    return n


@step(pools={"http large": 5})
async def greedy() -> int:
    return 1


@step
async def broken() -> int:
    raise ValueError("broken on purpose")


@flow(name="http sum")
def total(a: int, b: int = 10) -> int:
    return added(a, b)


@flow(name="http pooled")
def pooling(n: int) -> int:
    return pooled(n)


@flow(name="http greedy")
def too_much() -> int:
    return greedy()


@flow(name="http broken")
def breaking() -> int:
    return broken()


@flow(name="http approval")
def approving(a: int) -> Any:
    return wait_event("approved")


class Asked(NamedTuple):
    core: Core
    port: int

    async def get(self, path: str, **headers: str) -> Answer:
        return await fetch(self.port, f"/api/v1{path}", headers=_named(headers))

    async def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return await fetch(self.port, f"/api/v1{path}", "POST", body, _named(headers))

    async def put(self, path: str, body: object = None, **headers: str) -> Answer:
        return await fetch(self.port, f"/api/v1{path}", "PUT", body, _named(headers))

    async def submit(self, flow: str = "http sum", **body: object) -> str:
        answer = await self.post("/runs", {"flow": flow, "args": {"a": 1}, **body})
        assert answer.status == 202, answer.text
        return answer.data["id"]

    async def ended(self, run: str) -> Answer:
        async def done() -> bool:
            return (await self.get(f"/runs/{run}/result?wait=10")).status != 202

        await until(done, f"the end of {run}")
        return await self.get(f"/runs/{run}/result")


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture(params=["sqlite", "postgres"])
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asked]:
    """A server that leads and works. Its history is judged at the end."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = str(tmp_path / "locktender.db")
    async with process(url, lead=True, work=True) as (core, _), served(core, api=True) as port:
        yield Asked(core, port)
    await asyncio.to_thread(check_history, url)


async def test_a_run_from_submission_to_result(api: Asked):
    answer = await api.post(
        "/runs", {"flow": "http sum", "args": {"a": 5}, "tags": {"tenant": "acme"}, "priority": 3}
    )
    assert answer.status == 202
    run = answer.data["id"]
    assert answer.headers["location"] == f"/api/v1/runs/{run}" == answer.data["url"]
    assert answer.data["submitted"] == "created"

    result = await api.ended(run)
    assert (result.status, result.data) == (200, {"run": run, "state": "succeeded", "result": 15})
    info = (await api.get(f"/runs/{run}")).data
    assert (info["flow"], info["state"], info["tags"], info["priority"]) == (
        "http sum", "succeeded", {"tenant": "acme"}, 3,
    )  # fmt: skip
    assert [task["state"] for task in (await api.get(f"/runs/{run}/tasks")).data["tasks"]] == [
        "completed"
    ]
    events = (await api.get(f"/runs/{run}/events")).data["events"]
    assert [each["after"] for each in events if each["subject"] == "run"] == [
        "queued", "running", "succeeded",
    ]  # fmt: skip
    assert "ended succeeded" in (await api.get(f"/runs/{run}/why")).data["text"]
