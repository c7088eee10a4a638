# ruff: noqa: S101
"""One term at a time, nothing written outside it, and workers asked for are stored first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from locktender.base.clock import SECOND
from locktender.base.commits import RunEvents, RunStart
from locktender.base.errors import NotLeader
from locktender.base.events import Change
from locktender.base.model import AskedWorker, ProvisionStatus, Request
from locktender.store.protocol import (
    Accept,
    Answer,
    Elect,
    Expire,
    HoldRuns,
    Provision,
    ReassignLanes,
    Store,
    Withdraw,
)
from locktender.testing.conformance.world import (
    LEASE,
    SceneLeader,
    StoreScene,
    changes_of,
    expire_passed,
    history,
    join,
    offered,
    submitted,
)

LeaderVerb = Callable[[SceneLeader], Awaitable[object]]


async def _commit(leader: SceneLeader) -> object:
    return await leader.start(1)


async def _withdraw(leader: SceneLeader) -> object:
    tasks = [(1, 1)]
    return await leader.store.withdraw(
        Withdraw(leader.term, 1, leader.actor, tasks, "requested", "late")
    )


async def _expire(leader: SceneLeader) -> object:
    return await leader.store.expire(Expire(leader.term, 1, leader.actor, []))


async def _reassign_lanes(leader: SceneLeader) -> object:
    return await leader.store.reassign_lanes(ReassignLanes(leader.term))


class TestLeading:
    async def test_the_first_to_stand_leads(self, world: StoreScene) -> None:
        store = await world.open()
        led = await store.elect(Elect("a", LEASE))
        assert (led.term, led.owner) == (1, "a")
        assert led.expires_at == world.clock.now() + LEASE
        [event] = await history(store)
        assert (event.subject, event.before, event.after, event.term) == ("leader", "", "a", 1)

    async def test_a_lease_seen_to_pass_is_over_though_the_clock_stands(
        self, world: StoreScene
    ) -> None:
        """F6: the clock was set back, so by it the lease lasts on."""
        store, other = await world.open(), await world.open()
        led = await store.elect(Elect("a", LEASE))
        world.clock.advance(1)
        renewed = await store.elect(Elect("a", LEASE, led.term))
        assert (await other.elect(Elect("b", LEASE, passed=led.expires_at))).term == 0
        assert (
            await other.elect(Elect("b", LEASE, passed=renewed.expires_at))
        ).term == led.term + 1

    async def test_a_second_is_refused_while_the_lease_lives(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        await store.elect(Elect("a", LEASE))
        led = await other.elect(Elect("b", LEASE))
        assert (led.term, led.owner) == (0, "a")

    async def test_one_of_many_wins(self, world: StoreScene) -> None:
        stores = [await world.open() for _ in range(3)]
        votes = [store.elect(Elect(f"o{n}", LEASE)) for n, store in enumerate(stores)]
        led = await asyncio.gather(*votes)
        assert sorted(each.term for each in led) == [0, 0, 1]

    async def test_renewal_keeps_the_term(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        led = await store.elect(Elect("a", LEASE))
        world.clock.advance(LEASE - SECOND)
        renewed = await store.elect(Elect("a", LEASE, led.term))
        assert (renewed.term, renewed.expires_at) == (led.term, world.clock.now() + LEASE)
        world.clock.advance(LEASE - SECOND)
        assert (await other.elect(Elect("b", LEASE))).term == 0

    async def test_renewal_tells_the_last_cycle_that_is_written(self, world: StoreScene) -> None:
        leader = await SceneLeader.stand(await world.open())
        await leader.start((await submitted(leader.store)).seq)
        await leader.commit()
        renewed = await leader.store.elect(Elect(leader.owner, LEASE, leader.term))
        assert renewed.cycle == leader.cycle

    async def test_take_over_after_the_lease(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        first = await store.elect(Elect("a", LEASE))
        world.clock.advance(LEASE + 1)
        second = await other.elect(Elect("b", LEASE))
        assert second.term == first.term + 1
        late = await store.elect(Elect("a", LEASE, first.term))
        assert (late.term, late.owner) == (0, "b")

    async def test_who_stands_again_has_a_new_term(self, world: StoreScene) -> None:
        """Tokens are counted within a term: a restarted leader must not give the old ones again."""
        store = await world.open()
        first = await store.elect(Elect("a", LEASE))
        second = await store.elect(Elect("a", LEASE))
        assert second.term == first.term + 1

    async def test_resigning_lets_the_next_one_in_at_once(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        led = await store.elect(Elect("a", LEASE))
        await store.resign("a", led.term)
        await store.resign("a", led.term)
        taken = await other.elect(Elect("b", LEASE))
        assert taken.term == led.term + 1
        await store.resign("a", led.term)
        assert (await other.elect(Elect("b", LEASE, taken.term))).term == taken.term

    @pytest.mark.parametrize("verb", [_commit, _withdraw, _expire, _reassign_lanes])
    async def test_a_paused_leader_that_wakes_up_can_write_nothing(
        self, world: StoreScene, verb: LeaderVerb
    ) -> None:
        store, other = await world.open(), await world.open()
        run = await submitted(store)
        paused = await SceneLeader.stand(store, "a")
        world.clock.advance(LEASE + 1)
        await SceneLeader.stand(other, "b")
        events = await history(store)
        with pytest.raises(NotLeader):
            await verb(paused)
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "queued"
        assert await history(store) == events

    async def test_who_leads(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        assert await other.leader() is None
        led = await store.elect(Elect("a", LEASE))
        assert await other.leader() == "a"
        world.clock.advance(LEASE + 1)
        assert await other.leader() is None
        await store.elect(Elect("a", LEASE, led.term))
        assert await other.leader() == "a"
        await store.resign("a", led.term)
        assert await other.leader() is None

    async def test_the_term_alone_is_the_fence(self, world: StoreScene) -> None:
        """A leader whose lease ran out, with nobody to take over, may go on."""
        store = await world.open()
        run = await submitted(store)
        leader = await SceneLeader.stand(store)
        world.clock.advance(LEASE + 1)
        await leader.start(run.seq)
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "running"


TIMEOUT = 60 * SECOND


async def ask(leader: SceneLeader, *names: str) -> None:
    asked = {name: f'"{name}"'.encode() for name in names}
    await leader.store.provision(Provision(leader.term, asked, TIMEOUT))


async def asked(store: Store) -> list[AskedWorker]:
    return (await store.provisioned()).asked


async def joined(store: Store) -> dict[str, int]:
    return {each.name: each.joined_at for each in await asked(store)}


class TestHolding:
    """Runs that a leader takes out of its decisions, and requests that it begins to carry out."""

    async def test_a_held_run_keeps_its_attempts_and_leaves_the_queue(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader, run, tasks = await offered(store)
        waiting = (await submitted(store)).seq
        hold = HoldRuns(leader.term, 7, leader.actor, {run: "broken", waiting: "broken too"})
        await store.hold_runs(hold)
        before = await history(store)
        await store.hold_runs(hold)
        assert await history(store) == before, "a repetition changes nothing"
        snapshot = await store.load()
        assert [row.seq for row in snapshot.held] == [run, waiting]
        assert [(row.id, row.token) for row in snapshot.held_tasks] == tasks
        assert (snapshot.runs, snapshot.tasks, snapshot.lanes) == ([], [], [])
        assert (await changes_of(store, waiting))[-1] == ("queued", "held")
        assert (await store.counts()).executing == 0
        # Its worker may end what it began, and it is declared lost like any other.
        [started] = await store.accept(Accept("w1", tasks))
        assert started.task == tasks[0][0]
        world.clock.advance(LEASE + 1)
        [lost] = await expire_passed(store, leader.term, leader.actor, 8)
        assert lost.abandoned == tasks

    async def test_an_ended_run_is_not_held(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        await leader.end(run.seq)
        await store.hold_runs(HoldRuns(leader.term, 5, leader.actor, {run.seq: "late", 99: "none"}))
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "succeeded"

    async def test_a_held_run_is_retried_once_nothing_of_it_is_in_flight(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader, run, tasks = await offered(store)
        [row] = (await store.load()).runs
        await store.hold_runs(HoldRuns(leader.term, 5, leader.actor, {run: "broken"}))
        [answer] = await store.retry([row.id])
        assert (answer.outcome, answer.active) == ("in_flight", 1)
        withdrawn = Withdraw(leader.term, 6, leader.actor, tasks, "requested", "held")
        assert await store.withdraw(withdrawn) == tasks
        active = (await store.counts()).active
        [answer] = await store.retry([row.id])
        assert answer.outcome == "created"
        assert (await store.counts()).active == active, "it was counted all the time"
        assert (await changes_of(store, run))[-1] == ("held", "queued")

    async def test_a_dry_run_leaves_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        before = await history(store)
        commit = leader.plan(
            runs_started=[RunStart(run.seq, 1)],
            events=[RunEvents(run.seq, [Change("run", 0, "queued", "running")])],
        )
        await store.commit(commit, dry_run=True)
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, await history(store)) == ("queued", before)
        await store.commit(commit)

    async def test_a_request_counts_who_began_to_carry_it_out(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await store.ask([Request("cancel", "nobody"), Request("cancel", "nobody else")])
        first, second = (await store.load()).requests
        await store.claim_requests(leader.term, [first.seq])
        await store.claim_requests(leader.term, [first.seq])
        assert [each.taken for each in (await store.load()).requests] == [2, 0]
        with pytest.raises(NotLeader):
            await store.claim_requests(leader.term - 1, [second.seq])
        with pytest.raises(NotLeader):
            await store.hold_runs(HoldRuns(leader.term - 1, 1, leader.actor, {1: "no"}))

    async def test_a_question_is_answered_and_its_request_ends(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        await other.ask([Request("why", "a-run", reason="q1"), Request("why", "17", reason="q2")])
        first, second = (await store.load()).requests
        assert await other.answer_to("q1") is None
        await store.answer(Answer(leader.term, first.seq, "q1", b"{}"))
        await store.answer(Answer(leader.term, first.seq, "q1", b"{}"))
        assert (await other.answer_to("q1"), await other.answer_to("q2")) == (b"{}", None)
        assert (await store.load()).requests == [second]
        with pytest.raises(NotLeader):
            await store.answer(Answer(leader.term - 1, second.seq, "q2", b"no"))

    async def test_tasks_of_executing_runs_are_counted_up_to_a_bound(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        assert await store.executing_tasks(10) == 0
        await offered(store, tasks=3)
        assert [await store.executing_tasks(most) for most in (10, 3, 2)] == [3, 3, 2]


class TestProvisioning:
    async def test_what_is_asked_for_is_known_to_everybody(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        await ask(leader, "b", "a")
        now = world.clock.now()
        found = await other.provisioned()
        assert found.now == now
        assert found.asked == [
            AskedWorker("a", now, now + TIMEOUT, 0, b'"a"'),
            AskedWorker("b", now, now + TIMEOUT, 0, b'"b"'),
        ]

    async def test_a_repetition_changes_nothing(self, world: StoreScene) -> None:
        leader = await SceneLeader.stand(await world.open())
        await ask(leader, "a")
        before = await asked(leader.store)
        world.clock.advance(SECOND)
        await ask(leader, "a")
        assert await asked(leader.store) == before

    async def test_a_leader_whose_term_is_over_may_ask_for_nobody(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        paused = await SceneLeader.stand(store, "a")
        await ask(paused, "first")
        await store.provision(Provision(paused.term, status=ProvisionStatus("of the first")))
        world.clock.advance(LEASE + 1)
        await SceneLeader.stand(other, "b")
        for late in (
            Provision(paused.term, {"late": b"{}"}, TIMEOUT),
            Provision(paused.term, gone=["first"]),
            Provision(paused.term, status=ProvisionStatus("late")),
        ):
            with pytest.raises(NotLeader):
                await store.provision(late)
        assert list(await joined(other)) == ["first"]

    async def test_who_joins_is_marked_once(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        await ask(leader, "a", "b")
        world.clock.advance(SECOND)
        await join(other, "w1", provision="a")
        at = world.clock.now()
        assert await joined(store) == {"a": at, "b": 0}
        world.clock.advance(SECOND)
        await join(other, "w1", provision="a")
        # One that lost its lease comes back under another id.
        await join(other, "w2", provision="a")
        await join(other, "w3", provision="never-asked-for")
        await join(other, "w4")
        assert await joined(store) == {"a": at, "b": 0}

    async def test_who_has_left_stays_known_until_a_leader_forgets_it(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await ask(leader, "a", "b", "c")
        await join(store, "w1", provision="a")
        await store.leave("w1")
        assert (await joined(store))["a"] > 0
        await store.provision(Provision(leader.term, gone=["a", "never-asked-for"]))
        await store.provision(Provision(leader.term, gone=["a"]))
        assert list(await joined(store)) == ["b", "c"]

    async def test_a_process_that_does_not_lead_may_report_a_worker_gone(
        self, world: StoreScene
    ) -> None:
        store, other = await world.open(), await world.open()
        await ask(await SceneLeader.stand(store), "a", "b")
        await other.forget_asked(["b", "never-asked-for"])
        await other.forget_asked([])
        assert list(await joined(store)) == ["a"]

    async def test_one_change_may_do_all_of_it(self, world: StoreScene) -> None:
        leader = await SceneLeader.stand(await world.open())
        await ask(leader, "old")
        said = ProvisionStatus(
            "1 of at most 3 workers is on its way", world.clock.now() + SECOND, "quota"
        )
        await leader.store.provision(Provision(leader.term, {"new": b"{}"}, TIMEOUT, ["old"], said))
        found = await leader.store.provisioned()
        assert [each.name for each in found.asked] == ["new"]
        assert found.status == said

    async def test_what_the_provisioner_said_ends_with_its_leaders_term(
        self, world: StoreScene
    ) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store, "a")
        assert (await other.provisioned()).status is None
        await store.provision(Provision(leader.term, status=ProvisionStatus("one")))
        await store.provision(Provision(leader.term, status=ProvisionStatus("two")))
        await ask(leader, "a")
        assert (await other.provisioned()).status == ProvisionStatus("two")
        world.clock.advance(LEASE + 1)
        second = await SceneLeader.stand(other, "b")
        found = await store.provisioned()
        assert found.status is None
        assert [each.name for each in found.asked] == ["a"]
        await other.provision(Provision(second.term, status=ProvisionStatus("three")))
        assert (await store.provisioned()).status == ProvisionStatus("three")

    async def test_asking_is_no_history(self, world: StoreScene) -> None:
        """Nothing starts or ends by it; the worker that comes is in the history by its own word."""
        leader = await SceneLeader.stand(await world.open())
        before = await history(leader.store)
        await ask(leader, "a")
        await leader.store.forget_asked(["a"])
        assert await history(leader.store) == before
