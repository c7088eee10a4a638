"""The leader's verbs: acquire or renew the term, commit a cycle, store workers that were asked for.

The fence is the term on the one leader row, read inside the same write
transaction: a leader that was paused and resumes finds a higher term there and
changes nothing, whatever its lease says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from locktender.base.clock import SECOND
from locktender.base.commits import Commit, RunEnd
from locktender.base.errors import NotLeader, OutOfOrder
from locktender.base.events import NO_RUN, Change
from locktender.base.ids import MAX_TERM
from locktender.base.model import Failure
from locktender.base.states import EXECUTING_RUNS, HOLDING, TERMINAL_RUNS, RunState
from locktender.kernel.lanes import rank
from locktender.store import decode
from locktender.store.admission import TOTAL, WAITING, WINDOW_SECONDS, closing
from locktender.store.decode import (
    asked_workers,
    decode_tags,
    encode,
    keeps_text,
    lease_end,
    read_provision_status,
    wrong,
)
from locktender.store.lanes import key_successors, let_go
from locktender.store.protocol import (
    ANSWER_KEPT_US,
    Answer,
    Committed,
    Elect,
    HoldRuns,
    Leadership,
    Provision,
    ProvisionState,
)
from locktender.store.sqlite.mailing import write_mail
from locktender.store.sqlite.result_cache import write_cache
from locktender.store.sqlite.session import SqliteSession, listed, record
from locktender.store.worker_changes import held

log: logging.Logger = logging.getLogger(__name__)


def elect(tx: SqliteSession, elect: Elect, dead: Callable[[str], bool]) -> Leadership:
    term, owner, expires_at, cycle, _, now = tx.row("leader")
    expires_at = lease_end(expires_at)
    until = now + elect.lease_us
    if elect.term:
        if (term, owner) != (elect.term, elect.owner):
            return Leadership(0, owner, expires_at, now)
        tx.run("leader_renew", until)
        return Leadership(term, owner, until, now, cycle)
    # An owner that stands again has lost its memory: it needs a new term, because tokens
    # are counted within one.
    lives = expires_at > now and expires_at != elect.passed
    if owner != elect.owner and lives and not dead(owner):
        return Leadership(0, owner, expires_at, now)
    if wrong(term) or term >= MAX_TERM:
        log.error("failed to read the last term: %r; using the last term of the history", term)
        [term] = tx.row("last_term", MAX_TERM)
    term += 1
    tx.run("leader_take", term, elect.owner, until)
    change = Change("leader", 0, owner, elect.owner, 0, {"lease_us": elect.lease_us})
    record(tx, now, f"leader:{elect.owner}", [(NO_RUN, [change])], term=term)
    return Leadership(term, elect.owner, until, now)


def resign(tx: SqliteSession, owner: str, term: int) -> None:
    tx.run("leader_resign", owner, term)


def fence(tx: SqliteSession, term: int) -> tuple[int, int, int]:
    """(last cycle, its seq, now), if `term` is still the term."""
    current, owner, _, cycle, seq, now = tx.row("leader")
    if current != term:
        raise NotLeader(
            f"term {term} has ended; {owner!r} leads in term {current}.",
            field="term",
            got=term,
            hint="Stand for election again and reload.",
        )
    return cycle, seq, now


def commit(tx: SqliteSession, commit: Commit) -> Committed:
    cycle, seq, now = fence(tx, commit.term)
    if commit.cycle <= cycle:
        return Committed(seq, now)
    if commit.previous and commit.previous != cycle:
        # The commit before it failed and is retried: this one must wait for it.
        raise OutOfOrder(
            f"cycle {commit.cycle} follows cycle {commit.previous}, which is not written yet.",
            field="previous",
            got=commit.previous,
        )
    if commit.as_carried:
        # Loaded here: notifications of SQLite carry nothing, so a commit of Locktender's never comes this way.
        from locktender.store.carried_runs import compared, not_as_carried  # noqa: PLC0415

        numbers = listed([row.seq for row in commit.as_carried])
        stored = map(compared, decode.runs(tx.all("runs_queued_by_seq", numbers)))
        if set(stored) != set(map(compared, commit.as_carried)):
            raise not_as_carried(commit)
    _write_tasks(tx, commit)
    _write_runs(tx, commit, now)
    if commit.waits_opened or commit.waits_over or commit.mail_taken:
        write_mail(tx, commit)
    if commit.cache_stored or commit.cache_cleared:
        write_cache(tx, commit)
    if commit.node_inputs:
        tx.each("node_input_add", commit.node_inputs)
    if commit.buckets:
        tx.each("bucket_save", commit.buckets)
    if commit.reservations is not None:
        tx.run("reservation_clear")
        tx.each("reservation_add", commit.reservations)
    if commit.lingers is not None:
        tx.run("linger_clear")
        tx.each("linger_add", commit.lingers)
    if commit.placed:
        tx.run("unplaced_remove", listed(commit.placed))
    if commit.unplaced:
        tx.run("unplaced_add", listed(commit.unplaced))
    if commit.kept:
        tx.each("kept_add", [(run, keeps_text(rules)) for run, rules in commit.kept])
    if commit.silences is not None:
        tx.run("silence_clear")
        tx.each("silence_add", commit.silences)
    if commit.requests_done:
        tx.run("request_done", listed(commit.requests_done))
    seq = record(
        tx, commit.at or now, commit.actor, commit.events, term=commit.term, cycle=commit.cycle
    )
    tx.run("leader_cycle", commit.cycle, seq)
    return Committed(seq, now)


def dry_run(tx: SqliteSession, wanted: Commit) -> Committed:
    """What `commit` would answer or raise; nothing of it stays."""
    tx.run("savepoint")
    try:
        return commit(tx, wanted)
    finally:
        if tx.db.in_transaction:
            tx.run("savepoint_undo")
            tx.run("savepoint_keep")
        tx.forget()


def hold_runs(tx: SqliteSession, hold: HoldRuns) -> None:
    _, _, now = fence(tx, hold.term)
    events: list[tuple[int, list[Change]]] = []
    for run, reason in sorted(hold.runs.items()):
        row = tx.one("run_stands", run)
        if row is None or row[0] in TERMINAL_RUNS or row[0] == RunState.HELD:
            continue
        failure = Failure("held", reason, retryable=False)
        if row[0] == RunState.WAITING:
            _end_waits(tx, [run])
        if not tx.run("queue_leave", run) and row[0] not in EXECUTING_RUNS:
            tx.run("queue_forget", run)
        tx.run("run_hold", encode(failure), run)
        events.append((run, [held(row, failure)]))
    record(tx, now, hold.actor, events, term=hold.term, cycle=hold.cycle)


def claim_requests(tx: SqliteSession, term: int, requests: list[int]) -> None:
    fence(tx, term)
    tx.run("requests_claim", listed(requests))


def answer(tx: SqliteSession, answer: Answer) -> None:
    fence(tx, answer.term)
    now = tx.now()
    tx.run("request_answered", answer.request)
    tx.run("answers_forget", now - ANSWER_KEPT_US)
    tx.run("answer_add", answer.question, now, answer.body)


def _write_tasks(tx: SqliteSession, commit: Commit) -> None:
    # In this order: a task may be made, started and completed within one commit.
    if commit.tasks_new:
        tx.each("task_new", commit.tasks_new)
    if commit.tasks_again:
        tx.each("task_again", commit.tasks_again)
    if commit.tasks_saved:
        tx.each("task_save", commit.tasks_saved)
        idle = [save.id for save in commit.tasks_saved if save.state not in HOLDING]
        if idle:
            tx.run("order_remove", listed(idle))
    if commit.tasks_ended:
        tx.each("task_end", commit.tasks_ended)
    if commit.orders:
        tx.each("order_add", commit.orders)


def _write_runs(tx: SqliteSession, commit: Commit, now: int) -> None:
    if commit.reprioritised:
        _reprioritise(tx, commit.reprioritised)
    if commit.runs_started:
        tx.each("run_start", commit.runs_started)
        tx.run("queue_remove", listed(start.run for start in commit.runs_started))
    if commit.runs_waiting or commit.taken_up:
        _write_waits(tx, commit)
    if commit.runs_marked:
        tx.each("run_mark", commit.runs_marked)
    if commit.runs_unfolded:
        tx.each("graph_add", [(each.graph, each.body) for each in commit.runs_unfolded])
        tx.each(
            "run_unfold", [(run, graph, consts) for run, graph, _, consts in commit.runs_unfolded]
        )
    if commit.runs_ended:
        _end(tx, commit.runs_ended, now)


def _write_waits(tx: SqliteSession, commit: Commit) -> None:
    """Of a leader's commit: executing runs begin to wait, and waiting ones are taken up to be ended."""
    limits = tx.limits()
    if commit.taken_up:
        _end_waits(tx, commit.taken_up)
    if waits := [each.run for each in commit.runs_waiting]:
        tx.run("run_wait", listed(waits))
        tx.each("waiting_add", commit.runs_waiting)
        active = [decode_tags(tags) for _, tags in tx.all("runs_tags", listed(waits))]
        tx.each("counter_close", sorted(closing(limits, active).items()))
        tx.each("counter_admit", [(WAITING, len(waits))])


