"""Ids, states, errors, clocks: what the layers above take for granted."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locktender.base import errors, ids
from locktender.base.clock import Clock, ManualClock, SystemClock
from locktender.base.states import (
    ENDED_RUNS,
    ENDS,
    HOLDING,
    NEW,
    RUN_CHANGES,
    STORED_RUNS,
    TASK_CHANGES,
    TERMINAL_RUNS,
    Owner,
    RunState,
    TaskState,
)

instants = st.integers(min_value=0, max_value=(1 << 48) * 1000 - 1)


@given(instants, instants, st.binary(min_size=11, max_size=16), st.binary(min_size=11, max_size=16))
def test_run_ids_sort_by_time(first: int, second: int, one: bytes, other: bytes):
    a, b = ids.run_id(first, one), ids.run_id(second, other)

    assert len(a) == len(b) == 26
    if first // 1000 < second // 1000:
        assert a < b


def test_run_ids_of_one_millisecond_differ():
    made = {ids.run_id(1_000_000, os.urandom(11)) for _ in range(10_000)}

    assert len(made) == 10_000


@given(instants, instants, st.binary(min_size=17, max_size=60))
def test_run_ids_made_together_are_as_those_made_alone(first: int, second: int, entropy: bytes):
    made, after = ids.run_ids(first, entropy), ids.run_id(second, entropy)

    assert len(made) == len(entropy) // ids.ENTROPY
    assert {len(each) for each in made} == {26}
    assert {each[:9] for each in made} == {ids.run_id(first, entropy)[:9]}
    assert set("".join(made)) <= set("0123456789abcdefghjkmnpqrstvwxyz")
    if first // 1000 < second // 1000:
        assert max(made) < after


def test_run_ids_made_together_differ_in_every_place():
    made = ids.run_ids(1_000_000, os.urandom(ids.ENTROPY * 10_000))

    assert len(set(made)) == 10_000
    assert len({each[9] for each in made}) == 4  # two random bits, then sixteen times five
    assert [len({each[at] for each in made}) for at in range(10, 26)] == [32] * 16


@given(st.integers(0, 2**40), st.integers(0, ids.MAX_TASKS_PER_RUN - 1))
def test_task_ids_fall_apart_again(run: int, ordinal: int):
    task = ids.task_id(run, ordinal)

    assert (ids.run_of(task), ids.ordinal_of(task)) == (run, ordinal)
    assert task < ids.task_id(run + 1, 0)


@given(st.integers(0, 2**25 - 2), st.integers(0, 2**38 - 1))
def test_a_later_term_has_the_larger_token(term: int, n: int):
    assert ids.term_of(ids.token(term, n)) == term
    assert ids.token(term, n) < ids.token(term + 1, 0) < 2**63


@pytest.mark.parametrize(
    ("states", "changes"), [(STORED_RUNS, RUN_CHANGES), (TaskState, TASK_CHANGES)]
)
def test_every_state_is_reached_from_new(
    states: Iterable[RunState | TaskState], changes: dict[tuple[str, str], Owner]
):
    reached, frontier = {NEW}, {NEW}
    while frontier:
        frontier = {after for before, after in changes if before in frontier} - reached
        reached |= frontier

    assert reached - {NEW} == set(states)


def test_changes_change_something_and_name_known_states():
    for changes, states in ((RUN_CHANGES, RunState), (TASK_CHANGES, TaskState)):
        for before, after in changes:
            assert before != after
            assert before == NEW or before in set(states)
            assert after in set(states)


def test_terminal_runs_leave_only_by_a_retry():
    left = {
        (before, after): owner
        for (before, after), owner in RUN_CHANGES.items()
        if before in TERMINAL_RUNS
    }

    assert all(after == RunState.QUEUED for _, after in left)
    assert set(left.values()) == {Owner.SUBMITTER}
    # Also one that succeeded: it is retried from a step on.
    assert {before for before, _ in left} == set(ENDED_RUNS)


def test_every_state_that_is_no_end_has_a_way_out():
    for states, changes, ends in (
        (STORED_RUNS, RUN_CHANGES, ENDED_RUNS),
        (TaskState, TASK_CHANGES, ENDS),
    ):
        leaving = {before for before, _ in changes}
        assert all(state in leaving for state in states if state not in ends)


def test_only_a_worker_ends_what_runs_save_by_abandoning_it():
    for (before, after), owner in TASK_CHANGES.items():
        if before == TaskState.RUNNING:
            assert owner == (Owner.LEADER if after == TaskState.ABANDONED else Owner.WORKER)


def test_every_state_change_takes_or_frees_slots():
    taking = {
        change for change in TASK_CHANGES if change[1] in HOLDING and change[0] not in HOLDING
    }

    assert taking == {(TaskState.REQUESTED, TaskState.SCHEDULED)}
    assert TaskState.REQUESTED not in HOLDING
    assert not HOLDING & ENDS


def test_errors_show_as_plain_data():
    error = errors.InvalidInput("limit must not be 0.", field="limit", got=0, hint="Use pause.")

    assert error.as_dict() == {
        "code": "invalid_input",
        "message": "limit must not be 0.",
        "field": "limit",
        "got": "0",
        "hint": "Use pause.",
    }
    assert str(error) == "limit must not be 0. Use pause."
    assert len(errors.InvalidInput("x", got="y" * 1000).as_dict()["got"]) == 200


@pytest.mark.parametrize(
    ("message", "got", "hint", "said"),
    [
        ("timeout is not a duration.", "soon", "Write 90s.", "timeout is not a duration. Got 'soon'. Write 90s."),
        ("timeout is not a duration.", "soon", None, "timeout is not a duration. Got 'soon'."),
        ("count must be 10 or more.", 1, None, "count must be 10 or more. Got 1."),
        ("there is no pool 'db'.", "db", None, "there is no pool 'db'."),
        ("it is bad", 3, "Use 4.", "it is bad. Got 3. Use 4."),
        ("the name must not be empty.", "", None, "the name must not be empty. Got ''."),
        ("a (2s) is above b (1s).", {"a": "2s", "b": "1s"}, None, "a (2s) is above b (1s)."),
        # Cut, it could be half a secret, which nobody would recognise.
        ("it is too long.", "y" * 200, "Use less.", "it is too long. Use less."),
        ("it is nothing.", None, "Use more.", "it is nothing. Use more."),
    ],
)  # fmt: skip
def test_an_error_says_what_it_was_given(message: str, got: object, hint: str | None, said: str):
    assert str(errors.InvalidInput(message, got=got, hint=hint)) == said


def test_a_value_that_cannot_be_shown_is_left_out():
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    assert str(errors.InvalidInput("it is wrong.", got=Shy())) == "it is wrong."


def test_a_message_of_somebody_elses_ends_before_the_hint_begins():
    assert str(errors.RunFailed("run 1 failed: bad", hint="See: why.")) == (
        "run 1 failed: bad. See: why."
    )
    assert str(errors.RunFailed("run 1 failed: bad")) == "run 1 failed: bad"


def test_what_was_got_can_always_be_encoded():
    shown = errors.InvalidInput("bad name.", got="\ud800\0").as_dict()

    assert msgspec.json.decode(msgspec.json.encode(shown))["got"] == "'\\ud800\\x00'"


def test_a_rejection_says_when_to_come_back():
    error = errors.AdmissionRejected("15 of 15 runs are active.", retry_after=1.5)

    assert error.as_dict()["retry_after"] == 1.5
    assert error.as_dict()["code"] == "admission_rejected"


def test_codes_are_unique():
    classes = [errors.LocktenderError]
    for each in classes:
        classes += each.__subclasses__()

    own = [each.code for each in classes if each.__module__ == errors.__name__]
    assert len(own) == len(set(own))


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_clocks_do_not_go_back(clock: Clock):
    before = clock.monotonic()

    assert clock.monotonic() >= before
    assert clock.now() > 0


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(start=10)
    clock.advance(5)
    clock.set(20)

    assert clock.now() == clock.monotonic() == 20
    with pytest.raises(ValueError, match="does not go back"):
        clock.set(19)
