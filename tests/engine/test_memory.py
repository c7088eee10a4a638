"""D3 with real bodies: ten thousand tasks at once, and memory that stays flat."""

from __future__ import annotations

import psutil
import pytest

from locktender import flow, step
from locktender.testing import Engines, eventually

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.plugin"]

TASKS = 10_000
DONE: list[int] = []


@step
async def tick(item: int) -> int:
    DONE.append(resident())
    return item


@flow
def ticks(item: int) -> int:
    return tick(item)


def resident() -> int:
    """Bytes of memory this process has."""
    return psutil.Process().memory_info().rss


@pytest.mark.slow
def test_d3_memory_stays_flat_over_ten_thousand_tasks(make_engine: Engines):
    """Each body measures. Once it is warm, memory must not grow with what was done."""
    DONE.clear()
    engine = make_engine(max_active=-1)

    runs = engine.submit_many(ticks, range(TASKS))

    assert runs[-1].result("200s") == TASKS - 1
    eventually(lambda: not engine.runs.list(status=["queued", "running"], limit=1), "60s")
    assert len(DONE) == TASKS
    warm = max(DONE[: TASKS // 10])
    assert max(DONE) - warm < 32 << 20
    # nor does it build up: the second half takes no more than the first did
    assert max(DONE[TASKS // 2 :]) - max(DONE[: TASKS // 2]) < 16 << 20