def _end_waits(tx: SqliteSession, runs: list[int]) -> None:
    """Waiting runs that count as active again."""
    tx.run("waiting_remove", listed(runs))
    active = [decode_tags(tags) for _, tags in tx.all("runs_tags", listed(runs))]
    tx.each("counter_admit", sorted(closing(tx.limits(), active).items()))
    tx.each("counter_close", [(WAITING, len(runs))])


def _end(tx: SqliteSession, ended: list[RunEnd], now: int) -> None:
    ends = {end.run: end for end in ended}
    runs = tx.all("runs_open", listed(ends))
    tx.each("run_end", [ends[row[0]] for row in runs])
    waited = [run for run, state, *_ in runs if state == "waiting"]
    if waited:
        tx.run("waiting_remove", listed(waited))
    closed = [
        decode_tags(tags)
        for _, state, kind, tags, *_ in runs
        if kind != "hold" and state != "waiting"
    ]
    if closed or waited:
        names = closing(tx.limits(), closed, len(waited))
        tx.each("counter_close", sorted(names.items()))
        if closed:
            second = now // SECOND
            tx.run("drain_add", second % WINDOW_SECONDS, second, names[TOTAL])
    queued = [run for run, state, *_ in runs if state == "queued"]
    if queued:
        tx.run("queue_remove", listed(queued))
    keyed = {run: waits_for for run, _, _, _, key, waits_for in runs if key is not None}
    if keyed:
        for successor, run in key_successors(keyed):
            tx.run("key_pass", successor, run)
        tx.run("key_free", listed(keyed))
        _let_go(tx, keyed)


