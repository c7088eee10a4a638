"""Two tenants on one server: each sees, submits and changes its own; of the other there are numbers, no names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.server_harness import Answer, fetch, process, served, until
from tests.support.worlds import run_row

from locktender import current, flow, step, wait_event
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.kernel.reasons import Reason
from locktender.observe.answer import why_run
from locktender.observe.tenants import Own, hidden_why
from locktender.server.api.routing import ApiRoute
from locktender.server.api.table import TABLE
from locktender.server.options import HttpOptions
from locktender.server.ui.pages import tenant_of
from locktender.server.ui.table import PAGES
from locktender.testing import check_history

pytest_plugins = ["locktender.testing.postgres"]
GATE: dict[str, asyncio.Event] = {}
NOTHING = "0" * 26


@step(pool="tenants db")
async def holding(place: str) -> str:
    current().log.info("this is %s's", place)
    await GATE["open"].wait()
    return place


@step
async def told(place: str) -> str:
    return place


@flow(name="tenants hold")
def hold(place: str) -> str:
    return holding(place)


@flow(name="tenants tell")
def tell(place: str) -> str:
    return told(place)


@flow(name="tenants ask")
def ask_for(place: str) -> Any:
    return wait_event("approved")


class Tenant(NamedTuple):
    name: str
    token: str
    port: int
    ids: dict[str, str]

    async def send(self, method: str, path: str, body: object = None, **more: str) -> Answer:
        own = {"authorization": f"Bearer {self.token}", **more}
        return await fetch(self.port, f"/api/v1{path}", method, body, own)

    async def submit(self, flow: str, **body: object) -> str:
        given = {"flow": flow, "args": {"place": self.name}, **body}
        answer = await self.send("POST", "/runs", given)
        assert answer.status == 202, answer.text
        return answer.data["id"]


class Two(NamedTuple):
    core: Core
    acme: Tenant
    globex: Tenant

    @property
    def client(self) -> AsyncClient:
        return AsyncClient(self.core)


async def _filled(tenant: Tenant) -> None:
    """One of everything that a tenant can have. The keys and names are the same for both."""
    tenant.ids["ended"] = await tenant.submit("tenants tell", key=f"told {tenant.name}")

    async def ended() -> bool:
        path = f"/runs/{tenant.ids['ended']}/result?wait=10"
        return (await tenant.send("GET", path)).status == 200

    await until(ended, "the first run")
    tenant.ids["asks"] = await tenant.submit("tenants ask")
    tenant.ids["holds"] = await tenant.submit("tenants hold", key="the same")
    schedule = {"flow": "tenants tell", "args": {"place": tenant.name}, "cron": "0 3 * * *"}
    name = f"nightly {tenant.name}"
    assert (
        await tenant.send("PUT", f"/schedules/{name}".replace(" ", "%20"), schedule)
    ).status == 200
    made = await tenant.send("POST", "/tokens", {"name": "more", "scopes": ["read"]})
    tenant.ids.update({"schedule": name, "token": made.data["info"]["id"]})


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
async def two(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Two]:
    is_postgres = request.param == "postgres"
    url = (
        request.getfixturevalue("postgres_url") if is_postgres else str(tmp_path / "locktender.db")
    )
    GATE["open"] = asyncio.Event()
    async with (
        process(url, lead=True, work=True, pools={"tenants db": 1}) as (core, _),
        served(core, api=True, options=HttpOptions("tokens")) as port,
    ):

        async def announced() -> bool:
            return "tenants hold" in {each.name for each in await core.store.flows()}

        await until(announced, "the flows")
        tenants: list[Tenant] = []
        for name in ("globex", "acme"):
            made = await AsyncClient(core).tokens.create(
                f"admin of {name}", ["admin"], tags={"tenant": name}
            )
            tenants.append(Tenant(name, made.token, port, {}))
        globex, acme = tenants
        for each in tenants:
            await _filled(each)
        limits = AsyncClient(core).limits
        await limits.set_tag("tenant", "globex", 5)
        await limits.set_tag("tenant", None, 50, per_value=True)
        await limits.set_fair("tenant", {"globex": 3, "acme": 1})

        async def waits() -> bool:
            found = await AsyncClient(core).events.waiting()
            tasks = await (await AsyncClient(core).runs.get(acme.ids["holds"])).tasks()
            return len(found) == 2 and [task.state for task in tasks] == ["requested"]

        await until(waits, "both tenants' waits")
        # two more: they are queued behind the place that is taken
        await limits.set("max_concurrent_runs", 2)
        for each in tenants:
            each.ids["queued"] = await each.submit("tenants tell")
        for each in tenants:
            run = await AsyncClient(core).runs.get(each.ids["holds"])
            each.ids["task"] = str((await run.tasks())[0].id)
        yield Two(core, acme, globex)
        GATE["open"].set()
        await limits.set("max_concurrent_runs", 10)
        for each in tenants:
            await AsyncClient(core).runs.cancel(each.ids["asks"])

        async def over() -> bool:
            runs = await AsyncClient(core).runs.list(limit=1_000)
            return all(run.ended_at is not None for run in runs)

        await until(over, "the ends")
    await asyncio.to_thread(check_history, url)


def names_of(tenant: Tenant) -> list[str]:
    return [tenant.name, *tenant.ids.values()]


def filled(route: ApiRoute, ids: dict[str, str]) -> str:
    return re.sub(
        r"{(\w+)}", lambda found: ids.get(found[1], "globe").replace(" ", "%20"), route.path
    )


BODIES: dict[str, object] = {
    "set_priority": {"priority": 1},
    "send_event": {"event": "approved"},
    "set_schedule": {"flow": "tenants tell", "args": {"place": "x"}, "every": "1h"},
}
OF_ONE = [route for route in TABLE if re.search(r"{(run|task|schedule|token)}", route.path)]


async def test_the_ids_of_another_tenant_answer_as_ids_of_nothing(two: Two):
    """Every route of one thing, for every state of a run: 404, and the same words."""
    other, own = two.globex.ids, two.acme
    for route in OF_ONE:
        if route.name in ("list_schedule_changes", "set_schedule"):
            continue  # a name that nothing has: an empty list, or a new schedule
        for run in ("ended", "asks", "holds", "queued"):
            theirs = {**other, "run": other[run]}
            nothing = {key: f"absent-{key}" for key in other} | {
                "run": NOTHING,
                "task": other["task"],
            }
            body = BODIES.get(route.name)
            hidden = await own.send(route.method, filled(route, theirs), body)
            missing = await own.send(route.method, filled(route, nothing), body)
            assert hidden.status == missing.status == 404, (route.name, run, hidden, missing)
            for key in ("run", "schedule", "token"):
                missing = missing._replace(text=missing.text.replace(nothing[key], theirs[key]))
            assert hidden.text == missing.text, route.name
    # nothing of theirs has changed
    states = {
        name: (await two.client.runs.get(other[name])) for name in ("asks", "holds", "queued")
    }
    assert {name: (await run.info()).state for name, run in states.items()} == {
        "asks": "waiting",
        "holds": "running",
        "queued": "queued",
    }
    assert (await two.globex.send("GET", "/schedules/nightly%20globex")).status == 200


async def test_a_task_of_another_run_is_not_found_through_an_own_one(two: Two):
    path = f"/runs/{two.acme.ids['holds']}/tasks/{two.globex.ids['task']}/why"
    assert (await two.acme.send("GET", path)).status == 404


async def test_no_answer_names_the_other_tenant(two: Two):
    """Every GET of the table, of one's own things: the other's name, ids and keys are nowhere in it."""
    own, other = two.acme, two.globex
    for route in TABLE:
        if route.method != "GET" or route.tenant == "none" or route.name == "follow_events":
            continue
        for run in ("ended", "asks", "holds", "queued"):
            task = own.ids["task"] if run == "holds" else "1"
            places = {
                **own.ids, "run": own.ids[run], "task": task, "flow": "tenants hold",
                "pool": "tenants db", "limit": "tenant=*", "rule": "tenant=*",
            }  # fmt: skip
            answer = await own.send("GET", filled(route, places))
            expected = (200, 202, 404) if "{" in route.path else (200,)
            assert answer.status in expected, (route.name, answer)
            for name in names_of(other):
                assert name not in answer.text, (route.name, run, name, answer.text)


async def test_no_page_names_another_tenant_or_changes_shared(two: Two):
    """Every page of the UI: refused, or without a name of the other. A new page is refused until it says more."""
    own, other = two.acme, two.globex
    headers = {"authorization": f"Bearer {own.token}"}
    form = {**headers, "content-type": "application/x-www-form-urlencoded"}
    for route in PAGES:
        for run in ("asks", "holds", "queued"):
            places = {**own.ids, "run": own.ids[run], "pool": "tenants db", "limit": "tenant=*"}
            path = re.sub(
                r"{(\w+)(:\w+)?}",
                lambda found, places=places: places.get(found[1], "why").replace(" ", "%20"),
                route.path,
            )
            if route.method == "GET":
                answer = await fetch(own.port, path, headers=headers)
            elif route.path.startswith(("/pools", "/limits", "/workers")):
                answer = await fetch(own.port, path, "POST", b"limit=3&value=3", form)
                assert answer.status == 403, path
            else:
                continue
            assert answer.status < 500, path
            assert (answer.status == 403) == (tenant_of(route) == "none"), path
            for name in (*names_of(other), "tenant=acme:"):
                assert name not in answer.text, (path, name)


@pytest.mark.parametrize("key", ["order 7", "it's"])
def test_reasons_name_a_key_as_its_tenant_chose_it(key: str):
    row = run_row(1, key=f"tenant=acme:{key}")
    reason = Reason("key", f"key {row.key!r}: run {row.id}, which goes before it, has not ended")
    why = why_run(row, 0, 0, (reason,))
    [shown] = hidden_why(why, Own({row.id}, 1, "tenant=acme:")).reasons
    assert shown.text == f"key {key!r}: run {row.id}, which goes before it, has not ended"


@pytest.mark.parametrize("verb", ["cancel", "retry", "reprioritise"])
async def test_a_form_for_many_runs_says_which(two: Two, verb: str):
    """The tags of a tenant's token are no filter: all its runs would be meant."""
    form = {
        "authorization": f"Bearer {two.acme.token}",
        "content-type": "application/x-www-form-urlencoded",
    }
    path = f"/runs/-/{verb}"
    assert (await fetch(two.acme.port, path, "POST", b"priority=7", form)).status == 422
    if verb == "reprioritise":
        ended = await fetch(two.acme.port, path, "POST", b"priority=7&status=failed", form)
        assert ended.status == 422, "runs that ended have no place to change"
    queued = await two.client.runs.get(two.acme.ids["queued"])
    assert (await queued.info()).state == "queued"
    assert [each.run.priority for each in await two.client.queue.list()] == [0, 0]


