"""One change per row: what a cycle did to the same task, folded into the row it comes to.

A task may be made, started and completed within one commit; the parts of one
statement would not see each other's rows.
"""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

from locktender.base.changes import TaskRow
from locktender.base.commits import Commit, TaskEnd, TaskSave
from locktender.base.states import HOLDING, TaskState

TASK = TaskRow._fields
_id = itemgetter(0)


class Folded(NamedTuple):
    new: list[TaskRow]
    """As they are at the end of the cycle."""
    replaced: list[int]
    """Of those, the ones whose row is replaced where it exists: also saved, or left by an earlier try."""
    saved: list[TaskSave]
    ended: list[TaskEnd]
    idle: list[int]
    """Tasks whose orders are void."""
    tangled: bool
    """Something is moved twice in a way that cannot be folded."""


def fold(commit: Commit) -> Folded:
    new = {row.id: row for row in (*commit.tasks_new, *commit.tasks_again)}
    replaced = [row.id for row in commit.tasks_again]
    saved: list[TaskSave] = []
    ended: list[TaskEnd] = []
    idle: list[int] = []
    for save in commit.tasks_saved:
        if save.state not in HOLDING:
            idle.append(save.id)
        row = new.get(save.id)
        if row is None:
            saved.append(save)
        else:
            new[save.id] = _with(row, save)
            replaced.append(save.id)
    for end in commit.tasks_ended:
        row = new.get(end.id)
        if row is None:
            ended.append(end)
        elif row.token == end.token and row.state in HOLDING:
            new[end.id] = row._replace(
                state=TaskState.COMPLETED.value, output=end.output, ended_at=end.ended_at, held=None
            )
    saves = {save.id for save in saved}
    return Folded(
        new=sorted(new.values(), key=_id),
        replaced=sorted(replaced),
        saved=sorted(saved, key=_id),
        ended=sorted(ended, key=_id),
        idle=sorted(idle),
        tangled=any(end.id in saves for end in ended)
        or _runs_twice(commit)
        or _ordered(commit, idle),
    )


def _with(row: TaskRow, save: TaskSave) -> TaskRow:
    return TaskRow(
        save.id, row.node, row.idx, *save[1:9], row.input, row.output, save.error, *save[10:]
    )


def _runs_twice(commit: Commit) -> bool:
    groups = (commit.runs_started, commit.runs_marked, commit.runs_unfolded, commit.runs_ended)
    ids = {row[0] for rows in groups for row in rows}
    return len(ids) < sum(len(rows) for rows in groups)


def _ordered(commit: Commit, idle: list[int]) -> bool:
    """An order for a task whose orders are void: it must come after."""
    if not idle or not commit.orders:
        return False
    return not {order.task for order in commit.orders}.isdisjoint(idle)
