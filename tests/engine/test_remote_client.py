"""The client of a server: the same verbs as that of a database, and what is its own: tokens, TLS, lost answers."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.steps import client_flows as flows
from tests.support import transports
from tests.support.http_proxy import HttpProxy, proxied
from tests.support.server_harness import until

from locktender import (
    AccessRefused,
    AsyncClient,
    InvalidInput,
    NotFound,
    connect,
    connect_async,
    embedded,
    embedded_async,
    flow,
    secret,
)
from locktender.base.errors import StoreUnreachable
from locktender.client import client_async, events, namespaces, pauses, result_cache, schedules
from locktender.client import tokens as client_tokens
from locktender.client.client import Client as SyncClient
from locktender.client.guard import ClientClosed
from locktender.client.limits_async import AsyncLimits
from locktender.client.pools_async import AsyncPools
from locktender.client.remote import http
from locktender.client.remote.client import RemoteClient
from locktender.client.remote.events import RemoteEvents
from locktender.client.remote.others import (
    RemoteCache,
    RemoteFlows,
    RemoteSchedules,
    RemoteTokens,
    RemoteWorkers,
)
from locktender.client.remote.run import RemoteRun
from locktender.client.remote.runs import RemoteQueue, RemoteRuns
from locktender.client.remote.settings import RemoteLimits, RemotePools
from locktender.client.run import AsyncRun, Run
from locktender.client.runs_async import AsyncQueue, AsyncRuns
from locktender.client.workers import AsyncWorkers
from locktender.server.options import HttpOptions
from locktender.server.web import bind, port_of, serving

pytestmark = pytest.mark.timeout(300)
TRANSPORTS: list[tuple[type, type, type]] = [
    (SyncClient, AsyncClient, RemoteClient),
    (Run, AsyncRun, RemoteRun),
    (namespaces.SyncRuns, AsyncRuns, RemoteRuns),
    (namespaces.SyncQueue, AsyncQueue, RemoteQueue),
    (namespaces.SyncPools, AsyncPools, RemotePools),
    (namespaces.SyncLimits, AsyncLimits, RemoteLimits),
    (namespaces.SyncWorkers, AsyncWorkers, RemoteWorkers),
    (schedules.SyncSchedules, schedules.AsyncSchedules, RemoteSchedules),
    (pauses.SyncFlows, pauses.AsyncFlows, RemoteFlows),
    (events.SyncEvents, events.AsyncEvents, RemoteEvents),
    (result_cache.SyncCache, result_cache.AsyncCache, RemoteCache),
    (client_tokens.SyncTokens, client_tokens.AsyncTokens, RemoteTokens),
]
"""Of each namespace: for plain code, for a store, and for a server."""
THROUGH_OTHERS = {
    "AsyncClient": {"submit", "submit_many", "close", "settings", "closed", "prepared"},
    "AsyncRun": {"id", "submitted", "status"},
    "AsyncWorkers": {"get"},
}
"""Verbs that a client of a server has as they are: they are made of its other verbs."""
NOT_ASYNC = {
    "submit_call", "submit_named", "submit_prepared", "submit_all_prepared", "preparing", "prepared",
    "refuse_connection",
}  # fmt: skip
"""What the two clients have for each other."""


def verbs(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("classes", TRANSPORTS, ids=lambda classes: classes[1].__name__)
def test_every_verb_is_there_by_every_way(classes: tuple[type, type, type]):
    plain, stored, remote = classes
    assert verbs(plain) - NOT_ASYNC == verbs(stored) - NOT_ASYNC
    own = set(vars(remote)) | THROUGH_OTHERS.get(stored.__name__, set())
    forgotten = verbs(stored) - own
    assert not forgotten, f"write them for a server, too: {forgotten}"
    for name in verbs(stored) & set(vars(remote)):
        here, there = getattr(stored, name), getattr(remote, name)
        if inspect.isfunction(here):
            shown = [inspect.signature(each).parameters for each in (here, there)]
            assert [*shown[0]] == [*shown[1]], name
            assert [each.default for each in shown[0].values()] == [
                each.default for each in shown[1].values()
            ], name


def test_every_namespace_is_compared():
    found = {
        name
        for name, member in inspect.getmembers(client_async.AsyncClient)
        if type(member).__name__ == "cached_property"
    }
    assert len(found) == len(TRANSPORTS) - 2, found


@flow
def of_many(*xs: int) -> int:
    return flows.double(xs[0])


@flow
def shown(value: str) -> str:
    return flows.measured_text(value)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with transports.server(tmp_path / "locktender.db") as url:
        yield url


def test_what_needs_the_database_says_so_and_why(address: str):
    with connect(address) as client:
        with pytest.raises(InvalidInput, match="lease that this process renews") as caught:
            client.slots("db")
        assert "postgresql://" in (caught.value.hint or "")
        with pytest.raises(InvalidInput, match="could not be part of your transaction"):
            client.submit(flows.doubled, 1, connection=object())
        with pytest.raises(InvalidInput, match="a client with a token could"):
            client.submit(shown, secret("env:HOME"))
        with pytest.raises(InvalidInput, match="takes them by name"):
            client.submit(of_many, 1, 2)
        with pytest.raises(InvalidInput, match="int"):
            client.submit(flows.doubled.name, "x")
    for open_ in (embedded, lambda url: asyncio.run(_await(embedded_async(url)))):
        with pytest.raises(InvalidInput, match="an engine needs the database itself"):
            open_(address)


async def _await(opening: Any) -> Any:
    return await opening


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://flows.example.org", "for this machine alone"),
        ("https://ann:sesame@flows.example.org", "no user and password"),
        ("https://", "not the address of a server"),
        ("https://flows.example.org?x=1", "not the address of a server"),
        ("https://flows.example.org:99999", "not an address"),
    ],
)
def test_addresses_that_are_none_are_refused(url: str, said: str):
    with pytest.raises(InvalidInput, match=said) as caught:
        connect(url)
    assert "sesame" not in str(caught.value.as_dict())


def test_nobody_there_is_said_as_of_a_store(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locktender.store.retry.AWAY_SECONDS", 0.1)
    with bind("127.0.0.1", 0) as listener:
        port = port_of(listener)
    with pytest.raises(StoreUnreachable, match="nothing answers at") as caught:
        connect(f"http://127.0.0.1:{port}")
    assert "locktender server" in (caught.value.hint or "")


def test_an_address_of_something_else_is_said(tmp_path: Path):
    with transports.server(tmp_path / "locktender.db") as url, pytest.raises(NotFound):
        connect(f"{url}/elsewhere")


def test_without_its_library_it_says_what_to_install(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(InvalidInput, match="not installed") as caught:
        connect(address)
    assert "locktender[remote]" in (caught.value.hint or "")


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with connect(address) as client:
        assert client.runs.list() == []


def test_a_database_takes_no_token(tmp_path: Path):
    with pytest.raises(InvalidInput, match="takes no token"):
        connect(tmp_path / "locktender.db", token="lt_x")


TOKENS = HttpOptions(auth="tokens")


def test_tokens_from_the_argument_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "locktender.db"
    with transports.server(file, options=TOKENS) as url, connect(file) as db:
        made = {each: db.tokens.create(each, [each]).token for each in ("read", "submit", "admin")}
        for wrong in (None, "lt_0123456789_nothing"):
            with pytest.raises(AccessRefused) as caught:
                connect(url, token=wrong)
            assert caught.value.status == 401
        with pytest.raises(InvalidInput, match="not a token"):
            connect(url, token="two words")
        with connect(url, token=made["read"]) as reader:
            assert reader.runs.list() == []
            with pytest.raises(AccessRefused, match="scope 'submit'") as caught:
                reader.submit(flows.doubled, 1)
            assert (caught.value.status, caught.value.code) == (403, "forbidden")
            with pytest.raises(AccessRefused):
                reader.pools.set("db", 3)
        monkeypatch.setenv("LOCKTENDER_TOKEN", made["admin"])
        with connect(url) as client:
            client.pools.set("db", 3)
            assert client.limits.history()[0].who == "admin"
            assert made["admin"] not in repr(client.settings)
            assert {each.name for each in client.tokens.list()} == {"read", "submit", "admin"}
            assert client.tokens.create("ci", ["read"], expires="1h").info.name == "ci"
            assert client.tokens.revoke("ci").state == "revoked"
            with pytest.raises(NotFound):
                client.tokens.revoke("nobody")


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {key} -out {cert} -subj /CN=localhost"
        " -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    subprocess.run(words.split(), check=True, capture_output=True)
    return cert, key


def test_tls_is_verified_by_the_authority_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cert, key = certificate(tmp_path)
    monkeypatch.setattr("locktender.store.retry.AWAY_SECONDS", 0.1)
    options = HttpOptions(tls=(cert, key))
    with transports.server(tmp_path / "locktender.db", options=options) as url:
        https = url.replace("http://", "https://")
        with connect(https, ca=cert) as client:
            assert client.runs.list() == []
        with pytest.raises(InvalidInput, match="is not trusted") as caught:
            connect(https)
        assert "ca=FILE" in (caught.value.hint or "")
        with pytest.raises(InvalidInput, match="ca cannot be read"):
            connect(https, ca=key)
        with pytest.raises(InvalidInput, match="ca cannot be read"):
            connect(https, ca=tmp_path / "nothing.pem")


def test_a_server_without_tls_is_said_at_once(tmp_path: Path):
    with transports.server(tmp_path / "locktender.db") as url:
        with pytest.raises(InvalidInput, match="answers without TLS") as caught:
            connect(url.replace("http://", "https://"))
        assert "--tls-cert" in (caught.value.hint or "")


def port_in(url: str) -> int:
    return urlsplit(url).port or 0


@pytest.fixture
def proxy(address: str) -> Iterator[HttpProxy]:
    with proxied(port_in(address)) as made:
        yield made


def test_a_repeated_submission_makes_one_run(proxy: HttpProxy):
    with connect(proxy.url) as client:
        proxy.only, proxy.lose = "POST /api/v1/runs", 2
        run = client.submit(flows.waits, 1)
        assert run.submitted == "created"
        assert proxy.lose == 0
        assert [each.id for each in client.runs.list()] == [run.id]
        proxy.lose = 1
        several = client.submit_many(flows.waits, [2, 3])
        assert {each.id for each in client.runs.list()} == {run.id, *(each.id for each in several)}
        # ids are in the order of time, as those of a client of a database
        assert run.id < min(each.id for each in several)


def test_only_reads_and_idempotent_changes_are_repeated(proxy: HttpProxy):
    with connect(proxy.url) as client:
        proxy.only, proxy.lose = "GET", 1
        assert client.pools.list() == []
        proxy.only, proxy.lose = "PUT", 1
        client.pools.set("db", 3)
        assert proxy.lose == 0
        assert client.pools.get("db").limit == 3
        assert len([each for each in proxy.requests if each.startswith("PUT")]) == 2
        assert len(client.limits.history()) == 1  # the second changed nothing
        proxy.only, proxy.lose = "DELETE", 1
        with pytest.raises(StoreUnreachable, match="ended before the answer") as caught:
            client.pools.delete("db")
        assert "not known whether" in (caught.value.hint or "")
        assert client.pools.list() == []
        sent = [each for each in proxy.requests if each.startswith("DELETE")]
        assert len(sent) == 1


async def test_an_event_stream_that_is_cut_goes_on_behind_the_last_one(tmp_path: Path):
    file = tmp_path / "locktender.db"
    async with embedded_async(file) as engine:
        with bind("127.0.0.1", 0) as listener:
            async with serving(engine._core, listener, demand=True, api=True):
                with proxied(port_of(listener)) as proxy:
                    async with connect_async(proxy.url) as client:
                        seen: list[Any] = []
                        following = asyncio.ensure_future(_follow(client, seen))
                        await until(
                            lambda: any("/events" in each for each in proxy.requests), "the stream"
                        )
                        for number in range(3):
                            run = await client.submit(flows.doubled, number)
                            await run.result(60)
                            await until(
                                lambda run=run: any(
                                    each.run_id == run.id and each.after == "succeeded"
                                    for each in seen
                                ),
                                "the end of the run",
                            )
                            proxy.cut()
                        following.cancel()
                        every = [
                            each async for each in client.events.follow(after="start", wait=False)
                        ]
    of_runs = [each.cursor for each in every if each.run_id is not None]
    assert [each.cursor for each in seen if each.run_id is not None] == of_runs


async def _follow(client: AsyncClient, seen: list[Any]) -> None:
    async for event in client.events.follow(after="start"):
        seen += [event]


def test_a_named_reader_goes_on_where_it_ended(tmp_path: Path):
    file = tmp_path / "locktender.db"
    with embedded(file) as engine, transports.served(engine) as url, connect(url) as client:
        client.submit(flows.doubled, 1).result(60)
        first = next(iter(client.events.follow(reader="billing", wait=False)))
        rest = list(client.events.follow(reader="billing", wait=False))
        again = list(client.events.follow(after="start", wait=False))
        assert [first.cursor, *(each.cursor for each in rest)][-len(again) :] == [
            each.cursor for each in again
        ]
        assert [each.name for each in client.events.readers()] == ["billing"]
        assert [each.name for each in engine.events.readers()] == ["billing"]
        assert client.events.forget_reader("billing")
        assert not client.events.forget_reader("billing")


async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path):
    flows.GATE.clear()
    try:
        async with embedded_async(tmp_path / "locktender.db") as engine:
            core = engine._core
            with bind("127.0.0.1", 0) as listener:
                async with serving(core, listener, demand=True, api=True):
                    client = await connect_async(f"http://127.0.0.1:{port_of(listener)}")
                    run = await client.submit(flows.waits, 1)
                    waiting = asyncio.ensure_future(run.result())
                    await until(lambda: core.waiting._waiters, "the waiter")
                    await client.close()
                    with pytest.raises(ClientClosed):
                        await waiting
                    await until(lambda: not core.waiting._waiters, "the end of the wait")
                    flows.GATE.set()
                    assert await (await engine.runs.get(run.id)).result(60) == 1
    finally:
        flows.GATE.set()


def test_two_servers_take_turns(tmp_path: Path):
    file = tmp_path / "locktender.db"
    with (
        embedded(file) as engine,
        transports.served(engine) as one,
        transports.server(file) as two,
        proxied(port_in(one), port_in(two)) as proxy,
        connect(proxy.url) as client,
    ):
        found: list[int] = []
        threads = [
            threading.Thread(
                target=lambda n=n: found.append(client.submit(flows.doubled, n).result(60))
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [2 * n for n in range(8)]
        proxy.ports = [port_in(two)]
        assert client.runs.count(status="succeeded") == 8


def test_large_and_typed_values_come_back_as_they_are(tmp_path: Path):
    file = tmp_path / "locktender.db"
    with embedded(file) as engine, transports.served(engine) as url, connect(url) as client:
        assert client.submit(flows.large, 1_900_000).result(60) == "x" * 1_900_000
        assert client.submit(flows.measured, "ab").result(60) == flows.Stats(2, "ab")
        # without its code here, a value is plain JSON
        run = client.submit(flows.measured.name, {"path": "ab"})
        raw = client._bridge.call(
            client._client._http.get(http.path_of("runs", run.id, "result"), dict[str, Any])  # type: ignore[attr-defined]
        )
        assert raw["state"] in ("queued", "running", "succeeded")
        assert run.result(60) == flows.Stats(2, "ab")
