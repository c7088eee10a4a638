"""B6: whatever a provisioner answers, it is told in one line, cooled down after, and never counted too low."""

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
from locktender.base.model import Said
from locktender.kernel.demand import Demand, Want
from locktender.provision import calls
from locktender.provision.calls import WrongAnswer, granted, listing
from locktender.provision.controller import ProvisionController
from locktender.provision.protocol import Capacity, Provisioned
from locktender.simulate.build import worker_row
from locktender.store.protocol import Elect
from locktender.store.sqlite import SqliteStore

SECOND = 1_000_000
MOST = 3
MANY = Demand(50, (Want("async", (), "fetch", "s1", 50),), 0)
Verb = Callable[[Any], Any]
"""From the truth to what is said."""


class Cloud:
    """A provisioner that starts what it is asked for, and says what the test has it say."""

    def __init__(self, **says: Verb) -> None:
        self.says = says
        self.requests: list[int] = []
        self.alive: list[str] = []
        """One name per worker that it started: the truth, whatever it says."""
        self.released: list[str] = []

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        given = Capacity({"async": 1}, steps={"fetch": "s1"})
        return self.says["capacity"](given) if "capacity" in self.says else given

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        self.requests.append(n)
        named = self.says["names"](list(names)) if "names" in self.says else list(names)
        self.alive += named
        return await self._say("request", named)

    async def list(self) -> list[Provisioned]:
        return await self._say("list", [Provisioned(name, "running") for name in self.alive])

    async def release(self, name: str) -> None:
        self.released.append(name)
        if name in self.alive:
            self.alive.remove(name)

    async def close(self) -> None:
        await self._say("close", None)

    async def _say(self, verb: str, truth: Any) -> Any:
        answer = self.says[verb](truth) if verb in self.says else truth
        return await answer if inspect.isawaitable(answer) else answer


class Scene:
    """A leader that looks every few seconds, and whose tasks never get enough workers."""

    def __init__(self, store: SqliteStore, clock: ManualClock, term: int) -> None:
        self.store, self.clock, self.term = store, clock, term
        self.peak = 0

    def with_(self, cloud: Cloud, start_timeout: float = 20.0) -> ProvisionController:
        self.cloud = cloud
        settings = Settings(max_workers=MOST, start_timeout_us=int(start_timeout * SECOND))
        self.overflow = ProvisionController(cloud, settings, clock=self.clock)
        return self.overflow

    async def watch(self, seconds: int, *, every: int = 1, join: bool = False) -> None:
        for _ in range(0, seconds, every):
            self.clock.advance(every * SECOND)
            rows = [
                worker_row(f"w{n}", provision=name)
                for n, name in enumerate(self.cloud.alive if join else [])
            ]
            self.overflow.sees(MANY, rows, self.store, self.term)
            async with asyncio.timeout(60):
                await self.overflow.settled()
            self.peak = max(self.peak, len(self.cloud.alive))

    async def said(self) -> str:
        said: Said | None = (await self.store.provisioned()).said
        return "" if said is None else said.words(self.clock.now())


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "locktender.db", clock)
    await store.open()
    term = (await store.elect(Elect("leader", 3_600 * SECOND))).term
    assert term
    made = Scene(store, clock, term)
    yield made
    await made.overflow.close()
    await store.close()


def raises(error: BaseException) -> Verb:
    def verb(truth: object) -> object:
        raise error

    return verb


def always(answer: object) -> Verb:
    def verb(truth: Any) -> object:
        return answer

    return verb


def first(names: list[str]) -> str:
    return names[0]


def states(state: Any) -> Verb:
    def verb(truth: list[Provisioned]) -> list[Provisioned]:
        return [Provisioned(each.name, state) for each in truth]

    return verb


def more(names: list[str]) -> list[str]:
    return [*names, *(f"more-{names[0]}-{n}" for n in range(3))]


def one_name(names: list[str]) -> list[str]:
    """As where all machines are made from one image."""
    return ["image"] * len(names)


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError


