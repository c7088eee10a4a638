"""The check of the history in a process of its own, before records are deleted."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.server_harness import until

from locktender import embedded
from locktender.leader.retention import _InAChild


def _children() -> list[psutil.Process]:
    return [
        each for each in psutil.Process().children() if "checkpoint" in " ".join(each.cmdline())
    ]


@pytest.mark.parametrize("cancelled", ["while it starts", "while it runs"])
async def test_a_check_that_is_cancelled_twice_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: str
):
    reaped, wait = asyncio.Event(), Process.wait
    made, start = asyncio.Event(), asyncio.create_subprocess_exec
    begun = asyncio.Event()
    if cancelled == "while it runs":
        begun.set()

    async def begin(*given: Any, **options: Any) -> Process:
        process = await start(*given, **options)
        made.set()
        await begun.wait()
        return process

    async def late(self: Process) -> int:
        await reaped.wait()
        return await wait(self)

    monkeypatch.setattr(Process, "wait", late)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin)
    url = tmp_path / "locktender.db"
    with embedded(url):
        pass
    check = asyncio.create_task(_InAChild(str(url)).check(0))
    await made.wait()
    await until(_children, "the child")
    [child] = _children()

    for _ in range(3):
        check.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not check.done()
    begun.set()
    reaped.set()
    with pytest.raises(asyncio.CancelledError):
        await check

    assert not psutil.pid_exists(child.pid)
