"""The common wake-up in two round trips: a few runs, in known lanes, while no client submits.

The first reads who is to be woken, with all that the leader needs of those runs. What is decided on it stands as
conditions in the statement that writes, as in `quick_submit.py`: limits and lanes are the same, and nobody was
admitted meanwhile. Where one fails nothing is written, and the other way decides behind the submitters' lock
(`wake.py`). Only the leader changes waiting runs, and it does nothing else between the two: what was read of them
is what is woken.
"""

from __future__ import annotations

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.events import pack
from locktender.base.model import Mail
from locktender.base.states import RunState
from locktender.store import decode
from locktender.store.admission import WAITING, Ceilings, Drained
from locktender.store.postgres.composed_sql import Parts, columns
from locktender.store.postgres.session import SUBMITTERS, PostgresSession
from locktender.store.protocol import Wake, Woken, WokenRows, WokenRun
from locktender.store.wakeups import WakePlan, judge_due, place_of, woken_event

MAX_QUICK_WAKES = 64
"""Of more, the other round trips are a small part, and their rows need not be in memory at once."""


UNREADABLE_AT = 1 << 57
"""From here on a time cannot be read: its run is held."""


async def wake_quickly(tx: PostgresSession, wake: Wake) -> Woken | None:
    """None: nothing was written."""
    if wake.mailed is None or len(wake.mailed) > MAX_QUICK_WAKES:
        return None
    most = min(wake.limit, MAX_QUICK_WAKES)
    [[now]], [[version]], due, runs, tasks, mails, first = await tx.several(
        ("now", ()),
        ("limits_version", ()),
        ("wake_found_due", ()),
        ("wake_found_runs", ()),
        ("wake_found_tasks", ()),
        ("wake_found_mail", ()),
        ("wake_first", (2 * most + 2,)),
        shared=("wake_found", (sorted(wake.mailed), most + 1)),
    )
    found = {row[0] for row in due}
    # At most so many are found by their time, and as many by what was sent to them.
    next_at = next((wake_at for run, wake_at in first if run not in found), None)
    if not due:
        return Woken([], next_at)
    if len(due) > most or version != tx.known.limits[0]:
        return None
    # The statement reads the clock twice: nothing is recorded as woken before its time.
    now = max(
        [now, *(row[1] for row in due if row[0] not in wake.mailed and row[1] < UNREADABLE_AT)]
    )
    plan = judge_due(tx.known.limits[1], due)
    lanes = {name: tx.known.lanes.get(name, 0) for name in plan.signatures}
    if plan.held or not plan.due or not all(lanes.values()):
        return None
    woken = [
        WokenRun(each.run, lanes[name], place_of(tx.known.limits[1], each))
        for each, name in zip(plan.due, plan.signatures, strict=True)
    ]
    if not await tx.compose(_written(tx, wake, plan, woken, lanes, now)):
        return None
    lane_of = {each.run: each.lane for each in woken}
    rows = WokenRows(
        [
            msgspec.structs.replace(row, state=RunState.QUEUED, lane=lane_of[row.seq])
            for row in decode.runs(runs)
            if row.seq in lane_of
        ],
        [TaskRow._make(row) for row in tasks],
        [Mail(*row) for row in mails],
    )
    return Woken(woken, next_at, now, read=rows)


def _written(
    tx: PostgresSession,
    wake: Wake,
    plan: WakePlan,
    woken: list[WokenRun],
    lanes: dict[str, int],
    now: int,
) -> Parts:
    version, limits = tx.known.limits
    counters = Ceilings(limits, {}, lambda: Drained(0, None, 0))
    for tags in plan.tags:
        counters.count_woken(tags)
    told = [
        (each.run, pack([woken_event(each, there.lane, there.rank)]))
        for each, there in zip(plan.due, woken, strict=True)
    ]
    parts = Parts()
    parts.add("now", alias="clock")
    by_lane = sorted((lane, name) for name, lane in lanes.items())
    parts.add("quick_wake_marks", version, *columns(by_lane, 2), alias="marks")
    parts.add("quick_wake_claim", *tx.options.lock(SUBMITTERS), alias="claimed")
    parts.add("term_fence", wake.term, alias="termed")
    parts.add("quick_wake_fence", alias="fence")
    parts.add("quick_wake_remove", sorted(plan.rows))
    parts.add("quick_wake_run", *columns([(each.run, each.lane, *each.rank) for each in woken], 4))
    parts.add("queue_add", *columns([(each.lane, *each.rank, each.run) for each in woken], 4))
    if counters.added:
        parts.add("counter_admit", *columns(sorted(counters.added.items()), 2))
        parts.add("quick_wake_closing", WAITING, len(plan.tags), alias="closing")
        parts.add("counter_close")
    parts.add("events_given", *columns(told, 2), alias="told")
    parts.add("event_add", now, wake.term, wake.cycle, wake.actor)
    parts.add("quick_wake_answer", *tx.hint("wake"))
    return parts
