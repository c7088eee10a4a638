"""Runs through the sync client: submit, wait, read, cancel, retry, with a real engine on a real file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tests.steps import client_flows as flows

from locktender import (
    AdmissionRejected,
    Client,
    DuplicateKey,
    InvalidFlow,
    InvalidInput,
    NotFound,
    RunCancelled,
    RunFailed,
    RunState,
    RunTimedOut,
    StepError,
    Submission,
    TaskState,
    WaitTimeout,
    embedded_async,
    flow,
    step,
)
from locktender.store.protocol import Submit, Submitted
from locktender.store.sqlite.store import SqliteStore

ALL_TRANSPORTS = True
pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


def test_a_flow_runs_and_its_result_has_the_annotated_type(engine: Client):
    assert engine.submit(flows.summed, [1, 2, 3]).result(timeout="60s") == 12
    # also where only the steps say what they return
    assert engine.submit(flows.measured, "abc").result(timeout="60s") == flows.Stats(3, "abc")
    assert engine.submit(flows.all_measured, ["a", "bc"]).result(60) == [
        flows.Stats(1, "a"),
        flows.Stats(2, "bc"),
    ]


def test_a_flow_is_submitted_by_name_or_a_name_suggested(engine: Client):
    name = flows.doubled.name
    assert engine.submit(name, 21).result(60) == 42
    with pytest.raises(NotFound, match=f"Did you mean '{name}'"):
        engine.submit(name + "x", 21)


def test_a_failed_run_says_which_step_failed_and_how(engine: Client):
    run = engine.submit(flows.failing, "no such planet")
    with pytest.raises(RunFailed) as caught:
        run.result(60)
    error = caught.value
    assert (error.step, error.error_type, error.error_message) == (
        "fail",
        "ValueError",
        "no such planet",
    )
    assert error.run_id == run.id
    assert "raise ValueError(message)" in (error.traceback or "")
    assert "at step 'fail': ValueError: no such planet" in str(error)
    assert run.status() is RunState.FAILED
    states = {task.name: task.state for task in run.tasks()}
    assert states == {"fail": TaskState.FAILED, "double": TaskState.SKIPPED}


def test_patience_ends_and_the_run_goes_on(engine: Client):
    run = engine.submit(flows.waits, 1)
    _until(lambda: run.status() == "running")
    with pytest.raises(WaitTimeout, match=r"still running after 50ms"):
        run.result(timeout="50ms")
    flows.GATE.set()
    assert run.wait(60) == "succeeded"
    assert run.result(0) == 1


def test_a_run_is_cancelled_while_it_runs_and_while_it_waits(engine: Client):
    engine.limits.set_max_concurrent_runs(1)
    first = engine.submit(flows.waits, 1)
    second = engine.submit(flows.waits, 2)
    assert second.cancel("not needed").ids == (second.id,)
    with pytest.raises(RunCancelled):
        second.result(60)
    # a thread cannot be stopped: the run ends when the body does, and ends cancelled
    asked = first.cancel()
    assert asked.leader
    assert asked.ids == (first.id,)
    flows.GATE.set()
    assert first.wait(60) is RunState.CANCELLED
    assert first.cancel().over == (first.id,)


def test_a_retried_run_keeps_its_finished_steps(engine: Client, tmp_path: Path):
    marks = tmp_path / "marks"
    marks.mkdir()
    run = engine.submit(flows.second_time, str(marks))
    assert run.wait(60) == "failed"
    assert run.retry().result(60) == 1
    with pytest.raises(InvalidInput, match="nothing to try again"):
        run.retry()


def test_a_deadline_ends_a_run_timed_out(engine: Client):
    run = engine.submit(flows.sleeping, deadline="100ms")
    with pytest.raises(RunTimedOut):
        run.result(60)


def test_options_are_merged_with_those_of_the_flow(engine: Client):
    run = engine.submit(flows.waits, x=1, tags={"tenant": "acme", "n": 3})
    info = run.info()
    assert info.tags == {"team": "search", "tenant": "acme", "n": "3"}
    assert info.priority == 3
    assert engine.submit(flows.waits, 1, priority=-5).info().priority == -5
    flows.GATE.set()


def test_tasks_and_events_tell_every_change(engine: Client):
    run = engine.submit(flows.summed, [1, 2, 3, 4])
    run.result(60)
    tasks = run.tasks()
    assert [(task.name, task.index) for task in tasks] == [
        ("double", 0), ("double", 1), ("double", 2), ("double", 3), ("total", None),
    ]  # fmt: skip
    for task in tasks:
        assert task.state is TaskState.COMPLETED
        assert task.attempt == 1
        assert task.started_at is not None
        assert task.ended_at is not None
        assert task.started_at.tzinfo is UTC
        assert task.started_at <= task.ended_at
    events = run.events()
    assert [event.after for event in events if event.subject == "run"] == [
        "queued", "running", "succeeded",
    ]  # fmt: skip
    of_last = [event for event in events if (event.name, event.index) == ("double", 3)]
    changes = [event.after for event in of_last if event.subject == "task"]
    assert changes == ["requested", "scheduled", "running", "completed"]
    waits = [(event.after, event.slot) for event in of_last if event.subject == "wait"]
    assert waits == [("window:double", "waiting")]  # though it was not the first of its line


def test_a_waiting_task_says_what_it_waits_for(engine: Client):
    engine.pools.set("db", 1)
    engine.pools.pause("db")
    run = engine.submit(flows.pooled, 1)
    _until(lambda: any(task.wait_reason for task in run.tasks()))
    [task] = run.tasks()
    assert task.state is TaskState.REQUESTED
    assert task.wait_reason == "paused:db"
    assert "db" in str(run.why())
    assert "db" in engine.why(task.id).text()
    engine.pools.resume("db")
    assert run.result(60) == 1


def test_thousands_are_submitted_at_once(engine: Client, monkeypatch: pytest.MonkeyPatch):
    """At once: by one call of the store, in one transaction. How long it takes is the benchmark's."""
    calls: list[int] = []
    submit = SqliteStore.submit

    async def counted(store: SqliteStore, order: Submit) -> list[Submitted]:
        calls.append(len(order.runs))
        return await submit(store, order)

    monkeypatch.setattr(SqliteStore, "submit", counted)
    engine.limits.set_max_concurrent_runs(-1)
    runs = engine.submit_many(flows.doubled, range(2_000))
    assert calls == [2_000]
    assert [run.result(100) for run in runs] == [2 * x for x in range(2_000)]