WRONG: dict[str, tuple[dict[str, Verb], str]] = {
    "request: nothing": (
        {"request": always(None)},
        "request() returned None where a list of names is due",
    ),
    "request: one name": (
        {"request": first},
        "where a list of names is due",
    ),
    "request: numbers": (
        {"request": always([1, 2, 3])},
        "request() returned 1 as the name of a worker",
    ),
    "request: an empty name": (
        {"request": always([""])},
        "request() returned '' as the name of a worker",
    ),
    "request: a name no store can keep": (
        {"request": always(["a\0b"])},
        "request() returned 'a\\x00b' as the name of a worker",
    ),
    "request: something that cannot be shown": (
        {"request": always(Shy())},
        "request() returned Shy where a list of names is due",
    ),
    "request: cancelled": (
        {"request": raises(asyncio.CancelledError())},
        "cannot start 3 workers: it cancelled itself",
    ),
    "request: exit": (
        {"request": raises(SystemExit(3))},
        "cannot start 3 workers: it raised SystemExit(3)",
    ),
    "request: more than was asked for": (
        {"names": more},
        "it granted 3 workers too many, told to end: more-",
    ),
    "request: one name for all": (
        {"names": one_name},
        "it granted a name that another worker has: image",
    ),
    "list: nothing": (
        {"list": always(None)},
        "list() returned None where a list of Provisioned is due",
    ),
    "list: dicts": (
        {"list": always([{"name": "a", "state": "running"}])},
        "list() returned {'name': 'a', 'state': 'running'} where a Provisioned is due",
    ),
    "list: no name": (
        {"list": always([Provisioned(7, "running")])},  # pyright: ignore[reportArgumentType]
        "list() returned 7 as the name of a worker",
    ),
    "list: not async": (
        {"list": raises(TypeError("object list can't be used in 'await' expression"))},
        "cannot list its workers: object list can't be used",
    ),
    "list: cancelled": (
        {"list": raises(asyncio.CancelledError())},
        "cannot list its workers: it cancelled itself",
    ),
    "list: lines": (
        {"list": raises(ValueError("first\n  second"))},
        "cannot list its workers: first second",
    ),
    "list: a state in capitals": (
        {"list": states("RUNNING")},
        "the state 'RUNNING', which is none of starting, running, ended, failed: they count as running",
    ),
    "list: a state of its own": ({"list": states("pending")}, "the state 'pending'"),
    "list: no state": ({"list": states(None)}, "the state None"),
    "capacity: raises": (
        {"capacity": raises(RuntimeError("no answer"))},
        "cannot tell what a worker would bring: no answer",
    ),
    "capacity: cancelled": (
        {"capacity": raises(asyncio.CancelledError())},
        "cannot tell what a worker would bring: CancelledError",
    ),
    "capacity: a dict": (
        {"capacity": always({"async": 3})},
        "capacity() returned {'async': 3} where a Capacity or None is due",
    ),
    "capacity: of words": (
        {"capacity": always(Capacity({"async": "many"}))},  # pyright: ignore[reportArgumentType]
        "capacity() returned a wrong Capacity: Expected `int`, got `str`",
    ),
}


@pytest.mark.parametrize("join", [False, True], ids=["nobody joins", "all join"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_answer_is_told_and_never_costs_the_maximum(
    scene: Scene, caplog: pytest.LogCaptureFixture, wrong: str, join: bool
):
    says, words = WRONG[wrong]
    cloud = Cloud(**says)
    scene.with_(cloud)
    with caplog.at_level(logging.WARNING, "locktender"):
        await scene.watch(2, join=join)
    told = [record.getMessage() for record in caplog.records if words in record.getMessage()]
    assert len(told) == 1
    assert "\n" not in told[0]
    assert scene.overflow.policy.cooling_until > scene.clock.monotonic()
    if not join:  # a worker that joins ends the row of failures
        said = await scene.said()
        assert "; cools down " in said
        assert words in said

    await scene.watch(120, every=2, join=join)
    assert scene.peak <= MOST
    # It asks again as soon as it is answered as it should be.
    cloud.says = {}
    cloud.alive = []
    before = len(cloud.requests)
    await scene.watch(400, every=20)
    assert len(cloud.requests) > before
    assert scene.peak <= MOST


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong.startswith("request")])
async def test_who_may_be_on_the_way_counts_before_anybody_lists_it(scene: Scene, wrong: str):
    cloud = Cloud(**WRONG[wrong][0], list=always([]))
    scene.with_(cloud)
    await scene.watch(19)  # start_timeout is 20
    assert cloud.requests == [MOST]


