"""What `locktender demo` runs: a small crawler whose bodies keep records of their own.

Each attempt writes when it began and when it ended to a file of its own, so that
overlap can be measured without asking the engine that is being measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from locktender.base.clock import SystemClock
from locktender.flows.flows import flow
from locktender.flows.steps import step
from locktender.worker.executors.current import current

WINDOW = 3
FETCH_SECONDS = 0.25
SAVE_SECONDS = 0.15


@contextmanager
def recorded(records: str, name: str, tenant: str) -> Generator[None]:
    """A line when the body begins, a line when it ends; a killed one leaves only the first."""
    job = current()
    if job is None:  # called outside a flow
        yield
        return
    clock = SystemClock()
    fields = {"step": name, "run": job.run, "tenant": tenant, "task": job.task,
              "pid": os.getpid(), "attempt": job.attempt}  # fmt: skip
    with Path(records, f"{job.task}-{job.token}.jsonl").open("wb", buffering=0) as file:
        file.write(msgspec.json.encode({**fields, "start": clock.monotonic()}) + b"\n")
        try:
            yield
        finally:
            file.write(msgspec.json.encode({"end": clock.monotonic()}) + b"\n")


@step
async def fetch(page: int, records: str, tenant: str) -> int:
    with recorded(records, "fetch", tenant):
        await asyncio.sleep(FETCH_SECONDS)
        return page * 100


@step(pool="db")
def save(size: int, records: str, tenant: str) -> int:
    with recorded(records, "save", tenant):
        time.sleep(SAVE_SECONDS)
        return size


@step
def total(sizes: list[int]) -> int:
    return sum(sizes)


@flow
def crawl(pages: list[int], records: str, tenant: str) -> int:
    """At most WINDOW pages of a run are fetched at once; saving needs a slot of the pool `db`."""
    fetched = fetch.map(pages, window=WINDOW, records=records, tenant=tenant)
    return total(save.map(fetched, records=records, tenant=tenant))