def test_runs_of_one_call_have_the_graph_of_their_own_arguments(engine: Client):
    engine.limits.set_max_concurrent_runs(-1)
    runs = engine.submit_many(flows.doubled_times, [(n, n % 4) for n in range(40)])
    assert [run.result(60) for run in runs] == [n * 2 ** (n % 4) for n in range(40)]
    assert [len(run.tasks()) for run in runs[:4]] == [1, 1, 2, 3]


def test_entries_of_submit_many_take_every_form(engine: Client):
    runs = engine.submit_many(
        flows.summed,
        [
            [1],
            ([1, 2],),
            ([1], 5),
            (([3],), {"offset": 1}),
            Submission(([4],), tags={"tenant": "acme"}, priority=9),
        ],
    )
    assert [run.result(60) for run in runs] == [2, 6, 2, 6, 8]
    assert runs[-1].info().tags == {"tenant": "acme"}
    assert runs[-1].info().priority == 9
    assert engine.submit_many(flows.summed, []) == []


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("prority", "Each run has its own: Submission((…), priority=3)."),
        ("tags", "Each run has its own: Submission((…), tags=3)."),
        ("partail", "Did you mean 'partial'?"),
        ("colour", "It takes flow, calls and partial."),
    ],
)
def test_an_unknown_option_of_submit_many_is_named(engine: Client, option: str, hint: str):
    given: dict[str, Any] = {option: 3}
    with pytest.raises(InvalidInput, match=f"submit_many takes no option '{option}'") as caught:
        engine.submit_many(flows.doubled, [1], **given)
    assert (caught.value.field, caught.value.hint) == (option, hint)
    assert engine.runs.list() == []


