"""Flows whose runs stand where a test of the pages wants them: they hold, wait, fail or end at once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from locktender import flow, step

MARKUP = "<img src=x onerror=window.xss=1>"
LONG = "ui " + "reconciliation-of-every-ledger-" * 4
log = logging.getLogger("ui")


@step(pool="ui db")
async def held(latch: str) -> str:
    while not await asyncio.to_thread(Path(latch).exists):  # noqa: ASYNC110 another process makes it
        await asyncio.sleep(0.05)
    return latch


@step(pools={"ui small": 5})
async def too_large() -> None:
    """It needs more slots than its pool has."""


@step
async def failing(text: str) -> None:
    raise ValueError(text)


@step
async def done(number: int) -> int:
    return number


@flow(name="ui hold")
def hold(latch: str) -> str:
    return held(latch)


@flow(name="ui never")
def never() -> None:
    return too_large()


@flow(name="ui fail")
def fail(text: str) -> None:
    return failing(text)


@flow(name="ui done")
def quick(number: int) -> int:
    return done(number)


@step
async def said(texts: list[str]) -> list[str]:
    for each in texts:
        log.warning("%s", each)
    return texts


@flow(name=f"ui {MARKUP}")
def logged(texts: list[str]) -> list[str]:
    return said(texts)


@flow(name=LONG)
def long_name(number: int) -> int:
    return done(number)