def _let_go(tx: SqliteSession, ended: dict[int, int | None]) -> None:
    """Replacements that waited for ended runs."""
    for still, run in let_go(ended, (row[0] for row in tx.all("runs_awaited", listed(ended)))):
        tx.run("run_waits_on", still, run)


def _reprioritise(tx: SqliteSession, wanted: list[tuple[int, int]]) -> None:
    priorities = dict(wanted)
    limits = tx.limits()
    moves: list[tuple[int, int, int, int, int]] = []
    for run, lane, _, _, queued_at in tx.all("queued_runs_by_seq", listed(priorities)):
        priority = priorities[run]
        moves.append((run, priority, lane, *rank(limits, priority, queued_at)))
    move(tx, moves)


def move(tx: SqliteSession, moves: list[tuple[int, int, int, int, int]]) -> None:
    """Gives queued runs a new (priority, lane, rank1, rank2)."""
    # The old place is found from the run's row, so it goes before the row changes.
    tx.run("queue_remove", listed(run for run, *_ in moves))
    tx.each("run_rank", moves)
    tx.each("queue_add", [(*place, run) for run, _, *place in moves])


def provision(tx: SqliteSession, provision: Provision) -> None:
    _, _, now = fence(tx, provision.term)
    until = now + provision.start_timeout_us
    tx.each("asked_add", [(name, now, until, body) for name, body in provision.asked.items()])
    forget(tx, provision.gone)
    if provision.status is not None:
        tx.run("provisioner_set_status", provision.term, encode(provision.status))


def forget(tx: SqliteSession, names: list[str]) -> None:
    if names:
        tx.run("asked_remove", listed(names))


def provisioned(tx: SqliteSession) -> ProvisionState:
    asked, said = tx.all("asked_list"), tx.one("provisioner_status")
    return ProvisionState(
        tx.now(), asked_workers(asked), None if said is None else read_provision_status(said[0])
    )