def test_beyond_the_ceiling_a_submission_leaves_no_row(engine: Client):
    engine.limits.set_max_active(3)
    runs = engine.submit_many(flows.waits, [1, 2, 3])
    with pytest.raises(AdmissionRejected, match="max_active is reached: 3 of 3") as caught:
        engine.submit(flows.waits, 4)
    assert 1 <= caught.value.retry_after <= 3600
    assert len(engine.runs.list()) == 3
    flows.GATE.set()
    for run in runs:
        run.result(60)
    assert engine.submit(flows.doubled, 1).result(60) == 2


def test_many_are_taken_all_or_none_or_as_many_as_fit(engine: Client):
    engine.limits.set_max_active(2)
    with pytest.raises(AdmissionRejected):
        engine.submit_many(flows.waits, [1, 2, 3])
    assert engine.runs.list() == []
    taken = engine.submit_many(flows.waits, [1, 2, 3], partial=True)
    assert [isinstance(each, AdmissionRejected) for each in taken] == [False, False, True]
    assert len(engine.runs.list()) == 2
    flows.GATE.set()


def test_a_key_attaches_or_is_refused_by_name_of_what_differs(engine: Client):
    run = engine.submit(flows.waits, 1, key="one")
    assert engine.submit(flows.waits, 1, key="one").id == run.id
    with pytest.raises(DuplicateKey, match=f"active run {run.id} and was submitted with another x"):
        engine.submit(flows.waits, 2, key="one")
    with pytest.raises(DuplicateKey, match="belongs to the active run"):
        engine.submit(flows.waits, 1, key="one", on_duplicate="reject")
    with pytest.raises(DuplicateKey):
        engine.submit_many(
            flows.waits, [Submission((5,)), Submission((2,), key="one"), Submission((6,))]
        )
    assert len(engine.runs.list()) == 1
    replacing = engine.submit(flows.waits, 2, key="one", on_duplicate="replace")
    flows.GATE.set()
    assert run.wait(60) is RunState.CANCELLED
    assert replacing.result(60) == 2
    finished = engine.submit(flows.waits, 2, key="one", on_duplicate="skip_if_finished")
    assert finished.id == replacing.id


def test_large_values_are_blobs_and_too_large_ones_refused(engine: Client, url: Path):
    text = "y" * 300_000
    assert engine.submit(flows.measured_text, text).result(60) == 300_000
    assert engine.submit(flows.large, 400_000).result(60) == "x" * 400_000
    assert [len(each) for each in engine.submit(flows.larges, [300_000, 5]).result(60)] == [
        300_000,
        5,
    ]
    if isinstance(url, Path):  # PostgreSQL has them in a table
        assert list(url.with_name(url.name + "-blobs").rglob("*"))
    with pytest.raises(InvalidInput, match=r"arguments of 'measured_text' are 2,1.* bytes"):
        engine.submit(flows.measured_text, "y" * 2_100_000)
    with pytest.raises(RunFailed):
        engine.submit(flows.large, 2_200_000).result(60)


def test_more_slots_than_a_pool_has_are_refused_at_submission(engine: Client):
    engine.pools.set("db", limit=1)
    with pytest.raises(InvalidFlow, match="needs 2 slots of pool 'db', whose limit is 1"):
        engine.submit(flows.needs_two, 1)
    engine.limits.set("strict_pools", True)
    engine.pools.delete("db")
    with pytest.raises(InvalidFlow, match="never set"):
        engine.submit(flows.pooled, 1)


