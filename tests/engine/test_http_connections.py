"""Connections that ask for nothing: the oldest are closed for new ones, before and after the TLS handshake."""

from __future__ import annotations

import asyncio
import http.client
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trustme
from tests.support.server_harness import fetch, process, served

from locktender.base import open_files
from locktender.server import connections, web
from locktender.server.options import HttpOptions

MOST = 8
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "most_connections", lambda: MOST)


@asynccontextmanager
async def server(folder: Path, options: HttpOptions | None = None) -> AsyncIterator[int]:
    async with (
        process(folder / "locktender.db", lead=True, work=False) as (core, _),
        served(core, api=True, options=options) as port,
    ):
        yield port


def certified(folder: Path) -> tuple[trustme.CA, tuple[Path, Path]]:
    """An authority, and a certificate of this machine with its key."""
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    pair = folder / "cert.pem", folder / "key.pem"
    made.cert_chain_pems[0].write_to_path(str(pair[0]))
    made.private_key_pem.write_to_path(str(pair[1]))
    return authority, pair


async def opened(port: int, sent: bytes = b"") -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def closed(stream: Stream) -> bool:
    """Waits for the end."""
    try:
        async with asyncio.timeout(60):
            return await stream[0].read() == b""
    except ConnectionResetError:
        return True


def hang_up(streams: list[Stream]) -> None:
    for _, writer in streams:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "])
async def test_silent_clients_keep_nobody_from_an_answer(tmp_path: Path, sent: bytes):
    """Neither those that say nothing, nor those whose request never ends."""
    async with server(tmp_path) as port:
        silent = [await opened(port, sent) for _ in range(5 * MOST)]
        assert (await fetch(port, "/health")).status == 200
        # the oldest had to go; the youngest may still send its request
        assert await closed(silent[0])
        reader, writer = silent[-1]
        writer.write(b"y\r\n\r\n" if sent else b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        hang_up(silent)


async def test_what_is_being_answered_is_not_closed_for_others(tmp_path: Path):
    async with server(tmp_path) as port:
        follow = b"GET /api/v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        followed = [await opened(port, follow) for _ in range(MOST - 2)]
        for reader, _ in followed:
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        silent = [await opened(port) for _ in range(3 * MOST)]
        for _ in range(MOST):
            assert (await fetch(port, "/health")).status == 200
        assert not any(reader.at_eof() for reader, _ in followed)
        hang_up([*silent, *followed])


async def test_clients_that_shake_no_hands_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    authority, pair = certified(tmp_path)
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def health(port: int) -> int:
        made = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
        with closing(made) as asked:
            asked.request("GET", "/health")
            return asked.getresponse().status

    async with server(tmp_path, HttpOptions(tls=pair)) as port:
        silent = [await opened(port) for _ in range(5 * MOST)]
        assert await asyncio.to_thread(health, port) == 200
        assert await closed(silent[0])
        hang_up(silent)
        # alone it has its time, and no more
        monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)
        alone = [await opened(port)]
        assert await closed(alone[0])
        # what is no handshake ends at once, and the server goes on
        alone += [await opened(port, b"GET / HTTP/1.1\r\n\r\n")]
        assert await closed(alone[1])
        monkeypatch.undo()
        assert await asyncio.to_thread(health, port) == 200
        hang_up(alone)


async def test_a_server_ends_while_somebody_shakes_hands(tmp_path: Path):
    _, pair = certified(tmp_path)
    async with server(tmp_path, HttpOptions(tls=pair)) as port:
        silent = await opened(port)
    assert await closed(silent)
    hang_up([silent])


def test_the_bound_is_what_files_allow(monkeypatch: pytest.MonkeyPatch):
    files = [1_024, 4_096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(files))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: files.__setitem__(0, given[0]))
    monkeypatch.setattr(open_files, "_at_start", [])
    assert connections.most_connections() == 1_024 - connections.OTHER_FILES
    connections.allow_files()
    assert connections.most_connections() == connections.MAX_CONNECTIONS
    assert files[0] < 4_096  # not more than is needed
    files[:] = [64, 64]
    connections.allow_files()
    assert (files[0], connections.most_connections()) == (64, 1)
