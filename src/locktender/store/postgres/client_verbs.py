"""The client's verbs: submit runs, retry ended runs, change limits.

Submitters of all processes exclude each other by an advisory lock, acquired
before the transaction has an id. What a submitter reads then cannot be changed by
another one, so two can never both get the last place. Only the leader closes runs
meanwhile; a stale `closed` errs on the safe side.

Submissions that wait together are written together: everything is read in one
round trip, decided in memory, and written in one statement. Most need no lock:
their statement writes only if no run was admitted since the read, no key was
freed and no process holds the lock (`submit_claim`). New lanes and large batches
acquire the lock, and so does a submission that lost this race, with those that
follow it: many submitters stand in line instead of repeating what another one has
made void. A submission that admits no run (rejected, duplicate, attached) only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from locktender.base.errors import DataRefused
from locktender.base.events import NO_RUN, pack
from locktender.base.ids import MAX_RUNS
from locktender.base.limits import Limits
from locktender.kernel.lanes import rank
from locktender.store.admission import (
    WINDOW_SECONDS,
    Ceilings,
    Drained,
    active_of,
    counter_names,
    recounted,
)
from locktender.store.decode import decode_tags, encode
from locktender.store.history import CLIENT, RunChanges, event_rows
from locktender.store.key_lines import bounded_keys, lines_of, starts_of, throttled_names
from locktender.store.lanes import lane_name
from locktender.store.limit_rows import check, judge_limit
from locktender.store.postgres.composed_sql import Parts, columns
from locktender.store.postgres.quick_submit import remember_lanes, submit_in_line, submit_quickly
from locktender.store.postgres.server_clock import ServerClock
from locktender.store.postgres.session import SUBMITTERS, PostgresSession, Row, limit_rows, pairs
from locktender.store.protocol import SetLimit, Submit, Submitted
from locktender.store.retry_runs import AGAIN, candidates, judge_retry
from locktender.store.submission import (
    Admission,
    AdmissionPlan,
    Facts,
    KeyHolder,
    any_delayed,
    keys_of,
    likely_lanes,
    queued_event,
)

COPY_OVER = 1_000
"""More runs than this are copied in."""
LOCKED_SUBMITS_AFTER_LOST_RACE = 64
"""After a lost race so many submissions wait for the lock. While a process holds it, no other admits runs."""

Answer = list[Submitted] | Exception
_RUN = (
    "seq", "id", "kind", "flow", "graph", "tags", "priority", "key", "lane", "rank1", "rank2",
    "waits_for", "queued_at", "deadline_us", "deadline_at", "queue_timeout_us",
    "dispatch_deadline_us", "params", "consts", "trace",
)  # fmt: skip
_QUEUE = ("lane", "rank1", "rank2", "run")
_EVENT = ("seq", "at", "term", "cycle", "actor", "run", "body")


async def submit_all(
    tx: PostgresSession, submits: Sequence[Submit], clock: ServerClock
) -> list[Answer]:
    """The answer to each of `submits`; an invalid one does not affect the others."""
    # A large batch needs the lock anyway: deciding on it before that would be wasted.
    large = sum(len(each.runs) for each in submits) > COPY_OVER
    # What waits with a key, or has started under a throttle, is counted behind the lock, too.
    bounded = any(run.keep or run.throttle for each in submits for run in each.runs)
    crowded = tx.known.crowded > 0
    if crowded:
        tx.known.crowded -= 1
        if (quick := await submit_in_line(tx, submits, clock)) is not None:
            return [*quick]
    elif (quick := await submit_quickly(tx, submits, clock)) is not None:
        return [*quick]
    elif not (large or bounded):
        admission, answers, lanes = await _judge(tx, submits)
        clock.sync(admission.now)
        if not admission.new:
            return answers
        if _simple(admission, lanes):
            if await _write_at_once(tx, admission, submits, lanes):
                return answers
            # Among many submitters most tries without the lock are wasted: the lock is first come, first served.
            tx.known.crowded = LOCKED_SUBMITS_AFTER_LOST_RACE
            if (quick := await submit_in_line(tx, submits, clock)) is not None:
                return [*quick]
    async with tx.transaction("begin_alone"):
        admission, answers, lanes = await _judge(tx, submits)
        clock.sync(admission.now)
        if admission.new:
            await _write(tx, admission, submits, lanes)
    return answers


async def submit_within(tx: PostgresSession, submits: Sequence[Submit]) -> list[list[Submitted]]:
    """As `submit_all`, in a transaction that was begun alone."""
    admission, answers, lanes = await _judge(tx, submits)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    if admission.new:
        await _write(tx, admission, submits, lanes)
    return [answer for answer in answers if not isinstance(answer, Exception)]


async def _judge(
    tx: PostgresSession, submits: Sequence[Submit]
) -> tuple[Admission, list[Answer], dict[str, int]]:
    """The admission with its answers, and the known lanes."""
    admission, lanes, graphs = await _read(tx, submits)
    return admission, _decide(admission, submits, graphs), lanes


def _decide(admission: Admission, submits: Sequence[Submit], graphs: set[str]) -> list[Answer]:
    answers: list[Answer] = []
    for each in submits:
        try:
            answers.append(admission.receive(each, graphs))
        except Exception as error:  # noqa: BLE001 — the error is this submission's answer
            answers.append(error)
    return answers


async def _read(
    tx: PostgresSession, submits: Sequence[Submit]
) -> tuple[Admission, dict[str, int], set[str]]:
    """The admission, the known lanes, and stored graphs that were not sent along."""
    runs = [run for each in submits for run in each.runs]
    keys, skipping = keys_of(runs)
    tags, waiting = [run.tags for run in runs], any_delayed(runs)
    unsent = {run.graph for each in submits for run in each.runs if run.graph not in each.graphs}
    while True:
        version, limits = tx.known.limits
        (
            [[found]],
            [marks],
            stored,
            counted,
            [drained],
            held,
            finished,
            lanes,
            graphs,
        ) = await tx.several(
            ("limits_version", ()),
            ("submit_marks", ()),
            ("runs_by_id", ([run.id for run in runs],)),
            ("counters_by_name", (sorted(counter_names(limits, tags, waiting=waiting)),)),
            ("drain_recent", (WINDOW_SECONDS,)),
            ("runs_by_key", (sorted(keys),)),
            ("runs_finished_by_key", (sorted(skipping),)),
            ("lanes_by_signature", (sorted(likely_lanes(limits, runs)),)),
            ("graph_known", (sorted(unsent),)),
        )
        if found == version:
            break
        # Other limits mean other counters and lanes for these runs.
        await tx.limits(found)
    last, admissions, as_of, now, held_back = marks
    if not 0 <= last < MAX_RUNS:
        raise DataRefused(
            f"the number of the last run cannot be read: {last}. Nothing was stored.",
            field="last_run",
            got=last,
            hint="Set meta.value of last_run to the highest run.seq.",
        )
    bounded = bounded_keys(runs)
    queued = await tx.all("queued_by_key", sorted(bounded)) if bounded else ()
    throttled = throttled_names(runs)
    starts = await tx.all("throttles_by_name", sorted(throttled)) if throttled else ()
    facts = Facts(
        last=last,
        admissions=admissions,
        # A commit in flight may still add an event before that seq.
        as_of=0 if held_back else as_of,
        now=now,
        limits=limits,
        stored=pairs(stored),
        ceilings=ceilings(limits, counted, drained),
        holders={key: KeyHolder(*rest) for key, *rest in held},
        finished={key: (seq, run_id) for key, seq, run_id in finished},
        queued=lines_of(bounded, queued),
        throttles=dict.fromkeys(throttled, ()) | starts_of(starts),
    )
    found_lanes: dict[str, int] = pairs(lanes)
    remember_lanes(tx, found_lanes)
    return Admission(facts), found_lanes, {row[0] for row in graphs}


def ceilings(limits: Limits, counted: Iterable[Row], drained: Row) -> Ceilings:
    return Ceilings(limits, active_of(counted), lambda: Drained(*drained))


def _simple(admission: Admission, lanes: dict[str, int]) -> bool:
    return len(admission.new) <= COPY_OVER and lanes.keys() >= set(admission.signatures())


async def _write_at_once(
    tx: PostgresSession, admission: Admission, submits: Sequence[Submit], lanes: dict[str, int]
) -> bool:
    """False: nothing was written, because another submitter was faster or holds the lock."""
    parts = Parts()
    parts.add("now", alias="clock")
    last, admissions = admission.as_read
    lock = tx.options.lock(SUBMITTERS)
    parts.add("submit_claim", last, admissions, admission.new[-1].seq, *lock, alias="claimed")
    parts.add("submit_fence", alias="fence")
    _rows(parts, admission, admission.plan(admission.signatures(), lanes), submits)
    parts.add("submit_answer", *tx.hint("submit"))
    return bool(await tx.compose(parts))


async def _write(
    tx: PostgresSession, admission: Admission, submits: Sequence[Submit], known: dict[str, int]
) -> None:
    signatures = admission.signatures()
    plan = admission.plan(signatures, await lanes_for(tx, signatures, known))
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("open_fence", alias="fence")
    parts.add("last_run_save", admission.new[-1].seq)
    _rows(parts, admission, plan, submits)
    parts.add("wake", *tx.hint("submit"))
    await tx.compose(parts)
    if len(plan.events) > COPY_OVER:
        await _copy(tx, plan, admission.now)


def _rows(
    parts: Parts, admission: Admission, plan: AdmissionPlan, submits: Sequence[Submit]
) -> None:
    sent: dict[str, bytes] = {}
    for each in submits:
        sent |= each.graphs
    needed = {each.run.graph for each in admission.new} & sent.keys()
    if needed:
        parts.add("graph_add", sorted(needed), [sent[name] for name in sorted(needed)])
    if admission.ceilings.added:
        parts.add("counter_admit", *columns(sorted(admission.ceilings.added.items()), 2))
    if len(plan.events) <= COPY_OVER:
        if plan.runs:
            parts.add("submit_run", *columns(plan.runs, len(_RUN)))
            parts.add("queue_add", *columns(plan.queued, 4))
        parts.add("events_given", *columns(plan.events, 2), alias="told")
        parts.add("event_add", admission.now, 0, 0, CLIENT)
    if plan.waits:
        parts.add("submit_run_waiting", *columns(plan.delayed, len(_RUN)))
        parts.add("waiting_add", *columns(plan.waits, 2))
    if plan.keys:
        parts.add("key_take", *columns(sorted(plan.keys.items()), 2))
    if throttles := admission.throttles.rows():
        parts.add("throttle_save", *columns(sorted(throttles), 3))
    if admission.replaced:
        parts.add("request_add", [encode(request).decode() for request in admission.replaced])


async def _copy(tx: PostgresSession, plan: AdmissionPlan, now: int) -> None:
    await tx.copy("run", _RUN, plan.runs)
    await tx.copy("queue", _QUEUE, plan.queued)
    [base] = await tx.row("event_base")
    await tx.copy(
        "event",
        _EVENT,
        ((base + n, now, 0, 0, CLIENT, run, body) for n, (run, body) in enumerate(plan.events)),
    )


async def lanes_for(
    tx: PostgresSession, signatures: Sequence[str], known: dict[str, int] | None = None
) -> dict[str, int]:
    """The lane of each signature, made where there is none."""
    found = dict(known or {})
    missing = sorted(set(signatures) - found.keys())
    if missing and known is None:
        found |= pairs(await tx.all("lanes_by_signature", missing))
        remember_lanes(tx, found)
        missing = sorted(set(missing) - found.keys())
    if missing:
        # Sorted, so that two submitters that create the same lanes cannot deadlock.
        await tx.run("lane_add", missing)
        found |= pairs(await tx.all("lanes_by_signature", missing))
        remember_lanes(tx, found)
    return found


async def retry(
    tx: PostgresSession, run_ids: list[str], nodes: Sequence[int], who: str, clock: ServerClock
) -> list[Submitted]:
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
        clock.sync(now)
        as_of = 0 if held_back else seen
        counters = ceilings(limits, counted, drained)
        holders = {key: (seq, run_id) for key, seq, run_id, *_ in held}
        answers, queue = judge_retry(run_ids, found, holders, counters, now, as_of, nodes)
        if not queue:
            return answers
        queue.sort(key=lambda again: again.seq)
        signatures = [
            lane_name(
                limits,
                kind=again.run.kind,
                tags=again.run.tags,
                key=again.run.key,
                flow=again.run.flow,
                run=again.seq,
            )
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
            if nodes:
                await tx.run("tasks_run_again", AGAIN, again.seq, list(nodes))
            change = queued_event(
                again.run,
                lane,
                place,
                before=again.before,
                generation=generation,
                again=nodes,
                who=who,
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
            "events_given", [row[4] for row in bodies], [row[5] for row in bodies], alias="told"
        )
        parts.add("event_add", now, 0, 0, CLIENT)
        parts.add("wake", *tx.hint("retry"))
        await tx.compose(parts)
    return answers


async def set_limits(tx: PostgresSession, changes: list[SetLimit]) -> None:
    check(changes)
    # Code declares the same limits at every start: mostly there is nothing to write.
    if not judge_limit(changes, limit_rows(await tx.all("limit_list"))).asked:
        return
    async with tx.transaction("begin_alone"):
        changed = judge_limit(changes, limit_rows(await tx.all("limit_list")))
        if not changed.asked:
            return
        if changed.recount:
            # The leader's commit in flight may close runs: it ends first. The next commit waits for this
            # one, finds a new version of the limits, and counts again.
            await tx.run("leader_lock")
            await _recount(tx, changed.after)
        [now] = await tx.row("now")
        for row in changed.rows:
            if row.effective is None:
                await tx.run("limit_remove", row.kind, row.name)
            else:
                await tx.run("limit_put", row.kind, row.name, row.declared, row.live)
        for entry in changed.history:
            await tx.run("limit_history_add", now, *entry)
        await tx.run("limits_changed")
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("events_given", [NO_RUN], [pack(changed.asked)], alias="told")
        parts.add("event_add", now, 0, 0, CLIENT)
        parts.add("wake", *tx.hint("limit"))
        await tx.compose(parts)


async def _recount(tx: PostgresSession, limits: Limits) -> None:
    """Counters follow the rules: new ones start from the active runs, in the transaction that sets the rule."""
    tags = await tx.all("active_tags")
    active = recounted(limits, ((decode_tags(each), n) for each, n in tags))
    await tx.run("counter_remove", [row[0] for row in await tx.all("counter_names")])
    await tx.run("counter_put", *columns(sorted(active.items()), 2))