def test_runs_are_found_by_filter_and_by_the_beginning_of_an_id(engine: Client):
    one = engine.submit(flows.doubled, 1, tags={"tenant": "a"})
    two = engine.submit(flows.doubled, 2, tags={"tenant": "b"})
    for run in (one, two):
        run.result(60)
    assert [info.id for info in engine.runs.list()] == [two.id, one.id]
    assert [info.id for info in engine.runs.list(tags={"tenant": "a"})] == [one.id]
    assert [info.id for info in engine.runs.list(status="succeeded", limit=1)] == [two.id]
    assert engine.runs.list(status=["failed", "cancelled"], flow=flows.doubled.name) == []
    assert engine.runs.find(one.id[:-3].upper()).id == one.id
    assert engine.runs.get(one.id).result(1) == 2
    with pytest.raises(InvalidInput, match="several runs begin with"):
        engine.runs.find(one.id[:4])
    with pytest.raises(NotFound, match="no run's id begins with"):
        engine.runs.find("zzzz")


BY_ID: dict[str, Callable[[Client, str], Any]] = {
    "get": lambda engine, part: engine.runs.get(part),
    "cancel": lambda engine, part: engine.runs.cancel(part),
    "cancel several": lambda engine, part: engine.runs.cancel([part]),
    "retry": lambda engine, part: engine.runs.retry(part),
    "why": lambda engine, part: engine.why(part),
    "queue cancel": lambda engine, part: engine.queue.cancel(part),
    "queue reprioritise": lambda engine, part: engine.queue.reprioritise(part, 1),
}


@pytest.mark.parametrize("verb", BY_ID)
def test_a_part_of_an_id_finds_no_run_of_a_stranger(engine: Client, verb: str):
    run = engine.submit(flows.doubled, 1)
    run.result(60)
    for part in (run.id[:4], run.id[:-1]):
        with pytest.raises(NotFound, match="this is not the id of a run: an id has 26"):
            BY_ID[verb](engine, part)


async def test_a_part_of_an_id_finds_no_run_for_async_code(tmp_path: Path):
    async with embedded_async(tmp_path / "a.db") as engine:
        run = await engine.submit(flows.doubled, 1)
        with pytest.raises(NotFound, match="this is not the id of a run"):
            await engine.runs.get(run.id[:-1])
        with pytest.raises(NotFound, match="this is not the id of a run"):
            await engine.why(run.id[:-1])
        assert (await engine.runs.find(run.id[:-1])).id == run.id
        assert await (await engine.runs.get(run.id)).result("60s") == 2


def test_the_queue_is_listed_reordered_and_cancelled(engine: Client):
    engine.limits.set_max_concurrent_runs(1)
    running = engine.submit(flows.waits, 0, priority=10)
    _until(lambda: running.status() == "running")
    queued = engine.submit_many(flows.waits, [1, 2, 3])
    assert [entry.run.id for entry in engine.queue.list()] == [run.id for run in queued]
    assert engine.queue.reprioritise(queued[2], 5).ids == (queued[2].id,)
    _until(lambda: engine.queue.list()[0].run.id == queued[2].id)
    assert engine.queue.reprioritise(running, 5).started == (running.id,)
    assert engine.queue.cancel([queued[0], queued[1].id]).ids == (queued[0].id, queued[1].id)
    for run in queued[:2]:
        assert run.wait(60) is RunState.CANCELLED
    flows.GATE.set()
    assert queued[2].result(60) == 3


def test_many_are_cancelled_by_filter(engine: Client):
    engine.limits.set_max_concurrent_runs(1)
    engine.limits.pause()
    runs = engine.submit_many(
        flows.waits, [Submission((n,), tags={"tenant": "ab"[n % 2]}) for n in range(6)]
    )
    asked = engine.runs.cancel(tags={"tenant": "a"})
    assert set(asked.ids) == {run.id for run in runs[::2]}
    for run in runs[::2]:
        assert run.wait(60) is RunState.CANCELLED
    assert [entry.run.id for entry in engine.queue.list()] == [run.id for run in runs[1::2]]
    with pytest.raises(InvalidInput, match="say which runs to cancel"):
        engine.runs.cancel()
    flows.GATE.set()
    engine.limits.resume()
    assert [run.result(60) for run in runs[1::2]] == [1, 3, 5]


