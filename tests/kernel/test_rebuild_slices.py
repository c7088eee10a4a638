"""A rebuild of many active tasks is made in slices, so that the loop of the leader is never kept for long."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest
from tests.support.worlds import graph, items, numbers, run_row

from locktender.base import ids
from locktender.base.changes import TaskRow
from locktender.base.graph import Output
from locktender.base.limits import Limits
from locktender.base.states import RunState, TaskState
from locktender.kernel import dag, rebuild
from locktender.kernel.node_state import SLICE
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timers import Defaults

ITEMS = 7_000
RUNS = 3


def rows_of(run: int, state: str) -> list[TaskRow]:
    """The items of the first map have completed or wait; those of the second wait or have no rows yet."""
    output = b"1" if state == TaskState.COMPLETED else None
    return [
        TaskRow(ids.task_id(run, index), 0, index, state, input=b"1", output=output, requested_at=5)
        for index in range(ITEMS)
    ]


def counted(counts: list[int], work: Any) -> Any:
    def count(*given: Any, **more: Any) -> Any:
        counts[-1] += 1
        return work(*given, **more)

    return count


@pytest.mark.parametrize("state", [TaskState.REQUESTED, TaskState.COMPLETED])
def test_no_slice_takes_up_more_rows_than_it_may(state: str):
    flow = graph(items("a"), items("b", Output(0)))
    leader = Scheduler(Limits(), term=2, owner="next", defaults=Defaults(hold_back_us=0))
    leader.graphs = {"flow": flow}
    runs = [
        msgspec.structs.replace(
            run_row(number, consts=numbers(ITEMS)), state=RunState.RUNNING, started_at=1
        )
        for number in range(1, RUNS + 1)
    ]
    rows = [row for run in runs for row in rows_of(run.seq, state)]
    # Per slice: entries made of rows, and entries that take up their place again.
    made, taken = [0], [0]
    with (
        mock.patch.object(rebuild, "_entry", counted(made, rebuild._entry)),
        mock.patch.object(rebuild, "_pick_up", counted(taken, rebuild._pick_up)),
    ):
        slices = rebuild.restore_runs(leader.lifecycle, leader.graphs, runs, rows, now=10)
        for _ in slices:
            made.append(0)
            taken.append(0)

    open_rows = 0 if state == TaskState.COMPLETED else RUNS * ITEMS
    assert (sum(made), sum(taken)) == (open_rows, open_rows)
    assert max(made) <= SLICE
    assert max(taken) <= SLICE
    # Rows are sorted by run, then each run's are read and known to its graph.
    assert len(made) > 3 * RUNS * ITEMS // SLICE
    # What has no row yet is asked for in slices, too.
    while leader.cycle(10).unfinished:
        pass
    assert len(leader.lifecycle.tasks) == RUNS * ITEMS


def test_one_node_of_a_graph_starts_per_slice():
    flow = graph(items("a"), items("b"), items("c"))
    leader = Scheduler(Limits(), term=2, owner="next")
    leader.graphs = {"flow": flow}
    run = msgspec.structs.replace(
        run_row(1, consts=numbers(ITEMS)), state=RunState.RUNNING, started_at=1
    )
    started = [0]
    with mock.patch.object(
        dag.RunGraph, "_start_next", counted(started, dag.RunGraph._start_next), create=False
    ):
        for _ in rebuild.restore_runs(leader.lifecycle, leader.graphs, [run], [], now=10):
            started.append(0)  # noqa: PERF401 — filled by the patch meanwhile

    assert sum(started) == 3
    assert max(started) == 1
