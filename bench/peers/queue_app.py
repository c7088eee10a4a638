"""The peer's app: the same no-op and the same clock-reading body, in its own words."""

from __future__ import annotations

import os
import time
from pathlib import Path

import procrastinate

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"])
)


@app.task(queue="noop")
async def noop(n: int) -> int:
    return n


@app.task(queue="stamp")
async def stamp(n: int) -> None:  # noqa: ARG001 — every job has an argument
    with Path(os.environ["BENCH_STAMPS"]).open("a") as file:
        file.write(f"{time.time()}\n")
