"""Decides submissions: keys, ceilings and places in the queue, from what a back end has read.

Everything is read first and decided here, in memory. The back end then writes a
few statements for any number of runs, and nothing for a refused submission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from locktender.base.errors import InvalidInput
from locktender.base.events import Change, pack
from locktender.base.limits import Limits
from locktender.base.model import NewRun, Request
from locktender.base.states import NEW, RunState
from locktender.kernel.lanes import rank
from locktender.store.admission import Ceilings, Full, rejected
from locktender.store.decode import encode_tags
from locktender.store.history import CLIENT
from locktender.store.key_lines import Throttles
from locktender.store.lanes import lane_name
from locktender.store.protocol import Submit, Submitted

REFUSED = frozenset({"rejected", "duplicate"})
NO_LANE = 0
"""Of a waiting run: it is given one when it is woken, by the limits that are in force then."""


class KeyHolder(NamedTuple):
    """The active run that has a key."""

    seq: int
    id: str
    flow: str
    params: bytes


class Facts(msgspec.Struct, frozen=True):
    """What was read before a submission is decided."""

    last: int
    """The last run's number."""
    as_of: int
    now: int
    limits: Limits
    stored: Mapping[str, int]
    """Which of the submitted ids are there already: repetitions of a call whose answer was lost."""
    ceilings: Ceilings
    holders: Mapping[str, KeyHolder]
    finished: Mapping[str, tuple[int, str]]
    """Key → the last succeeded run, where a submission skips then."""
    queued: Mapping[str, Sequence[tuple[int, str]]] = msgspec.field(
        default_factory=dict[str, Sequence[tuple[int, str]]]
    )
    """Key → its runs that have not started, by age, for submissions that bound them."""
    throttles: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict[str, Sequence[int]])
    """Throttle → its last starts."""
    admissions: int = 0
    """How often a process held the submitters' lock: for a back end that reads before it acquires the lock."""


class Admitted(NamedTuple):
    seq: int
    run: NewRun
    waits_for: int | None


class _Alike(NamedTuple):
    """What is stored of all runs of a batch that differ only in their values."""

    place: tuple[int, int]
    tags: str
    event: bytes


class AdmissionPlan(msgspec.Struct):
    """Rows to write for what was admitted."""

    runs: list[tuple[Any, ...]] = msgspec.field(default_factory=list[tuple[Any, ...]])
    """In the order of `submit_run`'s columns."""
    queued: list[tuple[int, int, int, int]] = msgspec.field(
        default_factory=list[tuple[int, int, int, int]]
    )
    events: list[tuple[int, bytes]] = msgspec.field(default_factory=list[tuple[int, bytes]])
    """A run and its changes, packed."""
    keys: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    delayed: list[tuple[Any, ...]] = msgspec.field(default_factory=list[tuple[Any, ...]])
    """Runs that wait for their time, in the order of `submit_run`'s columns: they stand in no lane."""
    waits: list[tuple[int, int]] = msgspec.field(default_factory=list[tuple[int, int]])
    """(run, when it is woken), of those."""


