"""Steps for runs that wait."""

from __future__ import annotations

from locktender import flow, step
from locktender.testing import recording


@step
async def noted(n: int) -> int:
    with recording("noted", label=str(n)):
        return n


@flow
def note(n: int) -> int:
    return noted(n)
