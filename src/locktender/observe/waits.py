"""Parts of `why`: what each task of a run waits for, and waits for a time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.durations import clock_text, spoken
from locktender.base.events import unpack
from locktender.base.model import RunRow
from locktender.base.states import TaskState
from locktender.base.text import offered_to
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain import blocking
from locktender.kernel.pauses import pause_texts
from locktender.kernel.reasons import Reason, event_reason
from locktender.kernel.scheduler import Scheduler
from locktender.observe.rebuilt import rebuild
from locktender.store.protocol import EventFilter, Store

TIME = "time"
"""The gate that waits for an instant. It holds nothing."""
MAX_SHOWN = 100
"""Waits for events of one run."""


def sleeps_until(at: int, now: int, tz: str = "UTC") -> Reason:
    left = max(0, at - now)
    text = f"sleeps until {clock_text(at, tz)} ({spoken(left)} left)" if left else "wakes up now"
    return Reason(TIME, text, estimate_us=left)


async def waits_of(store: Store, run: int) -> dict[int, str]:
    """Tasks of an executing run that have not begun → what each waits for now, by the rules that decide."""
    scheduler, snapshot = await rebuild(store)
    known = scheduler.ledger.runs.get(run)
    found: dict[int, str] = {}
    for entry in () if known is None else known.tasks.values():
        if entry.state == TaskState.REQUESTED:
            found[entry.id] = _in_short(scheduler, entry, snapshot.now) or "its turn"
        elif entry.state == TaskState.SCHEDULED:
            worker, at = entry.worker or "", entry.scheduled_at
            found[entry.id] = offered_to(worker, at, entry.offers, snapshot.now)
    return found


def _in_short(scheduler: Scheduler, entry: TaskEntry, now: int) -> str:
    """What blocks it, without numbers. It does not grow with what waits."""
    return ", ".join(
        each.text if isinstance(each, Reason) else each.name
        for each in blocking(scheduler, entry, now)
    )


def gates_of(scheduler: Scheduler, entry: TaskEntry, now: int) -> tuple[str, ...]:
    """The names of the gates that block it, in the order of decision."""
    return tuple(
        each.gate if isinstance(each, Reason) else each.name
        for each in blocking(scheduler, entry, now)
    )


async def task_waits(store: Store, run: RunRow, task: TaskRow, now: int) -> tuple[Reason, ...]:
    """Why a task of a waiting run does not go on."""
    limits, _ = await store.limits()
    pauses = tuple(Reason("pause", text) for text in pause_texts(limits, run, now))
    return (*pauses, *(await _by_task(store, run, [task], now)).values())


async def waits_of_waiting(store: Store, run: RunRow, tasks: Iterable[TaskRow]) -> dict[int, str]:
    """Tasks of a waiting run that have not ended → what each waits for."""
    found = await _by_task(store, run, tasks, await store.now())
    return {task: reason.text for task, reason in found.items()}


async def _by_task(
    store: Store, run: RunRow, tasks: Iterable[TaskRow], now: int
) -> dict[int, Reason]:
    """Nothing is left of a waiting run but sleeps and waits for events."""
    tz = await _zone_of(store, run)
    events = {
        each.task: event_reason(each.name, each.since, each.until, now, tz)
        for each in await store.event_waits(run.id)
    }
    return {
        task.id: events.get(task.id) or sleeps_until(task.not_before, now, tz)
        for task in tasks
        if task.state == TaskState.REQUESTED
    }


async def waiting_reasons(store: Store, row: RunRow, now: int) -> tuple[Reason, ...]:
    """Why a waiting run does not go on."""
    limits, _ = await store.limits()
    pauses = tuple(Reason("pause", text) for text in pause_texts(limits, row, now))
    return pauses + await _waits(store, row, now)


async def _waits(store: Store, row: RunRow, now: int) -> tuple[Reason, ...]:
    times = await store.wake_times([row.seq])
    wake_at = times.get(row.seq, now)
    waits = await store.event_waits(row.id, MAX_SHOWN)
    tz = await _zone_of(store, row)
    events = tuple(event_reason(each.name, each.since, each.until, now, tz) for each in waits)
    if waits and wake_at >= min(each.until for each in waits):
        return events
    sleeps = sleeps_until(wake_at, now, tz)
    for event in await store.events(EventFilter(run=row.seq, limit=1)):
        for change in unpack(event):
            throttle = None if row.started_at else change.data.get("throttle")
            if throttle is not None:
                rate = f"{throttle['count']} start in {spoken(throttle['per_us'])}"
                whose = throttle["name"].rpartition(", ")[0]  # without its rate
                text = f"throttled, of {whose} {rate}: {sleeps.text}"
                sleeps = msgspec.structs.replace(sleeps, text=text)
    return (*events, sleeps)


async def _zone_of(store: Store, row: RunRow) -> str:
    """The zone of the schedule that made the run: its author thinks in times of that zone."""
    name = row.tags.get("schedule")
    rows = [] if name is None else await store.schedules([name])
    return rows[0].spec.tz if rows and rows[0].spec is not None else "UTC"