class Admission:
    """Decides submissions one after another, each including the effects of those before it."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._next = facts.last
        self._as_of = facts.as_of
        self._known = dict(facts.stored)
        self._holders = dict(facts.holders)
        self.now: int = facts.now
        self.ceilings: Ceilings = facts.ceilings
        self.new: list[Admitted] = []
        self.replaced: list[Request] = []
        self._refused_keys: dict[str, Full] = {}
        self._wakes: dict[int, int] = {}
        """Of admitted runs that wait for their time: when that is."""
        self._lines: dict[str, list[tuple[int, str]]] = {}
        """Key → its runs that have not started, where a submission bounds them."""
        self.throttles: Throttles = Throttles(facts.throttles)
        self._line_up()

    def _line_up(self) -> None:
        self._lines = {key: list(runs) for key, runs in self._facts.queued.items()}
        for seq, run, _ in self.new if self._lines else ():
            if run.key in self._lines:
                self._lines[run.key].append((seq, run.id))

    @property
    def as_read(self) -> tuple[int, int]:
        """The last run's number and the admissions by which all this is judged."""
        return self._facts.last, self._facts.admissions

    def receive(self, submit: Submit, graphs: Collection[str] = ()) -> list[Submitted]:
        """The answer to one submission; where it is refused as a whole, nothing of it remains here.

        `graphs` are stored already. Raises `InvalidInput` where a run's graph is neither there nor sent.
        """
        before = self._mark()
        # Behind others of one commit, no end of the history there is yet says why it is refused.
        self._as_of = 0 if self.new else self._facts.as_of
        self._refused_keys.clear()
        self.ceilings.open()
        results = [self._one(run) for run in submit.runs]
        missing = {each.run.graph for each in self.new[before[1] :]}
        missing -= submit.graphs.keys()
        missing -= set(graphs)
        if not submit.partial and any(each.outcome in REFUSED for each in results):
            full = self.ceilings.hardest(self._facts.now)
            self._undo(before)
            return [
                result
                if result.id in self._facts.stored or result.outcome == "duplicate"
                else self._refusal(submit.runs[index].id, full)
                for index, result in enumerate(results)
            ]
        if missing:
            self._undo(before)
            raise InvalidInput(
                f"the graph {min(missing)!r} of a submitted run is not known.",
                field="graphs",
                got=min(missing),
                hint="Send the graph with the run.",
            )
        return results

    def _mark(self) -> tuple[int, int, int, Counter[str], dict[str, int], dict[str, KeyHolder]]:
        added = Counter(self.ceilings.added)
        known, holders = dict(self._known), dict(self._holders)
        return self._next, len(self.new), len(self.replaced), added, known, holders

    def _undo(
        self, mark: tuple[int, int, int, Counter[str], dict[str, int], dict[str, KeyHolder]]
    ) -> None:
        self._next, new, replaced, self.ceilings.added, self._known, self._holders = mark
        del self.new[new:], self.replaced[replaced:]
        self._wakes = {seq: at for seq, at in self._wakes.items() if seq <= self._next}
        self._line_up()
        self.throttles = Throttles(self._facts.throttles)
        for seq, run, _ in self.new if self._facts.throttles else ():
            if run.throttle is not None:
                self.throttles.record_start(run.throttle, self._wakes.get(seq, self.now))

    def _one(self, run: NewRun) -> Submitted:
        known = self._known.get(run.id)
        if known is not None:
            return Submitted(run.id, known, "created")
        facts = self._facts
        waits_for: int | None = None
        if run.key is not None:
            if run.on_duplicate == "skip_if_finished" and run.key in facts.finished:
                seq, run_id = facts.finished[run.key]
                return Submitted(run_id, seq, "finished")
            holder = self._holders.get(run.key)
            if holder is not None:
                line = self._lines.get(run.key, [])
                if run.keep == "oldest" and len(line) >= run.max_queued:
                    seq, run_id = line[-1]
                    return Submitted(run_id, seq, "finished")
                if run.on_duplicate != "replace" and run.keep is None:
                    return _meet(run, holder)
                waits_for = holder.seq
        delayed = run.delay_us is not None or run.start_at is not None
        wake_at = _wake_at(run, facts.now) if delayed else 0
        if run.throttle is not None:
            wake_at = self.throttles.next_start(run.throttle, facts.now)
        if run.kind != "hold":
            # A key that was refused a moment ago would have been attached to: it asks for no place more.
            full = self._refused_keys.get(run.key or "")
            if full is None and wake_at:
                full = self.ceilings.admit_waiting(facts.now)
            elif full is None:
                full = self.ceilings.admit(run.tags, facts.now)
            if full is not None:
                if run.key is not None and run.on_duplicate != "replace" and run.keep is None:
                    self._refused_keys[run.key] = full
                return self._refusal(run.id, full)
        if wake_at:
            self._wakes[self._next + 1] = wake_at
        if run.throttle is not None:
            self.throttles.record_start(run.throttle, wake_at or facts.now)
        return self._admit(run, waits_for)

    def _refusal(self, run_id: str, full: Full | None) -> Submitted:
        """`full` None: it is refused only because another of its submission is a duplicate."""
        if full is None:
            return Submitted(run_id, 0, "rejected", ceiling="duplicate")
        return rejected(run_id, 0, full, self._as_of)

    def _admit(self, run: NewRun, waits_for: int | None) -> Submitted:
        self._next += 1
        seq = self._known[run.id] = self._next
        self.new.append(Admitted(seq, run, waits_for))
        if run.key is not None:
            if run.keep is not None:
                self._bound_line(run, self._lines.setdefault(run.key, []))
            elif waits_for is not None:
                self.replaced.append(
                    Request(
                        kind="cancel",
                        subject=self._holders[run.key].id,
                        who=CLIENT,
                        reason=f"replaced by {run.id}",
                    )
                )
            if run.key in self._lines:
                self._lines[run.key].append((seq, run.id))
            self._holders[run.key] = KeyHolder(seq, run.id, run.flow, run.params)
        return Submitted(run.id, seq, "created")

    def _bound_line(self, run: NewRun, line: Sequence[tuple[int, str]]) -> None:
        """The one that is too many now is dropped; those before it were, by the submissions since."""
        if len(line) >= run.max_queued:
            _, dropped = line[-run.max_queued]
            kept = "the newest run" if run.max_queued == 1 else f"the newest {run.max_queued} runs"
            reason = f"dropped: {kept} of key {run.key!r} may wait, and {run.id} came after it"
            self.replaced.append(Request(kind="drop", subject=dropped, who=CLIENT, reason=reason))

    def signatures(self) -> list[str]:
        """The lane of every admitted run that is queued, by name."""
        limits = self._facts.limits
        known: dict[object, str] = {}
        return [
            _lane_of(limits, run, known)
            if waits_for is None
            else lane_name(
                limits,
                kind=run.kind,
                tags=run.tags,
                key=run.key,
                waits_for=waits_for,
                flow=run.flow,
            )
            for seq, run, waits_for in self.new
            if seq not in self._wakes
        ]

    def plan(self, signatures: Sequence[str], lanes: Mapping[str, int]) -> AdmissionPlan:
        plan = AdmissionPlan()
        known: dict[object, _Alike] = {}
        named = iter(signatures)
        for seq, run, waits_for in self.new:
            if seq in self._wakes:
                self._delay(plan, seq, run, waits_for, self._wakes[seq])
                continue
            lane = lanes[next(named)]
            if run.key is None and run.throttle is None:
                kind = (lane, run.kind, run.flow, run.graph, run.priority, *run.tags.items())
                alike = known.get(kind)
                if alike is None:
                    alike = known[kind] = self._alike(run, lane, None)
            else:
                alike = self._alike(run, lane, waits_for)
                if run.key is not None:
                    plan.keys[run.key] = seq
            plan.runs.append(self._row(seq, run, lane, alike, waits_for))
            plan.queued.append((lane, *alike.place, seq))
            plan.events.append((seq, alike.event))
        return plan

    def _delay(
        self, plan: AdmissionPlan, seq: int, run: NewRun, waits_for: int | None, at: int
    ) -> None:
        place = rank(self._facts.limits, run.priority, self._facts.now)
        event = pack([waiting_event(run, at, waits_for)])
        alike = _Alike(place, encode_tags(run.tags), event)
        if run.key is not None:
            plan.keys[run.key] = seq
        plan.delayed.append(self._row(seq, run, NO_LANE, alike, waits_for))
        plan.waits.append((seq, at))
        plan.events.append((seq, event))

    def _alike(self, run: NewRun, lane: int, waits_for: int | None) -> _Alike:
        place = rank(self._facts.limits, run.priority, self._facts.now)
        event = pack([queued_event(run, lane, place, waits_for)])
        return _Alike(place, encode_tags(run.tags), event)

    def _row(
        self, seq: int, run: NewRun, lane: int, alike: _Alike, waits_for: int | None
    ) -> tuple[Any, ...]:
        now = self._facts.now
        return (
            seq,
            run.id,
            run.kind,
            run.flow,
            run.graph,
            alike.tags,
            run.priority,
            run.key,
            lane,
            *alike.place,
            waits_for,
            now,
            run.deadline_us,
            None if run.deadline_us is None else now + run.deadline_us,
            run.queue_timeout_us,
            run.dispatch_deadline_us,
            run.params,
            run.consts,
            run.trace,
        )


