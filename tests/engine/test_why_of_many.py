"""`why` of a run with many waiting items: the leader answers from its lanes, here and in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.steps import client_flows as flows

from locktender import Client, connect, embedded, flow, step
from locktender.leader.questions import Questions
from locktender.observe import live, why_executing
from locktender.observe.why import Why
from locktender.testing import eventually

ITEMS = 1_200


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


@step(pool="db")
def hold(x: int) -> int:
    assert flows.GATE.wait(60)
    return x


@flow
def holds(count: int) -> list[int]:
    return hold.map(list(range(ITEMS)))


def timeless(found: Why) -> tuple[object, ...]:
    """All but estimates and instants: a rebuilt ledger has seen other durations than the leader."""
    groups = [
        (group.step, group.count, [(each.gate, each.used, each.limit, each.ahead) for each in group.reasons],
         [each.text for each in group.lets_start], [each.kind for each in group.until])
        for group in found.waiting
    ]  # fmt: skip
    return found.state, groups, found.running, found.offered, found.pending, found.note


def test_h1_the_leader_answers_here_and_elsewhere_as_the_rows_do(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = list[str]()
    answered, stored = Questions.ask, why_executing.answer_for

    def ask(self: Questions, question: live.Question[Why]) -> object:
        asked.append("here")
        return answered(self, question)

    def answer_for(subject: str, labels: None) -> live.Question[bytes]:
        asked.append("elsewhere")
        return stored(subject, labels)

    monkeypatch.setattr(Questions, "ask", ask)
    monkeypatch.setattr("locktender.leader.questions.answer_for", answer_for)
    with embedded(url, pools={"db": 2}, grace="1s") as engine, connect(url) as other:
        run = engine.submit(holds, ITEMS)
        eventually(lambda: [each.count for each in run.why().waiting] == [ITEMS - 2], "120s")
        last = max(task.id for task in run.tasks())
        compared = list[list[tuple[object, ...]]]()
        for client in (engine, other):
            found = [client.runs.get(run.id).why(), client.why(last)]
            assert [each.ahead for each in found[1].reasons] == [ITEMS - 3]
            compared.append([timeless(each) for each in found])
        assert asked[-4:] == ["here", "here", "elsewhere", "elsewhere"]
        pools = [engine.pools.list(), other.pools.list()]
        assert asked[-1] == "here", "of pools, too"
        before = len(asked)
        monkeypatch.setattr(live, "MIN_TASKS", 1_000_000)
        assert [*pools, engine.pools.list()] == [pools[0]] * 3
        assert [(each.name, each.used, each.waiting) for each in pools[0]] == [("db", 2, ITEMS - 2)]
        compared.append([timeless(engine.runs.get(run.id).why()), timeless(engine.why(last))])
        assert len(asked) == before
        assert compared[0] == compared[1] == compared[2]
        changed(engine, run.id, monkeypatch)
        run.cancel(force=True)
        flows.GATE.set()
        run.wait("120s")


@step
def hold_last(x: int) -> int:
    assert x < 9 or flows.GATE.wait(60)
    return x


@flow
def nearly_over() -> list[int]:
    return hold_last.map(list(range(10)))


def test_h1_the_leader_is_asked_where_many_tasks_have_ended(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    """To rebuild its ledger their rows would be read, too."""
    asked = list[object]()
    answered = Questions.ask

    def ask(self: Questions, question: live.Question[Why]) -> object:
        asked.append(question)
        return answered(self, question)

    monkeypatch.setattr(Questions, "ask", ask)
    with embedded(url, grace="1s") as engine:
        run = engine.submit(nearly_over)
        eventually(lambda: sum(task.state == "completed" for task in run.tasks()) == 9, "60s")
        assert run.why().running == {"hold_last": 1}
        assert asked == []
        monkeypatch.setattr(live, "MIN_TASKS", 5)
        assert run.why().running == {"hold_last": 1}
        assert len(asked) == 1
        flows.GATE.set()
        run.result("60s")


def changed(engine: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that was set before the question counts in the answer: the leader reads before it answers."""
    monkeypatch.setattr(live, "MIN_TASKS", 1)
    for limit in (1, 2, 1):
        engine.pools.set("db", limit)
        [group] = engine.runs.get(run).why().waiting
        assert group.reasons[0].limit == limit