async def test_what_is_waited_for_is_shown_as_numbers(two: Two):
    own = two.acme
    whole = await two.client.runs.get(own.ids["holds"])
    everything = str(await whole.why())
    assert two.globex.ids["holds"] in everything, "an operator is told who holds the pool"
    found = (await own.send("GET", f"/runs/{own.ids['holds']}/why")).data
    [step] = found["why"]["waiting"]
    [reason] = [each for each in step["reasons"] if each["gate"] == "pool:tenants db"]
    assert (reason["used"], reason["limit"]) == (1, 1)
    assert (reason.get("holders", []), reason["more_holders"]) == ([], 1)
    assert "1 of 1 in use" in found["text"]
    assert "held by 1\n" in found["text"]
    queued = (await own.send("GET", f"/runs/{own.ids['queued']}/why")).data["why"]
    [place] = [each for each in queued["reasons"] if each["gate"].startswith("runs")]
    assert (place["used"], place["limit"], place["more_holders"]) == (2, 2, 1)
    assert [each["run"] for each in place["holders"]] == [own.ids["holds"]]
    pools = (await own.send("GET", "/pools")).data["pools"]
    [pool] = [each for each in pools if each["name"] == "tenants db"]
    assert (pool["used"], pool["waiting"]) == (1, 1)
    limits = {each["name"]: each for each in (await own.send("GET", "/limits")).data["limits"]}
    assert "tenant=*" in limits
    assert "tenant=globex" not in limits
    assert (await own.send("GET", "/limits/tenant=globex")).status == 404
    assert limits["fair tenant"]["value"] == "fair turns"


