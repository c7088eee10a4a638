"""B6: a provisioner that raises, hangs or returns a wrong value is logged in one line, and asked again later."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from locktender.base.clock import ManualClock
from locktender.base.config import Settings
from locktender.kernel.demand import Demand, Want
from locktender.provision.controller import ProvisionController
from locktender.provision.protocol import Capacity, Provisioned, ProvisionerCalls
from locktender.store.protocol import Elect
from locktender.store.sqlite import SqliteStore

SECOND = 1_000_000
MOST = 3
MANY = Demand(50, (Want("async", (), "fetch", "s1", 50),), 0)
Verb = Callable[[Any], Any]
"""From the right answer to the one that is given."""


class Cloud:
    """A provisioner that starts what it is asked for, and answers as the test says."""

    def __init__(self, **answers: Verb) -> None:
        self.answers = answers
        self.requests: list[int] = []
        self.alive: list[str] = []

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        given = Capacity({"async": 1}, steps={"fetch": "s1"})
        return self.answers.get("capacity", lambda right: right)(given)

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        self.requests.append(n)
        self.alive += names
        return await self._answer("request", list(names))

    async def list(self) -> list[Provisioned]:
        return await self._answer("list", [Provisioned(name, "running") for name in self.alive])

    async def release(self, name: str) -> None:
        if name in self.alive:
            self.alive.remove(name)

    async def close(self) -> None: ...

    async def _answer(self, verb: str, right: Any) -> Any:
        answer = self.answers.get(verb, lambda right: right)(right)
        return await answer if inspect.isawaitable(answer) else answer


class Scene:
    """A leader that observes every few seconds; its tasks never get enough workers."""

    def __init__(self, store: SqliteStore, clock: ManualClock, term: int, cloud: Cloud) -> None:
        self.store, self.clock, self.term, self.cloud = store, clock, term, cloud
        settings = Settings(max_workers=MOST, start_timeout_us=20 * SECOND)
        self.controller = ProvisionController(cloud, settings, clock=clock)
        self.peak = 0

    async def observe(self, seconds: int, *, every: int = 1) -> None:
        for _ in range(0, seconds, every):
            self.clock.advance(every * SECOND)
            self.controller.observe(MANY, [], self.store, self.term)
            async with asyncio.timeout(60):
                await self.controller.settled()
            self.peak = max(self.peak, len(self.cloud.alive))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "locktender.db", clock)
    await store.open()
    term = (await store.elect(Elect("leader", 3_600 * SECOND))).term
    assert term
    made = Scene(store, clock, term, Cloud())
    yield made
    await made.controller.close()
    await store.close()


def raises(error: BaseException) -> Verb:
    def verb(right: object) -> object:
        raise error

    return verb


def always(answer: object) -> Verb:
    def verb(right: Any) -> object:
        return answer

    return verb


WRONG: dict[str, tuple[dict[str, Verb], str]] = {
    "request: None": (
        {"request": always(None)},
        "failed to start 3 workers: request() must return a list of names, not None",
    ),
    "request: another name": (
        {"request": always(["pod-1"])},
        "request() returned 'pod-1', which is not one of the requested names",
    ),
    "request: cancelled": (
        {"request": raises(asyncio.CancelledError())},
        "failed to start 3 workers: the call cancelled itself",
    ),
    "request: exit": (
        {"request": raises(SystemExit(3))},
        "failed to start 3 workers: the call raised SystemExit(3)",
    ),
    "list: None": (
        {"list": always(None)},
        "failed to list workers: list() must return a list of Provisioned, not None",
    ),
    "list: dicts": (
        {"list": always([{"name": "a"}])},
        "list() must return Provisioned objects, not {'name': 'a'}",
    ),
    "list: a state of its own": (
        {"list": always([Provisioned("a", "RUNNING")])},  # pyright: ignore[reportArgumentType]
        "list() returned worker a in state 'RUNNING'; the states are starting, running, ended,",
    ),
    "list: several lines": (
        {"list": raises(ValueError("first\n  second"))},
        "failed to list workers: first second",
    ),
    "capacity: raises": (
        {"capacity": raises(RuntimeError("no answer"))},
        "failed to plan workers: no answer",
    ),
    "capacity: exit": ({"capacity": raises(SystemExit(3))}, "capacity() raised SystemExit(3)"),
    "capacity: a dict": (
        {"capacity": always({"async": 3})},
        "capacity() must return a Capacity or None, not {'async': 3}",
    ),
    "capacity: text": (
        {"capacity": always(Capacity({"async": "many"}))},  # pyright: ignore[reportArgumentType]
        "failed to plan workers: ",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_answer_is_logged_and_starts_a_cool_down(
    scene: Scene, caplog: pytest.LogCaptureFixture, wrong: str
):
    cloud, (answers, words) = scene.cloud, WRONG[wrong]
    cloud.answers = answers
    with caplog.at_level(logging.WARNING, "locktender"):
        await scene.observe(2)
    told = [record.getMessage() for record in caplog.records if words in record.getMessage()]
    assert len(told) == 1
    assert "\n" not in told[0]
    assert told[0].endswith("; tasks stay queued")
    said = (await scene.store.provisioned()).status
    assert said is not None
    assert "; cools down 9s after: " in said.words(scene.clock.now())
    assert words in said.after

    # the workers may have started, so they count; it is asked again once it answers as it should
    await scene.observe(16)
    assert len(cloud.requests) <= 1
    cloud.answers = {}
    before = len(cloud.requests)
    await scene.observe(400, every=5)
    assert len(cloud.requests) > before
    assert scene.peak <= MOST


async def test_a_call_that_ignores_its_cancellation_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    freed = asyncio.Event()

    async def deaf(right: object) -> object:
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        return right

    scene.cloud.answers = {"list": deaf}
    monkeypatch.setattr(scene.controller, "_calls", ProvisionerCalls(scene.cloud, 0.02))
    await scene.observe(3)
    assert scene.controller.policy.last_error == "failed to list workers: timed out"
    freed.set()
    await scene.observe(40)
    assert scene.cloud.requests == [MOST]
