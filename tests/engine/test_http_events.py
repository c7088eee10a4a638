"""`/api/v1/events`: nothing is missed and nothing sent twice, over breaks; their number is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.server_harness import PATIENCE, fetch, process, served, until

from locktender import flow, step
from locktender.base.tokens import TokenRow
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.client.history import EventToken
from locktender.server.api import streams, token_access
from locktender.server.options import HttpOptions
from locktender.store.protocol import LATEST, Follow

pytest_plugins = ["locktender.testing.postgres"]


@step
async def noted(n: int) -> int:
    return n


@flow(name="events note")
def note(n: int = 1) -> int:
    return noted(n)


@dataclass
class Listener:
    """A client that reads messages, and can break off at any."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int = 0
    last_id: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    resets: int = 0

    async def block(self) -> dict[str, str]:
        """The fields of the next message that says something."""
        async with asyncio.timeout(PATIENCE):
            while True:
                fields: dict[str, str] = {}
                while (line := await self.reader.readline()) not in (b"\n", b""):
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    fields[name] = value
                if not line and not fields:
                    raise EOFError
                self.last_id = fields.get("id", self.last_id)
                if "event" in fields:
                    return fields

    async def read(self) -> None:
        found = await self.block()
        if found["event"] == "reset":
            self.resets += 1
        else:
            self.events += json.loads(found["data"])["events"]

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.reader.readline():
                pass

    async def until_ended(self, run: str) -> list[tuple[str, str]]:
        """What happened to a run, up to its end."""
        while not any(
            each["run_id"] == run and each["after"] == "succeeded" for each in self.events
        ):
            await self.read()
        return [(each["subject"], each["after"]) for each in self.events if each["run_id"] == run]


@asynccontextmanager
async def listening(
    port: int, query: str = "", last_id: str = "", token: str = ""
) -> AsyncIterator[Listener]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        again = f"last-event-id: {last_id}\r\n" if last_id else ""
        again += f"authorization: Bearer {token}\r\n" if token else ""
        asked = f"GET /api/v1/events{query} HTTP/1.0\r\nhost: localhost\r\n{again}\r\n"
        writer.write(asked.encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        yield Listener(reader, writer, int(head.split()[1]))
    finally:
        writer.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Core, int]]:
    monkeypatch.setattr(streams, "POLL_SECONDS", 0.01)
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if is_postgres else tmp_path / "locktender.db"
    async with process(url, lead=True, work=True) as (core, _), served(core, api=True) as port:
        yield core, port


async def _ended(core: Core, n: int) -> str:
    run = await AsyncClient(core).submit(note, n)
    await run.result("60s")
    return run.id


async def test_a_stream_goes_on_where_it_broke_off(world: tuple[Core, int]):
    core, port = world
    async with listening(port) as first:
        await until_placed(first)
        run = await _ended(core, 1)
        seen = await first.until_ended(run)
        broken_off_at = first.last_id
    assert [after for subject, after in seen if subject == "run"] == [
        "queued",
        "running",
        "succeeded",
    ]
    assert ("task", "completed") in seen
    # meanwhile nobody listens
    missed = await _ended(core, 2)
    async with listening(port, last_id=broken_off_at) as second, listening(port) as fresh:
        await until_placed(fresh)
        assert (await second.until_ended(missed))[0] == ("run", "queued")
        assert not [each for each in second.events if each["run_id"] == run]
        # all of them go on together
        last = await _ended(core, 3)
        both = await second.until_ended(last), await fresh.until_ended(last)
        assert both[0] == both[1]
        assert not [each for each in fresh.events if each["run_id"] == missed]
        numbers = [(each["seq"], each["task"], each["after"]) for each in second.events]
        assert len(numbers) == len(set(numbers))


async def until_placed(listener: Listener) -> None:
    """Its place is known: what happens from now on is sent."""
    async with asyncio.timeout(PATIENCE):
        while not listener.last_id:
            line = (await listener.reader.readline()).decode()
            if line.startswith("id: "):
                listener.last_id = line[4:].strip()


async def test_only_what_was_asked_for_is_sent(world: tuple[Core, int]):
    core, port = world
    first = await _ended(core, 1)
    async with listening(port, f"?run={first}") as one, listening(port, "?subject=run") as runs:
        await until_placed(one)
        await until_placed(runs)
        second = await _ended(core, 2)
        await runs.until_ended(second)
        assert {each["subject"] for each in runs.events} == {"run"}
        assert one.events == []