async def test_who_paused_a_pool_is_not_told_to_a_tenant(two: Two):
    await two.client.pools.pause("tenants db")
    try:
        own = two.acme
        run = await two.client.runs.get(own.ids["holds"])
        assert "is paused by" in str(await run.why()), "an operator is told"
        found = (await own.send("GET", f"/runs/{own.ids['holds']}/why")).data
        [step] = found["why"]["waiting"]
        [reason] = [each for each in step["reasons"] if each["gate"] == "paused:tenants db"]
        assert reason["text"].startswith("pool tenants db is paused (")
        pools = (await own.send("GET", "/pools")).data["pools"]
        [pool] = [each for each in pools if each["name"] == "tenants db"]
        assert pool["paused"]
        assert not pool.get("paused_by")
    finally:
        await two.client.pools.resume("tenants db")


async def test_time_lost_to_others_is_one_sum(two: Two):
    own = two.acme
    blame = (await own.send("GET", f"/runs/{own.ids['holds']}/blame")).data
    for gate in blame["blame"].get("gates", ()):
        assert {each["run"] for each in gate.get("to", ())} <= {own.ids["holds"], "others"}
    gates = sum(each["us"] for each in blame["blame"]["gates"])
    assert (
        blame["blame"]["work_us"] + blame["blame"]["hand_off_us"] + gates
        == blame["blame"]["wall_us"]
    )