def any_delayed(runs: Iterable[NewRun]) -> bool:
    return any(
        run.delay_us is not None or run.start_at is not None or run.throttle is not None
        for run in runs
    )


def _wake_at(run: NewRun, now: int) -> int:
    """When a run that is submitted now is to be queued; 0: at once."""
    at = run.start_at or 0 if run.delay_us is None else now + run.delay_us
    return at if at > now else 0


def likely_lanes(limits: Limits, runs: Iterable[NewRun]) -> set[str]:
    """Lanes of runs that replace none; the others are looked up when it is known whom they wait for."""
    known: dict[object, str] = {}
    for run in runs:
        _lane_of(limits, run, known)
    return set(known.values())


def _lane_of(limits: Limits, run: NewRun, known: dict[object, str]) -> str:
    """The lane of a run that waits for no other: by its kind and tags alone, so once for all that share them."""
    flow = run.flow if limits.paused_flows else ""
    kind = (run.kind, flow, *run.tags.items())
    found = known.get(kind)
    if found is None:
        found = known[kind] = lane_name(limits, kind=run.kind, tags=run.tags, key=None, flow=flow)
    return found


def keys_of(runs: Iterable[NewRun]) -> tuple[set[str], set[str]]:
    """Keys to look up, and those of them whose finished runs matter."""
    keyed = [(run.key, run.on_duplicate) for run in runs if run.key is not None]
    return {key for key, _ in keyed}, {key for key, how in keyed if how == "skip_if_finished"}


