"""The leader withdraws offers, declares workers lost, reassigns queue lanes and removes empty ones."""

from __future__ import annotations

from locktender.base.clock import SECOND
from locktender.base.errors import StoreBusy
from locktender.base.events import NO_RUN, Change, pack
from locktender.base.model import Failure, WorkerLife
from locktender.base.states import EXECUTING_RUNS, TERMINAL_RUNS, RunState
from locktender.kernel.lanes import rank
from locktender.store import worker_changes
from locktender.store.decode import decode_tags, encode, known_worker, life, read_keeps
from locktender.store.history import by_run
from locktender.store.lanes import lane_name
from locktender.store.postgres.client_verbs import lanes_for
from locktender.store.postgres.commits import end_waits, move, not_leader, step
from locktender.store.postgres.composed_sql import Parts, columns
from locktender.store.postgres.session import SUBMITTERS, PostgresSession, Row
from locktender.store.postgres.worker_verbs import moves
from locktender.store.protocol import (
    ANSWER_KEPT_US,
    Answer,
    BoundCache,
    Expire,
    HoldRuns,
    Lost,
    ReassignLanes,
    RemoveUnused,
    Withdraw,
)

_REMEMBER_US = 86_400 * SECOND
_TRIES = 20


async def withdraw(tx: PostgresSession, withdraw: Withdraw) -> list[tuple[int, int]]:
    tokens = dict(sorted(withdraw.tasks))
    data = {"reason": withdraw.reason}
    changes = [
        pack(Change("task", task, "scheduled", withdraw.to, token, data)).decode()
        for task, token in tokens.items()
    ]
    parts = Parts()
    parts.add("now", alias="clock")
    parts.add("term_fence", withdraw.term, alias="fence")
    parts.add("tasks_owned", list(tokens), list(tokens.values()), changes)
    parts.add("task_withdraw", withdraw.to, alias="effect")
    parts.add("idle_moved", alias="idle")
    parts.add("order_remove")
    parts.add("events_moved", alias="told")
    parts.add("event_add", None, withdraw.term, withdraw.cycle, withdraw.actor)
    parts.add("wake_if_moved", *tx.hint("withdraw"), alias="woken")
    parts.add("moved_answer")
    fenced, owned, moved = moves(await tx.compose(parts))
    if not fenced:
        raise not_leader(withdraw.term, await tx.row("leader"))
    # One that was taken back before counts too: the repetition of a call whose answer was lost.
    return [
        (task, token)
        for task, token in tokens.items()
        if task in moved or owned.get(task) == (token, withdraw.to)
    ]


async def fence(tx: PostgresSession, term: int) -> None:
    if await tx.one("term_fence", term) is None:
        raise not_leader(term, await tx.row("leader"))


async def hold_runs(tx: PostgresSession, hold: HoldRuns) -> None:
    # Like a commit that ends a run: what submitters read of its place must not change under them.
    async with tx.transaction("begin_alone"):
        await fence(tx, hold.term)
        told: list[tuple[int, bytes]] = []
        limits = await tx.limits((await tx.row("limits_version"))[0])
        for run, reason in sorted(hold.runs.items()):
            row = await tx.one("run_stands", run)
            if row is None or row[0] in TERMINAL_RUNS or row[0] == RunState.HELD:
                continue
            failure = Failure("held", reason, retryable=False)
            if row[0] == RunState.WAITING:
                await end_waits(tx, [run], limits)
            if not await tx.all("queue_leave", run) and row[0] not in EXECUTING_RUNS:
                await tx.run("queue_forget", run)
            await tx.run("run_hold", encode(failure), run)
            told.append((run, pack([worker_changes.held(row, failure)])))
        if not told:
            return
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("events_given", *columns(told, 2), alias="told")
        parts.add("event_add", None, hold.term, hold.cycle, hold.actor)
        parts.add("wake", *tx.hint("hold"))
        await tx.compose(parts)


async def claim_requests(tx: PostgresSession, term: int, requests: list[int]) -> None:
    async with tx.transaction():
        await fence(tx, term)
        await tx.run("requests_claim", sorted(requests))


async def answer(tx: PostgresSession, answer: Answer) -> None:
    async with tx.transaction():
        await fence(tx, answer.term)
        await tx.run("request_answered", answer.request)
        await tx.run("answers_forget", ANSWER_KEPT_US)
        await tx.run("answer_add", answer.question, answer.body)


async def lives(tx: PostgresSession) -> list[WorkerLife]:
    found = await tx.all("worker_leases", tx.options.life_lock)
    return [
        life(worker, until, lease_us, "held" if held else "none")
        for worker, until, lease_us, held in found
    ]


async def expire(tx: PostgresSession, expire: Expire) -> list[Lost]:
    for _ in range(_TRIES):
        lost = await _declare_lost(tx, expire)
        if lost is not None:
            return lost
    raise StoreBusy(
        "the history of lost workers is still being written.", hint="The next sweep tries again."
    )


