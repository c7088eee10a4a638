"""The client's verbs, each in one transaction: submit runs, retry ended runs, change limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from locktender.base.clock import SECOND
from locktender.base.events import NO_RUN
from locktender.base.limits import Limits
from locktender.base.model import Request
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
from locktender.store.history import CLIENT, RunChanges, packed_rows
from locktender.store.key_lines import bounded_keys, lines_of, starts_of, throttled_names
from locktender.store.lanes import lane_name
from locktender.store.limit_rows import check, judge_limit
from locktender.store.protocol import SetLimit, Submit, Submitted
from locktender.store.retry_runs import AGAIN, Again, candidates, judge_retry
from locktender.store.sqlite.session import SqliteSession, listed, record
from locktender.store.submission import (
    Admission,
    Facts,
    KeyHolder,
    any_delayed,
    keys_of,
    queued_event,
)


def submit(tx: SqliteSession, submit: Submit) -> list[Submitted]:
    admission = Admission(_facts(tx, submit))
    unsent = {run.graph for run in submit.runs} - submit.graphs.keys()
    known = {row[0] for row in tx.all("graph_known", listed(unsent))} if unsent else set[str]()
    results = admission.receive(submit, known)
    if admission.new:
        _write(tx, admission, submit.graphs)
    return results


def _facts(tx: SqliteSession, submit: Submit) -> Facts:
    last, as_of, now = tx.row("submit_marks")
    limits = tx.limits()
    stored: dict[str, int] = dict(
        tx.all("runs_by_id", listed(run.id for run in submit.runs))  # pyright: ignore[reportArgumentType]
    )
    keys, skipping = keys_of(submit.runs)
    holders: dict[str, KeyHolder] = {}
    finished: dict[str, tuple[int, str]] = {}
    if keys:
        holders = {key: KeyHolder(*holder) for key, *holder in tx.all("runs_by_key", listed(keys))}
    if skipping:
        for key, seq, run_id in tx.all("runs_finished_by_key", listed(skipping)):
            finished[key] = seq, run_id
    bounded = bounded_keys(submit.runs)
    queued = tx.all("queued_by_key", listed(bounded)) if bounded else ()
    throttled = throttled_names(submit.runs)
    starts = tx.all("throttles_by_name", listed(throttled)) if throttled else ()
    return Facts(
        last=last,
        as_of=as_of,
        now=now,
        limits=limits,
        stored=stored,
        ceilings=ceilings(
            tx, limits, (run.tags for run in submit.runs), now, waiting=any_delayed(submit.runs)
        ),
        holders=holders,
        finished=finished,
        queued=lines_of(bounded, queued),
        throttles=dict.fromkeys(throttled, ()) | starts_of(starts),
    )


def ceilings(
    tx: SqliteSession,
    limits: Limits,
    tag_sets: Iterable[Mapping[str, str]],
    now: int,
    *,
    waiting: bool = False,
) -> Ceilings:
    """The counters as this transaction sees them."""
    names = counter_names(limits, tag_sets, waiting=waiting)
    active = active_of(tx.all("counters_by_name", listed(names)))

    def drained() -> Drained:
        return Drained(*tx.row("drain_recent", now // SECOND - WINDOW_SECONDS))

    return Ceilings(limits, active, drained)


def count_admitted(tx: SqliteSession, ceilings: Ceilings) -> None:
    if ceilings.added:
        tx.each("counter_admit", sorted(ceilings.added.items()))


def _write(tx: SqliteSession, admission: Admission, graphs: Mapping[str, bytes]) -> None:
    needed = {each.run.graph for each in admission.new}
    tx.each("graph_add", [(name, graphs[name]) for name in sorted(needed & graphs.keys())])
    count_admitted(tx, admission.ceilings)
    signatures = admission.signatures()
    plan = admission.plan(signatures, lanes_for(tx, signatures))
    tx.each("submit_run", plan.runs)
    tx.each("queue_add", plan.queued)
    if plan.waits:
        tx.each("submit_run_waiting", plan.delayed)
        tx.each("waiting_add", plan.waits)
    if plan.keys:
        tx.each("key_take", list(plan.keys.items()))
    if admission.replaced:
        ask(tx, admission.replaced)
    if throttles := admission.throttles.rows():
        tx.each("throttle_save", throttles)
    tx.each("event_add", packed_rows(admission.now, CLIENT, plan.events))


def lanes_for(tx: SqliteSession, signatures: Sequence[str]) -> dict[str, int]:
    """The lane of each signature, made where there is none."""
    wanted = set(signatures)
    found: dict[str, int] = dict(tx.all("lanes_by_signature", listed(wanted)))  # pyright: ignore[reportArgumentType]
    missing = sorted(wanted - found.keys())
    if missing:
        tx.each("lane_add", [(sign,) for sign in missing])
        found.update(tx.all("lanes_by_signature", listed(missing)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return found


def ask(tx: SqliteSession, requests: Sequence[Request]) -> None:
    now = tx.now()
    tx.each("request_add", [(now, encode(request)) for request in requests])


def retry(tx: SqliteSession, run_ids: list[str], nodes: Sequence[int], who: str) -> list[Submitted]:
    found = candidates(run_ids, tx.all("retry_candidates", listed(run_ids)))
    _, as_of, now = tx.row("submit_marks")
    limits = tx.limits()
    counted = ceilings(tx, limits, (again.run.tags for again in found.values()), now)
    keys = [again.run.key for again in found.values() if again.run.key is not None]
    holders: dict[str, tuple[int, str]] = {
        key: (seq, run_id) for key, seq, run_id, *_ in tx.all("runs_by_key", listed(keys))
    }
    answers, queue = judge_retry(run_ids, found, holders, counted, now, as_of, nodes)
    events = [_queue(tx, again, limits, now, nodes, who) for again in queue]
    count_admitted(tx, counted)
    record(tx, now, CLIENT, events)
    return answers


def _queue(
    tx: SqliteSession, again: Again, limits: Limits, now: int, nodes: Sequence[int], who: str
) -> RunChanges:
    run = again.run
    sign = lane_name(
        limits, kind=run.kind, tags=run.tags, key=run.key, flow=run.flow, run=again.seq
    )
    lane = lanes_for(tx, [sign])[sign]
    place = rank(limits, run.priority, now)
    deadline_at = None if again.deadline_us is None else now + again.deadline_us
    generation = again.generation + 1
    tx.run("retry_run", generation, lane, *place, now, deadline_at, again.seq)
    tx.each("queue_add", [(lane, *place, again.seq)])
    if run.key is not None:
        tx.each("key_take", [(run.key, again.seq)])
    if nodes:
        tx.run("tasks_run_again", AGAIN, again.seq, again.seq, listed(nodes))
    change = queued_event(
        run, lane, place, before=again.before, generation=generation, again=nodes, who=who
    )
    return again.seq, [change]


def set_limits(tx: SqliteSession, changes: list[SetLimit]) -> None:
    check(changes)
    changed = judge_limit(changes, tx.limit_rows())
    if not changed.asked:
        return
    now = tx.now()
    for row in changed.rows:
        if row.effective is None:
            tx.run("limit_remove", row.kind, row.name)
        else:
            tx.run("limit_put", row.kind, row.name, row.declared, row.live)
    for entry in changed.history:
        tx.run("limit_history_add", now, *entry)
    tx.run("limits_changed")
    if changed.recount:
        _recount(tx, changed.after)
    record(tx, now, CLIENT, [(NO_RUN, changed.asked)])


def _recount(tx: SqliteSession, limits: Limits) -> None:
    """Counters follow the rules: new ones start from the active runs, in the transaction that sets the rule."""
    active = recounted(limits, ((decode_tags(tags), n) for tags, n in tx.all("active_tags")))
    tx.run("counter_remove", listed(row[0] for row in tx.all("counter_names")))
    tx.each("counter_put", sorted(active.items()))
