"""One change per row: what a cycle did to the same task, folded."""

from __future__ import annotations

from locktender.base.changes import Order, TaskRow
from locktender.base.commits import Commit, RunEnd, RunMark, TaskEnd, TaskSave
from locktender.store.postgres.folded_rows import TASK, fold


def save(task: int, state: str, **fields: object) -> TaskSave:
    row = TaskRow(task, 0, -1, state)._replace(**fields)
    return TaskSave(*(getattr(row, name) for name in TaskSave._fields))


def test_made_started_and_completed() -> None:
    new = TaskRow(7, 3, 4, "requested", input=b"in")
    started = save(7, "running", token=9, worker="w", held=b"{}", attempt=1, started_at=5)
    folded = fold(
        Commit(
            1, 1, "me", tasks_new=[new], tasks_saved=[started], tasks_ended=[TaskEnd(7, 9, b"1", 8)]
        )
    )
    [row] = folded.new
    assert row == TaskRow(
        7, 3, 4, "completed", attempt=1, token=9, worker="w", input=b"in", output=b"1",
        started_at=5, ended_at=8,
    )  # fmt: skip
    assert (folded.replaced, folded.saved, folded.ended, folded.tangled) == ([7], [], [], False)
    assert len(TASK) == 20


def test_an_end_with_a_stale_token_is_dropped() -> None:
    new = TaskRow(7, 0, -1, "running", token=9)
    folded = fold(Commit(1, 1, "me", tasks_new=[new], tasks_ended=[TaskEnd(7, 8, b"1", 8)]))
    assert folded.new == [new]


def test_rows_are_sorted_and_idle_tasks_named() -> None:
    folded = fold(Commit(1, 1, "me", tasks_saved=[save(5, "requested"), save(3, "scheduled")]))
    assert [row.id for row in folded.saved] == [3, 5]
    assert folded.idle == [5]


def test_what_cannot_be_folded_is_said_so() -> None:
    running = save(5, "running", token=1)
    twice = Commit(1, 1, "me", tasks_saved=[running], tasks_ended=[TaskEnd(5, 1, b"", 1)])
    assert fold(twice).tangled
    mark, end = RunMark(1, "cancelling", "cancelled", None), RunEnd(1, "cancelled", None, None, 1)
    assert fold(Commit(1, 1, "me", runs_marked=[mark], runs_ended=[end])).tangled
    ordered = Commit(
        1, 1, "me", tasks_saved=[save(5, "requested")], orders=[Order("w", 5, 1, "stop")]
    )
    assert fold(ordered).tangled
    assert not fold(Commit(1, 1, "me", runs_ended=[end])).tangled