async def test_lists_have_only_ones_own(two: Two):
    own = two.acme
    runs = {each["id"] for each in (await own.send("GET", "/runs")).data["runs"]}
    assert runs == {own.ids[each] for each in ("ended", "asks", "holds", "queued")}
    [queued] = (await own.send("GET", "/queue")).data["queue"]
    assert (queued["run"]["id"], queued["position"]) == (own.ids["queued"], 2)
    [wait] = (await own.send("GET", "/waits")).data["waits"]
    assert wait["run"] == own.ids["asks"]
    schedules = (await own.send("GET", "/schedules")).data["schedules"]
    assert [each["name"] for each in schedules] == [own.ids["schedule"]]
    tokens = (await own.send("GET", "/tokens")).data["tokens"]
    assert {each["name"] for each in tokens} == {"admin of acme", "tenant=acme:more"}
    assert (await own.send("GET", "/schedules/nightly%20globex/changes")).status == 404
    assert (await own.send("GET", "/schedules/nightly%20acme/changes")).status == 200


async def test_its_tags_are_added_and_others_refused(two: Two):
    own = two.acme
    info = (await own.send("GET", f"/runs/{own.ids['ended']}")).data
    assert info["tags"] == {"tenant": "acme"}
    for path, body in (
        ("/runs", {"flow": "tenants tell", "args": {"place": "x"}}),
        ("/runs/cancel", {"flow": "tenants tell"}),
        ("/runs/retry", {"flow": "tenants tell"}),
        ("/queue/cancel", {"flow": "tenants tell"}),
        ("/tokens", {"name": "x", "scopes": ["read"]}),
    ):
        answer = await own.send("POST", path, {**body, "tags": {"tenant": "globex"}})
        assert (answer.status, answer.data["field"]) == (422, "tags.tenant"), path
        assert answer.data["got"] == "globex", "what was sent, not what there is"
    assert (await own.send("GET", "/runs?tags=tenant=globex")).status == 422
    several = {
        "flow": "tenants tell",
        "runs": [{"args": {"place": "x"}, "tags": {"tenant": "globex"}}],
    }
    assert (await own.send("POST", "/runs/batch", several)).status == 422
    # the same key and the same Idempotency-Key of the other are other keys
    assert (await two.client.runs.get(own.ids["holds"])).id != two.globex.ids["holds"]
    body = {"flow": "tenants tell", "args": {"place": "x"}}
    made = [
        (await each.send("POST", "/runs", body, **{"idempotency-key": "one"})).data["id"]
        for each in (two.acme, two.globex)
    ]
    assert len(set(made)) == 2


@pytest.mark.parametrize(
    ("theirs", "mine", "key"),
    [
        ({"tenant": "a:b"}, {"tenant": "a"}, "b:k"),
        ({"tenant": "a", "kind": "b"}, {"kind": "b,tenant=a"}, "k"),
        ({"tenant": "a:b"}, {"tenant": "a%3Ab"}, "k"),
    ],
)
async def test_no_key_of_a_tenant_is_that_of_another(
    two: Two, theirs: dict[str, str], mine: dict[str, str], key: str
):
    """Whatever a tag contains that a key can contain too."""
    made = [
        await two.client.tokens.create(name, ["submit"], tags=tags)
        for name, tags in {
            "theirs": theirs,
            "the same": dict(reversed(theirs.items())),
            "mine": mine,
        }.items()
    ]
    other, same, own = (two.acme._replace(token=each.token) for each in made)
    run_id = await other.submit("tenants tell", key="k")
    assert await same.submit("tenants tell", key="k") == run_id
    assert await own.submit("tenants tell", key=key) != run_id
    await own.submit("tenants tell", key=key, on_duplicate="replace")
    info = await (await two.client.runs.get(run_id)).info()
    assert info.state == "queued"


