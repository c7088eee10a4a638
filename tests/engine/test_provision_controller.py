"""B6: a provisioner that fails or hangs is logged; the leader goes on, and asks again when it has cooled down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.worlds import worker_row

from locktender.base.clock import ManualClock
from locktender.base.config import Settings
from locktender.base.limits import Limits
from locktender.base.model import AskedWorker, LimitRow, ProvisionStatus
from locktender.kernel.demand import Demand, Want
from locktender.provision import controller as subject
from locktender.provision.controller import ProvisionController, placed
from locktender.provision.protocol import Capacity, Provisioned
from locktender.store.protocol import Elect, Heartbeat
from locktender.store.sqlite import SqliteStore

SECOND = 1_000_000
MILLISECOND = 1_000
FIVE = Demand(5, (Want("async", (), "fetch", "s1", 5),), 0)
SETTINGS = Settings(
    max_workers=3,
    start_timeout_us=50 * MILLISECOND,
    poll_us=10 * MILLISECOND,
    leader_lease_us=30 * MILLISECOND,
    leader_renew_us=10 * MILLISECOND,
)


class Foreign:
    """A provisioner somebody wrote: it does what the test says."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.grants = 99
        self.heard: Callable[[], object] = list
        """Called while it is asked."""
        self.asked: list[tuple[int, dict[str, str]]] = []
        self.names: list[str] = []
        """Of everybody it was asked for."""
        self.running: list[str] = []
        self.ended: list[Provisioned] = []
        self.released: list[str] = []
        self.listed = 0
        self.closed = False

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return Capacity({"async": 2}, labels=dict(needs), steps={"fetch": "s1"})

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        assert len(names) == n
        self.asked.append((n, dict(needs)))
        self.names += names
        self.heard()
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        granted = list(names[: self.grants])
        self.running += granted
        return granted

    async def list(self) -> list[Provisioned]:
        self.listed += 1
        return [Provisioned(name, "running") for name in self.running] + self.ended

    async def release(self, name: str) -> None:
        self.released.append(name)
        raise RuntimeError("no such machine")

    async def close(self) -> None:
        self.closed = True


class Post:
    """A leader with a provisioner, on a store that others may open too."""

    def __init__(self, store: SqliteStore, clock: ManualClock, term: int) -> None:
        self.foreign = Foreign()
        self.store, self.clock, self.term = store, clock, term
        self.overflow = ProvisionController(self.foreign, SETTINGS, clock=clock)

    def tell(self, demand: Demand, *names: str) -> None:
        rows = [worker_row(name, provision=name) for name in names]
        self.overflow.observe(demand, rows, self.store, self.term)

    async def sees(self, demand: Demand = FIVE, *names: str, after: float = 0.0) -> None:
        self.clock.advance(int(after * SECOND))
        self.tell(demand, *names)
        await self.overflow.settled()

    async def joins(self, name: str) -> None:
        await self.store.heartbeat(Heartbeat(worker_row(name, provision=name), 10 * SECOND))

    async def stored(self) -> list[AskedWorker]:
        return (await self.store.provisioned()).asked

    async def names(self) -> set[str]:
        return {each.name for each in await self.stored()}

    async def status(self) -> ProvisionStatus | None:
        return (await self.store.provisioned()).status


