"""`why` from rows, beside a live engine: runs start in the positions it tells, on both stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.steps import client_flows as flows

from locktender import AdmissionRejected, Client, Submission, connect, embedded
from locktender.observe import rebuilt

pytest_plugins = ["locktender.testing.postgres"]


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
def shut() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def taking_turns(engine: Client, at_work: str = "a") -> list[Submission]:
    """One at a time, after uneven turns; one runs, and those returned are to wait."""
    engine.limits.set_max_concurrent_runs(1)
    engine.limits.set_fair("tenant", {"b": 3})
    engine.limits.set_tag("team", limit=1)
    flows.GATE.set()
    for tenant in "aaab":
        engine.submit(flows.waits, 0, tags={"tenant": tenant}).result("60s")
    flows.GATE.clear()
    first = engine.submit(flows.waits, 0, tags={"tenant": at_work})
    until(lambda: first.status() == "running")
    tags = [{"tenant": tenant} for tenant in "aaaabbbbbbcc"]
    tags += [{"tenant": "c", "team": "x"}, {"team": "x"}, {}]
    return [
        Submission((number,), tags=each, priority=5 * (number in (2, 9)))
        for number, each in enumerate(tags)
    ]


@pytest.mark.usefixtures("shut")
@pytest.mark.parametrize("new_leader", [False, True])
def test_e7_the_positions_told_are_those_that_come(url: str, tmp_path: Path, new_leader: bool):
    with embedded(url, work_dir=tmp_path / "work") as engine:
        waiting = taking_turns(engine)
        if not new_leader:
            runs = engine.submit_many(flows.waits, waiting)
            with connect(url) as other:
                answers = [other.why(run.id) for run in runs]
                shown = other.queue.list()
            assert [each.position for each in shown] == list(range(1, len(runs) + 1))
            told = {answer.id: answer.position for answer in answers}
            assert {each.run.id: each.position for each in shown} == told
            assert {answer.position_is for answer in answers} == {"exact"}
            flows.GATE.set()
            _compare(engine, told)
            return
        engine.limits.pause("max_concurrent_runs")
        runs = engine.submit_many(flows.waits, waiting)
        flows.GATE.set()
        until(lambda: not engine.runs.list(status="running"))
    with connect(url) as other:
        # Nobody leads: whoever does next begins anew with the turns.
        told = {run.id: other.why(run.id).position or 0 for run in runs}
    with embedded(url, work_dir=tmp_path / "work") as engine:
        engine.limits.resume("max_concurrent_runs")
        _compare(engine, told)


def _compare(engine: Client, told: Mapping[str, int | None]) -> None:
    until(lambda: all(engine.runs.get(run).status() == "succeeded" for run in told), 30)
    begun = sorted(told, key=lambda run: str(engine.runs.get(run).info().started_at))
    assert told == {run: place for place, run in enumerate(begun, 1)}


@pytest.mark.usefixtures("shut")
def test_e7_where_not_all_is_read_it_is_said(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with embedded(url, work_dir=tmp_path / "work") as engine:
        runs = engine.submit_many(flows.waits, taking_turns(engine))
        monkeypatch.setattr(rebuilt, "TAILS", (1,))
        why = runs[0].why()
        assert why.position_is == "about"
        assert f"position about {why.position} in the queue" in str(why)
        monkeypatch.setattr(rebuilt, "MAX_RUNS_COUNTED", 4)
        why = runs[3].why()
        assert why.position_is == "at least"
        # Those of a before it, and of higher priority whoever was counted.
        assert why.position in (4, 5)
        assert why.estimate_us is None
        assert f"position at least {why.position} in the queue" in str(why)
        engine.runs.cancel([run.id for run in runs])
        flows.GATE.set()


@pytest.mark.usefixtures("shut")
def test_b4_a_refusal_says_whether_waiting_helps(url: str, tmp_path: Path):
    with embedded(url, work_dir=tmp_path / "work") as engine:
        engine.limits.set_tag("tenant", max_active=3, per_value=True)
        engine.submit_many(flows.waits, [Submission((n,), tags={"tenant": "a"}) for n in range(2)])
        several = [Submission((n,), tags={"tenant": "a"} if n % 3 else {}) for n in range(4)]
        with pytest.raises(AdmissionRejected) as caught:
            engine.submit_many(flows.waits, several)
        assert "2 runs with tenant=a submitted together do not fit" in str(caught.value)
        assert "2 of 3 are active" in str(caught.value)
        assert "limits set tag 'tenant=*' --max-active N" in str(caught.value)
        assert 1 <= caught.value.retry_after <= 3_600
        assert not caught.value.never
        many = [Submission((n,), tags={"tenant": "b"}) for n in range(4)]
        with pytest.raises(AdmissionRejected, match=r"4 runs with tenant=b .* can never") as caught:
            engine.submit_many(flows.waits, many)
        assert caught.value.never
        assert caught.value.as_dict()["retry_after"] is None
        assert "Try again" not in str(caught.value)
        assert "at most 3 at a time, use partial=True" in str(caught.value)
        taken = engine.submit_many(flows.waits, many, partial=True)
        assert [isinstance(each, AdmissionRejected) for each in taken] == [False] * 3 + [True]
        flows.GATE.set()
