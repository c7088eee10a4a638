"""Where worker-seconds went: by process lives and the history of the store, beside the bound.

The bound is 1.3 × work ÷ permits, plus start-up and `idle_exit` of each worker. What is over it by
the policy (idle too early, asked too often, ended late) and what by the machine (bodies that took
longer than they were to, pauses between two tasks of a permit) are figures of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.report import Figure
from locktender.base.clock import SECOND
from locktender.base.events import Event

FACTOR = 1.3


class ProcessLife(NamedTuple):
    pid: int
    began: float
    ended: float
    """In seconds since the epoch."""


class Work(NamedTuple):
    tasks: int
    seconds: float
    """Of one task."""
    permits: int
    idle_seconds: float
    """`provisioned_idle_exit`"""


@dataclass
class _Trace:
    """What the history says of one worker."""

    joined: float = 0.0
    left: float = 0.0
    first: float = 0.0
    last: float = 0.0
    bodies: float = 0.0
    """From *running* to the end of each task, summed."""
    began: dict[int, float] = field(default_factory=dict[int, float])


def cost_figures(lives: Sequence[ProcessLife], events: Iterable[Event], work: Work) -> list[Figure]:
    traces = _traces(events)
    seen = [(life, traces[life.pid]) for life in lives]
    lived = sum(life.ended - life.began for life in lives)
    start_up = sum(trace.joined - life.began for life, trace in seen)
    idle = work.idle_seconds * len(lives)
    ideal = work.tasks * work.seconds / work.permits
    used = [(life, trace) for life, trace in seen if trace.first]
    before = sum(trace.first - trace.joined for _, trace in used)
    slow = sum(trace.bodies for _, trace in used) / work.permits - ideal
    gaps = sum(trace.last - trace.first - trace.bodies / work.permits for _, trace in used)
    late = sum(trace.left - trace.last - work.idle_seconds for _, trace in used)
    never = sum(
        trace.left - trace.joined - work.idle_seconds for _, trace in seen if not trace.first
    )
    exit_ = sum(life.ended - trace.left for life, trace in seen)
    bound = FACTOR * ideal + start_up + idle
    over = (lived - start_up - idle) / ideal
    return [
        Figure("… work ÷ permits", ideal, "worker-s"),
        Figure("… start-up, until joined", start_up, "worker-s"),
        Figure("… idle_exit", idle, "worker-s"),
        Figure("… policy: from joined to the first task", before, "worker-s"),
        Figure("… policy: workers without a task, beyond idle_exit", never, "worker-s"),
        Figure("… policy: from the last task to left, beyond idle_exit", late, "worker-s"),
        Figure("… exit: from left to the end of the process", exit_, "worker-s"),
        Figure("… machine: bodies, beyond their own seconds", slow, "worker-s"),
        Figure("… machine: permits free between two tasks, and the last round", gaps, "worker-s"),
        Figure("… workers lived, all of this", lived, "worker-s",
               f"≤ {FACTOR} × {ideal:.1f} + {start_up:.1f} + {idle:.1f} = {bound:.1f}", lived <= bound),
        Figure("… without start-up and idle_exit, × work", over, "", f"≤ {FACTOR}", over <= FACTOR),
    ]  # fmt: skip


def _traces(events: Iterable[Event]) -> dict[int, _Trace]:
    traces: dict[int, _Trace] = {}
    for event in events:
        at = event.at / SECOND
        worker = event.data.get("worker", event.actor.removeprefix("worker:"))
        pid = _pid(worker)
        if pid is None:
            continue
        trace = traces.setdefault(pid, _Trace())
        match event.subject, event.after:
            case "worker", "joined":
                trace.joined = trace.joined or at
            case "worker", "left":
                trace.left = trace.left or at
            case "task", "running":
                trace.first = trace.first or at
                trace.began[event.task] = at
            case "task", _ if event.task in trace.began:
                trace.last = max(trace.last, at)
                trace.bodies += at - trace.began.pop(event.task)
            case _:
                pass
    return traces


def _pid(worker: str) -> int | None:
    parts = worker.split("-")
    return int(parts[-2]) if len(parts) >= 3 and parts[-2].isdigit() else None
