"""Flows under the names that the examples of the OpenAPI document have."""

from __future__ import annotations

from typing import Any

from locktender import flow, step, wait_event


@step(pool="db")
async def index(name: str) -> int:
    return len(name)


@flow(name="build")
def build(names: list[str]) -> list[int]:
    return index.map(names)


@flow(name="approve")
def approve(item: str = "") -> Any:
    return wait_event("approved", timeout="1h")
