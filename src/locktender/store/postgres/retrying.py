"""Queueing ended runs again: past the ceiling and the key like any submission, keeping what they finished."""

from __future__ import annotations

from locktender.kernel.lanes import rank
from locktender.store.admission import WINDOW_SECONDS, counter_names
from locktender.store.history import CLIENT, RunChanges, event_rows
from locktender.store.lanes import lane_name
from locktender.store.postgres.compose import Parts, columns
from locktender.store.postgres.session import Session
from locktender.store.postgres.submission import ceilings, lanes_for
from locktender.store.protocol import Submitted
from locktender.store.retrying import candidates, judge
from locktender.store.submission import queued_event


async def retry(tx: Session, run_ids: list[str]) -> list[Submitted]:
    async with tx.transaction("begin_alone"):
        rows, [[version]] = await tx.several(
            ("retry_candidates", (run_ids,)), ("limits_version", ())
        )
        found = candidates(run_ids, rows)
        limits = await tx.limits(version)
        names = counter_names(limits, (again.run.tags for again in found.values()))
        keys = sorted(again.run.key for again in found.values() if again.run.key is not None)
        [marks], counted, [drained], held = await tx.several(
            ("submit_marks", ()),
            ("counters_by_name", (sorted(names),)),
            ("drain_recent", (WINDOW_SECONDS,)),
            ("runs_by_key", (keys,)),
        )
        _, _, seen, now, held_back = marks
        as_of = 0 if held_back else seen
        counters = ceilings(limits, counted, drained)
        holders = {key: (seq, run_id) for key, seq, run_id, *_ in held}
        answers, queue = judge(run_ids, found, holders, counters, now, as_of)
        if not queue:
            return answers
        queue.sort(key=lambda again: again.seq)
        signatures = [
            lane_name(limits, kind=again.run.kind, tags=again.run.tags, key=again.run.key)
            for again in queue
        ]
        lanes = await lanes_for(tx, signatures)
        events: list[RunChanges] = []
        queued: list[tuple[int, int, int, int]] = []
        for again, sign in zip(queue, signatures, strict=True):
            lane, place = lanes[sign], rank(limits, again.run.priority, now)
            deadline_at = None if again.deadline_us is None else now + again.deadline_us
            generation = again.generation + 1
            await tx.run("retry_run", generation, lane, *place, now, deadline_at, again.seq)
            queued.append((lane, *place, again.seq))
            change = queued_event(
                again.run, lane, place, before=again.before, generation=generation
            )
            events.append((again.seq, [change]))
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("queue_add", *columns(queued, 4))
        taken = sorted((again.run.key, again.seq) for again in queue if again.run.key is not None)
        if taken:
            parts.add("key_take", *columns(taken, 2))
        if counters.added:
            parts.add("counter_admit", *columns(sorted(counters.added.items()), 2))
        bodies = event_rows(now, CLIENT, events)
        parts.add(
            "told_given", [row[4] for row in bodies], [row[5] for row in bodies], alias="told"
        )
        parts.add("event_add", now, 0, 0, CLIENT)
        parts.add("wake", *tx.hint("retry"))
        await tx.compose(parts)
    return answers
