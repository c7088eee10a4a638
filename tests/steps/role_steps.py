"""Steps of every executor for workers under a limited role."""

from __future__ import annotations

import logging

from locktender import current, flow, step

log = logging.getLogger(__name__)


@step(retries=1, retry_delay="1ms")
async def on_loop(size: int) -> str:
    log.warning("said in a body")
    job = current()
    if job is not None and job.attempt == 1:
        raise OSError("the first time")
    return "a" * size


@step
def in_thread(text: str) -> str:
    return text


@step(executor="process")
def in_process(text: str) -> str:
    return text


@step
async def lengths_of(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@flow(name="of every kind")
def of_every_kind(size: int) -> list[int]:
    first = on_loop(size)
    return lengths_of([first, in_thread(first), in_process(first)])


@flow(name="declared at night", schedule="0 3 * * *")
def at_night() -> list[int]:
    return lengths_of([])
