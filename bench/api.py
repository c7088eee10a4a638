"""The HTTP API of a server process on PostgreSQL with fsync: submissions, a page of a long queue, idle listeners.

python -m bench api
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from bench import cluster_steps as steps
from bench.report import Figure
from locktender import Client, connect
from locktender.testing.postgres_server import copy_of, server, template

CLIENTS, EACH = 16, 300
ROUNDS = 3
QUEUED, BATCH = 1_000_000, 10_000
LISTS = 200
LISTENERS, IDLE_SECONDS = 500, 10
ANNOUNCED_SECONDS = 60


def run() -> list[Figure]:
    with (
        server(durable=True) as url,
        template(url) as name,
        copy_of(url, name) as own,
        _served(own) as (port, pid, client),
    ):
        flow = _announced(own, client)
        return [
            *_submissions(port, flow),
            *_listeners(port, pid),
            *_queue(port, client, flow),
        ]


@contextmanager
def _served(url: str) -> Iterator[tuple[int, int, Client]]:
    command = ["server", "--port", "0", "--url", url, "--json", "--with-parent"]
    process = subprocess.Popen(
        [sys.executable, "-m", "locktender", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said: dict[str, Any] = json.loads(process.stdout.readline())
        with connect(url) as client:
            client.limits.set_max_active(-1)
            client.limits.pause()  # what is submitted stays queued
            yield int(said["port"]), process.pid, client
    finally:
        process.terminate()
        process.wait(60)


def _announced(url: str, client: Client) -> str:
    """The name of a flow whose code the server does not have: a worker came and went."""
    command = ["worker", "--app", steps.__name__, "--url", url, "--json", "--with-parent"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "locktender", *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + ANNOUNCED_SECONDS
        while time.monotonic() < end:
            for flow in client.flows.list():
                if not client.flows.get(flow.name).parameters.get("required"):
                    return flow.name
            time.sleep(0.1)
        raise TimeoutError("no worker announced a flow")
    finally:
        worker.terminate()
        worker.wait(60)


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} /api/v1{path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, status: bytes
) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status), head
    [size] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    await reader.readexactly(int(size.partition(b":")[2]))


def _submissions(port: int, flow: str) -> list[Figure]:
    request = _request("POST", "/runs", json.dumps({"flow": flow}).encode())

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(EACH):
            await _ask(reader, writer, request, b"202")
        writer.close()

    async def round_() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return CLIENTS * EACH / (time.perf_counter() - began)

    rate = statistics.median(asyncio.run(round_()) for _ in range(ROUNDS))
    name = f"submissions by HTTP, {CLIENTS} clients"
    return [Figure(name, rate, "runs/s", "≥ 1,500", rate >= 1_500)]


def _queue(port: int, client: Client, flow: str) -> list[Figure]:
    for _ in range(QUEUED // BATCH):
        client.submit_many(flow, [()] * BATCH, partial=True)
    request = _request("GET", "/queue?limit=100")

    async def listed() -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        took: list[float] = []
        for _ in range(LISTS):
            began = time.perf_counter()
            await _ask(reader, writer, request, b"200")
            took.append((time.perf_counter() - began) * 1_000)
        writer.close()
        return took

    p99 = statistics.quantiles(asyncio.run(listed()), n=100)[98]
    return [Figure(f"list the queue, {QUEUED:,} queued, p99", p99, "ms", "≤ 50", p99 <= 50)]


def _listeners(port: int, pid: int) -> list[Figure]:
    async def idle() -> float:
        several = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LISTENERS)]
        for reader, writer in several:
            writer.write(_request("GET", "/events"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        process = psutil.Process(pid)
        before, began = process.cpu_times(), time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        after, took = process.cpu_times(), time.perf_counter() - began
        for _, writer in several:
            writer.close()
        return 100 * (after.user + after.system - before.user - before.system) / took

    share = asyncio.run(idle())
    name = f"{LISTENERS} idle listeners, share of a core"
    return [Figure(name, share, "%", "≤ 5", share <= 5)]
