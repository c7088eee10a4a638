"""Why no worker takes a task: none fits (often the version of the step), or those that fit have no room.

What bounds each worker is `Worker.room`'s own answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.base.graph import TRACE
from locktender.base.model import Unstopped
from locktender.base.names import nearest
from locktender.base.text import counted
from locktender.kernel.claim import RELEASE
from locktender.kernel.gates.worker import Requirement
from locktender.kernel.placement import NoRoom, Worker


def no_fitting_worker(workers: Sequence[Worker], requirement: Requirement) -> str:
    """What the workers lack, the nearest first: the version, then a label, then permits, then the step itself."""
    if requirement.step == TRACE:
        return _no_tracing_worker(workers, requirement)
    wanted = ", ".join(f"{label}={value}" for label, value in requirement.needs)
    only = len(workers) == 1
    text = "the only worker cannot" if only else f"none of {len(workers):,} workers can"
    text += f" run step {requirement.step}"
    lacking = {worker.id: worker.misfit(requirement) for worker in workers}
    knowing = [worker for worker in workers if lacking[worker.id] != "code"]
    able = [worker for worker in knowing if lacking[worker.id] != "version"]
    if not knowing:
        unknown = "it does not know it" if only else "none knows it"
        return f"{text}{f' with {wanted}' if wanted else ''}: {unknown}"
    if not able:
        found = {(worker.row.steps or {}).get(requirement.step, "") for worker in knowing}
        others = ", ".join(sorted(found))
        return (
            f"{text} in version {requirement.signature}, which its run was submitted with;"
            f" {_know(knowing, only=only)} it in another version ({others})"
        )
    labelled = [worker for worker in able if lacking[worker.id] != "labels"]
    if not labelled:
        asked = " ".join(
            f"--label {shlex.quote(f'{key}={value}')}" for key, value in requirement.needs
        )
        return (
            f"{text} with {wanted}; {_know(able, only=only)} it without that label."
            f" Start one that has it: locktender worker … {asked}"
        )
    return f"{text}: {_know(labelled, only=only)} it without {requirement.executor} permits"


def _no_tracing_worker(workers: Sequence[Worker], requirement: Requirement) -> str:
    """Of a run submitted by name: no worker can trace its flow."""
    flow = requirement.signature
    knowing = [worker for worker in workers if worker.misfit(requirement) != "code"]
    if knowing:
        some = (
            "the worker that knows" if len(knowing) == 1 else f"{len(knowing):,} workers that know"
        )
        return f"{some} flow {flow} cannot trace it without thread permits"
    hint = nearest(flow, {name for worker in workers for name in worker.row.flows})
    start = "Start a worker with its code: locktender worker FILE.py"
    return f"no worker knows flow {flow}. {hint or start}"


def _know(workers: Sequence[Worker], *, only: bool) -> str:
    if only:
        return "it knows"
    return "1 worker knows" if len(workers) == 1 else f"{len(workers):,} workers know"


def no_room(workers: Sequence[Worker], executor: str, unstopped: int = 0, *, now: int = 0) -> str:
    """What is said of them. `unstopped`: how many of their tasks were asked to stop and have not."""
    groups: dict[NoRoom, list[Worker]] = {}
    for worker in workers:
        groups.setdefault(worker.room(executor)[1], []).append(worker)
    told = f", {unstopped:,} asked to stop and still running" if unstopped else ""
    if len(groups) > 1:
        each = [
            f"{len(group):,} {_has(kind, group, executor, now)}"
            for kind, group in sorted(groups.items())
        ]
        return f"of {len(workers):,} workers that could take it {', '.join(each)}{told}"
    [(kind, group)] = groups.items()
    if kind == "permits":
        tasks = counted(_used(group, executor), "task")
        return (
            f"all {executor} permits of {counted(len(group), 'worker')} are in use ({tasks}{told})"
        )
    who = "the only worker that could take it"
    if len(group) > 1:
        who = f"all {len(group):,} workers that could take it"
    return f"{who} {_has(kind, group, executor, now)}{told}"


def usable_permits(worker: Worker, executor: str) -> int:
    """How many tasks of this kind it can have at once as it is now; 0 where nothing bounds it."""
    row = worker.row
    bounds = [each for each in (row.permits.get(executor, 0), row.total) if each > 0]
    return worker.usable(min(bounds)) if bounds else 0


def pressures(pressed: Mapping[str, float], memory: float, p99_us: int) -> list[str]:
    """What presses a worker, with numbers: `memory 85 % (over 80 %)`."""
    found: list[str] = []
    for signal, threshold in pressed.items():
        if signal == "memory":
            over, until = f"{100 * threshold:.3g} %", f"{100 * threshold * RELEASE:.3g} %"
            bounds = _threshold(memory, threshold, over, until)
            found.append(f"memory {100 * memory:.3g} % ({bounds})")
        else:
            limit_us = round(threshold * SECOND)
            bounds = _threshold(
                p99_us, limit_us, spoken(limit_us), spoken(round(limit_us * RELEASE))
            )
            found.append(f"p99 of its tasks {spoken(p99_us)} ({bounds})")
    return found


def _threshold(value: float, threshold: float, over: str, until: str) -> str:
    """It lets go only well below where it set in."""
    return f"over {over}" if value > threshold else f"was over {over}, until {until}"


def _has(kind: NoRoom, group: Sequence[Worker], executor: str, now: int) -> str:
    """`is draining`, `are draining`: what is said of the workers of one kind."""
    one = len(group) == 1
    has, be, its = ("has", "is", "its") if one else ("have", "are", "their")
    first = group[0].row
    match kind:
        case "stalled":
            stalls = "stalls" if one else "stall"
            return f"{stalls}: {its} lease has passed, {its} process lives and does not answer"
        case "draining":
            return f"{be} draining{_undrain(group)}"
        case "silent":
            offers = counted(sum(worker.unanswered for worker in group), "offer")
            paused = [worker.asked_again_at for worker in group if worker.asked_again_at > now]
            again = f"passed over for {spoken(min(paused) - now)} more" if paused else "asked again"
            return f"left {offers} unanswered and {be} {again}"
        case "permits":
            tasks = counted(_used(group, executor), "task")
            return f"{has} all {executor} permits in use ({tasks})"
        case "total":
            permits = counted(sum(worker.row.total for worker in group), "permit")
            return f"{has} {its} {permits} in total in use"
        case "full":
            return f"{be} nearly full ({_filled(group, executor)}) until a fifth is free, or for one beat"
        case "pressed":
            if not one:
                signals = sorted({signal for worker in group for signal in worker.row.pressed})
                return f"use fewer permits under pressure ({', '.join(signals) or 'pressure'})"
            of = max(0, first.permits.get(executor, 0))
            tasks = f" ({_used(group, executor)} of {of} in use)" if of else ""
            why = ", ".join(pressures(first.pressed, first.memory, first.p99_us)) or "pressure"
            return f"uses {first.share} % of its permits under pressure{tasks}: {why}"
        case "offers":
            offers = sum(worker.offered for worker in group)
            takes = "takes" if one else "take"
            return (
                f"{has} not answered {counted(offers, 'offer')} yet and {takes} no more at a time"
            )
        case "claim":
            return f"{'takes' if one else 'take'} no more tasks now"
        case "":
            return f"{has} room"


def _undrain(group: Sequence[Worker]) -> str:
    """How to take the drain back, if there is one worker and an operator ordered it."""
    if all(worker.row.ending for worker in group):
        return " because its process ends" if len(group) == 1 else " because their processes end"
    return f" (take it back: locktender workers undrain {group[0].id})" if len(group) == 1 else ""


def _used(group: Sequence[Worker], executor: str) -> int:
    return sum(worker.used_by.get(executor, 0) for worker in group)


def _filled(group: Sequence[Worker], executor: str) -> str:
    if all(executor in worker.row.full for worker in group):
        of = sum(worker.row.permits.get(executor, 0) for worker in group)
        return f"{_used(group, executor):,} of {of:,} {executor} permits in use"
    used, of = sum(worker.used for worker in group), sum(worker.row.total for worker in group)
    return f"{used:,} of {of:,} permits in use"


def unstopped_by_token(workers: Iterable[Worker]) -> dict[int, Unstopped]:
    """Attempts that were asked to stop and still run, by the last report of their workers."""
    return {each.token: each for worker in workers for each in worker.row.unstopped}