async def test_a_wrong_place_is_refused_or_starts_anew(world: tuple[Core, int]):
    core, port = world
    tokens = [EventToken(text).text() for text in ("latest", "x", "1|2|3|4", "1|2")]
    for wrong in ("!", "bm93", *tokens):
        answer = await fetch(port, "/api/v1/events", headers={"last-event-id": wrong})
        assert (answer.status, answer.data["field"]) == (400, "last-event-id"), wrong
    assert (await fetch(port, f"/api/v1/events?run={'0' * 26}")).status == 404
    # a place of a history that is not this one: told, and followed from now on
    ahead = await _other_history(core)
    async with listening(port, last_id=ahead) as listener:
        await listener.read()
        assert listener.resets == 1
        await until_placed(listener)
        run = await _ended(core, 4)
        assert await listener.until_ended(run)


async def _other_history(core: Core) -> str:
    cursor = (await core.store.follow(Follow(LATEST))).cursor
    other = f"other{cursor}" if "|" in cursor else str(int(cursor) + 1_000)
    return EventToken(other).text()


async def test_more_streams_than_the_bound_are_refused(
    world: tuple[Core, int], monkeypatch: pytest.MonkeyPatch
):
    core, port = world
    monkeypatch.setattr(streams, "MAX_STREAMS", 3)
    async with listening(port) as a, listening(port) as b, listening(port) as c:
        for each in (a, b, c):
            assert each.status == 200
            await until_placed(each)
        for _ in range(20):
            answer = await fetch(port, "/api/v1/events")
            assert (answer.status, answer.data["code"]) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
        # other requests are answered all the while
        assert (await fetch(port, "/api/v1/runs")).status == 200
        run = await _ended(core, 1)
        assert await b.until_ended(run)

    async def free() -> bool:
        async with listening(port) as again:
            return again.status == 200

    await until(free, "a place that was given back")


async def test_the_end_of_a_server_ends_its_streams(tmp_path: Path):
    async with process(tmp_path / "locktender.db", lead=True, work=True) as (core, _):
        async with served(core, api=True) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await reader.readuntil(b"id: ")
        async with asyncio.timeout(PATIENCE):
            await reader.read()
        writer.close()


async def test_one_read_tells_whose_tokens_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Many listeners of few tokens: the store is asked once for all, and only those of a revoked one end."""
    reads: list[set[str]] = []
    read = token_access.read_tokens

    async def counted(core: Core, ids: Sequence[str]) -> dict[str, TokenRow]:
        reads.append(set(ids))
        return await read(core, ids)

    monkeypatch.setattr(token_access, "read_tokens", counted)
    monkeypatch.setattr(token_access, "KEPT_SECONDS", 0.05)
    async with (
        process(tmp_path / "locktender.db", lead=True, work=True) as (core, _),
        served(core, api=True, options=HttpOptions("tokens")) as port,
        AsyncExitStack() as stack,
    ):
        tokens = [await AsyncClient(core).tokens.create(name, ["read"]) for name in "ab"]
        listeners = [
            await stack.enter_async_context(listening(port, token=tokens[n % 2].token))
            for n in range(6)
        ]
        ids = {each.info.id for each in tokens}

        async def all_watched() -> bool:
            return ids in reads

        await until(all_watched, "one read of both")
        begun = len(reads)

        async def read_more() -> bool:
            return len(reads) >= begun + 3

        await until(read_more, "more reads")
        assert all(each == ids for each in reads[begun:])
        await AsyncClient(core).tokens.revoke("a")
        for gone in listeners[::2]:
            await gone.until_closed()
        run = await _ended(core, 1)
        for left in listeners[1::2]:
            assert await left.until_ended(run)


async def test_who_comes_while_tokens_are_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = token_access.read_tokens
    begun, go_on = asyncio.Event(), asyncio.Event()
    watched: set[str] = set()

    async def held(core: Core, ids: Sequence[str]) -> dict[str, TokenRow]:
        found = await read(core, ids)
        if watched and set(ids) == watched:
            begun.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(token_access, "read_tokens", held)
    monkeypatch.setattr(token_access, "KEPT_SECONDS", 0.05)
    async with (
        process(tmp_path / "locktender.db", lead=True, work=True) as (core, _),
        served(core, api=True, options=HttpOptions("tokens")) as port,
    ):
        first, second = [await AsyncClient(core).tokens.create(name, ["read"]) for name in "ab"]
        async with listening(port, token=first.token):
            watched.add(first.info.id)
            await begun.wait()
            async with listening(port, token=second.token) as other:
                go_on.set()
                assert await other.until_ended(await _ended(core, 1))
