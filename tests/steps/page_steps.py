"""Flows that the pages of a run, of workers, schedules and the inbox are tested with."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Literal

import msgspec

from locktender import flow, step, wait_event

log = logging.getLogger("pages")
MARKUP = '<img src=x onerror="window.xss=1"><script>window.xss=1</script>'
NAME = '<img src=x onerror=xss() title="it\'s">'


async def until(path: str) -> None:
    while not await asyncio.to_thread(Path(path).exists):  # noqa: ASYNC110 another process makes it
        await asyncio.sleep(0.02)


@step
async def extracted(text: str) -> list[int]:
    log.info("read %s", text)
    return [1, 2, 3]


@step(pool="page db")
async def cleaned(rows: list[int], latch: str) -> list[int]:
    await until(latch)
    return rows


@step(pool="page db")
async def counted(rows: list[int]) -> int:
    return len(rows)


@step
async def published(rows: list[int], count: int, text: str) -> dict[str, Any]:
    return {"rows": rows, "count": count, "text": text}


@flow(name="pages diamond")
def diamond(text: str, latch: str) -> Any:
    rows = extracted(text)
    kept = cleaned(rows, latch)
    return published(kept, counted.with_options(after=kept)(rows), text)


@step(retries=1, retry_delay="10ms")
async def broken(text: str, mended: str) -> str:
    log.error("broken %s", text)
    if await asyncio.to_thread(Path(mended).exists):
        return text
    raise ValueError(f"broken: {text}")


@flow(name="pages broken")
def failing(text: str, mended: str) -> Any:
    return broken.with_options(name=NAME)(text, mended)


@step
async def doubled(item: int) -> int:
    return 2 * item


@flow(name="pages many")
def many(items: int) -> Any:
    return doubled.map(list(range(items)))


@step
async def chatty(first: str, latch: str) -> None:
    log.warning("first line %s", first)
    await until(latch)
    log.warning("second line")


@flow(name="pages chatty")
def talking(first: str, latch: str) -> Any:
    return chatty(first, latch)


class PageApproval(msgspec.Struct):
    ok: bool
    by: str
    amount: int = 3


@flow(name="pages approval")
def approval(item: str) -> Any:
    return wait_event("page approved", timeout="2d", schema=PageApproval)


class PageReview(msgspec.Struct):
    verdict: Literal["no", "yes"]
    amount: float
    sure: bool
    by: str = ""


@step
async def listed(*values: Any) -> list[Any]:
    return list(values)


@flow(name="pages review")
def review(item: str = "pen") -> Any:
    got = wait_event("page review", timeout="2d", schema=PageReview)
    return listed(got.verdict, got.amount, got.sure, got.by)
