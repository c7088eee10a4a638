"""The answer to `why`: what blocks, who holds it, how long it may last, and what would let it start."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from locktender.base.durations import spoken
from locktender.base.model import BlockingSession, RunRow
from locktender.base.states import ENDS, RunState, TaskState
from locktender.base.text import counted, stop_text
from locktender.kernel.deadlines import Until
from locktender.kernel.queue_position import Precision
from locktender.kernel.reasons import GateOpening, Holder, Reason
from locktender.observe.waiting_steps import OfferedStep, UnstoppedStep, WaitingStep

LEFT = "It has left the queue this moment."


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to `why`."""

    subject: str
    """`run` or `task`."""
    id: str
    name: str
    state: str
    since: int
    now: int
    reasons: tuple[Reason, ...] = ()
    position: int | None = None
    """Its place in the order in which queued runs start if no other run comes: 1 is next.

    A run that waits at a limit of its own is overtaken, and counted all the same.
    """
    position_is: Precision = "exact"
    """How `position` is meant: exact, unless fair turns are not known for certain, a tag's limit holds it or
    one before it up (about), or a long queue was not counted to its end (at least)."""
    priority: int = 0
    tags: dict[str, str] = {}
    lets_start: tuple[GateOpening, ...] = ()
    """What has to happen for it to start: all of it, each in one of the ways it names. If nobody else comes,
    that is enough, and less is not."""
    offers: int = 0
    """Of a task: how often it was offered to a worker so far."""
    waiting: tuple[WaitingStep, ...] = ()
    more_waiting: int = 0
    """Steps that wait beside those listed in `waiting`."""
    pending: dict[str, list[str]] = {}
    """Steps not asked for yet, and the steps they wait for."""
    offered: dict[str, OfferedStep] = {}
    """Steps with tasks that were offered to a worker, which has not accepted them yet."""
    running: dict[str, int] = {}
    unstopped: dict[str, UnstoppedStep] = {}
    """Steps with tasks that were asked to stop and still run: they keep what they hold until they end."""
    note: str = ""
    ended_at: int = 0
    until: tuple[Until, ...] = ()
    """When it ends without having started, or ended, and as what."""
    held_up: tuple[BlockingSession, ...] = ()
    """Sessions of the database server that delay the store."""
    troubles: tuple[str, ...] = ()
    """Of the whole store: terms that fail, rules and workers that cannot be read."""

    @property
    def estimate_us(self) -> int | None:
        """How long it will probably wait: for the slowest of its gates. None where that is not known."""
        slowest = _slowest(self.reasons)
        return None if slowest is None else slowest.estimate_us

    @property
    def over(self) -> bool:
        """It has ended, so that nothing of the answer changes any more."""
        return bool(self.ended_at) or self.state in ENDS

    def without_times(self) -> Why:
        """The same but for what changes by the clock alone."""
        groups = tuple(
            replace(each, reasons=_timeless(each.reasons), lets_start=()) for each in self.waiting
        )
        return replace(
            self, now=0, reasons=_timeless(self.reasons), lets_start=(), waiting=groups, note=""
        )

    @property
    def unblocked(self) -> bool:
        """Nothing at its gates blocks it, or a step of it, and it has not started."""
        if self.ended_at or self.note == LEFT:
            return False
        if self.state in (RunState.QUEUED, TaskState.REQUESTED):
            return not self.reasons
        return any(not group.reasons for group in self.waiting)

    def text(self) -> str:
        """The explanation as text, as `print` shows it."""
        age = spoken(max(0, self.now - self.since))
        if self.ended_at:
            ago = spoken(max(0, self.now - self.ended_at))
            more = (
                f" Where its time went: locktender blame {self.id}" if self.subject == "run" else ""
            )
            return (
                f"{self.subject} {self.id} ({self.name}) ended {self.state} {ago} ago."
                f" It waits for nothing.{more}"
            )
        head = f"{self.subject} {self.id} ({self.name}) is {self.state}, for {age}"
        if self.position is not None:
            head += f", position {_count_text(self.position, self.position_is)} in the queue"
            head += f", priority {self.priority}"
            if self.tags:
                head += f", tags {', '.join(f'{key}={value}' for key, value in self.tags.items())}"
        lines = [head + "."]
        lines += _lines(self.reasons, "  ", self.now)
        lines += _wait_lines(self.reasons, "  Expected wait")
        lines += start_lines(self.lets_start, "  To")
        if self.offers and self.state == TaskState.REQUESTED:
            lines.append(f"  It was offered {counted(self.offers, 'time')} so far.")
        lines += [f"  It {each.text(self.now)}." for each in self.until]
        for step, offer in self.offered.items():
            lines.append(f"  {offer.count} × {step} not accepted yet: {offer.text(self.now)}")
        for step, count in self.running.items():
            told = self.unstopped.get(step)
            lines.append(
                f"  {count} × {step} running{f'; {told.text(self.now, count)}' if told else ''}"
            )
        for group in self.waiting:
            lines.append(f"  {group.count} × {group.step} waiting:")
            lines += _lines(group.reasons, "    ", self.now) or ["    for the leader's next cycle"]
            first = "" if group.count == 1 else "the first of them "
            of = "" if group.count == 1 else " of the first of them"
            lines += _wait_lines(group.reasons, f"    expected wait{of}")
            lines += start_lines(group.lets_start, "    to", first.rstrip() or "it")
            lines += [f"    {first}{each.text(self.now)}." for each in group.until]
        if self.more_waiting:
            lines.append(f"  and {counted(self.more_waiting, 'step')} more waiting")
        for step, others in self.pending.items():
            lines.append(f"  {step} waits for {', '.join(others) or 'its turn'}")
        if self.note:
            lines.append(f"  {self.note}")
        lines += [f"  {session.text()}" for session in self.held_up]
        lines += [f"  {trouble}" for trouble in self.troubles]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def _count_text(count: int, meant: Precision) -> str:
    return f"{count:,}" if meant == "exact" else f"{meant} {count:,}"


