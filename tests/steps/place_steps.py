"""Steps for runs that no connected worker can run, and for others beside them."""

from __future__ import annotations

from locktender import flow, step
from locktender.testing import recording


@step(needs={"gpu": "a100"})
async def on_gpu(n: int) -> int:
    with recording("gpu", label=str(n)):
        return n


@step
async def plain(n: int) -> int:
    with recording("plain", label=str(n)):
        return n


@flow
def needs_gpu(n: int) -> int:
    return on_gpu(n)


@flow
def anywhere(n: int) -> int:
    return plain(n)
