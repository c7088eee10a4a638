"""Steps that take turns between two workers, named by their label; imported by a test and by its process."""

from __future__ import annotations

from typing import Any

from locktender import current, flow, step
from locktender.testing import recording


def in_order(number: int) -> int:
    """Every third fails at first: what comes behind must wait for its retries too."""
    job = current()
    assert job is not None
    with recording("order", label=str(number)):
        if number % 3 == 0 and job.attempt <= 2:
            raise OSError("not yet")
    return number


@step(needs={"side": "left"}, retries=3, retry_delay="1ms", max_abandons=100)
async def on_the_left(number: int) -> int:
    return in_order(number)


@step(needs={"side": "right"}, retries=3, retry_delay="1ms", max_abandons=100)
async def on_the_right(number: int) -> int:
    return in_order(number)


@flow(sequential=True)
def ten_in_order() -> list[Any]:
    return [(on_the_right if number % 2 else on_the_left)(number) for number in range(10)]