async def _declare_lost(tx: PostgresSession, expire: Expire) -> list[Lost] | None:
    """Declares workers lost and ends their attempts. None: to be tried again."""
    async with tx.transaction():
        await fence(tx, expire.term)
        # Their acceptances in flight end first; those that come later find no row.
        rows = await tx.all("lost_lock", *columns([each[:2] for each in expire.dead], 2))
        reasons = {each.worker: each.reason for each in expire.dead}
        lost = {worker: Lost(worker, reasons[worker], [], [], until) for worker, until, _ in rows}
        if not lost:
            return []
        left = {worker: worker_changes.left_by(known_worker(body)) for worker, _, body in rows}
        changes = [
            worker_changes.take_back(lost[worker], left[worker], task, token, state)
            for task, token, state, worker in await tx.all("worker_tasks", sorted(lost))
        ]
        # Our transaction's number was given before we waited for them: an acceptance with a higher
        # one would stand behind the loss of what it accepted.
        [late] = await tx.row("later_events", [f"worker:{worker}" for worker in lost], -1)
        if late:
            return None
        [now] = await tx.row("now")
        abandoned = sorted(task for entry in lost.values() for task, _ in entry.abandoned)
        handed_back = sorted(task for entry in lost.values() for task, _ in entry.handed_back)
        withdrawn = sorted(task for entry in lost.values() for task, _ in entry.withdrawn)
        await tx.run("task_abandon", now, abandoned)
        await tx.run("task_hand_back", now, worker_changes.LEFT_BEHIND, handed_back)
        await tx.run("task_release", withdrawn)
        await step(tx, "order_remove", idle=sorted(abandoned + handed_back + withdrawn))
        for worker in sorted(lost):
            await tx.run("worker_remove", worker)
        await tx.run("lost_add", sorted(lost), now)
        await tx.run("lost_prune", now - _REMEMBER_US)
        gone = [worker_changes.lost(entry.worker, entry.reason) for entry in lost.values()]
        events = {NO_RUN: gone, **by_run(changes)}
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("workers_changed")
        bodies = [pack(each) for each in events.values()]
        parts.add("events_given", list(events), bodies, alias="told")
        parts.add("event_add", now, expire.term, expire.cycle, expire.actor)
        parts.add("wake", *tx.hint("expire"))
        await tx.compose(parts)
    return list(lost.values())


async def reassign_lanes(tx: PostgresSession, reassign: ReassignLanes) -> int:
    async with tx.transaction():
        await fence(tx, reassign.term)
        limits = await tx.limits((await tx.row("limits_version"))[0])
        rows = await tx.all("queued_after", reassign.after, reassign.batch)
        signatures = [
            lane_name(
                limits,
                kind=kind,
                tags=decode_tags(tags),
                key=key,
                waits_for=waits_for,
                flow=flow,
                run=seq,
                keeps=read_keeps(keeps, limits),
            )
            for seq, kind, flow, tags, _, key, waits_for, keeps, *_ in rows
        ]
        lanes = await lanes_for(tx, signatures)
        moves: list[tuple[int, int, int, int, int]] = []
        for row, sign in zip(rows, signatures, strict=True):
            seq, _, _, _, priority, _, _, _, *old, queued_at = row
            new = (lanes[sign], *rank(limits, priority, queued_at))
            if new != tuple(old):
                moves.append((seq, priority, *new))
        if moves:
            await move(tx, moves)
    return rows[-1][0] if len(rows) == reassign.batch else 0


async def remove_unused(tx: PostgresSession, remove: RemoveUnused) -> int | None:
    """None: a submission holds the lock; try again."""
    rows = await tx.all("lanes_after", remove.after, remove.batch)
    idle = [lane for lane, stood_in in rows if not stood_in]
    unused = [] if remove.after else await tx.all("counters_unused", remove.batch)
    async with tx.transaction():
        await fence(tx, remove.term)
        if idle or unused:
            # A submission that has just looked a lane up must not find it gone. Not waited for: this is
            # the line of the commits.
            if not (await tx.row("alone_try", *tx.options.lock(SUBMITTERS)))[0]:
                return None
            await tx.run("lanes_remove", idle)
            # Read again, now that no submission can count a run there.
            unused = await tx.all("counters_unused", remove.batch) if unused else []
            await tx.run("counter_remove", [name for (name,) in unused])
            await tx.run("admissions_rise")
        await tx.run("buckets_remove")
        if not remove.after:
            await tx.run("drain_orders_remove")
            await tx.run("throttles_remove")
            await tx.run("limit_history_remove", remove.before)
            await tx.run("outbox_prune", remove.before)
    return rows[-1][0] if len(rows) == remove.batch else 0


async def bound_cache(tx: PostgresSession, bound: BoundCache) -> bool:
    async with tx.transaction():
        await fence(tx, bound.term)
        [now] = await tx.row("now")
        expired = await tx.all("cached_expire", now, bound.batch)
        count, size = await tx.row("cached_total")
        gone: list[Row] = []
        if count > bound.most or size > bound.most_bytes:
            gone = await tx.all("cached_bound", bound.most, bound.most_bytes, bound.batch)
    return bound.batch in (len(expired), len(gone))
