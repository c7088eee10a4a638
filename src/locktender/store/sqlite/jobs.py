"""Verbs on their way to a thread and their results on the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from locktender.store.sqlite.session import Session


@dataclass(slots=True, eq=False)
class Job:
    verb: Callable[[Session], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    done: Callable[[], None]
    """Called in the loop when the job has left the queue for good."""
    outside: bool = False
    """Not a part of any transaction."""
    result: Any = None
    error: BaseException | None = None


def deliver(jobs: Iterable[Job]) -> None:
    """Hands results to the loops that wait for them: one call per loop, not one per job."""
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, several in loops.items():
        try:
            loop.call_soon_threadsafe(_settle, several)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            continue


def _settle(jobs: list[Job]) -> None:
    for job in jobs:
        job.done()
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