async def test_with_a_state_nobody_knows_asking_goes_on(scene: Scene):
    cloud = Cloud(list=states("RUNNING"))
    scene.with_(cloud)
    await scene.watch(3, join=True)
    del cloud.alive[1:]
    await scene.watch(30, join=True)
    assert cloud.requests == [MOST, MOST - 1]


async def test_who_was_granted_beyond_what_was_asked_for_is_released(scene: Scene):
    cloud = Cloud(names=more)
    scene.with_(cloud)
    await scene.watch(1)
    assert len(cloud.released) == 3
    assert all(name.startswith("more-") for name in cloud.released)
    assert len(cloud.alive) == MOST
    await scene.watch(2)
    # They ended because they were told to: that is no failure of its own.
    assert scene.overflow.policy.failures == 1


async def test_a_list_that_is_wrong_for_a_while_is_one_failure_per_cool_down(scene: Scene):
    cloud = Cloud(list=always(None))
    scene.with_(cloud)
    await scene.watch(5)
    assert scene.overflow.policy.failures == 1
    assert "how many of at most 3 workers are there cannot be seen" in await scene.said()
    cloud.says = {}
    await scene.watch(10)
    assert cloud.requests == [MOST]


async def test_one_that_swallows_its_cancellation_is_left_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(calls, "CANCEL_SECONDS", 0.01)
    monkeypatch.setattr(calls, "MOST_LEFT_BEHIND", 3)
    freed = asyncio.Event()

    async def deaf(truth: object) -> object:
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        return truth

    cloud = Cloud(list=deaf)
    overflow = scene.with_(cloud)
    object.__setattr__(overflow, "_provisioner", calls.ProvisionerCalls(cloud, 0.02))
    with caplog.at_level(logging.WARNING, "locktender"):
        await scene.watch(5)
    assert "cannot list its workers: it did not answer in time" in caplog.text
    assert "3 calls of it did not end when cancelled" in caplog.text
    freed.set()
    await scene.watch(40)
    assert cloud.requests == [MOST]


async def test_an_error_of_nobodys_is_a_failure_and_the_next_second_another_try(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*args: object) -> None:
        raise KeyError("x")

    cloud = Cloud()
    policy = scene.with_(cloud).policy
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "locktender"):
        patch.setattr(policy, "asked", broken)
        await scene.watch(3)
    assert "cannot be asked (KeyError): 'x'; tasks stay queued" in caplog.text
    assert cloud.requests == [MOST]
    assert {each.name for each in (await scene.store.provisioned()).asked} == set(cloud.alive)
    await scene.watch(120)
    assert scene.peak <= MOST


# -- one answer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "names", "surplus", "nameless"),
    [
        (["a", "b"], ["a", "b"], [], 0),
        (("b",), ["b"], [], 0),
        ([], [], [], 0),
        (["x", "y"], ["x", "y"], [], 0),
        (["x", "a", "y", "b"], ["a", "b"], ["x", "y"], 0),
        (["a", "a"], ["a"], [], 1),
        (["old", "a"], ["a"], [], 1),
        (["old", "old", "old"], [], [], 3),
    ],
)
def test_what_a_grant_means(answer: object, names: list[str], surplus: list[str], nameless: int):
    grant = granted(answer, ["a", "b"], lambda name: name == "old")
    assert (grant.names, grant.surplus, grant.nameless) == (names, surplus, nameless)
    assert bool(grant.wrong) == bool(surplus or nameless)


def test_what_a_list_means():
    odd: Any = Provisioned("b", "Pending", detail="line\nline")  # pyright: ignore[reportArgumentType]
    found = listing((Provisioned("a", "ended"), odd))
    assert [(each.name, each.state) for each in found.workers] == [("a", "ended"), ("b", "running")]
    assert found.workers[1].detail == "line line"
    assert found.odd == {"b": "'Pending'"}
    with pytest.raises(WrongAnswer, match="where a list of Provisioned is due"):
        listing("abc")
