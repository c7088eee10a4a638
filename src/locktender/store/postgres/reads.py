"""Reads. Each is one statement, or several in one snapshot: what it returns was true at one instant."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import msgspec

from locktender.base.changes import Order, Reservation, TaskRow
from locktender.base.clock import SECOND
from locktender.base.errors import NotFound
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.base.model import (
    BlockingSession,
    HeldUp,
    LimitChange,
    LimitRow,
    LogFilter,
    LogRow,
    NamedLog,
    NewestLogs,
    RunRow,
    WorkerRow,
)
from locktender.kernel.lanes import HOLD, MAX_RANK
from locktender.store import decode
from locktender.store.admission import tally
from locktender.store.history import news
from locktender.store.limit_rows import compose
from locktender.store.postgres.event_order import Position, params_of
from locktender.store.postgres.session import PostgresSession, limit_rows, pairs
from locktender.store.protocol import (
    FRONT,
    CountedTasks,
    Counts,
    EndedTask,
    EventFilter,
    Gather,
    Gathered,
    Heads,
    NodeCount,
    OpenRuns,
    QueueEntry,
    QueueLine,
    QueuePlace,
    QueueView,
    RecentRun,
    RunFilter,
    RunLabel,
    Snapshot,
    TaskFilter,
    Traffic,
)
from locktender.store.queue_line import MAX_GROUPS, QueueCounts, in_line, taking_turns

MAX_REQUESTS = 10_000
ENDED_LATELY = 500
"""Runs of each end among which those of one flow are looked for."""
JUST_QUEUED_LISTED = 8
LONG_LOCK_US = SECOND
LONG_HISTORY_US = 2 * SECOND
LONG_SNAPSHOT_US = 60 * SECOND
"""How long a session may hold a lock, the history or old rows before it is named."""
_SETTLE_TRIES, _SETTLE_SECONDS = 20, 0.005


async def load(tx: PostgresSession, *, lost: bool) -> Snapshot:
    oldest = decode.OLDEST if lost else 0
    async with tx.transaction("begin_read"):
        limits, rows = await limits_in_force(tx)
        server, snapshot = await tx.row("history_position")
        return Snapshot(
            now=(await tx.row("now"))[0],
            cursor=Position().next(server, snapshot, [], 1),
            limits=limits,
            limit_rows=rows,
            runs=decode.numbered(decode.runs(await tx.all("runs_executing"))),
            graphs=pairs(await tx.all("graphs_executing")),
            tasks=[TaskRow._make(row) for row in await tx.all("tasks_executing")],
            workers=await workers(tx),
            buckets=decode.buckets(await tx.all("bucket_list")),
            reservations=[Reservation(*row) for row in await tx.all("reservation_list")],
            lingers=decode.lingers(await tx.all("linger_list")),
            unplaced=[run for (run,) in await tx.all("unplaced_list")],
            kept=decode.kept_places(await tx.all("kept_list"), limits),
            lanes=decode.lanes(await tx.all("lanes_queued")),
            requests=decode.requests(await tx.all("request_list", MAX_REQUESTS)),
            stops=[Order(*row) for row in await tx.all("stop_list")],
            held=decode.numbered(
                decode.runs(await tx.all("runs_held") + await tx.all("runs_unknown"))
                + decode.misplaced(await tx.all("runs_misplaced", oldest))
            ),
            held_tasks=[TaskRow._make(row) for row in await tx.all("tasks_held")],
            last_run=(await tx.row("last_run"))[0],
        )


async def gather_changes(
    tx: PostgresSession, gather: Gather, workers_seen: int
) -> tuple[Gathered, int]:
    """What others did, and the version of the workers that was looked at."""
    position = Position.of(gather.after)
    rows, [[server, snapshot]], [[version]], requests, [[now]], queued = await tx.several(
        ("events_found", ()),
        ("history_position", ()),
        ("workers_version", ()),
        ("request_list", (MAX_REQUESTS,)),
        ("now", ()),
        ("runs_just_queued", (JUST_QUEUED_LISTED,)),
        shared=("events_after", params_of(position, gather.actor, None, gather.limit)),
    )
    position.check(tx, server, snapshot)
    events = [EventRow._make(row) for row in rows]
    cursor = position.next(server, snapshot, events, gather.limit)
    if not events and position.until:
        # The page that was cut off had ended: what became visible since comes now.
        return await gather_changes(tx, msgspec.structs.replace(gather, after=cursor), workers_seen)
    ended, limits_changed = news(events)
    return (
        Gathered(
            now=now,
            cursor=cursor,
            events=events,
            tasks=await _ended_tasks(tx, ended) if ended else [],
            requests=decode.requests(requests),
            workers=None if version == workers_seen else await workers(tx),
            limits_changed=limits_changed,
            queued=decode.runs(queued),
        ),
        version,
    )


async def _ended_tasks(tx: PostgresSession, ids: list[int]) -> list[EndedTask]:
    return [EndedTask._make(row) for row in await tx.all("ended_tasks", ids)]


async def heads(tx: PostgresSession, heads: Heads) -> list[RunRow]:
    return decode.runs(await tx.all("heads", heads.lanes, heads.each, heads.most))


async def arrivals(tx: PostgresSession, runs: list[int]) -> list[RunRow]:
    return decode.runs(await tx.all("runs_queued_by_seq", runs))


async def overdue(tx: PostgresSession, limit: int) -> list[RunRow]:
    return decode.runs(await tx.all("runs_overdue", limit))


async def run(tx: PostgresSession, run_id: str) -> RunRow | None:
    row = await tx.one("run_by_id", run_id)
    return None if row is None else decode.run(row)


async def run_labels(tx: PostgresSession, runs: Sequence[int]) -> dict[int, RunLabel]:
    return decode.run_labels(await tx.all("run_labels", runs))


async def run_states(tx: PostgresSession, runs: Sequence[int]) -> dict[int, str]:
    rows = await tx.all("run_states", runs)
    return {row[0]: row[1] for row in rows}


async def runs(tx: PostgresSession, where: RunFilter) -> list[RunRow]:
    if where.id_prefix is not None:
        # '{' follows 'z', the last character an id may have.
        last = f"{where.id_prefix}{{"
        return decode.runs(await tx.all("runs_by_prefix", where.id_prefix, last, where.limit))
    before = 2**62 if where.before is None else where.before
    if where.key is not None:
        return decode.runs(await tx.all("runs_with_key", where.key, before, where.limit))
    tags = decode.encode_tags(where.tags)
    params = (before, where.flow, tags, where.limit, where.since, decode.tag_pair(where.tags))
    if where.states is None:
        return decode.runs(await tx.all("runs_filtered", *params))
    states = sorted(set(where.states))
    return decode.runs(await tx.all("runs_filtered_by_state", *params, states))


async def failed_lately(tx: PostgresSession, limit: int) -> list[RunRow]:
    return decode.runs(await tx.all("runs_failed_lately", limit))


async def executing_tasks(tx: PostgresSession, most: int) -> int:
    return (await tx.row("tasks_executing_count", most))[0]


async def tasks(tx: PostgresSession, run: int) -> list[TaskRow]:
    return [TaskRow._make(row) for row in await tx.all("tasks_of_run", run)]


async def task_page(tx: PostgresSession, where: TaskFilter) -> CountedTasks:
    rows = await tx.all(
        "tasks_some", where.run, where.after, where.nodes, where.states, where.limit
    )
    counts = await tx.all("tasks_counted", where.run)
    return CountedTasks(
        [NodeCount._make(each) for each in counts], [TaskRow._make(row) for row in rows]
    )


async def logs(tx: PostgresSession, where: LogFilter) -> list[LogRow]:
    rows = await tx.all("logs_list", where.run, where.task, *where.after, where.limit)
    return [LogRow(*row) for row in rows]


async def newest_logs(tx: PostgresSession, where: NewestLogs) -> list[NamedLog]:
    if where.task is None:
        rows = await tx.all("logs_newest", where.run, *where.before, where.limit)
    else:
        rows = await tx.all("logs_newest_of_task", where.task, *where.before, where.limit)
    return [NamedLog(LogRow(*log), node, idx) for *log, node, idx in rows]


async def events(tx: PostgresSession, where: EventFilter) -> list[EventRow]:
    if where.settled:
        await _settle(tx)
        rows = await tx.all("events_settled", where.after, where.limit)
    elif where.newest:
        rows = (await tx.all("events_newest", where.after, where.limit))[::-1]
    elif where.run is None:
        rows = await tx.all("events_all", where.after, where.limit)
    else:
        rows = await tx.all("events_of_run", where.run, where.after, where.limit)
    return [EventRow._make(row) for row in rows]


async def _settle(tx: PostgresSession) -> None:
    """Waits a moment for commits in flight, so that a caller finds the events it has just written."""
    for attempt in range(_SETTLE_TRIES):
        if (await tx.row("unsettled_since"))[0] is None:
            break
        await asyncio.sleep(_SETTLE_SECONDS * (attempt > 0))


async def held_up(tx: PostgresSession) -> HeldUp:
    # One after the other: for `several`, a new connection asks for types first, which takes longer.
    [since] = await tx.row("unsettled_since")
    [now] = await tx.row("now")
    rows = await tx.all("blocking_sessions", LONG_SNAPSHOT_US)
    lag_us = 0 if since is None else max(0, now - since)
    long_us = {"lock": LONG_LOCK_US, "history": LONG_HISTORY_US, "cleanup": LONG_SNAPSHOT_US}
    sessions = [BlockingSession(*row) for row in rows]
    return HeldUp(
        lag_us,
        tuple(
            each
            for each in sessions
            # The age of another role's transaction may be hidden: the lag says how long it has lasted.
            if (lag_us if each.age_us is None else each.age_us) >= long_us[each.holds]
        ),
    )


async def queue(tx: PostgresSession, limit: int, after: QueuePlace | None) -> list[QueueEntry]:
    first = 1 if after is None else after.position + 1
    behind = None if after is None else await tx.one("rank_of", after.run)
    rows = decode.runs(await tx.all("queue_list", limit, *(behind or FRONT)))
    return [QueueEntry(run, place) for place, run in enumerate(rows, first)]


async def traffic(
    tx: PostgresSession, lanes: int, runs: int, queued_us: int, moved_us: int
) -> Traffic:
    [now] = await tx.row("now")
    by_lane = await tx.all("queue_by_lane", lanes) if lanes else []
    *times, newest = await tx.all("runs_lately", runs, now - queued_us, now - moved_us)
    return Traffic(
        now,
        [(str(signature), waiting) for signature, waiting in by_lane],
        [RecentRun._make(row[1:]) for row in times],
        newest[2],
        newest[3],
    )


async def beside(tx: PostgresSession, run: int, most: int) -> QueueView | None:
    async with tx.transaction("begin_read"):
        # One after the other, as in `held_up`.
        place = await tx.one("queue_place", run)
        if place is None:
            return None
        rows = limit_rows(await tx.all("limit_list"))
        limits = compose(rows)
        [now] = await tx.row("now")
        executing = await tx.all("runs_placed")
        unplaced = await tx.all("unplaced_list")
        kept = await tx.all("kept_list")
        lasted = await tx.all("runs_lasted", run, ENDED_LATELY, MAX_RANK)
        return QueueView(
            now=now,
            limits=limits,
            limit_rows=rows,
            executing=decode.runs(executing),
            unplaced=[seq for (seq,) in unplaced],
            kept=decode.kept_places(kept, limits),
            lasted=[each for (each,) in lasted],
            line=await _line(tx, (*place, run), most, turns=limits.fair is not None),
        )


async def _line(
    tx: PostgresSession, place: tuple[int, int, int, int], most: int, *, turns: bool
) -> QueueLine:
    rank = place[1]
    if turns:
        rows = await tx.all("queue_line", *place, most, MAX_GROUPS + 1)
        return taking_turns(rank, most, rows)
    counts = QueueCounts(*await tx.row("queue_counts", *place, most + 1, HOLD))
    few = counts.before <= most
    rows = await tx.all("queue_before", *place[1:], most + 1, MAX_GROUPS + 1) if few else []
    return in_line(rank, counts, most, rows)


async def workers(tx: PostgresSession) -> list[WorkerRow]:
    rows = decode.workers(await tx.all("workers_list"))
    tx.known.listening = {row.id for row in rows if row.listens}
    return rows


async def leader(tx: PostgresSession) -> str | None:
    term, owner, expires_at, _, _, now, *_ = await tx.row("leader")
    return owner if term and expires_at > now else None


async def limits_in_force(tx: PostgresSession) -> tuple[Limits, list[LimitRow]]:
    rows = limit_rows(await tx.all("limit_list"))
    return compose(rows), rows


async def limit_history(tx: PostgresSession, limit: int) -> list[LimitChange]:
    return [LimitChange(*row) for row in await tx.all("limit_history_list", limit)]


async def graph(tx: PostgresSession, digest: str) -> bytes:
    row = await tx.one("graph_get", digest)
    if row is None:
        raise NotFound(f"no graph {digest!r} is stored.", field="graph", got=digest)
    return row[0]


async def open_runs(tx: PostgresSession) -> OpenRuns:
    return OpenRuns(*await tx.row("open_runs"))


async def counts(tx: PostgresSession) -> Counts:
    rules, counters, active, held, [[queued, executing, waiting]] = await tx.several(
        ("limit_list", ()),
        ("counter_list", ()),
        ("active_tags", ()),
        ("slots_held", ()),
        ("run_counts", ()),
    )
    return tally(
        compose(limit_rows(rules)),
        [(name, admitted, closed) for name, admitted, closed in counters],
        [(tags, count) for tags, count in active],
        decode.slots_held(held),
        queued,
        executing,
        waiting,
    )


# -- large values


async def put_blob(tx: PostgresSession, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    await tx.run("blob_put", digest, data)
    return digest


async def get_blob(tx: PostgresSession, digest: str) -> bytes:
    row = await tx.one("blob_get", digest)
    if row is None:
        raise NotFound(f"no blob {digest!r} is stored.", field="blob", got=digest)
    return row[0]
