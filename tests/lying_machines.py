"""A provisioner whose workers are real, and whose answers are not what they should be: `TEST_LIE` says how."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from locktender import Capacity, Provisioned
from locktender.base.config import Settings

LIE = "TEST_LIE"
STEPS_FILE = Path(__file__).parent / "bounded_steps.py"


class LyingMachines:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lie = os.environ[LIE]
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return None if needs else Capacity({"async": 1}, total=1)

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> Any:
        called = ["image"] * n if self._lie == "one name" else list(names)
        for name in called:
            self._started.append((name, self._start(name)))
        return None if self._lie == "no names" else called

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        told = {"LOCKTENDER_URL": self._settings.url, "LOCKTENDER_PROVISION": name}
        given = ("idle_exit=3s", "total_permits=1", f"work_dir={self._settings.work_dir}")
        sets = [text for each in given for text in ("--set", each)]
        return subprocess.Popen(
            [sys.executable, "-m", "locktender", "worker", str(STEPS_FILE), "--with-parent", *sets],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **told},
        )

    async def list(self) -> Any:
        running = "RUNNING" if self._lie == "capitals" else "running"
        states: dict[int | None, Any] = {None: running, 0: "ended"}
        found = [
            Provisioned(name, states.get(process.poll(), "failed"))
            for name, process in self._started
        ]
        return found[:1] if self._lie == "one name" else found

    async def release(self, name: str) -> None:
        for called, process in self._started:
            if called == name and process.poll() is None:
                process.terminate()

    async def close(self) -> None:
        for name, _ in self._started:
            await self.release(name)
        while any(process.poll() is None for _, process in self._started):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
