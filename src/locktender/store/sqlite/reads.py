"""Reads. Each runs in one read transaction: what it returns was true at one instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from locktender.base.changes import Order, Reservation, TaskRow
from locktender.base.errors import HistoryReplaced, NotFound
from locktender.base.events import EventRow
from locktender.base.limits import Limits
from locktender.base.model import LimitChange, LimitRow, RunRow, WorkerRow
from locktender.kernel.lanes import HOLD
from locktender.store import decode
from locktender.store.admission import tally
from locktender.store.history import news
from locktender.store.limit_rows import compose
from locktender.store.protocol import (
    FRONT,
    LATEST,
    CountedTasks,
    Counts,
    Cursor,
    EndedTask,
    EventFilter,
    Follow,
    Followed,
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
    Snapshot,
    TaskFilter,
    Traffic,
)
from locktender.store.queue_line import MAX_GROUPS, QueueCounts, in_line, taking_turns
from locktender.store.sqlite.session import SqliteSession, listed

MAX_REQUESTS = 10_000
ENDED_LATELY = 500
"""Runs of each end among which those of one flow are looked for."""


def load(tx: SqliteSession, *, lost: bool) -> Snapshot:
    limits, rows = limits_in_force(tx)
    oldest = decode.OLDEST if lost else 0
    return Snapshot(
        now=tx.now(),
        cursor=Cursor(str(tx.row("history_position")[0])),
        limits=limits,
        limit_rows=rows,
        runs=decode.numbered(decode.runs(tx.all("runs_executing"))),
        graphs=dict(tx.all("graphs_executing")),  # pyright: ignore[reportArgumentType]
        tasks=[TaskRow._make(row) for row in tx.all("tasks_executing")],
        workers=workers(tx),
        buckets=decode.buckets(tx.all("bucket_list")),
        reservations=[Reservation(*row) for row in tx.all("reservation_list")],
        lingers=decode.lingers(tx.all("linger_list")),
        unplaced=[run for (run,) in tx.all("unplaced_list")],
        kept=decode.kept_places(tx.all("kept_list"), limits),
        lanes=decode.lanes(tx.all("lanes_queued")),
        requests=decode.requests(tx.all("request_list", MAX_REQUESTS)),
        stops=[Order(*row) for row in tx.all("stop_list")],
        held=decode.numbered(
            decode.runs(tx.all("runs_held") + tx.all("runs_unknown"))
            + decode.misplaced(tx.all("runs_misplaced", oldest))
        ),
        held_tasks=[TaskRow._make(row) for row in tx.all("tasks_held")],
        last_run=tx.row("last_run")[0],  # pyright: ignore[reportArgumentType]
    )


def gather(tx: SqliteSession, gather: Gather, workers_seen: int) -> tuple[Gathered, int]:
    """What others did, and the version of the workers that was looked at."""
    cursor, events = _follow(tx, gather.after, gather.actor, None, gather.limit)
    ended, limits_changed = news(events)
    version: int = tx.row("workers_version")[0]
    return Gathered(
        now=tx.now(),
        cursor=cursor,
        events=events,
        tasks=ended_tasks(tx, ended) if ended else [],
        requests=decode.requests(tx.all("request_list", MAX_REQUESTS)),
        workers=None if version == workers_seen else workers(tx),
        limits_changed=limits_changed,
    ), version


def follow(tx: SqliteSession, follow: Follow) -> Followed:
    if follow.after == LATEST:
        return Followed(Cursor(str(tx.row("history_position")[0])), [], [])
    cursor, events = _follow(tx, follow.after, "", follow.run, follow.limit)
    return Followed(cursor, events, [Cursor(str(each.seq)) for each in events])


def _follow(
    tx: SqliteSession, cursor: Cursor, actor: str, run: int | None, limit: int
) -> tuple[Cursor, list[EventRow]]:
    """Numbers are given in the order of commits here, so a cursor is the number of the last event."""
    after, last = int(cursor or 0), tx.row("history_position")[0]
    if last < after:
        raise HistoryReplaced(
            f"the history ends at event {last} and was read up to {after}.",
            field="cursor",
            got=cursor,
            hint="Read it from the beginning.",
        )
    events = [EventRow._make(row) for row in tx.all("events_after", after, actor, run, limit)]
    # A full page may end before the history does; otherwise what was left out is passed over too.
    return Cursor(str(events[-1].seq if len(events) == limit else last)), events


def ended_tasks(tx: SqliteSession, ids: list[int]) -> list[EndedTask]:
    return [EndedTask._make(row) for row in tx.all("ended_tasks", listed(ids))]


def heads(tx: SqliteSession, heads: Heads) -> list[RunRow]:
    return decode.runs(tx.all("heads", listed(heads.lanes), heads.each, heads.most))


def arrivals(tx: SqliteSession, runs: list[int]) -> list[RunRow]:
    return decode.runs(tx.all("runs_queued_by_seq", listed(runs)))


def overdue(tx: SqliteSession, limit: int) -> list[RunRow]:
    return decode.runs(tx.all("runs_overdue", tx.now(), limit))


def run(tx: SqliteSession, run_id: str) -> RunRow | None:
    row = tx.one("run_by_id", run_id)
    return None if row is None else decode.run(row)


def run_states(tx: SqliteSession, runs: Sequence[int]) -> dict[int, str]:
    return dict(tx.all("run_states", listed(runs)))


def runs(tx: SqliteSession, where: RunFilter) -> list[RunRow]:
    if where.id_prefix is not None:
        # '{' follows 'z', the last character an id may have.
        last = f"{where.id_prefix}{{"
        return decode.runs(tx.all("runs_by_prefix", where.id_prefix, last, where.limit))
    if where.key is not None:
        before = 2**62 if where.before is None else where.before
        return decode.runs(tx.all("runs_with_key", where.key, before, where.limit))
    states = None if where.states is None else listed(sorted(set(where.states)))
    return decode.runs(
        tx.all(
            "runs_filtered" if states is None else "runs_filtered_by_state",
            2**62 if where.before is None else where.before,
            states,
            where.flow,
            decode.encode_tags(where.tags),
            where.limit,
            where.since,
            decode.tag_pair(where.tags),
        )
    )


def executing_tasks(tx: SqliteSession, most: int) -> int:
    return tx.row("tasks_executing_count", most)[0]


def answer_to(tx: SqliteSession, question: str) -> bytes | None:
    row = tx.one("answer_get", question)
    return None if row is None else bytes(row[0])


def tasks(tx: SqliteSession, run: int) -> list[TaskRow]:
    return [TaskRow._make(row) for row in tx.all("tasks_of_run", run)]


def task_page(tx: SqliteSession, where: TaskFilter) -> CountedTasks:
    nodes = None if where.nodes is None else listed(where.nodes)
    states = None if where.states is None else listed(where.states)
    rows = tx.all("tasks_some", where.run, where.after, nodes, states, where.limit)
    counts = tx.all("tasks_counted", where.run)
    return CountedTasks(
        [NodeCount._make(each) for each in counts], [TaskRow._make(row) for row in rows]
    )


def events(tx: SqliteSession, where: EventFilter) -> list[EventRow]:
    if where.newest:
        rows = (tx.all("events_newest", where.after, where.limit))[::-1]
    elif where.run is None:
        rows = tx.all("events_all", where.after, where.limit)
    else:
        rows = tx.all("events_of_run", where.run, where.after, where.limit)
    return [EventRow._make(row) for row in rows]


def queue(tx: SqliteSession, limit: int, after: QueuePlace | None) -> list[QueueEntry]:
    first = 1 if after is None else after.position + 1
    behind = None if after is None else tx.one("rank_of", after.run)
    rows = decode.runs(tx.all("queue_list", limit, *(behind or FRONT)))
    return [QueueEntry(run, place) for place, run in enumerate(rows, first)]


def traffic(tx: SqliteSession, lanes: int, runs: int, queued_us: int, moved_us: int) -> Traffic:
    now = tx.now()
    by_lane = tx.all("queue_by_lane", lanes) if lanes else []
    *times, newest = tx.all("runs_lately", runs, now - queued_us, now - moved_us)
    return Traffic(
        now,
        [(str(signature), waiting) for signature, waiting in by_lane],
        [RecentRun._make(row[1:]) for row in times],
        newest[2],
        newest[3],
    )


def beside(tx: SqliteSession, run: int, most: int) -> QueueView | None:
    place = tx.one("queue_place", run)
    if place is None:
        return None
    limits, rows = limits_in_force(tx)
    return QueueView(
        now=tx.now(),
        limits=limits,
        limit_rows=rows,
        executing=decode.runs(tx.all("runs_placed")),
        unplaced=[run for (run,) in tx.all("unplaced_list")],
        kept=decode.kept_places(tx.all("kept_list"), limits),
        lasted=[lasted for (lasted,) in tx.all("runs_lasted", run, ENDED_LATELY)],
        line=_line(tx, (*place, run), most, turns=limits.fair is not None),
    )


def _line(
    tx: SqliteSession, place: tuple[int, int, int, int], most: int, *, turns: bool
) -> QueueLine:
    rank = place[1]
    if turns:
        rows = tx.all("queue_line", *place, most, MAX_GROUPS + 1)
        return taking_turns(rank, most, rows)
    counts = QueueCounts(*tx.row("queue_counts", *place, most + 1, HOLD))
    few = counts.before <= most
    rows = tx.all("queue_before", *place[1:], most + 1, MAX_GROUPS + 1) if few else []
    return in_line(rank, counts, most, rows)


def workers(tx: SqliteSession) -> list[WorkerRow]:
    return decode.workers(tx.all("workers_list"))


def leader(tx: SqliteSession, dead: Callable[[str], bool]) -> str | None:
    term, owner, expires_at, _, _, now = tx.row("leader")
    return owner if term and decode.lease_end(expires_at) > now and not dead(owner) else None


def limits_in_force(tx: SqliteSession) -> tuple[Limits, list[LimitRow]]:
    rows = tx.limit_rows()
    return compose(rows), rows


def limit_history(tx: SqliteSession, limit: int) -> list[LimitChange]:
    return [LimitChange(*row) for row in tx.all("limit_history_list", limit)]


def graph(tx: SqliteSession, digest: str) -> bytes:
    row = tx.one("graph_get", digest)
    if row is None:
        raise NotFound(f"no graph {digest!r} is stored.", field="graph", got=digest)
    return row[0]


def open_runs(tx: SqliteSession) -> OpenRuns:
    return OpenRuns(*tx.row("open_runs"))


def counts(tx: SqliteSession) -> Counts:
    queued, executing, waiting = tx.row("run_counts")
    return tally(
        compose(tx.limit_rows()),
        tx.all("counter_list"),  # pyright: ignore[reportArgumentType]
        tx.all("active_tags"),  # pyright: ignore[reportArgumentType]
        decode.slots_held(tx.all("slots_held")),
        queued,
        executing,
        waiting,
    )
