"""Flows with large arguments, for tests that stop a process while they are on their way."""

from __future__ import annotations

from locktender import flow, step


@step(max_abandons=100)
async def length(text: str) -> int:
    return len(text)


@flow
def fat(texts: list[str]) -> list[int]:
    return length.map(texts)


@flow
def slim(text: str) -> int:
    return length(text)