def _slowest(reasons: tuple[Reason, ...]) -> Reason | None:
    """The gate it waits for longest. None where one of them has no estimate: a pause, no worker, never."""
    blocking = [each for each in reasons if not each.gate.startswith("fair:")]
    if not blocking or any(each.estimate_us is None for each in blocking):
        return None
    return max(blocking, key=lambda each: each.estimate_us or 0)


def _wait_lines(reasons: tuple[Reason, ...], head: str) -> list[str]:
    """`Expected wait: ~40s: 3rd of 7 for pool db, median hold 26s over the last 50`, of the slowest gate."""
    slowest = _slowest(reasons)
    if slowest is None:
        return []
    text = f"{head}: ~{spoken(slowest.estimate_us or 0)}"
    if slowest.basis:
        text += f": {slowest.basis}"
    if slowest.p90_us is not None:
        text += f"; in 9 of 10 cases within {spoken(slowest.p90_us)}"
    return [text + "."]


def start_lines(openings: tuple[GateOpening, ...], to: str, who: str = "it") -> list[str]:
    """`To start it needs pool db 2 → 3, or any of tasks 17, 23 to end; and pool gpu resumed.`"""
    if not openings:
        return []
    about = "about " if any(each.about for each in openings) else ""
    needs = "; and ".join(each.text for each in openings)
    return [f"{to} start {who} needs {about}{needs}."]


def _lines(reasons: tuple[Reason, ...], indent: str, now: int) -> list[str]:
    lines: list[str] = []
    for reason in reasons:
        ahead = f"; {_count_text(reason.ahead, reason.ahead_is)} ahead" if reason.ahead else ""
        lines.append(f"{indent}- {reason.text}{ahead}")
        for holder in reason.holders[:3]:
            what = f"task {holder.task}" if holder.task else f"run {holder.run}"
            what += f" ({holder.node})" if holder.task and holder.node else ""
            slots = f", {holder.slots} slots" if holder.slots > 1 else ""
            dead = ""
            if holder.dead:
                left = spoken(max(0, holder.until - now))
                dead = f", whose worker {holder.worker} is dead, for {left} more"
            told = (
                f", {stop_text(holder.stop_reason, holder.stop_asked_at, now)}"
                if holder.stop_reason
                else ""
            )
            lines.append(f"{indent}    held by {what}{slots}{dead}{told}{_where(holder, now)}")
        rest = max(0, len(reason.holders) - 3) + reason.more_holders
        if rest > 0:
            lines.append(
                f"{indent}    and {rest} more" if reason.holders else f"{indent}    held by {rest}"
            )
    return lines


def _where(holder: Holder, now: int) -> str:
    """Since when, on which worker and for which run, as far as that is not said."""
    text = f" for {spoken(max(0, now - holder.since))}" if holder.since else ""
    if holder.task and holder.worker and not holder.dead:
        text += f" on {'stalled ' if holder.stalled else ''}worker {holder.worker}"
    return text + (f", run {holder.run}" if holder.task and holder.run else "")


def _timeless(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    return tuple(replace(each, estimate_us=None, text="") for each in reasons)


def why_run(
    row: RunRow,
    now: int,
    since: int,
    reasons: tuple[Reason, ...] = (),
    note: str = "",
) -> Why:
    return Why(
        "run",
        row.id,
        row.flow,
        row.state,
        since,
        now,
        reasons,
        priority=row.priority,
        tags=row.tags,
        note=note,
        until=() if row.deadline_at is None else (Until("deadline", row.deadline_at),),
    )