async def test_a_tenant_reads_its_key_as_it_chose_it(two: Two):
    run = await two.acme.submit("tenants tell", key="order 7")
    assert (await two.acme.send("GET", f"/runs/{run}")).data["key"] == "order 7"
    listed = (await two.acme.send("GET", f"/runs?beginning={run[:12]}")).data["runs"]
    listed += (await two.acme.send("GET", "/runs")).data["runs"]
    assert {each["key"] for each in listed if each["id"] == run} == {"order 7"}
    headers = {"authorization": f"Bearer {two.acme.token}"}
    for path in ("/runs", f"/runs/{run}", "/runs?q=order%207"):
        assert "key order 7" in (await fetch(two.acme.port, path, headers=headers)).text
    again = {"flow": "tenants tell", "args": {"place": "x"}, "key": "order 7"}
    again["on_duplicate"] = "reject"
    several = {"flow": again.pop("flow"), "runs": [again], "partial": True}
    for error in (
        (await two.acme.send("POST", "/runs", {"flow": "tenants tell", **again})).data,
        (await two.acme.send("POST", "/runs/batch", several)).data["runs"][0]["error"],
    ):
        assert (error["code"], error["got"]) == ("duplicate_key", "order 7")
        assert "key 'order 7' belongs" in error["message"]
    body = {"flow": "tenants tell", "args": {"place": "x"}, "key": "k" * 195}
    long = await two.acme.send("POST", "/runs", body)
    assert (long.status, long.data["field"]) == (422, "key")
    assert "longer than 188 characters" in long.data["message"]
    # everyone else sees whose it is
    info = await (await two.client.runs.get(run)).info()
    assert info.key == "tenant=acme:order 7"


async def test_changes_of_many_reach_only_ones_own(two: Two):
    cancelled = (await two.acme.send("POST", "/runs/cancel", {"flow": "tenants tell"})).data["ids"]
    assert cancelled == [two.acme.ids["queued"]]
    mixed = {"ids": [two.acme.ids["holds"], two.globex.ids["holds"]]}
    answer = await two.acme.send("POST", "/runs/cancel", mixed)
    assert answer.status == 404
    other = await two.client.runs.get(two.globex.ids["queued"])
    assert (await other.info()).state == "queued"
    own = await two.client.runs.get(two.acme.ids["holds"])
    assert (await own.info()).state == "running", "all or none"


async def test_a_schedule_belongs_to_whoever_set_it(two: Two):
    body = {"flow": "tenants tell", "args": {"place": "x"}, "every": "1h"}
    taken = await two.acme.send("PUT", "/schedules/nightly%20globex", body)
    assert taken.status == 404
    kept = (await two.globex.send("GET", "/schedules/nightly%20globex")).data
    assert (kept["args"], kept["tags"]) == ({"place": "globex"}, {"tenant": "globex"})
    run = (await two.acme.send("POST", "/schedules/nightly%20acme/run")).data["id"]
    info = (await two.acme.send("GET", f"/runs/{run}")).data
    assert info["tags"] == {"tenant": "acme", "schedule": "nightly acme"}


async def test_the_stream_has_only_ones_own_and_ends_with_the_token(two: Two):
    reader, writer = await asyncio.open_connection("127.0.0.1", two.acme.port)
    request = f"GET /api/v1/events HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {two.acme.token}\r\n\r\n"
    writer.write(request.encode())
    async with asyncio.timeout(60):
        said = await reader.readuntil(b"id: ")
        assert b" 200 " in said
        theirs = await two.globex.submit("tenants tell")
        mine = await two.acme.submit("tenants tell")
        said += await reader.readuntil(mine.encode())
        await two.client.tokens.revoke("admin of acme")
        said += await reader.read()
    writer.close()
    assert theirs.encode() not in said
    assert b"globex" not in said
