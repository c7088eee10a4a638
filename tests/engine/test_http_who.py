"""Every change through the API is recorded with who made it: the name of the token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.support.server_harness import Answer, fetch, process, served, until

from locktender import flow, step, wait_event
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.server.api.table import TABLE
from locktender.server.options import HttpOptions
from locktender.testing import check_history

NOT_AN_OPERATORS = {
    "submit_run", "submit_runs", "run_schedule", "send_event", "send_to_topic", "answer_wait",
    "keep_event_reader", "forget_event_reader",
}  # fmt: skip
"""What a client does, not an operator: their runs and events carry what they were submitted with."""


@step
async def one() -> int:
    return 1


@step
async def broken() -> int:
    raise ValueError("broken on purpose")


@flow(name="who one")
def plain() -> int:
    return one()


@flow(name="who broken")
def failing() -> int:
    return broken()


@flow(name="who waits")
def waiting() -> Any:
    return wait_event("never")


class Asked(NamedTuple):
    core: Core
    port: int
    token: str

    @property
    def client(self) -> AsyncClient:
        return AsyncClient(self.core)

    async def send(self, method: str, path: str, body: object = None) -> Answer:
        own = {"authorization": f"Bearer {self.token}"}
        answer = await fetch(self.port, f"/api/v1{path}", method, body, own)
        assert answer.status < 300, (method, path, answer)
        return answer

    async def submit(self, flow: str) -> str:
        """By somebody else."""
        return (await self.client.submit(flow)).id

    async def ended(self, run: str) -> None:
        async def over() -> bool:
            return (await (await self.client.runs.get(run)).info()).ended_at is not None

        await until(over, f"the end of {run}")

    async def records(self) -> str:
        """Everything that history, changes of limits and of schedules say."""
        client, found = self.client, list[Any]()
        async for event in client.events.follow(after="start", wait=False):
            found.append(event.data)
        found += await client.limits.history(1_000)
        found += await client.schedules.history("who nightly")
        found += await client.tokens.list()
        return msgspec.json.encode(found).decode()


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    url = str(tmp_path / "locktender.db")
    async with (
        process(url, lead=True, work=True) as (core, _),
        served(core, api=True, options=HttpOptions("tokens")) as port,
    ):

        async def announced() -> bool:
            return "who waits" in {each.name for each in await core.store.flows()}

        await until(announced, "the flows")
        made = await AsyncClient(core).tokens.create("unused", ["admin"])
        yield Asked(core, port, made.token)
    await asyncio.to_thread(check_history, url)


async def _worker(asked: Asked) -> str:
    [worker] = await asked.client.workers.list()
    return worker.id


async def _drains(asked: Asked) -> None:
    async def described() -> bool:
        [worker] = await asked.client.workers.list()
        return worker.draining

    await until(described, "the drain")


async def _change(asked: Asked, name: str) -> None:
    schedule = {"flow": "who one", "cron": "0 3 * * *"}
    match name:
        case (
            "cancel_run" | "cancel_runs" | "pause_run" | "pause_runs" | "resume_run" | "resume_runs"
        ):
            run = await asked.submit("who waits")
            if name == "resume_runs":
                await (await asked.client.runs.get(run)).pause()
            if name.endswith("_runs"):
                verb = name.removesuffix("_runs")
                await asked.send("POST", f"/runs/{verb}", {"ids": [run]})
            elif name == "resume_run":
                await (await asked.client.runs.get(run)).pause()
                await asked.send("POST", f"/runs/{run}/resume")
            else:
                verb = name.removesuffix("_run")
                await asked.send("POST", f"/runs/{run}/{verb}", {"reason": "because"})
        case "retry_run" | "retry_runs":
            run = await asked.submit("who broken")
            await asked.ended(run)
            if name == "retry_run":
                await asked.send("POST", f"/runs/{run}/retry")
            else:
                await asked.send("POST", "/runs/retry", {"ids": [run]})
        case "clear_cache":
            await asked.send("POST", "/cache/clear", {})
        case "set_priority" | "set_priorities" | "cancel_queued":
            await asked.client.limits.pause("max_concurrent_runs")
            run = await asked.submit("who one")
            if name == "set_priority":
                await asked.send("PUT", f"/runs/{run}/priority", {"priority": 7})
            elif name == "set_priorities":
                await asked.send("POST", "/queue/priority", {"ids": [run], "priority": 7})
            else:
                await asked.send("POST", "/queue/cancel", {"ids": [run]})
        case "pause_flow" | "resume_flow":
            if name == "resume_flow":
                await asked.client.flows.pause("who one")
            await asked.send("POST", f"/flows/who%20one/{name.partition('_')[0]}")
        case "drain_worker" | "undrain_worker":
            worker = await _worker(asked)
            if name == "undrain_worker":
                await asked.client.workers.drain(worker)
                await _drains(asked)
            await asked.send("POST", f"/workers/{worker}/{name.partition('_')[0]}")
        case "set_pool":
            await asked.send("PUT", "/pools/who", {"limit": 3})
        case "delete_pool" | "pause_pool" | "resume_pool" | "reset_pool":
            await asked.client.pools.set("who", limit=2)
            if name == "resume_pool":
                await asked.client.pools.pause("who")
            method, verb = ("DELETE", "") if name == "delete_pool" else ("POST", f"/{name[:-5]}")
            await asked.send(method, f"/pools/who{verb}")
        case "set_limit":
            await asked.send("PUT", "/limits/max_active", {"value": 50})
        case "set_tag_limit":
            await asked.send("PUT", "/limits/tags/tenant=acme", {"limit": 5})
        case "pause_limit" | "resume_limit" | "reset_limit":
            await asked.client.limits.set("max_concurrent_runs", 5)
            if name == "resume_limit":
                await asked.client.limits.pause("max_concurrent_runs")
            await asked.send("POST", f"/limits/max_concurrent_runs/{name.removesuffix('_limit')}")
        case "set_schedule":
            await asked.send("PUT", "/schedules/who%20nightly", schedule)
        case "delete_schedule" | "pause_schedule" | "resume_schedule" | "reset_schedule":
            await asked.client.schedules.set("who nightly", "who one", cron="0 3 * * *")
            if name == "resume_schedule":
                await asked.client.schedules.pause("who nightly")
            verb = name.removesuffix("_schedule")
            method, end = ("DELETE", "") if verb == "delete" else ("POST", f"/{verb}")
            await asked.send(method, f"/schedules/who%20nightly{end}")
        case "create_token":
            await asked.send("POST", "/tokens", {"name": "new", "scopes": ["read"]})
        case "revoke_token":
            await asked.client.tokens.create("other", ["read"])
            await asked.send("DELETE", "/tokens/other")
        case _:
            raise AssertionError(f"there is no change of {name} here: add one")


async def test_changes_are_recorded_with_the_tokens_name(asked: Asked):
    changing = [each.name for each in TABLE if each.method != "GET"]
    missing: list[str] = []
    for name in changing:
        if name in NOT_AN_OPERATORS:
            continue
        who = f"operator of {name}"
        made = await asked.client.tokens.create(who, ["admin"])
        mine = asked._replace(token=made.token)
        # the token itself is among what is searched
        before = (await asked.records()).count(who)
        await _change(mine, name)

        async def recorded(who: str = who, before: int = before) -> bool:
            return (await asked.records()).count(who) > before

        try:
            await until(recorded, f"{name} by {who}")
        except AssertionError:
            missing.append(name)
        if name in ("set_priority", "set_priorities", "cancel_queued"):
            await asked.client.limits.resume("max_concurrent_runs")
        if name == "pause_flow":
            await asked.client.flows.resume("who one")
        if name == "pause_limit":
            await asked.client.limits.resume("max_concurrent_runs")
        if name == "drain_worker":
            await _drains(asked)
            await asked.client.workers.undrain(await _worker(asked))
    assert not missing, missing
    await asked.client.runs.cancel(flow="who waits")
