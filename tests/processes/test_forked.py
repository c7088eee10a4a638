"""A process that has forked is killed: its child keeps neither its locks nor its proof of life (F7)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from locktender.base.config import Settings
from locktender.base.model import Proof
from locktender.store.open import store_for
from locktender.testing import eventually
from locktender.testing.conformance.world import submitted

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
PARENT = Path(__file__).parents[1] / "support" / "forking_parent.py"


def test_f7_a_child_that_lives_on_keeps_nothing_of_its_parent(store_url: str):
    parent = subprocess.Popen(
        [sys.executable, str(PARENT), store_url], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert "opened before the process forked" in parent.stdout.readline()
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it lives
        asyncio.run(writes(store_url))
        eventually(lambda: asyncio.run(proof(store_url)) != "held")
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


async def writes(url: str) -> None:
    opened = store_for(Settings(url=url))
    await opened.open()
    assert (await submitted(opened)).outcome == "created"
    await opened.close()


async def proof(url: str) -> Proof:
    opened = store_for(Settings(url=url))
    await opened.open()
    [life] = await opened.lives()
    await opened.close()
    return life.proof
