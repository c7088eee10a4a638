"""Submitting runs: keys, the ceiling, the queue, in one transaction.

Everything is read first and decided in memory; what is written is a few
statements however many runs come in, and a refused submission writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.base.errors import InvalidInput
from headgate.base.events import Change
from headgate.base.model import NewRun, Request
from headgate.base.states import NEW, RunState
from headgate.kernel.lanes import rank
from headgate.store.lanes import lane_name
from headgate.store.protocol import Submit, Submitted
from headgate.store.sqlite.admission import Ceilings
from headgate.store.sqlite.decode import encode, encode_tags
from headgate.store.sqlite.history import CLIENT, record
from headgate.store.sqlite.session import Session, listed


@dataclass(frozen=True, slots=True)
class Holder:
    """The active run that has a key."""

    seq: int
    id: str
    flow: str
    params: bytes


def submit(tx: Session, submit: Submit) -> list[Submitted]:
    desk = _Desk(tx, submit.runs)
    results = [desk.receive(run) for run in submit.runs]
    if not submit.partial:
        refused = next((r for r in results if r.outcome in {"rejected", "duplicate"}), None)
        if refused is not None:
            return [
                result if desk.was_stored(result.id) else _with_the_rest(result, refused)
                for result in results
            ]
    desk.write(submit.graphs)
    return results


def _with_the_rest(result: Submitted, refused: Submitted) -> Submitted:
    """All or none: what one submission was refused for, its companions are refused for."""
    if result.outcome in {"rejected", "duplicate"}:
        return result
    return Submitted(
        id=result.id,
        seq=0,
        outcome="rejected",
        ceiling=refused.ceiling or "duplicate",
        active=refused.active,
        limit=refused.limit,
        retry_after_us=refused.retry_after_us,
        as_of=refused.as_of,
    )


class _Desk:
    """One submission: what is known at its start, and what it will write."""

    def __init__(self, tx: Session, runs: Sequence[NewRun]) -> None:
        self._tx = tx
        self._next, self._as_of, self._now = tx.row("submit_marks")
        self._limits = tx.limits()
        self._stored: dict[str, int] = dict(
            tx.all("runs_by_id", listed(run.id for run in runs))  # pyright: ignore[reportArgumentType]
        )
        self._known = dict(self._stored)
        self._ceilings = Ceilings(tx, self._limits, (run.tags for run in runs))
        keys = {run.key for run in runs if run.key is not None}
        self._holders: dict[str, Holder] = {}
        self._finished: dict[str, tuple[int, str]] = {}
        if keys:
            for key, *holder in tx.all("runs_by_key", listed(keys)):
                self._holders[key] = Holder(*holder)
        skipping = keys & {run.key for run in runs if run.on_duplicate == "skip_if_finished"}
        if skipping:
            for key, seq, run_id in tx.all("runs_finished_by_key", listed(skipping)):
                self._finished[key] = seq, run_id
        self._new: list[tuple[int, NewRun, int | None]] = []
        self._replaced: list[Request] = []

    def was_stored(self, run_id: str) -> bool:
        """Whether it was there before: the repetition of a call whose answer was lost."""
        return run_id in self._stored

    def receive(self, run: NewRun) -> Submitted:
        known = self._known.get(run.id)
        if known is not None:
            return Submitted(run.id, known, "created")
        waits_for: int | None = None
        if run.key is not None:
            if run.on_duplicate == "skip_if_finished" and run.key in self._finished:
                seq, run_id = self._finished[run.key]
                return Submitted(run_id, seq, "finished")
            holder = self._holders.get(run.key)
            if holder is not None:
                if run.on_duplicate != "replace":
                    return _meet(run, holder)
                waits_for = holder.seq
        if run.kind != "hold":
            full = self._ceilings.admit(run.tags, self._now)
            if full is not None:
                return Submitted(
                    id=run.id,
                    seq=0,
                    outcome="rejected",
                    ceiling=full.ceiling,
                    active=full.active,
                    limit=full.limit,
                    retry_after_us=full.retry_after_us,
                    as_of=self._as_of,
                )
        return self._admit(run, waits_for)

    def _admit(self, run: NewRun, waits_for: int | None) -> Submitted:
        self._next += 1
        seq = self._known[run.id] = self._next
        self._new.append((seq, run, waits_for))
        if run.key is not None:
            if waits_for is not None:
                self._replaced.append(
                    Request(
                        kind="cancel",
                        subject=self._holders[run.key].id,
                        who=CLIENT,
                        reason=f"replaced by {run.id}",
                    )
                )
            self._holders[run.key] = Holder(seq, run.id, run.flow, run.params)
        return Submitted(run.id, seq, "created")

    def write(self, graphs: dict[str, bytes]) -> None:
        if not self._new:
            return
        self._store_graphs(graphs)
        self._ceilings.write()
        signatures = [
            lane_name(self._limits, kind=run.kind, tags=run.tags, key=run.key, waits_for=waits_for)
            for _, run, waits_for in self._new
        ]
        lanes = lanes_for(self._tx, signatures)
        rows: list[tuple[object, ...]] = []
        queued: list[tuple[int, int, int, int]] = []
        events: list[tuple[int, list[Change]]] = []
        for (seq, run, waits_for), sign in zip(self._new, signatures, strict=True):
            lane = lanes[sign]
            place = rank(self._limits, run.priority, self._now)
            rows.append(self._row(seq, run, lane, place, waits_for))
            queued.append((lane, *place, seq))
            events.append((seq, [queued_event(run, lane, place, waits_for)]))
        self._tx.each("submit_run", rows)
        self._tx.each("queue_add", queued)
        keys = {run.key: seq for seq, run, _ in self._new if run.key is not None}
        if keys:
            self._tx.each("key_take", list(keys.items()))
        if self._replaced:
            ask(self._tx, self._replaced)
        record(self._tx, self._now, CLIENT, events)

    def _store_graphs(self, graphs: dict[str, bytes]) -> None:
        needed = {run.graph for _, run, _ in self._new}
        missing = needed - graphs.keys()
        if missing:
            missing -= {row[0] for row in self._tx.all("graph_known", listed(missing))}
        if missing:
            raise InvalidInput(
                f"the graph {min(missing)!r} of a submitted run is not known.",
                field="graphs",
                got=min(missing),
                hint="Send the graph with the run.",
            )
        self._tx.each("graph_add", [(h, graphs[h]) for h in sorted(needed & graphs.keys())])

    def _row(
        self, seq: int, run: NewRun, lane: int, place: tuple[int, int], waits_for: int | None
    ) -> tuple[object, ...]:
        return (
            seq,
            run.id,
            run.kind,
            run.flow,
            run.graph,
            encode_tags(run.tags),
            run.priority,
            run.key,
            lane,
            *place,
            waits_for,
            self._now,
            run.deadline_us,
            None if run.deadline_us is None else self._now + run.deadline_us,
            run.queue_timeout_us,
            run.dispatch_deadline_us,
            run.params,
            run.consts,
        )


def _meet(run: NewRun, holder: Holder) -> Submitted:
    """A submission whose key an active run has."""
    if run.on_duplicate == "reject":
        return Submitted(holder.id, holder.seq, "duplicate", difference=_difference(run, holder))
    difference = _difference(run, holder)
    if difference:
        return Submitted(holder.id, holder.seq, "duplicate", difference=difference)
    return Submitted(holder.id, holder.seq, "attached")


def _difference(run: NewRun, holder: Holder) -> str:
    """The names of the parameters that differ, or `flow`."""
    if run.flow != holder.flow:
        return "flow"
    if run.params == holder.params:
        return ""
    ours: dict[str, Any] = msgspec.json.decode(run.params)
    theirs: dict[str, Any] = msgspec.json.decode(holder.params)
    missing = object()
    return ", ".join(
        name
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name, missing) != theirs.get(name, missing)
    )


def lanes_for(tx: Session, signatures: Sequence[str]) -> dict[str, int]:
    """The lane of each signature, made where there is none."""
    wanted = set(signatures)
    found: dict[str, int] = dict(tx.all("lanes_by_signature", listed(wanted)))  # pyright: ignore[reportArgumentType]
    missing = sorted(wanted - found.keys())
    if missing:
        tx.each("lane_add", [(sign,) for sign in missing])
        found.update(tx.all("lanes_by_signature", listed(missing)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return found


def queued_event(
    run: NewRun,
    lane: int,
    place: tuple[int, int],
    waits_for: int | None = None,
    *,
    before: str = NEW,
    generation: int = 0,
) -> Change:
    data: dict[str, Any] = {
        "flow": run.flow,
        "graph": run.graph,
        "tags": run.tags,
        "priority": run.priority,
        "generation": generation,
        "lane": lane,
        "rank": place,
        "kind": run.kind,
    }
    if run.key is not None:
        data["key"] = run.key
    if waits_for is not None:
        data["waits_for"] = waits_for
    return Change("run", 0, before, RunState.QUEUED, 0, data)


def ask(tx: Session, requests: Sequence[Request]) -> None:
    now = tx.now()
    tx.each("request_add", [(now, encode(request)) for request in requests])
