"""The tasks and the history of one run, with the names its flow gave its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.errors import NotFound
from locktender.base.events import Event, unpack
from locktender.base.graph import Graph, Node, condition_text, is_cached, needs_of
from locktender.base.ids import run_of
from locktender.base.model import Progress, Unstopped
from locktender.base.states import (
    EXECUTING_RUNS,
    OUTBOX_RUNS,
    TERMINAL_RUNS,
    RunState,
    TaskState,
)
from locktender.client.core import Core
from locktender.client.results import failure_of, open_blobs
from locktender.client.views import (
    EventInfo,
    GraphInfo,
    NodeInfo,
    ProgressInfo,
    TaskInfo,
    UnstoppedInfo,
    instant,
    moment,
)
from locktender.store.decode import shown_task
from locktender.store.graphs import graph_of, required_graph
from locktender.store.protocol import EventFilter, NodeCount, Store, TaskFilter

if TYPE_CHECKING:
    from locktender.observe.slot_events import SlotChange
    from locktender.observe.timeline import Timeline, TimelinePart

_held = msgspec.json.Decoder(dict[str, int]).decode
_STATES = frozenset(TaskState)
_NOT_BEGUN = frozenset({TaskState.REQUESTED, TaskState.SCHEDULED})
PAGE = 10_000


def slots_of(task: TaskRow) -> dict[str, int]:
    """What it holds, by pool; nothing where that cannot be read."""
    try:
        return _held(task.held) if task.held else {}
    except (msgspec.MsgspecError, UnicodeError, TypeError):
        return {}


async def nodes_of(store: Store, digest: str) -> tuple[Node, ...]:
    """The steps of a stored graph; none where it cannot be read: a held run is shown all the same."""
    graph = await graph_of(store, digest)
    return () if graph is None else graph.nodes


def node_of(nodes: Sequence[Node], task: TaskRow) -> Node:
    return nodes[task.node] if 0 <= task.node < len(nodes) else Node(f"node {task.node}", "")


async def tasks(core: Core, run_id: str) -> list[TaskInfo]:
    row = await core.row(run_id)
    nodes = await nodes_of(core.store, row.graph)
    rows = [shown_task(task) for task in await core.store.tasks(row.seq)]
    reasons: dict[int, str] = {}
    if row.state in EXECUTING_RUNS and any(task.state in _NOT_BEGUN for task in rows):
        from locktender.observe.waits import waits_of

        reasons = await waits_of(core.store, row.seq)
    elif row.state == RunState.WAITING:
        from locktender.observe.waits import waits_of_waiting

        reasons = await waits_of_waiting(core.store, row, rows)
    progress_of: dict[int, Progress] = {}
    unstopped_of: dict[int, Unstopped] = {}
    if any(task.state == TaskState.RUNNING for task in rows):
        workers = await core.store.workers()
        progress_of = {each.token: each for worker in workers for each in worker.progress}
        unstopped_of = {each.token: each for worker in workers for each in worker.unstopped}
    return [
        _task(task, node_of(nodes, task), reasons.get(task.id), progress_of, unstopped_of)
        for task in rows
    ]


async def graph(core: Core, run_id: str) -> GraphInfo:
    row = await core.row(run_id)
    found = await required_graph(core.store, row)
    return _graph(found, (await core.store.task_page(TaskFilter(row.seq, limit=0))).counts)


class TaskPart(msgspec.Struct, frozen=True):
    """Which tasks of a run: of a step, in some states, behind a number."""

    step: str = ""
    states: Collection[str] = ()
    after: int = 0
    limit: int = 50


class RunTasks(msgspec.Struct, frozen=True):
    """The graph of a run and some of its tasks, of one read: a run may have 100,000."""

    graph: GraphInfo
    counts: Mapping[str, int]
    """How many tasks are in which state."""
    tasks: Sequence[TaskInfo]
    """Those that were asked for, by number."""
    found: int
    """How many there are of them."""
    next: int | None
    """`after` of the next part."""
    failed: Sequence[TaskInfo]
    """The first that failed or timed out."""


MAX_FAILED = 5
_FAILED = frozenset({TaskState.FAILED, TaskState.TIMED_OUT, TaskState.ABANDONED})


async def graph_and_tasks(core: Core, run_id: str, part: TaskPart | None = None) -> RunTasks:
    """Without what each task waits for: `why` has that."""
    part = part or TaskPart()
    row = await core.row(run_id)
    found = await graph_of(core.store, row.graph) or Graph(row.flow, ())
    wanted = [number for number, node in enumerate(found.nodes) if node.name == part.step]
    nodes = wanted if part.step else None
    states = list(part.states) or None
    read = await core.store.task_page(
        TaskFilter(row.seq, nodes, states, part.after, part.limit + 1)
    )
    page, counts = read.tasks[: part.limit], Counter[str]()
    for each in read.counts:
        counts[each.state] += each.tasks
    matching = sum(
        each.tasks
        for each in read.counts
        if (nodes is None or each.node in nodes) and (states is None or each.state in states)
    )
    failed: list[TaskRow] = []
    if any(counts[state] for state in _FAILED):
        where = TaskFilter(row.seq, states=[*_FAILED], limit=MAX_FAILED)
        failed = (await core.store.task_page(where)).tasks
    progress_of: dict[int, Progress] = {}
    unstopped_of: dict[int, Unstopped] = {}
    if counts[TaskState.RUNNING]:
        workers = await core.store.workers()
        progress_of = {each.token: each for worker in workers for each in worker.progress}
        unstopped_of = {each.token: each for worker in workers for each in worker.unstopped}

    def shown(tasks: Sequence[TaskRow]) -> list[TaskInfo]:
        return [
            _task(task, node_of(found.nodes, task), None, progress_of, unstopped_of)
            for task in map(shown_task, tasks)
        ]

    last = page[-1].id if len(read.tasks) > len(page) else None
    drawn = _graph(found, read.counts)
    return RunTasks(drawn, counts, shown(page), matching, last, shown(failed))


class RunValues(msgspec.Struct, frozen=True):
    """What a run or a task was called with and returned, as JSON; None: not there (yet)."""

    input: bytes | None
    output: bytes | None


async def run_values(core: Core, run_id: str) -> RunValues:
    row = await core.row(run_id)
    output = None if row.output is None else await open_blobs(core, row.output)
    return RunValues(await open_blobs(core, row.params), output)


async def task_values(core: Core, run_id: str, task: int) -> tuple[TaskInfo, RunValues]:
    """Raises `NotFound`."""
    row = await core.row(run_id)
    nodes = await nodes_of(core.store, row.graph)
    where = TaskFilter(row.seq, after=task - 1, limit=1)
    for each in (await core.store.task_page(where)).tasks:
        if each.id == task:
            shown = shown_task(each)
            given = None if each.input is None else await open_blobs(core, each.input)
            made = None if each.output is None else await open_blobs(core, each.output)
            return _task(shown, node_of(nodes, shown), None, {}, {}), RunValues(given, made)
    raise NotFound(f"run {row.id} has no task {task}.", field="task", got=task)


def _graph(found: Graph, counts: Sequence[NodeCount]) -> GraphInfo:
    states: dict[int, dict[str, int]] = {}
    for each in counts:
        states.setdefault(each.node, {})[each.state] = each.tasks
    names_ = [node.name for node in found.nodes]
    nodes = [
        NodeInfo(
            name=node.name,
            step=node.step,
            executor=node.executor,
            after=[names_[each] for each in sorted(needs_of(node))],
            mapped=node.over is not None,
            window=node.window,
            pools={need.name: need.slots for need in node.pools},
            wait=node.wait,
            tasks=states.get(index, {}),
            run_if=node.run_if,
            condition="" if node.when is None else condition_text(node.when, names_),
            event=None if node.event is None else node.event.name,
            schema={} if node.event is None else node.event.schema,
        )
        for index, node in enumerate(found.nodes)
    ]
    return GraphInfo(found.flow, not found.unfolds, nodes)


async def timeline(core: Core, run_id: str, part: TimelinePart | None = None) -> Timeline:
    from locktender.observe.timeline import timeline_run

    return await timeline_run(core.store, await core.row(run_id), part)


async def events(core: Core, run_id: str) -> list[EventInfo]:
    from locktender.observe.slot_events import lane_changes, renewals, slot_events

    row = await core.row(run_id)
    if row.state in OUTBOX_RUNS:
        return []
    nodes = await nodes_of(core.store, row.graph)
    where = {task.id: shown_task(task) for task in await core.store.tasks(row.seq)}
    history = await _history(core, row.seq)
    found = list(slot_events(history, await lane_changes(core.store, history)))
    if any(change == "claimed" for _, change in found) and row.state not in TERMINAL_RUNS:
        found += list(renewals(found, await core.store.lives()))
    return [_event(event, nodes, where, change) for event, change in found]


async def _history(core: Core, run: int) -> list[Event]:
    found: list[Event] = []
    after = 0
    while rows := await core.store.events(EventFilter(run=run, after=after, limit=PAGE)):
        found += [event for row in rows for event in unpack(row)]
        after = rows[-1].seq
        if len(rows) < PAGE:
            break
    return found


def _task(
    task: TaskRow,
    node: Node,
    reason: str | None,
    progress_of: Mapping[int, Progress],
    unstopped_of: Mapping[int, Unstopped],
) -> TaskInfo:
    # By token and only while it runs: a beat may be older than the attempt's end.
    runs = task.state == TaskState.RUNNING
    progress = progress_of.get(task.token) if runs else None
    unstopped = unstopped_of.get(task.token) if runs else None
    return TaskInfo(
        id=task.id,
        name=node.name,
        step=node.step,
        index=None if task.idx < 0 else task.idx,
        state=TaskState(task.state) if task.state in _STATES else cast("TaskState", task.state),
        attempt=task.attempt,
        worker=task.worker,
        pools=slots_of(task),
        wait_reason=reason,
        error=failure_of(task.error),
        requested_at=moment(task.requested_at),
        scheduled_at=moment(task.scheduled_at),
        started_at=moment(task.started_at),
        ended_at=moment(task.ended_at),
        not_before=moment(task.not_before),
        progress=None
        if progress is None
        else ProgressInfo(progress.done, progress.total, progress.message),
        unstopped=None if unstopped is None else UnstoppedInfo.of(unstopped),
        cached=is_cached(node, task.state, task.attempt),
    )


def _event(
    event: Event, nodes: tuple[Node, ...], where: dict[int, TaskRow], slot: SlotChange | None
) -> EventInfo:
    task = where.get(event.task)
    return EventInfo(
        seq=event.seq,
        at=instant(event.at),
        actor=event.actor,
        subject=event.subject,
        task=event.task or None,
        name=None if task is None else node_of(nodes, task).name,
        index=None if task is None or task.idx < 0 else task.idx,
        before=event.before,
        after=event.after,
        data=event.data,
        slot=slot,
    )


async def run_id_of(core: Core, task: int) -> str:
    """The id of the run that a task belongs to. Raises `NotFound`."""
    labels = await core.store.run_labels([run_of(task)])
    if run_of(task) not in labels:
        raise NotFound(
            f"there is no task {task}.",
            field="task",
            got=task,
            hint="locktender runs show RUN --tasks shows them.",
        )
    return labels[run_of(task)].id
