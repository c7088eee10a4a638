"""The step of `ray_cost.py`; each worker that imports it leaves a record of itself."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from locktender import flow, step

if "LOCKTENDER_PROVISION" in os.environ:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    began_us = ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")
    with Path(os.environ["LOCKTENDER_TEST_RECORDS"]).open("a") as file:
        file.write(json.dumps([os.getpid(), os.environ["LOCKTENDER_PROVISION"], began_us]) + "\n")


@step
async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


@flow
def once(seconds: float) -> None:
    pause(seconds)
