"""The runs' part of the ledger: heads of the queue, executing runs, and their places at the run gate and tags."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from locktender.base.changes import KeptPlace
from locktender.base.graph import Graph
from locktender.base.limits import Limits, TagRule
from locktender.base.model import RunRow
from locktender.base.names import UNLIMITED
from locktender.base.states import RunState
from locktender.kernel import lanes
from locktender.kernel.admission import AdmissionQueue
from locktender.kernel.entries import QueuedRun, RunEntry
from locktender.kernel.gates.count import CountGate
from locktender.kernel.gates.protocol import Gate, Lane
from locktender.kernel.wait_book import WaitBook
from locktender.kernel.wait_times import waits_of

KEY = "key"
"""The gate of a run that replaces another: it waits until that one has ended."""
_ENDS = (RunState.CANCELLED, RunState.TIMED_OUT)


class RunLedger:
    def __init__(self, limits: Limits) -> None:
        self.limits: Limits = limits
        self.now: int = 0
        """The instant of the facts that come in: when waiters join their lanes."""
        self.wait_book: WaitBook = WaitBook()
        self.run_queue: AdmissionQueue[QueuedRun] = AdmissionQueue()
        self.run_gate: Gate = CountGate("runs", "max_concurrent_runs", limits.max_concurrent_runs)
        self.default_runs: bool = False
        """The run gate's limit was not set: it is the default."""
        self.tag_gates: dict[str, Gate] = {}
        self.runs: dict[int, RunEntry] = {}
        self.heads: dict[int, QueuedRun] = {}
        self.unplaced: dict[int, RunEntry] = {}
        """Executing runs that gave their place back."""
        self.kept: dict[int, KeptPlace] = {}
        """Runs that have begun and wait, or are queued again: they are charged where they keep their place."""
        self.pause_gate: Gate = CountGate("pause", "pause", UNLIMITED)
        """Holds all queued runs that are paused, or whose flow is."""
        self.pause_gate.set(UNLIMITED, paused=True)
        self.held_back: dict[int, list[QueuedRun]] = {}
        """Runs that wait for the run they replace to end, by that run."""

    def put_head(self, row: RunRow) -> None:
        """A queued run that stands at the head of its lane."""
        known = self.heads.get(row.seq)
        if known is not None:
            if known.row.priority == row.priority:
                return
            self.drop_head(row.seq)
        head = QueuedRun(row, lanes.rank(self.limits, row.priority, row.queued_at))
        self.heads[row.seq] = head
        if row.waits_for is not None:
            head.joined = max(self.now, row.queued_at)
            self.held_back.setdefault(row.waits_for, []).append(head)
        else:
            self.line_up_run(head)

    def drop_head(self, run: int, now: int = 0) -> QueuedRun | None:
        head = self.heads.pop(run, None)
        if head is None:
            return None
        if head.lane is not None:
            head.waits, head.in_line = waits_of(head, head.lane, now or self.now), False
            self.run_queue.remove(head, head.lane)
        elif head.row.waits_for is not None:
            waiting = self.held_back.get(head.row.waits_for, [])
            if head in waiting:
                waiting.remove(head)
        return head

    def line_up_run(self, head: QueuedRun) -> None:
        row = head.row
        paused = self.is_paused(row)
        key: object = lanes.PAUSED
        if not paused:
            keeps = self.keeps_of(head)
            key = ("hold",)
            if row.kind != "hold":
                key = lanes.signature(self.limits, row.tags, keeps=keeps)
        lane = self.run_queue.lanes.get(key)
        if lane is None:
            # A hold passes the queue at once and takes no turn there.
            fair = None if row.kind == "hold" or paused else self.fair_value(row)
            gates = (self.pause_gate,) if paused else self.run_gates(row, self.keeps_of(head))
            made: Lane[QueuedRun] = Lane(key, gates, fair=fair)
            lane = made
        head.lane = lane
        head.mark, head.joined = lane.clock, max(self.now, row.queued_at)
        self.run_queue.add(head, lane)
        if lane.clock.gate:
            self.wait_book.joined[lane] = None

    def is_paused(self, row: RunRow) -> bool:
        """Whether nothing of it starts. The end of a run, asked for or by its deadline, goes before a pause."""
        limits = self.limits
        return (
            bool(limits.paused_flows or limits.paused_runs)
            and row.kind == "flow"
            and row.verdict not in _ENDS
            and limits.is_paused(row.flow, row.seq)
        )

    def keeps_of(self, head: QueuedRun) -> tuple[str, ...]:
        """The limits at which a run that comes back has kept its place."""
        if head.again is not None:
            return head.again.keeps
        known = self.kept.get(head.id)
        return () if known is None else known.rules

    def run_gates(self, row: RunRow, keeps: Collection[str] = ()) -> tuple[Gate, ...]:
        """Every gate a queued run passes before it starts; holds of slots pass none.

        `keeps`: limits at which it has kept its place.
        """
        if row.kind == "hold":
            return ()
        gates = [self.run_gate]
        for rule in self.limits.tags:
            counter = rule.counter(row.tags)
            if (
                counter is not None
                and (rule.limit >= 0 or rule.paused)
                and not (keeps and rule.keeps(keeps))
            ):
                gates.append(self._tag_gate(rule, counter))
        return tuple(gates)

    def keeping(self, row: RunRow) -> tuple[str, ...]:
        """The limits at which this run keeps its place when it gives it back."""
        return tuple(
            rule.name
            for rule in self.limits.tags
            if rule.counts_while_waiting and row.kind == "flow" and rule.counter(row.tags)
        )

    def kept_gates(self, tags: Mapping[str, str], keeps: Collection[str]) -> tuple[Gate, ...]:
        """Where a run without a place is charged all the same."""
        if not keeps:
            return ()
        return tuple(
            self._tag_gate(rule, counter)
            for rule in self.limits.tags
            if rule.keeps(keeps)
            and (counter := rule.counter(tags)) is not None
            and (rule.limit >= 0 or rule.paused)
        )

    def keep_places(self, kept: Iterable[KeptPlace]) -> None:
        """As rows have them, at a rebuild."""
        for each in kept:
            self.kept[each.run] = each
            for gate in self.kept_gates(each.tags, each.rules):
                gate.used += 1

    def drop_kept(self, seq: int) -> None:
        """It neither waits nor is queued any more, and does not execute: it is held, or has ended."""
        if (known := self.kept.pop(seq, None)) is not None:
            self.run_queue.release(self.kept_gates(known.tags, known.rules), ())

    def _tag_gate(self, rule: TagRule, counter: str) -> Gate:
        gate = self.tag_gates.get(counter)
        if gate is None:
            gate = self.tag_gates[counter] = CountGate("tag", counter, rule.limit)
        gate.set(rule.limit, paused=rule.paused)
        return gate

    def fair_value(self, row: RunRow) -> str | None:
        fair = self.limits.fair
        return None if fair is None else row.tags.get(fair.key, "")

    def decide_runs(self, now: int, budget: int) -> Iterator[QueuedRun]:
        """Queued runs that start now, charged at the run gates, in order."""
        for head, _ in self.run_queue.decide(now, budget):
            if head.again is None:
                del self.heads[head.id]
            yield head

    def add_run(self, row: RunRow, graph: Graph, *, charged: bool, placed: bool = True) -> RunEntry:
        """An executing run; `charged` where `decide_runs` has charged its gates already."""
        run = self.runs[row.seq] = RunEntry(row, graph)
        run.fair = self.fair_value(row)
        if row.kind == "flow":
            run.gates = self.run_gates(row)
            self.wait_book.touched |= {gate: None for gate in run.gates if gate.parked}
            run.paused = self.is_paused(row)
            # Where it has kept its place it is charged already.
            known = self.kept.pop(row.seq, None) if self.kept else None
            if not placed:
                run.placed = False
                run.keeps = () if known is None else known.rules
                self.unplaced[run.seq] = run
            elif not charged:
                for gate in run.gates if known is None else self.run_gates(row, known.rules):
                    gate.used += 1
        return run

    def leave_place(self, run: RunEntry) -> None:
        """No worker that lives can go on with it: others use its place."""
        run.placed = False
        self.unplaced[run.seq] = run
        run.keeps = self.keeping(run.row)
        self._release_place(run, self.kept_gates(run.row.tags, run.keeps))

    def _release_place(self, run: RunEntry, kept: Collection[Gate]) -> None:
        gates = tuple(gate for gate in run.gates if gate not in kept) if kept else run.gates
        self.run_queue.release(gates, ())

    def stop_returning(self, run: RunEntry) -> None:
        """It does not want a place now: it leaves the line at its gates."""
        if run.returning is not None and run.returning.lane is not None:
            self.run_queue.remove(run.returning, run.returning.lane)
        run.returning = None

    def place(self, run: RunEntry) -> None:
        """It has passed its gates, and is charged."""
        run.placed, run.returning, run.keeps = True, None, ()
        self.unplaced.pop(run.seq, None)

    def end_run(self, seq: int) -> None:
        self.give_place_back(seq)
        self.ended(seq)

    def wait(self, run: RunEntry) -> tuple[str, ...]:
        """It waits and does not execute. Where does it keep its place?"""
        keeps = self.keeping(run.row) if run.placed else run.keeps
        if keeps:
            row = run.row
            self.kept[run.seq] = KeptPlace(row.seq, row.id, row.tags, keeps, row.started_at)
        self.give_place_back(run.seq)
        return keeps

    def give_place_back(self, seq: int) -> None:
        """It does not execute any more."""
        run = self.runs.pop(seq, None)
        if run is not None:
            known = self.kept.get(seq)
            kept = () if known is None else self.kept_gates(known.tags, known.rules)
            if run.placed:
                self._release_place(run, kept)
            else:
                self.stop_returning(run)
                if run.keeps and known is None:
                    self.run_queue.release(self.kept_gates(run.row.tags, run.keeps), ())
            self.unplaced.pop(seq, None)
            known_runs = len(self.runs) + len(self.run_queue.lanes) + len(self.kept)
            if len(self.tag_gates) > 2 * known_runs + 1_000:
                self._forget_tag_gates()

    def _forget_tag_gates(self) -> None:
        """Gates of tag values that are gone; never one that a lane or a run still points to."""
        used = {gate.name for run in self.runs.values() for gate in run.gates}
        used |= {name for name, gate in self.tag_gates.items() if gate.used}
        used |= {gate.name for lane in self.run_queue.lanes.values() for gate in lane.gates}
        for name in [name for name in self.tag_gates if name not in used]:
            del self.tag_gates[name]

    def ended(self, seq: int, behind: int | None = None) -> None:
        """The run that waited to replace this one is examined now, or waits for `behind`."""
        for head in self.held_back.pop(seq, ()):
            if behind is None:
                head.waits = {KEY: max(0, self.now - head.joined)}
                self.line_up_run(head)
            else:
                head.row = msgspec.structs.replace(head.row, waits_for=behind)
                self.held_back.setdefault(behind, []).append(head)