def _meet(run: NewRun, holder: KeyHolder) -> Submitted:
    """A submission whose key an active run has."""
    difference = _difference(run, holder)
    if run.on_duplicate == "reject" or difference:
        return Submitted(holder.id, holder.seq, "duplicate", difference=difference)
    return Submitted(holder.id, holder.seq, "attached")


def _difference(run: NewRun, holder: KeyHolder) -> str:
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


def queued_event(
    run: NewRun,
    lane: int,
    place: tuple[int, int],
    waits_for: int | None = None,
    *,
    before: str = NEW,
    generation: int = 0,
    again: Sequence[int] = (),
    who: str = "",
) -> Change:
    """`again`: nodes that run again though they have finished; `who`: of a retry, who asked for it."""
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
    if again:
        data["again"] = list(again)
    if who:
        data["who"] = who
    if run.throttle is not None:
        data["throttle"] = run.throttle
    if run.scheduled is not None:
        data["schedule"], data["tick"] = run.scheduled
    return Change("run", 0, before, RunState.QUEUED, 0, data)


def waiting_event(run: NewRun, at: int, waits_for: int | None = None) -> Change:
    """A run is submitted that is to be queued at `at`."""
    queued = queued_event(run, NO_LANE, (0, 0), waits_for).data or {}
    data = {name: value for name, value in queued.items() if name not in ("lane", "rank")}
    return Change("run", 0, NEW, RunState.WAITING, 0, {**data, "wake_at": at})
