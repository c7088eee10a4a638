"""What `locktender workers` shows: all that a row has, in 80 columns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from locktender.base.clock import SECOND
from locktender.base.model import Unstopped, WorkerRow
from locktender.cli import workers
from locktender.cli.context import Context
from locktender.client.views import WorkerInfo
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import Heartbeat

ID = "build-machine-17.example-4711-0a1b2c3d"
ROW = WorkerRow(
    id=ID,
    host="build-machine-17.example",
    pid=4711,
    version="9.8.7",
    permits={"async": 100, "thread": 8, "process": -1},
    total=64,
    claim=25,
    full=("async",),
    share=35,
    pressed={"memory": 0.8, "latency": 1.0},
    free=17,
    labels={"gpu": "a100", "zone": "eu"},
    steps={"shop.fetch": "3f9c0000"},
    flows={"shop.build": "77aa0000"},
    in_flight=92,
    memory=0.834,
    p99_us=1_500_000,
    lag_us=40_000,
    unstopped=[Unstopped(5, 1048576, "shop.fetch", "timeout", 10**15)],
    provision="vm-7",
)
EVERYTHING = (
    "build-machine-17.example", "4711", "9.8.7", "async 100", "thread 8", "process ∞", "total 64",
    "92", "17", "35%", "25", "nearly full", "83%", "1.5s", "40ms", "gpu=a100", "zone=eu", "vm-7",
    "shop.fetch", "3f9c0000", "shop.build", "77aa0000", "joined", "lease ends", "alive",
    "memory 83.4 % (over 80 %)", "1.5s (over 1s)", "task 1048576 (shop.fetch) asked to stop", "ago: timeout",
)  # fmt: skip


@pytest.fixture
def shell(url: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A store in which that worker has joined; a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    async def join() -> None:
        store = store_for(settings_for(url, {}))
        await store.open()
        await store.heartbeat(Heartbeat(ROW, 600 * SECOND))
        await store.close()

    asyncio.run(join())
    return Context(url=str(url))


def told(capsys: pytest.CaptureFixture[str]) -> str:
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    return out


def test_the_list_has_what_an_operator_looks_for(
    shell: Context, capsys: pytest.CaptureFixture[str]
):
    workers.list_(shell)
    out = told(capsys)
    head = out.splitlines()[0].split()
    assert head == ["WORKER", "STATE", "TASKS", "FREE", "MEM", "LABELS", "JOINED", "LEASE"]
    for word in ("alive", "92", "17", "83%", "gpu=a100"):
        assert word in out, word


def test_show_hides_nothing(shell: Context, capsys: pytest.CaptureFixture[str]):
    workers.show(shell, ID[:30])
    out = told(capsys)
    assert ID in out
    for word in EVERYTHING:
        assert word in out, word


def test_json_has_all_of_the_row(shell: Context, capsys: pytest.CaptureFixture[str]):
    workers.list_(Context(url=shell.url, json=True))
    [found] = json.loads(capsys.readouterr().out)
    row = json.loads(msgspec.json.encode(ROW))
    renamed = {"total": "total_permits", "p99_us": "p99", "lag_us": "loop_lag"}
    left_out = {"since", "lease_until", "progress", "leaves", "leaves_all", "unstopped"}
    left_out.add("asked_again_at")  # an instant, by another name
    for name, value in row.items():
        if name not in left_out:
            wanted = value / SECOND if name.endswith("_us") else value
            assert found[renamed.get(name, name)] == wanted, name
    assert {"alive", "since", "lease_until", "passed_over_until"} <= found.keys()
    [told] = found["unstopped"]
    assert (told["task"], told["step"], told["reason"]) == (1048576, "shop.fetch", "timeout")


def test_a_row_that_cannot_be_read_is_said_to_be_so():
    worker = WorkerInfo.of(msgspec.structs.replace(ROW, unreadable="its pid is 'x'"), now=5)
    assert "unreadable" in workers._state(worker)
    assert ("unreadable", "its pid is 'x'") in workers._facts(worker)


def test_drain_names_the_worker(shell: Context, capsys: pytest.CaptureFixture[str]):
    workers.drain(shell, ID[:20])
    out = " ".join(capsys.readouterr().out.split())
    assert (
        out
        == f"worker {ID} is asked to drain; no engine runs now: it is carried out when one starts"
    )


def test_who_drains_or_is_lost_would_take_nothing():
    alive = msgspec.structs.replace(ROW, lease_until=10)
    assert WorkerInfo.of(alive, now=5).free == 17
    assert WorkerInfo.of(alive, now=11).free == 0
    assert WorkerInfo.of(msgspec.structs.replace(alive, draining=True), now=5).free == 0
