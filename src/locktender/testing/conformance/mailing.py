# ruff: noqa: S101
"""Events: sent once, bounded, taken in order, and who is woken by them."""

from __future__ import annotations

import asyncio

from locktender.base.clock import SECOND
from locktender.base.commits import EventWait, MailTaken, RunEvents, RunWait
from locktender.base.events import Change
from locktender.base.ids import task_id
from locktender.base.model import Mail
from locktender.store.protocol import (
    MAX_MAIL,
    EventSent,
    SendEvent,
    Store,
    Wake,
    Woken,
)
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    history,
    set_rule,
    submitted,
)

HOUR = 3_600 * SECOND


async def _send(
    store: Store, run: str | None, name: str, key: str, payload: bytes = b"1", match: str = "{}"
) -> EventSent:
    return await store.send(SendEvent(run, name, key, payload, match))


async def let_wait_for_event(
    leader: SceneLeader, run: int, name: str, match: str = "{}", *, node: int = 0
) -> int:
    """A task of an executing run waits for an event."""
    task, now = task_id(run, node), await leader.store.now()
    wait = EventWait(task, run, name, match, now, now + HOUR)
    change = Change("task", task, "new", "requested", 0, {"node": node, "index": -1})
    await leader.commit(waits_opened=[wait], events=[RunEvents(run, [change])])
    return task


async def _take(leader: SceneLeader, mail: Mail) -> None:
    change = Change("mail", mail.task, "sent", "delivered", 0, {"n": mail.n, "name": mail.name})
    await leader.commit(
        mail_taken=[MailTaken(mail.run, mail.n, mail.task)],
        waits_over=[mail.task],
        events=[RunEvents(mail.run, [change])],
    )


async def _let_wait(leader: SceneLeader, run: int) -> None:
    wake_at = await leader.store.now() + HOUR
    change = Change("run", 0, "running", "waiting", 0, {"wake_at": wake_at})
    await leader.commit(runs_waiting=[RunWait(run, wake_at)], events=[RunEvents(run, [change])])


async def _wake(leader: SceneLeader, mailed: list[int] | None) -> Woken:
    leader.cycle += 1
    return await leader.store.wake(Wake(leader.term, leader.cycle, leader.actor, 1_000, mailed))


