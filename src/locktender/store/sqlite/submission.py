"""Submitting runs: keys, the ceiling, the queue, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from locktender.base.clock import SECOND
from locktender.base.limits import Limits
from locktender.base.model import Request
from locktender.store.admission import WINDOW_SECONDS, Ceilings, Drained, counter_names
from locktender.store.decode import encode
from locktender.store.history import CLIENT, packed_rows
from locktender.store.protocol import Submit, Submitted
from locktender.store.sqlite.session import Session, listed
from locktender.store.submission import Desk, Facts, Holder, keys_of


def submit(tx: Session, submit: Submit) -> list[Submitted]:
    desk = Desk(_facts(tx, submit))
    unsent = {run.graph for run in submit.runs} - submit.graphs.keys()
    known = {row[0] for row in tx.all("graph_known", listed(unsent))} if unsent else set[str]()
    results = desk.receive(submit, known)
    if desk.new:
        _write(tx, desk, submit.graphs)
    return results


def _facts(tx: Session, submit: Submit) -> Facts:
    last, as_of, now = tx.row("submit_marks")
    limits = tx.limits()
    stored: dict[str, int] = dict(
        tx.all("runs_by_id", listed(run.id for run in submit.runs))  # pyright: ignore[reportArgumentType]
    )
    keys, skipping = keys_of(submit.runs)
    holders: dict[str, Holder] = {}
    finished: dict[str, tuple[int, str]] = {}
    if keys:
        holders = {key: Holder(*holder) for key, *holder in tx.all("runs_by_key", listed(keys))}
    if skipping:
        for key, seq, run_id in tx.all("runs_finished_by_key", listed(skipping)):
            finished[key] = seq, run_id
    return Facts(
        last=last,
        as_of=as_of,
        now=now,
        limits=limits,
        stored=stored,
        ceilings=ceilings(tx, limits, (run.tags for run in submit.runs), now),
        holders=holders,
        finished=finished,
    )


def ceilings(
    tx: Session, limits: Limits, tag_sets: Iterable[Mapping[str, str]], now: int
) -> Ceilings:
    """The counters as this transaction sees them."""
    active = {
        name: admitted - closed
        for name, admitted, closed in tx.all(
            "counters_by_name", listed(counter_names(limits, tag_sets))
        )
    }

    def drained() -> Drained:
        return Drained(*tx.row("drain_recent", now // SECOND - WINDOW_SECONDS))

    return Ceilings(limits, active, drained)


def count_admitted(tx: Session, ceilings: Ceilings) -> None:
    if ceilings.added:
        tx.each("counter_admit", sorted(ceilings.added.items()))


def _write(tx: Session, desk: Desk, graphs: Mapping[str, bytes]) -> None:
    needed = {each.run.graph for each in desk.new}
    tx.each("graph_add", [(name, graphs[name]) for name in sorted(needed & graphs.keys())])
    count_admitted(tx, desk.ceilings)
    signatures = desk.signatures()
    plan = desk.plan(signatures, lanes_for(tx, signatures))
    tx.each("submit_run", plan.runs)
    tx.each("queue_add", plan.queued)
    if plan.keys:
        tx.each("key_take", list(plan.keys.items()))
    if desk.replaced:
        ask(tx, desk.replaced)
    tx.each("event_add", packed_rows(desk.now, CLIENT, plan.events))


def lanes_for(tx: Session, signatures: Sequence[str]) -> dict[str, int]:
    """The lane of each signature, made where there is none."""
    wanted = set(signatures)
    found: dict[str, int] = dict(tx.all("lanes_by_signature", listed(wanted)))  # pyright: ignore[reportArgumentType]
    missing = sorted(wanted - found.keys())
    if missing:
        tx.each("lane_add", [(sign,) for sign in missing])
        found.update(tx.all("lanes_by_signature", listed(missing)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return found


def ask(tx: Session, requests: Sequence[Request]) -> None:
    now = tx.now()
    tx.each("request_add", [(now, encode(request)) for request in requests])