def test_flow_run_runs_embedded_on_the_default_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert flows.summed.run([1, 2]) == 6
    assert (tmp_path / ".locktender" / "locktender.db").exists()
    with pytest.raises(RunFailed, match="no such planet"):
        flows.failing.run("no such planet")


def test_many_threads_share_one_client(engine: Client):
    results: list[int] = []

    def work(number: int) -> None:
        results.append(engine.submit(flows.doubled, number).result(60))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [2 * number for number in range(20)]


def test_a_step_error_is_a_public_value():
    assert str(StepError.of("ValueError", "no")) == "ValueError: no"


def _until(condition, seconds: float = 60.0) -> None:
    """A bounded wait for a condition that only reading can tell."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


@step(retries=3)
def contradicts(x: int) -> int:
    return "text" if x else x  # type: ignore[return-value]


@step(retries=3)
async def contradicts_async() -> int: ...  # type: ignore[empty-body]


@flow
def contradicting() -> int:
    return contradicts(1)


@flow
def contradicting_async() -> int:
    return contradicts_async()


@flow
def contradicting_mapped(xs: list[int]) -> list[int | StepError]:
    return contradicts.map(xs, on_error="collect")


@pytest.mark.parametrize("name", ["", "_async", "_in_a_process"])
def test_a_result_against_its_annotation_fails_once(engine: Client, name: str):
    known = {**globals(), "contradicting_in_a_process": flows.contradicting_in_a_process}
    run = engine.submit(known[f"contradicting{name}"])
    with pytest.raises(RunFailed) as caught:
        run.result(60)
    error = caught.value
    assert (error.step, error.error_type) == (f"contradicts{name}", "invalid_result")
    returned = "None" if name else "str 'text'"
    assert f"annotated to return int but returned {returned}" in error.error_message
    assert [task.attempt for task in run.tasks()] == [1]


def test_a_mapped_steps_results_are_checked_one_by_one(engine: Client):
    good, bad = engine.submit(contradicting_mapped, [0, 1]).result(60)
    assert good == 0
    assert isinstance(bad, StepError)
    assert bad.type == "invalid_result"


def test_queue_verbs_tell_what_has_started_from_what_has_ended(engine: Client):
    ended = engine.submit(flows.doubled, 1)
    ended.result(60)
    running = engine.submit(flows.waits, 1)
    _until(lambda: running.status() == "running")
    for asked in (
        engine.queue.cancel([ended.id, running.id]),
        engine.queue.reprioritise([ended.id, running.id], 5),
    ):
        assert (asked.ids, asked.over, asked.started) == ((), (ended.id,), (running.id,))
        assert str(asked) == "requested for 0, 1 has started, 1 had ended already"
    assert engine.runs.cancel(ended.id).over == (ended.id,)


def test_a_forced_cancel_does_not_wait_for_clean_up(engine: Client):
    plain, forced = engine.submit(flows.cleaned_up), engine.submit(flows.cleaned_up)
    for run in (plain, forced):
        _until(lambda run=run: any(task.state == "running" for task in run.tasks()))
    plain.cancel()
    plain.cancel()  # repeated, as after a lost answer: nothing more happens
    forced.cancel(force=True)
    assert (plain.wait(60), forced.wait(60)) == ("cancelled", "cancelled")
    assert [(task.name, task.state) for task in plain.tasks()] == [
        ("long_sleep", "cancelled"),
        ("tidy_up", "completed"),
    ]
    assert [task.state for task in forced.tasks()] == ["cancelled", "skipped"]


def test_a_chain_of_replacements_never_executes_two_of_one_key(engine: Client):
    first = engine.submit(flows.cleaned_up, key="one", on_duplicate="replace")
    _until(lambda: any(task.state == "running" for task in first.tasks()))
    chain = [engine.submit(flows.cleaned_up, key="one", on_duplicate="replace") for _ in range(4)]
    last = engine.submit(flows.tidied, key="one", on_duplicate="replace")
    assert last.wait(60) == "succeeded"
    assert {run.wait(60) for run in (first, *chain)} == {"cancelled"}