class Posts:
    """Processes that may lead, one after the other, on one store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = ManualClock()
        self._open = AsyncExitStack()

    async def stand(self) -> Post:
        """The next to lead."""
        store = SqliteStore(self._path, self._clock)
        await store.open()
        self._open.push_async_callback(store.close)
        self._clock.advance(MILLISECOND)
        led = await store.elect(Elect(f"leader-{self._clock.now()}", 1))
        assert led.term
        post = Post(store, self._clock, led.term)
        self._open.push_async_callback(post.overflow.close)
        return post

    async def close(self) -> None:
        await self._open.aclose()


@pytest.fixture
async def posts(tmp_path: Path) -> AsyncIterator[Posts]:
    made = Posts(tmp_path / "locktender.db")
    yield made
    await made.close()


@pytest.fixture
async def post(posts: Posts) -> Post:
    return await posts.stand()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_asks_once_for_what_overflows(post: Post):
    await post.sees()
    await post.sees(after=0.01)
    await post.sees(FIVE, *post.foreign.names, after=6)
    assert post.foreign.asked == [(3, {})]


async def test_when_everything_is_accepted_nothing_is_asked(post: Post):
    await post.sees(Demand())
    assert post.foreign.asked == []


async def test_a_raising_provisioner_is_asked_after_the_cooldown(
    post: Post, caplog: pytest.LogCaptureFixture
):
    post.foreign.error = PermissionError("quota exceeded")
    with caplog.at_level(logging.WARNING, "locktender"):
        await post.sees()
    assert "failed to start 3 workers: quota exceeded; tasks stay queued" in caplog.text
    assert "quota exceeded" in post.overflow.describe()
    assert await post.stored() == []  # it said itself that nobody will come
    await post.sees(after=4.9)
    assert len(post.foreign.asked) == 1
    post.foreign.error = None
    await post.sees(after=5.1)
    assert len(post.foreign.asked) == 2


async def test_a_provisioner_that_hangs_holds_nobody_up(post: Post):
    post.foreign.hangs = True
    post.tell(FIVE)
    post.tell(FIVE)  # returns at once although the first has not been answered
    async with asyncio.timeout(60):
        await post.overflow.settled()
    assert "failed to start 3 workers: timed out" in post.overflow.policy.last_error
    assert len(post.foreign.asked) == 1
    assert await post.names() == set(post.foreign.names)  # they may come all the same


async def test_a_worker_that_never_joins_is_released(post: Post):
    await post.sees()
    first = list(post.foreign.names)
    post.foreign.running = first[:1]
    await post.sees(after=1)
    assert sorted(post.foreign.released) == sorted(first)
    post.foreign.running = []
    await post.sees(after=20)
    assert len(post.foreign.asked) == 2
    assert await post.names() == set(post.foreign.names) - set(first)


async def test_after_the_close_nothing_is_asked(post: Post):
    await post.overflow.close()
    await post.sees()
    assert post.foreign.closed
    assert post.foreign.asked == []


# -- what is stored --------------------------------------------------------------------------------


async def test_every_name_is_stored_before_its_worker_is_asked_for(post: Post):
    found: list[set[str]] = []
    beside = SqliteStore(post.store.path, post.clock)
    await beside.open()

    async def read() -> None:
        found.append({each.name for each in (await beside.provisioned()).asked})

    reading: list[asyncio.Task[None]] = []
    post.foreign.hangs = True
    post.foreign.heard = lambda: reading.append(asyncio.create_task(read()))
    await post.sees()
    await asyncio.gather(*reading)
    await beside.close()
    assert found == [set(post.foreign.names)]
    assert len(post.foreign.names) == 3


async def test_what_was_not_granted_is_not_kept(post: Post):
    post.foreign.grants = 1
    await post.sees()
    assert await post.names() == set(post.foreign.names[:1])


async def test_who_has_joined_and_gone_is_forgotten(post: Post):
    await post.sees()
    for name in post.foreign.names:
        await post.joins(name)
    await post.sees(Demand(), *post.foreign.names, after=1)
    assert await post.names() == set(post.foreign.names)
    first, *others = post.foreign.names
    post.foreign.running = others
    post.foreign.ended = [Provisioned(first, "ended")]
    await post.sees(Demand(), *others, after=1)
    assert await post.names() == set(others)


async def test_a_leader_whose_term_is_over_asks_for_nobody(posts: Posts):
    first = await posts.stand()
    await posts.stand()
    await first.sees()
    assert first.foreign.asked == []
    assert first.overflow.policy.failures == 0
    assert await first.stored() == []


async def test_the_next_leader_counts_who_is_on_the_way(posts: Posts):
    first = await posts.stand()
    first.foreign.hangs = True
    first.tell(FIVE)
    await until(lambda: bool(first.foreign.asked))
    second = await posts.stand()
    await second.sees()
    assert second.foreign.asked == []
    assert "3 of at most 3 workers are on their way" in second.overflow.describe()
    await second.sees(after=1)
    assert second.foreign.asked == [(3, {})]
    await second.sees(after=0.001)
    assert await second.names() == set(second.foreign.names)


async def test_a_former_leader_reaps_its_workers_and_logs_once(
    posts: Posts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(subject, "REAP_SECONDS", 0.01)
    monkeypatch.setattr(subject, "NOT_LEADING_SECONDS", 0.05)
    first = await posts.stand()
    await first.sees()
    second = await posts.stand()
    gone, *others = first.foreign.names
    first.foreign.running = others
    first.foreign.ended = [Provisioned(gone, "failed", 0, "exit code 3")]
    async with asyncio.timeout(60):
        while gone in await second.names():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await second.names() == set(others)
    first.clock.advance(MILLISECOND)
    first.term = (await first.store.elect(Elect("again", 1))).term or 0
    await first.sees()
    assert caplog.text.count(f"worker {gone} failed: exit code 3") == 1
    assert caplog.text.count("exit code 3") == 1
    assert first.overflow.policy.failures == 0


async def test_the_next_leader_does_not_await_workers_of_the_last(posts: Posts):
    first = await posts.stand()
    await first.sees()
    gone, *others = first.foreign.names
    first.foreign.ended = [Provisioned(gone, "ended", released=True)]
    first.foreign.running = others  # elsewhere: they go on
    await first.overflow.close()
    second = await posts.stand()
    assert await second.names() == set(others)


async def test_how_it_stands_is_stored_when_it_changes(posts: Posts):
    post = await posts.stand()
    assert await post.status() is None
    await post.sees(Demand())
    said = await post.status()
    assert said is not None
    assert said.words(post.clock.now()) == "none of at most 3 workers is on its way"
    post.foreign.error = PermissionError("quota exceeded")
    await post.sees(after=1)
    said = await post.status()
    assert said is not None
    words = said.words(post.clock.now() + SECOND)
    assert words.startswith("none of at most 3 workers is on its way; cools down ")
    assert words.endswith("after: failed to start 3 workers: quota exceeded")
    await post.sees(after=1)
    assert await post.status() == said  # an instant, and not what is left of it: nothing to write
    # The next leader has no provisioner: what the one before said is not said of it.
    second = await posts.stand()
    assert await second.status() is None


def test_with_a_provisioner_the_default_placement_is_pack():
    set_by_hand = LimitRow("engine", "placement", None, b'{"value":"spread"}')
    assert placed(Limits(), []).placement == "pack"
    assert placed(Limits(), [set_by_hand]).placement == "spread"
