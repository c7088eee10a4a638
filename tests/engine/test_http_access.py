"""Who may ask the HTTP API: every route of the table with every kind of wrong token, and sessions of browsers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from tests.support.server_harness import Answer, fetch, process, served, until

from locktender import flow, step
from locktender.base.tokens import SCOPES
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.server.api import token_access
from locktender.server.api.routing import ApiRoute
from locktender.server.api.table import TABLE
from locktender.server.options import HttpOptions

TOKENS = HttpOptions("tokens")
NOTHING = "0" * 26
PLACES = {
    "run": NOTHING,
    "task": "1",
    "flow": "none",
    "pool": "none",
    "limit": "none",
    "rule": "tenant=none",
    "schedule": "none",
    "topic": "none",
    "reader": "billing",
    "key": "0a1b",
    "worker": "none",
    "token": "none",
}
"""What paths name where nothing of the kind exists. A new parameter of a path has to be added here."""


@step
async def counted(n: int) -> int:
    return n


@flow(name="access count")
def counting(n: int = 1) -> int:
    return counted(n)


class World(NamedTuple):
    core: Core
    port: int
    tokens: dict[str, str]

    async def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        body: object = None,
        **headers: str,
    ) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        return await fetch(self.port, path, method, body, given)

    @property
    def client(self) -> AsyncClient:
        return AsyncClient(self.core)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with (
        process(tmp_path / "locktender.db", lead=True, work=True) as (core, _),
        served(core, api=True, options=TOKENS) as port,
    ):
        made = AsyncClient(core).tokens
        tokens = {each: (await made.create(each, [each])).token for each in SCOPES}
        tokens["bound"] = (await made.create("bound", ["admin"], tags={"tenant": "acme"})).token
        expired = await made.create("expired", ["admin"], expires=0.001)
        revoked = await made.create("revoked", ["admin"])
        await made.revoke(revoked.info.id)
        tokens |= {"expired": expired.token, "revoked": revoked.token}

        async def is_over() -> bool:
            [row] = await core.store.tokens([expired.info.id])
            return row.state == "expired"

        await until(is_over, "the end of the token")
        yield World(core, port, tokens)


def path_of(route: ApiRoute) -> str:
    return "/api/v1" + re.sub(r"{(\w+)}", lambda found: PLACES[found[1]], route.path)


async def test_every_route_refuses_every_kind_of_wrong_token(world: World):
    valid = world.tokens["admin"]
    secret = valid.split("_", 2)[2]
    wrong: dict[str, dict[str, str]] = {
        "none": {},
        "no token": {"authorization": "Bearer"},
        "another kind": {"authorization": "Basic YTpi"},
        "unknown": {"authorization": f"Bearer lt_0123456789_{secret}"},
        "another secret": {
            "authorization": f"Bearer {valid[:-1]}{'a' if valid[-1] != 'a' else 'b'}"
        },
        "cut": {"authorization": f"Bearer {valid[:-1]}"},
        "expired": {"authorization": f"Bearer {world.tokens['expired']}"},
        "revoked": {"authorization": f"Bearer {world.tokens['revoked']}"},
        "as cookie": {"cookie": f"locktender={valid}"},
    }
    for route in TABLE:
        for what, headers in wrong.items():
            body = {} if route.body is not None else None
            answer = await fetch(world.port, path_of(route), route.method, body, headers)
            if route.scope == "public" and what == "none":
                assert answer.status != 401, route.name
                continue
            assert answer.status == 401, (route.name, what, answer)
            assert answer.data["code"] == "unauthorized"
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert secret not in answer.text


async def test_every_route_needs_its_scope_or_a_higher_one(world: World):
    for route in TABLE:
        if route.scope == "public":
            continue
        least = SCOPES.index(route.scope)
        for index, scope in enumerate(SCOPES):
            if index >= least and route.name == "follow_events":
                continue  # it has no end
            body = {} if route.body is not None else None
            answer = await world.ask(route.method, path_of(route), world.tokens[scope], body)
            if index < least:
                assert (answer.status, answer.data["code"]) == (403, "forbidden"), route.name
                assert answer.data["field"] == "scope"
            else:
                assert answer.status not in (401, 403), (route.name, scope, answer)


async def test_routes_that_concern_everyone_refuse_bound_tokens(world: World):
    for route in TABLE:
        if route.name == "follow_events":
            continue
        body = {} if route.body is not None else None
        answer = await world.ask(route.method, path_of(route), world.tokens["bound"], body)
        refused = answer.status == 403 and "only for tenant=acme" in answer.data["message"]
        assert refused == (route.tenant == "none"), (route.name, answer)


def test_every_change_of_what_all_share_needs_an_unbound_token():
    shared = ("/pools", "/limits", "/flows", "/workers", "/topics", "/demand", "/limit-changes")
    for route in TABLE:
        if route.path.startswith(shared) and route.method != "GET":
            assert route.tenant == "none", route.name
        if "{run}" in route.path:
            assert route.tenant in ("own", "numbers"), route.name


async def test_a_revoked_token_is_refused_within_two_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    # what the store says serves so long: the test moves the clock that it is measured by
    seconds = asyncio.get_running_loop().time
    late = 0.0
    monkeypatch.setattr(token_access, "_now", lambda: seconds() + late)
    token = world.tokens["read"]
    assert (await world.ask("GET", "/api/v1/runs", token)).status == 200
    await world.client.tokens.revoke("read")
    late = 2.0 - token_access.KEPT_SECONDS
    answer = await world.ask("GET", "/api/v1/runs", token)
    assert (answer.status, "revoked" in answer.data["message"]) == (401, True)
    assert token_access.KEPT_SECONDS <= 2


async def test_a_token_expires_also_between_two_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(token_access, "KEPT_SECONDS", 10_000.0)
    made = await world.client.tokens.create("soon", ["read"], expires="1h")
    assert (await world.ask("GET", "/api/v1/runs", made.token)).status == 200
    seconds = asyncio.get_running_loop().time
    monkeypatch.setattr(token_access, "_now", lambda: seconds() + 3_600)
    answer = await world.ask("GET", "/api/v1/runs", made.token)
    assert (answer.status, "expired" in answer.data["message"]) == (401, True)


async def test_the_last_use_is_stored(world: World):
    assert (await world.ask("GET", "/api/v1/runs", world.tokens["read"])).status == 200

    async def is_stored() -> bool:
        listed = (await world.ask("GET", "/api/v1/tokens", world.tokens["admin"])).data["tokens"]
        return {each["name"]: each["used_at"] for each in listed}["read"] is not None

    await until(is_stored, "the use")


async def test_metrics_need_the_right_to_read_everything(world: World):
    assert (await world.ask("GET", "/metrics")).status == 401
    assert (await world.ask("GET", "/metrics", world.tokens["bound"])).status == 403
    assert (await world.ask("GET", "/metrics", world.tokens["read"])).status == 200
    known = (await world.ask("GET", "/api/v1/health", world.tokens["read"])).data
    assert known["leader"] == world.core.engine.election.owner  # pyright: ignore
    for path, token in (("/health", None), ("/api/v1/ready", None), ("/api/v1/health", "bound")):
        answer = await world.ask("GET", path, token and world.tokens[token])
        assert answer.status == 200
        assert known["leader"] not in answer.text


async def test_tokens_are_made_and_revoked_by_an_admin(world: World):
    admin = world.tokens["admin"]
    body = {"name": "new", "scopes": ["submit"], "tags": {"tenant": "acme"}, "expires": "30d"}
    made = await world.ask("POST", "/api/v1/tokens", admin, body)
    assert made.status == 201
    assert (made.data["info"]["scopes"], made.data["info"]["created_by"]) == (
        ["read", "submit"],
        "admin",
    )
    me = (await world.ask("GET", "/api/v1/whoami", made.data["token"])).data
    assert me == {"name": "new", "scopes": ["read", "submit"], "tags": {"tenant": "acme"}}
    assert (await world.ask("POST", "/api/v1/tokens", admin, body)).status == 422
    gone = await world.ask("DELETE", "/api/v1/tokens/new", admin)
    assert (gone.data["state"], gone.data["revoked_by"]) == ("revoked", "admin")
    # a tenant's admin makes tokens of its tenant, and sees no other
    bound = world.tokens["bound"]
    other = {"name": "new", "scopes": ["admin"], "tags": {"tenant": "globex"}}
    assert (await world.ask("POST", "/api/v1/tokens", bound, other)).status == 422
    own = await world.ask("POST", "/api/v1/tokens", bound, {"name": "admin", "scopes": ["admin"]})
    assert own.data["info"]["tags"] == {"tenant": "acme"}
    assert own.data["info"]["name"] == "tenant=acme:admin"
    listed = (await world.ask("GET", "/api/v1/tokens", bound)).data["tokens"]
    assert {each["tags"].get("tenant") for each in listed} == {"acme"}
    missing = await world.ask("DELETE", "/api/v1/tokens/nobody", bound)
    hidden = await world.ask("DELETE", "/api/v1/tokens/admin", bound)
    assert missing.status == hidden.status == 404
    assert missing.text.replace("nobody", "admin") == hidden.text


async def test_a_token_made_with_a_token_ends_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(token_access, "KEPT_SECONDS", 0.0)
    admin = await world.client.tokens.create("deputy", ["admin"], expires="1h")
    given = admin.token
    for name in ("made", "made with that"):
        made = await world.ask("POST", "/api/v1/tokens", given, {"name": name, "scopes": ["admin"]})
        assert datetime.fromisoformat(made.data["info"]["expires_at"]) == admin.info.expires_at
        given = made.data["token"]
    browser = await logged_in(world, given)
    assert (await world.ask("GET", "/api/v1/runs", given)).status == 200
    await world.client.tokens.revoke("deputy")
    answer = await world.ask("GET", "/api/v1/runs", given)
    assert (answer.status, answer.data["message"]) == (401, "this token was revoked.")
    assert (await browser.send("GET", "/api/v1/runs")).status == 401
    late = await world.ask("POST", "/api/v1/tokens", given, {"name": "late", "scopes": ["read"]})
    assert late.status == 401


async def test_a_reused_name_has_no_keys_of_the_revoked_token(world: World):
    first = await world.client.tokens.create("shop", ["submit"])
    body = {"flow": "access count", "args": {"n": 1}}

    async def submit(token: str, n: int) -> Answer:
        given = {**body, "args": {"n": n}}
        return await world.ask("POST", "/api/v1/runs", token, given, idempotency_key="order-1")

    one = await submit(first.token, 1)
    assert (await submit(first.token, 1)).data["id"] == one.data["id"]
    assert (await submit(first.token, 2)).status == 409
    await world.client.tokens.revoke("shop")
    again = await world.client.tokens.create("shop", ["submit"])
    other = await submit(again.token, 2)
    assert (other.status, other.data["submitted"]) == (202, "created")
    assert other.data["id"] != one.data["id"]


async def test_only_the_names_that_are_allowed_are_answered(tmp_path: Path):
    options = HttpOptions("tokens", frozenset({"locktender.example"}))
    async with (
        process(tmp_path / "locktender.db", lead=True, work=False) as (core, _),
        served(core, api=True, options=options) as port,
    ):
        token = (await AsyncClient(core).tokens.create("a", ["read"])).token
        own = {"authorization": f"Bearer {token}"}
        for host, status in (("evil.example", 403), ("locktender.example:8470", 200)):
            answer = await fetch(port, "/api/v1/runs", headers={**own, "host": host})
            assert answer.status == status, host


# -- sessions of browsers ----------------------------------------------------------------------------


class Browser:
    """What a browser does with cookies and forms."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.origin = f"http://127.0.0.1:{port}"

    async def send(
        self, method: str, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> Answer:
        given: dict[str, Any] = {key.replace("_", "-"): value for key, value in headers.items()}
        if self.cookie:
            given["cookie"] = self.cookie
        body = None
        if form is not None:
            given["content-type"] = "application/x-www-form-urlencoded"
            body = urlencode(form).encode()
        if method != "GET":
            given.setdefault("origin", self.origin)
        given = {key: value for key, value in given.items() if value}
        answer = await fetch(self.port, path, method, body, given)
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer


async def logged_in(world: World, token: str) -> Browser:
    browser = Browser(world.port)
    answer = await browser.send("POST", "/login", {"token": token, "next": "/runs"})
    assert (answer.status, answer.headers["location"]) == (303, "/runs")
    return browser


def csrf_of(world: World, browser: Browser) -> str:
    """As a page of the server has it."""
    import hashlib
    import hmac

    secret = browser.cookie.partition("=")[2].encode()
    return hmac.new(secret, b"locktender csrf", hashlib.sha256).hexdigest()


async def test_a_browser_logs_in_with_a_token_and_out_again(world: World):
    browser = Browser(world.port)
    page = await browser.send("GET", "/login?next=/runs")
    assert '<form method="post" action="/login">' in page.text
    assert "form-action 'self'" in page.headers["content-security-policy"]
    for wrong in ("", "lt_a_b", world.tokens["revoked"], world.tokens["expired"]):
        refused = await browser.send("POST", "/login", {"token": wrong})
        assert (refused.status, "set-cookie" in refused.headers) == (401, False)
    answer = await browser.send("POST", "/login", {"token": world.tokens["operate"]})
    kept = answer.headers["set-cookie"].lower()
    assert all(each in kept for each in ("httponly", "samesite=strict", "path=/", "max-age=43200"))
    assert "secure" not in kept
    assert world.tokens["operate"].split("_", 2)[2] not in answer.headers["set-cookie"]
    assert (await browser.send("GET", "/api/v1/runs")).status == 200
    me = (await browser.send("GET", "/api/v1/whoami")).data
    assert me["name"] == "operate"
    # a session cannot be used as a bearer token
    session = browser.cookie.partition("=")[2]
    assert (await world.ask("GET", "/api/v1/runs", session)).status == 401
    csrf = csrf_of(world, browser)
    out = await browser.send("POST", "/logout", {"csrf": csrf})
    assert (out.status, out.headers["location"]) == (303, "/login")
    assert "max-age=0" in out.headers["set-cookie"].lower()
    browser.cookie = f"locktender={session}"
    assert (await browser.send("GET", "/api/v1/runs")).status == 401


async def test_a_session_ends_with_its_token(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_access, "KEPT_SECONDS", 0.0)
    browser = await logged_in(world, world.tokens["read"])
    assert (await browser.send("GET", "/api/v1/runs")).status == 200
    await world.client.tokens.revoke("read")
    assert (await browser.send("GET", "/api/v1/runs")).status == 401


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil", "x", ""])
async def test_nobody_is_sent_elsewhere_after_the_login(world: World, target: str):
    form = {"token": world.tokens["read"], "next": target}
    answer = await Browser(world.port).send("POST", "/login", form)
    assert answer.headers["location"] == "/"


async def test_a_page_whose_session_has_ended_keeps_its_place(world: World):
    browser = Browser(world.port)
    for here, target in (
        (f"{browser.origin}/runs?status=queued&tags=a%3Db#r-1", "/runs%3Fstatus%3Dqueued%26tags%3Da%253Db"),
        (f"{browser.origin}.evil.example/runs", "/"),
        (f"{browser.origin}//evil.example/runs", "/"),
        ("https://evil.example/runs", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ):  # fmt: skip
        answer = await browser.send("GET", "/runs/x/cancel", hx_request="true", hx_current_url=here)
        assert answer.status == 401
        assert answer.headers["hx-redirect"] == f"/login?next={target}", here


async def test_a_change_by_cookie_needs_origin_and_page_token(world: World):
    browser = await logged_in(world, world.tokens["operate"])
    csrf = csrf_of(world, browser)
    other = csrf_of(world, await logged_in(world, world.tokens["operate"]))
    own = browser.origin
    path = "/api/v1/limits/max_active/reset"
    for origin, given, status, field in (
        (own, csrf, 200, None),
        ("", csrf, 200, None),  # some browsers send none; the token of the page is enough
        (own, "", 403, "csrf"),
        (own, other, 403, "csrf"),
        (own, csrf[:-1], 403, "csrf"),
        ("http://evil.example", csrf, 403, "origin"),
        ("null", csrf, 403, "origin"),
        (own.replace("http", "https"), csrf, 403, "origin"),
        (own.replace("127.0.0.1", "localhost"), csrf, 403, "origin"),
    ):
        answer = await browser.send("POST", path, origin=origin, x_csrf_token=given)
        assert answer.status == status, (origin, given)
        assert field is None or answer.data["field"] == field
    # a form of the browser can name the token in a field; a stranger's page cannot
    assert (await browser.send("POST", "/logout", {"csrf": other})).status == 403
    # a bearer token is sent by nobody's page: neither is asked for
    answer = await world.ask("POST", path, world.tokens["operate"], origin="http://evil.example")
    assert answer.status == 200


async def test_a_page_of_another_origin_cannot_log_a_browser_in(world: World):
    form = {"token": world.tokens["read"]}
    for headers in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}):
        answer = await Browser(world.port).send("POST", "/login", form, **headers)
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)


async def test_on_loopback_without_tokens_nobody_logs_in(tmp_path: Path):
    async with (
        process(tmp_path / "locktender.db", lead=True, work=False) as (core, _),
        served(core, api=True) as port,
    ):
        answer = await fetch(port, "/login?next=/runs")
        assert (answer.status, answer.headers["location"]) == (303, "/runs")
        # tokens in the store change nothing there: who reaches the address may do everything
        await AsyncClient(core).tokens.create("a", ["read"])
        assert (await fetch(port, "/api/v1/tokens")).status == 200
