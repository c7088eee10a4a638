"""Flows whose waits cannot be."""

from __future__ import annotations

from typing import Any

import msgspec

from locktender import flow, sleep, sleep_until, step, wait_event


class Answer(msgspec.Struct):
    ok: bool


@step
async def same(n: Any) -> Any:
    return n


@flow(name="bad plain")
def plain(n: int = 1) -> int:
    return same(n)


@flow(name="bad asks")
def asks(n: int = 1) -> Any:
    return same(wait_event("approved", schema=Answer))


@flow(name="bad computed")
def computed(d: Any) -> Any:
    return sleep(same(d), 1)


@flow(name="bad until")
def until(at: str) -> Any:
    return sleep_until(same(at), 1)


@flow(name="bad negative")
def negative() -> Any:
    return sleep("-5s", 1)


@flow(name="bad centuries")
def centuries() -> Any:
    return sleep("21000w", 1)
