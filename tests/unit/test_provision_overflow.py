"""B6: a provisioner that fails or hangs is logged; the leader goes on, and asks again when it has cooled down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from headgate.base.clock import ManualClock
from headgate.base.config import Settings
from headgate.base.limits import Limits
from headgate.base.model import LimitRow
from headgate.kernel.demand import Demand, Want
from headgate.provision.protocol import Capacity, Provisioned
from headgate.stages.overflow import Overflow, placed
from headgate.testing.sim.build import worker_row

SECOND = 1_000_000
MILLISECOND = 1_000
FIVE = Demand(5, (Want("async", (), "fetch", "s1", 5),), 0)
SETTINGS = Settings(max_workers=3, start_timeout_us=50 * MILLISECOND, poll_us=10 * MILLISECOND)


class Foreign:
    """A provisioner somebody wrote: it does what the test says."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.asked: list[tuple[int, dict[str, str]]] = []
        self.running: list[str] = []
        self.released: list[str] = []
        self.closed = False

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return Capacity({"async": 2}, labels=dict(needs), steps={"fetch": "s1"})

    async def request(self, n: int, needs: Mapping[str, str], reason: str) -> list[str]:
        self.asked.append((n, dict(needs)))
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        names = [f"f{len(self.running) + i}" for i in range(n)]
        self.running += names
        return names

    async def list(self) -> list[Provisioned]:
        return [Provisioned(name, "running") for name in self.running]

    async def release(self, name: str) -> None:
        self.released.append(name)
        raise RuntimeError("no such machine")

    async def close(self) -> None:
        self.closed = True


class Post:
    def __init__(self) -> None:
        self.foreign = Foreign()
        self.clock = ManualClock()
        self.overflow = Overflow(self.foreign, SETTINGS, clock=self.clock)

    async def sees(self, demand: Demand = FIVE, *names: str, after: float = 0.0) -> None:
        self.clock.advance(int(after * SECOND))
        self.overflow.sees(demand, [worker_row(name, provision=name) for name in names])
        await self.overflow.settled()


async def test_it_asks_once_for_what_overflows():
    post = Post()
    await post.sees()
    await post.sees(after=0.01)
    await post.sees(FIVE, "f0", "f1", "f2", after=6)
    assert post.foreign.asked == [(3, {})]


async def test_when_everything_is_accepted_nothing_is_asked():
    post = Post()
    await post.sees(Demand())
    assert post.foreign.asked == []


async def test_a_provisioner_that_raises_is_logged_and_asked_again_after_the_cooldown(
    caplog: pytest.LogCaptureFixture,
):
    post = Post()
    post.foreign.error = PermissionError("quota exceeded")
    with caplog.at_level(logging.WARNING, "headgate"):
        await post.sees()
    assert "cannot start 3 workers: quota exceeded; tasks stay queued" in caplog.text
    assert "quota exceeded" in post.overflow.describe()
    await post.sees(after=4.9)
    assert len(post.foreign.asked) == 1
    post.foreign.error = None
    await post.sees(after=5.1)
    assert len(post.foreign.asked) == 2


async def test_a_provisioner_that_hangs_holds_nobody_up():
    post = Post()
    post.foreign.hangs = True
    post.overflow.sees(FIVE, [])
    post.overflow.sees(FIVE, [])  # returns at once although the first has not been answered
    async with asyncio.timeout(5):
        await post.overflow.settled()
    assert "it did not answer in time" in post.overflow.policy.last_error
    assert len(post.foreign.asked) == 1


async def test_who_does_not_join_is_released_and_a_failing_release_stops_nothing():
    post = Post()
    await post.sees()
    post.foreign.running = ["f0"]
    await post.sees(after=1)
    assert sorted(post.foreign.released) == ["f0", "f1", "f2"]
    post.foreign.running = []
    await post.sees(after=20)
    assert len(post.foreign.asked) == 2


async def test_after_the_close_nothing_is_asked():
    post = Post()
    await post.overflow.close()
    await post.sees()
    assert post.foreign.closed
    assert post.foreign.asked == []


def test_with_a_provisioner_the_default_placement_is_pack():
    set_by_hand = LimitRow("engine", "placement", None, b'{"value":"spread"}')
    assert placed(Limits(), []).placement == "pack"
    assert placed(Limits(), [set_by_hand]).placement == "spread"
