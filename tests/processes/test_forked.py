"""A process that has forked is killed: its child keeps neither its locks nor its proof of life (F7)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from locktender.base.config import Settings
from locktender.base.model import Proof
from locktender.store.open import store_for
from locktender.testing import eventually
from locktender.testing.conformance.world import submitted

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
PARENT = Path(__file__).parents[1] / "support" / "forking_parent.py"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_f7_a_child_that_lives_on_keeps_nothing_of_its_parent(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
):
    store = str(tmp_path / "locktender.db")
    if kind == "postgres":
        store = str(request.getfixturevalue("postgres_url"))
    parent = subprocess.Popen(
        [sys.executable, str(PARENT), store], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, _, said = parent.stdout.readline().partition(" ")
    child = int(pid)
    try:
        assert "opened before the process forked" in said
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it lives
        asyncio.run(writes(store))
        eventually(lambda: asyncio.run(proof(store)) != "held")
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.wait()
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
