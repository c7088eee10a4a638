"""The canal: from submission to the end, as a picture. Chambers hold what waits; bands of water say at which gate.

Only numbers go in and only places come out; `overview.html` draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log10

import msgspec

from locktender.base.clock import SECOND
from locktender.server.ui.reading import (
    BUCKET_SECONDS,
    BUCKETS,
    MAX_RUNS,
    RATE_US,
    ActiveWork,
    GateCount,
)
from locktender.server.ui.words import (
    address,
    brief,
    gate_family,
    gate_text,
    plural,
    segment,
    tag_filter,
)
from locktender.store.protocol import Traffic

TOP, BOTTOM = 58.0, 208.0
"""Between these a chamber fills."""
COUNT_AT_BRIM = 10_000
"""With so many a chamber is full to its brim."""
MIN_HEIGHT = 10.0
MAX_BANDS = 5
ENDED_WELL = ("succeeded", "cancelled")


class Band(msgspec.Struct, frozen=True):
    """Water of one chamber that one gate holds back."""

    family: str
    label: str
    href: str
    y: float
    height: float
    waiting: int


class Chamber(msgspec.Struct, frozen=True):
    """A part of the canal between two gates."""

    title: str
    x: float
    width: float
    value: str
    note: str
    href: str
    level: float
    """Where its water ends, from above."""
    bands: list[Band]
    kind: str = ""


class CanalGate(msgspec.Struct, frozen=True):
    """A gate between two chambers: how far it is shut."""

    x: float
    label: str
    use: str
    rate: str
    """How many pass it in a minute; empty: that is not counted."""
    full: bool
    """Nothing more fits through."""
    meant: str
    """Of what the rate is."""


class Canal(msgspec.Struct, frozen=True):
    chambers: list[Chamber]
    gates: list[CanalGate]
    bottleneck: GateCount | None
    """Where most wait."""
    said: str
    """The picture in words."""


class RunRates(msgspec.Struct, frozen=True):
    """Runs per minute, of the last minute."""

    submitted: float
    started: float
    ended: float
    failed: float


class Series(msgspec.Struct, frozen=True):
    """What became of runs over time, one number per bucket."""

    times: list[int]
    """Seconds since the epoch."""
    succeeded: list[float]
    failed: list[float]
    median: list[float | None]
    slow: list[float | None]
    """Seconds that 95 of 100 waited at most."""


def rates(traffic: Traffic) -> RunRates:
    """Where so many runs came lately that not all were read, of the time that was."""
    span = RATE_US
    if traffic.read >= MAX_RUNS:
        span = max(SECOND, min(span, traffic.now - traffic.oldest_at))
    since = traffic.now - span
    submitted = started = ended = failed = 0
    for run in traffic.lately:
        submitted += run.queued_at > since
        started += run.started_at > since
        if run.ended_at > since:
            ended += 1
            failed += run.state not in ENDED_WELL
    per_minute = RATE_US / span
    return RunRates(*(round(each * per_minute, 1) for each in (submitted, started, ended, failed)))


def series(traffic: Traffic) -> Series:
    """The last quarter of an hour."""
    width = BUCKET_SECONDS * SECOND
    first = (traffic.now // width - BUCKETS + 1) * width
    good, bad = [0.0] * BUCKETS, [0.0] * BUCKETS
    waits: list[list[float]] = [[] for _ in range(BUCKETS)]
    for run in traffic.lately:
        if run.ended_at >= first:
            at = min(BUCKETS - 1, (run.ended_at - first) // width)
            (good if run.state in ENDED_WELL else bad)[at] += 60 / BUCKET_SECONDS
        if run.started_at >= first:
            at = min(BUCKETS - 1, (run.started_at - first) // width)
            waits[at].append(max(0, run.started_at - run.queued_at) / SECOND)
    ordered = [sorted(each) for each in waits]
    return Series(
        [(first + bucket * width) // SECOND for bucket in range(BUCKETS)],
        good,
        bad,
        [round(each[len(each) // 2], 3) if each else None for each in ordered],
        [round(each[len(each) * 95 // 100], 3) if each else None for each in ordered],
    )


def _height(count: int) -> float:
    """Of water: by orders of magnitude, so that ten and ten thousand can be compared."""
    if count <= 0:
        return 0.0
    part = log10(1 + count) / log10(1 + COUNT_AT_BRIM)
    return round(MIN_HEIGHT + (BOTTOM - TOP - MIN_HEIGHT) * min(1.0, part), 1)


def gate_href(gate: GateCount) -> str:
    """Where a gate can be seen in full."""
    kind, _, name = gate.gate.partition(":")
    if kind in ("pool", "rate", "reserved") or (kind == "paused" and gate.what == "task"):
        return f"/pools/{segment(name)}"
    if kind == "tag":
        return address("/runs", status="queued", tags=tag_filter(name.replace("=*", "=")))
    if kind == "worker":
        return "/workers"
    return "/queue" if gate.what == "run" else address("/runs", status="running", group="gate")


def _bands(gates: list[GateCount]) -> list[Band]:
    """From the ground up: what most wait for lies lowest."""
    total = sum(each.waiting for each in gates)
    if not total:
        return []
    whole = _height(total)
    shown = sorted(gates, key=lambda each: -each.waiting)[:MAX_BANDS]
    rest = total - sum(each.waiting for each in shown)
    if rest:
        shown.append(GateCount("other", shown[0].what, rest))
    found: list[Band] = []
    y = BOTTOM
    for each in shown:
        height = round(whole * each.waiting / total, 1)
        y = round(y - height, 1)
        label = gate_text(each.gate) if each.gate else "starting now"
        family = gate_family(each.gate) if each.gate else "ready"
        found.append(Band(family, label, gate_href(each), y, height, each.waiting))
    return found


_SLOTS_AND_WORKERS = frozenset({"pool", "rate", "worker", "paused"})


def passed_at(gate: str, found: RunRates, passed: Mapping[str, float] | None) -> str | None:
    """How many passed a gate in the last minute; None: that is not known yet.

    The run queue: runs that started. Others: those that had waited there and went on.
    """
    if gate.partition(":")[0] == "runs":
        return brief(found.started)
    return None if passed is None else brief(round(passed.get(gate, 0)))


def canal(work: ActiveWork, found: RunRates, passed: Mapping[str, float] | None = None) -> Canal:
    opened = work.opened
    runs = [each for each in work.gates if each.what == "run"]
    tasks = [each for each in work.gates if each.what == "task"]
    waiting = sum(each.waiting for each in tasks)
    bottleneck = max(
        (each for each in work.gates if each.gate and each.waiting),
        key=lambda each: each.waiting,
        default=None,
    )
    chambers = [
        _chamber("Queued", 132, 230, opened.queued, "run", "/queue", _bands(runs)),
        _chamber(
            "Started, waiting", 392, 230, waiting, "task",
            address("/runs", status="running", group="gate"), _bands(tasks),
        ),
        _chamber(
            "Running", 652, 130, work.running, "task", address("/runs", status="running"), [], "runs-now",
        ),
    ]  # fmt: skip
    # One full pool shuts it, also where others are free: something is held back there now.
    shut = any(each.waiting and gate_family(each.gate) in _SLOTS_AND_WORKERS for each in tasks)
    went_on = sum(
        round(count)
        for gate, count in (passed or {}).items()
        if gate_family(gate) in _SLOTS_AND_WORKERS
    )
    gates = [
        _gate(117, "admitted", opened.active, work.max_active, found.submitted, "were submitted"),
        _gate(377, "the run queue", work.places, work.max_runs, found.started, "started"),
        CanalGate(
            637,
            "slots and workers",
            plural(work.workers, "worker"),
            "" if passed is None else f"{brief(went_on)} a minute",
            not work.workers or shut,
            "Tasks that had waited for slots or a worker and went on in the last minute",
        ),
    ]
    said = (
        f"{found.submitted:g} runs a minute submitted, {opened.queued} queued, {waiting} tasks wait,"
        f" {work.running} run, {found.ended:g} runs a minute end."
    )
    if bottleneck is not None:
        said += f" Most wait for {gate_text(bottleneck.gate)}: {bottleneck.waiting}."
    if opened.waiting:
        said += f" {plural(opened.waiting, 'run waits', 'runs wait')} for an event or a time."
    return Canal(chambers, gates, bottleneck, said)


def _chamber(
    title: str, x: float, width: float, count: int, what: str, href: str, bands: list[Band], kind: str = ""
) -> Chamber:  # fmt: skip
    level = BOTTOM - _height(count)
    note = f"{what}s" if count != 1 else what
    return Chamber(title, x, width, brief(count), note, href, round(level, 1), bands, kind)


def _gate(x: float, label: str, used: int, limit: int, rate: float, did: str) -> CanalGate:
    bound = "∞" if limit < 0 else brief(limit)
    return CanalGate(
        x,
        label,
        f"{brief(used)} of {bound}",
        f"{brief(rate)} a minute",
        0 <= limit <= used,
        f"Runs that {did} in the last minute",
    )