class TestMailing:
    async def test_events_are_taken_in_their_order_and_once(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        assert await _send(store, run.id, "go", "a", b"1") == EventSent("sent")
        assert await _send(store, run.id, "stop", "b", b"2") == EventSent("sent")
        assert await _send(store, run.id, "go", "c", b"3") == EventSent("sent")
        assert await store.mail_ready([run.seq]) == []
        task = await let_wait_for_event(leader, run.seq, "go")
        [first] = await store.mail_ready([run.seq, 99])
        assert (first.run, first.task, first.name, first.payload) == (run.seq, task, "go", b"1")
        [waiter] = await store.event_waits(run.id)
        assert (waiter.task, waiter.name, waiter.run_id) == (task, "go", run.id)
        await _take(leader, first)
        assert await store.mail_ready([run.seq]) == []
        assert await store.event_waits() == []
        await let_wait_for_event(leader, run.seq, "go", node=1)
        [second] = await store.mail_ready([run.seq])
        assert second.payload == b"3"
        told = [each for each in await history(store, run.seq) if each.subject == "mail"]
        assert [each.after for each in told] == ["sent", "sent", "sent", "delivered"]
        assert told[0].data["n"] == told[-1].data["n"] == first.n

    async def test_an_event_of_a_known_id_is_the_same_event(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run, other = await submitted(store), await submitted(store)
        await leader.start(run.seq)
        assert (await _send(store, run.id, "go", "a", b"1")).outcome == "sent"
        assert (await _send(store, run.id, "go", "a", b"2")).outcome == "repeated"
        assert (await _send(store, run.id, "stop", "a")).outcome == "sent"
        assert (await _send(store, other.id, "go", "a")).outcome == "sent"
        await let_wait_for_event(leader, run.seq, "go")
        [mail] = await store.mail_ready([run.seq])
        assert mail.payload == b"1"
        await _take(leader, mail)
        assert (await _send(store, run.id, "go", "a")).outcome == "repeated"
        assert (await _send(store, None, "news", "a")).outcome == "sent"
        assert (await _send(store, None, "news", "a")).outcome == "repeated"

    async def test_the_answer_of_one_wait_is_taken_by_no_other(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        first = await let_wait_for_event(leader, run.seq, "go")
        await let_wait_for_event(leader, run.seq, "go", node=1)
        one, other = sorted(await store.event_waits(run.id), key=lambda each: each.task)
        answer = SendEvent(run.id, "go", "a", b"1", task=other.task, since=other.since)
        assert await store.send(answer) == EventSent("sent")
        assert await store.send(answer) == EventSent("repeated")
        [mail] = await store.mail_ready([run.seq])
        assert (mail.task, mail.payload) == (other.task, b"1")
        # one that is sent to the run is for the first that waits
        await _send(store, run.id, "go", "b", b"2")
        ready = await store.mail_ready([run.seq])
        assert [(each.task, each.payload) for each in ready] == [(other.task, b"1"), (first, b"2")]
        await _let_wait(leader, run.seq)
        assert [each.run for each in (await _wake(leader, [run.seq])).runs] == [run.seq]
        for each in ready:
            await _take(leader, each)
        late = SendEvent(run.id, "go", "c", b"3", task=one.task, since=one.since)
        assert (await store.send(late)).outcome == "over"
        # the same task waits again, of a retried run: what answered its first wait is not for this one
        world.clock.advance(SECOND)
        await let_wait_for_event(leader, run.seq, "go")
        assert (await store.send(late)).outcome == "over"
        sent = [each for each in await history(store, run.seq) if each.after == "sent"]
        assert [each.task for each in sent] == [other.task, 0]

    async def test_an_answer_wakes_no_run_of_another_wait(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        task = await let_wait_for_event(leader, run.seq, "go")
        [wait] = await store.event_waits(run.id)
        await store.send(SendEvent(run.id, "go", "a", b"1", task=task, since=wait.since))
        # the timeout came first
        await leader.commit(waits_over=[task], events=[])
        await let_wait_for_event(leader, run.seq, "go", node=1)
        await _let_wait(leader, run.seq)
        assert await store.mail_ready([run.seq]) == []
        assert (await _wake(leader, [run.seq])).runs == []
        assert (await _wake(leader, None)).runs == []

    async def test_unknown_and_ended_runs_take_no_event(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        assert await _send(store, "nobody", "go", "a") == EventSent("unknown")
        await leader.start(run.seq)
        await leader.end(run.seq)
        assert await _send(store, run.id, "go", "a") == EventSent("ended", "succeeded")
        assert not [each for each in await history(store, run.seq) if each.subject == "mail"]

    async def test_a_mailbox_is_bounded_whoever_sends(self, world: StoreScene) -> None:
        store, second = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        several = [
            _send(each, run.id, "go", f"{n}")
            for n, each in enumerate([store, second] * (MAX_MAIL // 2 + 3))
        ]
        outcomes = [each.outcome for each in await asyncio.gather(*several)]
        assert (outcomes.count("sent"), outcomes.count("full")) == (MAX_MAIL, 6)
        await let_wait_for_event(leader, run.seq, "go")
        [mail] = await store.mail_ready([run.seq])
        await _take(leader, mail)
        assert (await _send(store, run.id, "go", "more")).outcome == "sent"
        assert (await _send(store, run.id, "go", "one too many")).outcome == "full"

    async def test_an_event_of_a_topic_reaches_each_that_matches_once(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        runs = [await submitted(store) for _ in range(3)]
        for run, match in zip(runs, ('{"of":1,"in":"eu"}', '{"of":2}', "{}"), strict=True):
            await leader.start(run.seq)
            await let_wait_for_event(leader, run.seq, "paid", match)
        first, second, plain = (run.seq for run in runs)
        world.clock.advance(SECOND)
        assert (await _send(store, None, "paid", "a", b"1", '{"of":1}')).outcome == "sent"
        every = [first, second, plain]
        ready = await store.mail_ready(every)
        assert [(each.run, each.payload) for each in ready] == [(first, b"1")]
        assert await store.topic_waiters([ready[0].n]) == [first]
        await _send(store, None, "paid", "b", b"2")
        ready = await store.mail_ready(every)
        assert {(each.run, each.payload) for each in ready} == {
            (first, b"1"),
            (second, b"2"),
            (plain, b"2"),
        }
        assert set(await store.topic_waiters([ready[-1].n])) == set(every)
        for each in ready:
            await _take(leader, each)
        await let_wait_for_event(leader, first, "paid", '{"of":1,"in":"eu"}', node=1)
        await let_wait_for_event(leader, plain, "paid", node=1)
        [again] = await store.mail_ready(every)
        assert (again.run, again.payload) == (first, b"2")
        # one that was submitted after the event does not get it, nor is it kept for ever
        world.clock.advance(SECOND)
        late = await submitted(store)
        await leader.start(late.seq)
        await let_wait_for_event(leader, late.seq, "paid")
        assert await store.mail_ready([late.seq]) == []
        await set_rule(store, "engine", "topic_retention_us", {"value": 60 * SECOND})
        world.clock.advance(59 * SECOND)
        await _send(store, None, "paid", "c", b"3")
        assert [each.payload for each in await store.mail_ready([first])] == [b"2"]
        world.clock.advance(2 * SECOND)
        await _send(store, None, "paid", "d", b"4")
        assert [each.payload for each in await store.mail_ready([first])] == [b"3"]

    async def test_an_event_wakes_a_run_that_waits_for_it(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        waiting = [await submitted(store) for _ in range(3)]
        for run in waiting:
            await leader.start(run.seq)
            await let_wait_for_event(leader, run.seq, "go")
            await _let_wait(leader, run.seq)
        every = [run.seq for run in waiting]
        assert (await _wake(leader, every)).runs == []
        await _send(store, waiting[0].id, "stop", "a")
        assert (await _wake(leader, every)).runs == []
        await _send(store, waiting[0].id, "go", "a")
        await _send(store, waiting[1].id, "go", "a")
        woken = await _wake(leader, every[:1])
        assert [each.run for each in woken.runs] == every[:1]
        if (read := woken.read) is not None:
            assert read.runs == await store.arrivals(every[:1])
            assert read.tasks == await store.tasks_of(every[:1])
            assert read.mails == await store.mail_ready(every[:1])
        # a new leader looks at all of them
        assert [each.run for each in (await _wake(leader, None)).runs] == [every[1]]
        assert (await store.counts()).waiting == 1
