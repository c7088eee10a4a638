"""`wait_event`, `run.send`, `events.send`: an event is delivered once, a wait holds nothing (G4, G5)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.beside import opened

from locktender import (
    AdmissionRejected,
    Client,
    InvalidFlow,
    InvalidInput,
    NotFound,
    RunCancelled,
    RunFailed,
    RunState,
    connect,
    embedded,
    flow,
    step,
    wait_event,
)
from locktender.base.model import Mail
from locktender.leader.waiting_runs import WaitingRuns
from locktender.store.postgres.store import PostgresStore
from locktender.store.protocol import MAX_MAIL
from locktender.testing import check_history, eventually

pytest_plugins = ["locktender.testing.postgres"]
TIMEOUT = "60s"


class Answer(msgspec.Struct):
    ok: bool
    by: str = ""


@step
async def double(n: int) -> int:
    return 2 * n


@step
async def total(ns: list[int]) -> int:
    return sum(ns)


@step
async def pair(a: Any, b: Any) -> list[Any]:
    return [a, b]


@flow
def two_people() -> list[Any]:
    ann = wait_event("approved", timeout="1h", schema=int, name="ann")
    bob = wait_event("approved", timeout="1h", schema=str, name="bob")
    return pair(ann, bob)


@flow
def approval(n: int) -> list[Any]:
    report = double(n)
    answer = wait_event("approved", timeout="2d", after=report)
    return pair(report, answer)


@flow
def typed(n: int) -> list[Any]:
    answer = wait_event("approved", schema=Answer)
    return pair(n, answer)


class Place(msgspec.Struct):
    city: str
    floor: int = 2


class Review(msgspec.Struct):
    verdict: str
    where: Place | None = None
    by: str = "nobody"
    scores: list[int] = []
    number: int = 0


@flow
def by_members(topic: bool) -> list[Any]:
    match = {"kind": "review"} if topic else None
    review = wait_event("review", schema=Review, match=match)
    return pair([review.verdict, review.by, review.scores, review.number], review.where)


@flow
def with_branches(n: int) -> list[Any]:
    answer = wait_event("approved", timeout="50ms", default=None)
    done = double.with_options(when=answer)(n)
    late = double.with_options(when=answer == None, name="late")(n + 1)  # noqa: E711
    return pair.with_options(run_if="always")(done, late)


@flow
def impatient(n: int) -> int:
    return double(wait_event("approved", timeout="50ms"))


@flow
def between_maps(ns: list[int]) -> int:
    more = wait_event("more", after=double.map(ns))
    return total(double.map(more))


@flow(sequential=True)
def one_by_one(n: int) -> list[Any]:
    first = wait_event("go", name="first")
    second = wait_event("go", name="second")
    return pair(first, second)


@flow
def two_at_once(n: int) -> list[Any]:
    return pair(wait_event("go", name="a"), wait_event("go", name="b"))


@flow
def payment(order: int) -> list[Any]:
    paid = wait_event("paid", match={"order": order}, timeout="1h")
    return pair(order, paid)


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    with embedded(store_url, grace="2s") as client:
        yield client
    check_history(store_url)


def waits(run: Any) -> None:
    eventually(lambda: run.status() == RunState.WAITING, timeout=TIMEOUT)


LARGE = 2**70


@pytest.mark.parametrize("way", ["send", "topic", "token"])
def test_members_left_out_of_an_event_have_their_defaults(client: Client, way: str):
    run = client.submit(by_members, way == "topic")
    waits(run)
    payload = {"verdict": "yes", "number": LARGE, "where": {"city": "Ulm"}}
    if way == "send":
        run.send("review", payload)
    elif way == "topic":
        client.events.send("review", payload, match={"kind": "review"})
    else:
        [wait] = run.waits()
        client.events.answer(wait.token, payload)
    assert run.result(TIMEOUT) == [["yes", "nobody", [], LARGE], {"city": "Ulm", "floor": 2}]


def test_g4_an_event_ends_a_wait_and_is_its_result(client: Client):
    run = client.submit(approval, 2)
    waits(run)
    [wait] = run.waits()
    assert (wait.run, wait.event) == (run.id, "approved")
    assert wait.until is not None
    assert (wait.until - wait.since).days == 2
    [reason] = run.why().reasons
    assert reason.gate == "event"
    assert reason.text.startswith("has waited for event `approved` for ")
    assert f"times out {wait.until:%A %Y-%m-%d %H:%M:%S} UTC" in reason.text
    assert [each.run for each in client.events.waiting()] == [run.id]
    assert run.send("approved", {"by": "ann"}, id="mail-7")
    assert not run.send("approved", {"by": "bob"}, id="mail-7")
    assert run.result(TIMEOUT) == [4, {"by": "ann"}]
    assert client.events.waiting() == run.waits() == []
    mail = [event.after for event in run.events() if event.subject == "mail"]
    assert mail == ["sent", "delivered"]


def test_g4_an_event_that_came_first_is_kept_and_taken_in_order(client: Client):
    client.limits.set_max_concurrent_runs(1)
    holding = client.submit(approval, 1)
    waits(holding)  # it gave its place back: another one can go on
    run = client.submit(one_by_one, 0)
    for n in range(2):
        run.send("go", n)
    assert run.result(TIMEOUT) == [0, 1]
    both = client.submit(two_at_once, 0)
    waits(both)
    with ThreadPoolExecutor(4) as several:
        sent = list(several.map(lambda n: both.send("go", "x", id=str(n % 2)), range(8)))
    assert sent.count(True) == 2
    assert both.result(TIMEOUT) == ["x", "x"]
    mapped = client.submit(between_maps, [1, 2])
    assert mapped.send("more", [1, 2, 3])
    assert mapped.result(TIMEOUT) == 12
    holding.cancel()
    with pytest.raises(RunCancelled):
        holding.result(TIMEOUT)
    assert all(each.run != holding.id for each in client.events.waiting())


def test_a_wait_that_times_out_fails_or_has_its_default(client: Client):
    assert client.submit(with_branches, 1).result(TIMEOUT) == [None, 4]
    with pytest.raises(RunFailed, match="no event 'approved' came within 50"):
        client.submit(impatient, 1).result(TIMEOUT)


def test_g4_an_event_of_a_topic_reaches_each_that_matches_once(client: Client):
    runs = [client.submit(payment, n) for n in range(6)]
    for run in runs:
        waits(run)
    assert client.events.send("paid", "of 3", match={"order": 3}, id="a")
    assert not client.events.send("paid", "of 3", match={"order": 3}, id="a")
    assert runs[3].result(TIMEOUT) == [3, "of 3"]
    assert [each.status() for each in runs].count(RunState.WAITING) == 5
    assert client.events.send("paid", "all")
    rest = [run.result(TIMEOUT) for n, run in enumerate(runs) if n != 3]
    assert rest == [[n, "all"] for n in range(6) if n != 3]


def test_bad_events_are_refused_with_their_field(client: Client):
    run = client.submit(typed, 1)
    waits(run)
    with pytest.raises(InvalidInput, match="must be a boolean") as wrong:
        run.send("approved", {"ok": "yes"})
    assert wrong.value.field == "payload.ok"
    with pytest.raises(InvalidInput, match="needs the field 'ok'"):
        run.send("approved", {})
    with pytest.raises(InvalidInput, match="waits for no event 'aproved'") as unknown:
        run.send("aproved", {"ok": True})
    assert "approved" in (unknown.value.hint or "")
    with pytest.raises(InvalidInput, match="bytes") as large:
        run.send("approved", {"ok": True, "by": "x" * 300_000})
    assert large.value.field == "payload"
    with pytest.raises(InvalidInput, match="plain value"):
        client.events.send("paid", match={"order": [1]})
    assert run.send("approved", {"ok": True, "by": "me"})
    assert run.result(TIMEOUT) == [1, {"ok": True, "by": "me"}]
    with pytest.raises(InvalidInput, match="it has ended succeeded"):
        run.send("approved", {"ok": True})
    with pytest.raises(NotFound):
        client.runs.get("0" * 26).send("approved")
    with pytest.raises(InvalidFlow, match="outside a flow"):
        wait_event("approved")


def test_a_token_answers_no_other_wait_of_its_name(client: Client):
    run = client.submit(two_people)
    eventually(lambda: len(run.waits()) == 2)
    ann, bob = sorted(run.waits(), key=lambda each: each.task)
    with pytest.raises(InvalidInput, match="'payload' of event 'approved' must be a string"):
        client.events.answer(bob.token, 7)
    assert client.events.answer(bob.token, "of bob")
    eventually(lambda: [each.task for each in run.waits()] == [ann.task])
    with pytest.raises(InvalidInput, match="is over"):
        client.events.answer(bob.token, "again")
    assert client.events.answer(ann.token, 1)
    assert run.result(TIMEOUT) == [1, "of bob"]


def test_a_token_answers_its_wait_once(client: Client):
    run = client.submit(one_by_one, 0)
    waits(run)
    [wait] = run.waits()
    assert wait.token not in repr(wait)
    with pytest.raises(InvalidInput, match="not the token of a wait"):
        client.events.answer(wait.token[:-1] + ("0" if wait.token[-1] != "0" else "1"), 1)
    client.flows.pause(one_by_one.name)  # the answer stays in the mailbox
    assert client.events.answer(wait.token, "yes")
    assert not client.events.answer(wait.token, "no")
    client.flows.resume(one_by_one.name)
    eventually(lambda: [each.task for each in run.waits()] not in ([], [wait.task]))
    with pytest.raises(InvalidInput, match="is over"):
        client.events.answer(wait.token, "late")
    assert client.events.answer(run.waits()[0].token, "again")
    assert run.result(TIMEOUT) == ["yes", "again"]


def test_a_mailbox_takes_a_thousand_events(client: Client):
    client.flows.pause(one_by_one.name)
    run = client.submit(one_by_one, 0)
    with ThreadPoolExecutor(8) as several:
        sent = several.map(lambda n: run.send("go", n, id=str(n)), range(MAX_MAIL))
        assert all(sent)
    with pytest.raises(AdmissionRejected, match=r"mailbox of run .* is full: 1,000 events"):
        run.send("go", "one too many")
    client.flows.resume(one_by_one.name)
    assert len(run.result(TIMEOUT)) == 2


def test_an_open_wait_outlives_its_engine(store_url: str):
    with embedded(store_url, grace="2s") as client:
        run = client.submit(approval, 3)
        waits(run)
        run_id = run.id
    with connect(store_url) as other:
        other.runs.get(run_id).send("approved", "yes")
    with embedded(store_url, grace="2s") as client:
        assert client.runs.get(run_id).result(TIMEOUT) == [6, "yes"]
    check_history(store_url)


def test_g4_an_event_sent_while_the_leader_reads_what_was_sent(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The read does not find it, and the leader is told of it before the read has answered."""
    was_read, was_told = threading.Event(), threading.Event()
    read, told = PostgresStore.mail_ready, WaitingRuns.notified

    async def slow(store: PostgresStore, runs: Sequence[int]) -> list[Mail]:
        found = await read(store, runs)
        was_read.set()
        assert await asyncio.to_thread(was_told.wait, 60)
        return found

    def notified(
        self: WaitingRuns, mailed: Sequence[tuple[int, int]], *args: Any, **named: Any
    ) -> None:
        told(self, mailed, *args, **named)
        if mailed:
            was_told.set()

    monkeypatch.setattr(PostgresStore, "mail_ready", slow)
    monkeypatch.setattr(WaitingRuns, "notified", notified)
    with embedded(postgres_url, grace="2s") as client, connect(postgres_url) as other:
        run = client.submit(approval, 2)
        assert was_read.wait(60)
        other.runs.get(run.id).send("approved", "yes")
        assert run.result(TIMEOUT) == [4, "yes"]
    check_history(postgres_url)


def test_an_event_that_cannot_be_read_concerns_its_run_alone(tmp_path: Path):
    path = tmp_path / "locktender.db"
    with embedded(str(path), grace="2s") as client:
        spoilt, other = client.submit(typed, 1), client.submit(one_by_one, 0)
        waits(spoilt)
        waits(other)
        with opened(path) as db:
            add = "INSERT INTO mail (run, name, match, at, payload) VALUES (?, ?, ?, ?, ?)"
            [(run,)] = db.execute("SELECT seq FROM run WHERE id = ?", [spoilt.id])
            later = 1 << 55
            db.execute(add, [0, "go", "{no", later, b"1"])
            db.execute(add, [run, "approved", "{}", later, b"{no"])
        for n in range(2):
            other.send("go", n)
        assert other.result(TIMEOUT) == [0, 1]
        spoilt.send("approved", {"ok": True})
        eventually(lambda: spoilt.status() is RunState.HELD)
        assert "payload" in spoilt.why().reasons[0].text
        spoilt.cancel()
        assert spoilt.wait(TIMEOUT) is RunState.CANCELLED
    check_history(str(path))
