"""The HTTP API on an engine in the test's own process: what it answers, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.server_harness import Answer, fetch, process, served, until

from locktender import flow, step, wait_event
from locktender.client.core import Core
from locktender.server.api import timelines
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

    async def request(self, method: str, path: str) -> Answer:
        return await fetch(self.port, f"/api/v1{path}", method)

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


@asynccontextmanager
async def opened(url: str, **settings: object) -> AsyncIterator[Asked]:
    """A server that leads and works. Its history is judged at the end."""
    async with (
        process(url, lead=True, work=True, **settings) as (core, _),
        served(core, api=True) as port,
    ):

        async def announced() -> bool:
            return {"http sum", "http approval"} <= {each.name for each in await core.store.flows()}

        await until(announced, "the flows")
        yield Asked(core, port)
    await asyncio.to_thread(check_history, url)


@pytest.fixture(params=["sqlite", "postgres"])
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asked]:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = str(tmp_path / "locktender.db")
    async with opened(url) as found:
        yield found


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Asked]:
    """On a SQLite file: where the store does not matter."""
    async with opened(str(tmp_path / "locktender.db")) as found:
        yield found


async def test_a_run_from_submission_to_result(api: Asked):
    answer = await api.post(
        "/runs", {"flow": "http sum", "args": {"a": 5}, "tags": {"tenant": "acme"}, "priority": 3}
    )
    assert answer.status == 202
    run = answer.data["id"]
    assert answer.headers["location"] == f"/api/v1/runs/{run}" == answer.data["url"]
    assert answer.data["submitted"] == "created"

    result = await api.ended(run)
    told = result.data
    assert (result.status, told.pop("returned_by")["flow"]) == (200, "http sum")
    assert told == {"run": run, "state": "succeeded", "result": 15}
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
    blame = (await api.get(f"/runs/{run}/blame")).data["blame"]
    gates = sum(each["us"] for each in blame.get("gates", ()))
    assert blame["work_us"] + blame["hand_off_us"] + gates == blame["wall_us"] > 0


async def test_b4_the_ceiling_answers_429_with_retry_after(api: Asked):
    assert (await api.put("/limits/max_active", {"value": 1})).status == 200
    assert (await api.post("/limits/max_concurrent_runs/pause")).status == 200
    first = await api.submit()
    refused = await api.post("/runs", {"flow": "http sum", "args": {"a": 2}})
    assert (refused.status, refused.data["code"]) == (429, "admission_rejected")
    assert int(refused.headers["retry-after"]) >= 1
    assert (refused.data["field"], refused.data["retry_after"] > 0) == ("max_active", True)
    # what can never fit is not to be tried again
    never = {"flow": "http sum", "runs": [{"args": {"a": 1}}] * 2}
    answer = await api.post("/runs/batch", never)
    assert (answer.status, answer.headers.get("retry-after")) == (422, None)
    # reading is never refused, and what fits is taken where that is wanted
    assert len((await api.get("/runs")).data["runs"]) == 1
    partly = (await api.post("/runs/batch", {**never, "partial": True})).data["runs"]
    assert [each["error"]["code"] for each in partly] == ["admission_rejected"] * 2
    assert (await api.post("/limits/max_concurrent_runs/resume")).status == 200
    assert (await api.ended(first)).status == 200


async def test_i1_an_idempotency_key_gives_one_run(api: Asked):
    body = {"flow": "http sum", "args": {"a": 1, "b": 2}}
    several = [api.post("/runs", body, idempotency_key="order 7") for _ in range(8)]
    answers = await asyncio.gather(*several)
    assert {each.status for each in answers} == {202}
    [run] = {each.data["id"] for each in answers}
    assert (await api.ended(run)).data["result"] == 3
    # it has ended, and the fields come in another order: it is the same request
    again = await api.post(
        "/runs", {"args": {"b": 2, "a": 1}, "flow": "http sum"}, idempotency_key="order 7"
    )
    assert (again.data["id"], again.data["submitted"]) == (run, "repeated")
    other = await api.post("/runs", {**body, "args": {"a": 9}}, idempotency_key="order 7")
    assert (other.status, other.data["field"]) == (409, "idempotency-key")
    assert (other.data["state"], other.data["run"]) == ("succeeded", run)
    assert (await api.post("/runs", body, idempotency_key="")).status == 400
    many = {"flow": "http sum", "runs": [{"args": {"a": n}} for n in range(3)]}
    first = (await api.post("/runs/batch", many, idempotency_key="orders")).data["runs"]
    second = (await api.post("/runs/batch", many, idempotency_key="orders")).data["runs"]
    assert [each["run"]["id"] for each in first] == [each["run"]["id"] for each in second]
    assert {each["run"]["submitted"] for each in second} == {"repeated"}
    assert len((await api.get("/runs")).data["runs"]) == 4
    for each in first:
        await api.ended(each["run"]["id"])


async def test_i1_two_bodies_with_one_key_at_once_give_one_run(api: Asked):
    """Through two servers; the losers are told, also those that were on their way together."""
    async with (
        process(api.core.settings.url, lead=False, work=False) as (core, _),
        served(core, api=True) as port,
    ):
        servers = [api, Asked(core, port)]
        for attempt in range(3):
            bodies = [{"flow": "http sum", "args": {"a": n}} for n in range(10)]
            key = f"race {attempt}"
            answers = await asyncio.gather(
                *(
                    servers[n % 2].post("/runs", body, idempotency_key=key)
                    for n, body in enumerate(bodies)
                )
            )
            assert sorted(each.status for each in answers) == [202] + [409] * 9
            [run] = [each.data["id"] for each in answers if each.status == 202]
            assert {each.data["field"] for each in answers if each.status == 409} == {
                "idempotency-key"
            }
            many = [{"flow": "http sum", "runs": [{"args": {"a": n}}]} for n in range(6)]
            several = await asyncio.gather(
                *(
                    servers[n % 2].post("/runs/batch", body, idempotency_key=f"{key} many")
                    for n, body in enumerate(many)
                )
            )
            assert sorted(each.status for each in several) == [202] + [409] * 5
            await api.ended(run)
    for info in (await api.get("/runs")).data["runs"]:
        await api.ended(info["id"])
    assert len((await api.get("/runs")).data["runs"]) == 6


async def test_a_key_belongs_to_one_active_run(lone: Asked):
    await lone.post("/limits/max_concurrent_runs/pause")
    run = await lone.submit(key="k")
    body = {"flow": "http sum", "args": {"a": 1}, "key": "k"}
    assert (await lone.post("/runs", body)).data == {
        "id": run, "submitted": "attached", "url": f"/api/v1/runs/{run}",
    }  # fmt: skip
    other = await lone.post("/runs", {**body, "args": {"a": 2}})
    assert (other.status, other.data["code"], other.data["field"]) == (409, "duplicate_key", "key")
    await lone.post("/limits/max_concurrent_runs/resume")
    await lone.ended(run)


async def test_states_that_do_not_allow_it_are_named(lone: Asked):
    run = await lone.submit()
    await lone.ended(run)
    for path, body in (
        ("cancel", None),
        ("pause", {"reason": "x"}),
        ("resume", None),
        ("retry", None),
        ("events", {"event": "e"}),
    ):
        answer = await lone.post(f"/runs/{run}/{path}", body)
        assert (answer.status, answer.data["state"]) == (409, "succeeded"), path
    answer = await lone.put(f"/runs/{run}/priority", {"priority": 3})
    assert (answer.status, answer.data["state"]) == (409, "succeeded")
    failed = await lone.submit("http broken", args={})
    answer = await lone.ended(failed)
    assert (answer.status, answer.data["code"], answer.data["state"]) == (
        409,
        "run_failed",
        "failed",
    )
    assert "broken on purpose" in answer.data["message"]
    assert (await lone.post(f"/runs/{failed}/retry")).data["id"] == failed
    assert (await lone.ended(failed)).status == 409


async def test_queued_runs_are_paused_moved_and_cancelled(lone: Asked):
    await lone.post("/limits/max_concurrent_runs/pause")
    runs = [await lone.submit(tags={"n": str(n % 2)}) for n in range(4)]
    assert (await lone.get(f"/runs/{runs[0]}/result")).status == 202
    asked = await lone.put(f"/runs/{runs[3]}/priority", {"priority": 5})
    assert (asked.status, asked.data["ids"]) == (202, [runs[3]])

    async def first() -> bool:
        return (await lone.get("/queue")).data["queue"][0]["run"]["id"] == runs[3]

    await until(first, "the new order")
    assert (await lone.post(f"/runs/{runs[0]}/pause", {"reason": "wait"})).status == 200
    assert "paused" in (await lone.get(f"/runs/{runs[0]}/why")).data["text"]
    assert (await lone.post(f"/runs/{runs[0]}/resume")).status == 200
    cancelled = await lone.post("/runs/cancel", {"tags": {"n": "1"}, "reason": "half of them"})
    assert sorted(cancelled.data["ids"]) == sorted([runs[1], runs[3]])
    assert (await lone.post("/queue/cancel", {"ids": [runs[2]]})).data["ids"] == [runs[2]]
    assert (await lone.post(f"/runs/{runs[0]}/cancel")).status == 202
    for run in runs:
        answer = await lone.ended(run)
        assert (answer.status, answer.data["code"]) == (409, "run_cancelled")
    await lone.post("/limits/max_concurrent_runs/resume")
    again = await lone.post("/runs/retry", {"status": ["cancelled"], "tags": {"n": "0"}})
    assert sorted(again.data["ids"]) == sorted([runs[0], runs[2]])
    for run in again.data["ids"]:
        assert (await lone.ended(run)).data["result"] == 11


async def test_an_ended_runs_timeline_is_drawn_once_until_a_retry(
    lone: Asked, monkeypatch: pytest.MonkeyPatch
):
    drawn: list[str] = []
    draw = timelines.timeline

    async def counted(core: Core, run: str, part: Any = None) -> Any:
        drawn.append(run)
        return await draw(core, run, part)

    monkeypatch.setattr(timelines, "timeline", counted)
    monkeypatch.setattr(timelines, "LARGE_TIMELINE", 0)
    waits = await lone.submit("http approval")
    for _ in range(2):
        assert (await lone.get(f"/runs/{waits}/timeline")).data["goes_on"]
    assert len(drawn) == 2
    run = await lone.submit()
    await lone.ended(run)
    first = [(await lone.get(f"/runs/{run}/timeline")).data for _ in range(2)]
    assert (first[0], len(drawn)) == (first[1], 3)

    assert (await lone.post(f"/runs/{run}/retry", {"from_step": "added"})).status == 202

    async def again() -> bool:
        info = (await lone.get(f"/runs/{run}")).data
        return info["generation"] == 1 and info["state"] == "succeeded"

    await until(again, "the second end")
    assert (await lone.get(f"/runs/{run}/timeline")).data["since"] > first[0]["since"]
    assert len(drawn) == 4


async def test_the_page_of_a_large_run_begins_its_timeline(
    lone: Asked, monkeypatch: pytest.MonkeyPatch
):
    drawn: list[str] = []
    draw = timelines.timeline

    async def counted(core: Core, run: str, part: Any = None) -> Any:
        drawn.append(run)
        return await draw(core, run, part)

    monkeypatch.setattr(timelines, "timeline", counted)
    run = await lone.submit()
    await lone.ended(run)
    assert (await fetch(lone.port, f"/runs/{run}")).status == 200
    assert drawn == []  # a small one is drawn when it is asked for
    monkeypatch.setattr(timelines, "LARGE_TIMELINE", 0)
    assert (await fetch(lone.port, f"/runs/{run}?tab=tasks")).status == 200
    assert drawn == []  # this part of the page has none
    waits = await lone.submit("http approval")
    assert (await fetch(lone.port, f"/runs/{waits}")).status == 200
    assert drawn == []  # of a run that goes on it would be old

    assert (await fetch(lone.port, f"/runs/{run}")).status == 200
    await until(lambda: drawn == [run], "the drawing")
    assert (await lone.get(f"/runs/{run}/timeline")).data["tasks"]
    assert drawn == [run]


async def test_runs_are_listed_page_by_page(lone: Asked):
    body = {
        "flow": "http sum",
        "runs": [{"args": {"a": n}, "tags": {"n": n % 2}} for n in range(7)],
    }
    made = [each["run"]["id"] for each in (await lone.post("/runs/batch", body)).data["runs"]]
    found: list[str] = []
    cursor = ""
    for size in (3, 1):
        page = (await lone.get(f"/runs?tags=n=0&limit=3{cursor}")).data
        assert len(page["runs"]) == size
        found += [run["id"] for run in page["runs"]]
        cursor = f"&cursor={page['next']}"
    assert page["next"] is None
    assert found == [run for index, run in enumerate(made) if index % 2 == 0][::-1]
    for run in made:
        await lone.ended(run)


async def test_a_setting_that_changed_meanwhile_is_refused(api: Asked):
    first = await api.put("/pools/db", {"limit": 3})
    tag = first.headers["etag"]
    assert (await api.get("/pools/db")).headers["etag"] == tag
    second = await api.put("/pools/db", {"limit": 4}, if_match=tag)
    assert (second.status, second.data["limit"]) == (200, 4)
    late = await api.put("/pools/db", {"limit": 5}, if_match=tag)
    assert (late.status, late.data["code"]) == (412, "limit_changed")
    races = [api.put("/pools/db", {"limit": n}, if_match=second.headers["etag"]) for n in (6, 7, 8)]
    assert sorted(each.status for each in await asyncio.gather(*races)) == [200, 412, 412]
    assert (await api.put("/pools/new", {"limit": 1}, if_match="*")).status == 412
    assert (await api.put("/pools/db", {"limit": 9}, if_match="*")).status == 200
    assert (await api.put("/limits/max_active", {"value": 40}, if_match="*")).status == 200
    several = await api.put("/pools/db", {"limit": 9}, if_match='"a", "b"')
    assert (several.status, several.data["field"]) == (400, "if-match")
    tag = (await api.get("/limits/max_active")).headers["etag"]
    assert (await api.put("/limits/max_active", {"value": 50}, if_match=tag)).status == 200
    assert (await api.put("/limits/max_active", {"value": 60}, if_match=tag)).status == 412
    assert (await api.put("/limits/tags/tenant=*", {"limit": 2})).data["name"] == "tenant=*"
    assert (await api.put("/limits/fair", {"value": "tenant", "weights": {"a": 2}})).status == 200
    changes = (await api.get("/limit-changes")).data["changes"]
    assert {each["who"] for each in changes} == {"http"}
    assert [each["after"] for each in changes if each["name"] == "max_active"] == ["50", "40"]
    assert (await api.post("/limits/max_active/reset")).status == 200
    assert (await api.get("/limits/max_active")).data["value"] == "10,000"
    assert (await api.request("DELETE", "/pools/db")).status == 200
    assert (await api.get("/pools/db")).status == 404


async def test_flows_have_schemas_and_are_paused(lone: Asked):
    listed = {each["name"] for each in (await lone.get("/flows")).data["flows"]}
    assert {"http sum", "http approval"} <= listed
    flow = (await lone.get("/flows/http%20sum")).data
    assert flow["parameters"]["properties"]["a"]["type"] == "integer"
    assert (flow["parameters"]["required"], flow["result"]["type"]) == (["a"], "integer")
    paused = await lone.post("/flows/http%20sum/pause", {"reason": "later"})
    assert paused.data["paused"] is True
    run = await lone.submit()
    graph = (await lone.get(f"/runs/{run}/graph")).data
    assert [node["name"] for node in graph["nodes"]] == ["added"]
    assert (await lone.post("/flows/http%20sum/resume")).data["paused"] is False
    assert (await lone.post("/flows/http%20sum/resume")).status == 409
    assert (await lone.ended(run)).status == 200


async def test_a_wait_is_answered_once_by_its_token(lone: Asked):
    runs = [await lone.submit("http approval") for _ in range(3)]

    async def waiting() -> bool:
        return len((await lone.get("/waits")).data["waits"]) == 3

    await until(waiting, "the waits")
    [wait] = (await lone.get(f"/runs/{runs[0]}/waits")).data["waits"]
    assert {each["token"] for each in (await lone.get("/waits")).data["waits"]} == {""}
    answer = {"token": wait["token"], "payload": {"by": "ann"}}
    assert (await lone.post("/waits/answer", answer)).data == {"new": True}
    assert (await lone.ended(runs[0])).data["result"] == {"by": "ann"}
    again = await lone.post("/waits/answer", answer)
    assert (again.status, again.data["code"], again.data["state"]) == (
        409,
        "wait_over",
        "succeeded",
    )
    assert "it was answered" in again.data["message"]
    forged = {**answer, "token": wait["token"][:-1] + "_"}
    assert (await lone.post("/waits/answer", forged)).status == 422
    sent = await lone.post(f"/runs/{runs[1]}/events", {"event": "approved", "payload": 1})
    assert sent.data == {"new": True}
    assert (await lone.post("/topics/approved", {"payload": 2})).status == 202
    assert [(await lone.ended(run)).data["result"] for run in runs[1:]] == [1, 2]


async def test_schedules_and_workers(lone: Asked):
    body = {"flow": "http sum", "args": {"a": 1}, "cron": "0 3 * * *"}
    assert (await lone.put("/schedules/nightly", body)).data["source"] == "live"
    # Beside those that flows of other tests declare.
    listed = {each["name"] for each in (await lone.get("/schedules")).data["schedules"]}
    assert "nightly" in listed
    assert (await lone.post("/schedules/nightly/pause")).data["paused"] is True
    assert (await lone.post("/schedules/nightly/resume")).data["paused"] is False
    run = (await lone.post("/schedules/nightly/run")).data["id"]
    assert (await lone.ended(run)).data["result"] == 11
    changes = (await lone.get("/schedules/nightly/changes")).data["changes"]
    assert [(each["what"], each["who"]) for each in changes][-1] == ("set", "http")
    assert (await lone.request("DELETE", "/schedules/nightly")).status == 200
    assert (await lone.get("/schedules/nightly")).status == 404

    [worker] = (await lone.get("/workers")).data["workers"]
    assert (await lone.post(f"/workers/{worker['id']}/drain")).status == 202

    async def drains() -> bool:
        return (await lone.get(f"/workers/{worker['id']}")).data["draining"]

    await until(drains, "the drain")
    assert (await lone.post(f"/workers/{worker['id']}/undrain")).status == 202
    assert (await lone.get("/demand")).data["total"] == 0
    assert [(await lone.get(path)).status for path in ("/health", "/ready")] == [200, 200]
