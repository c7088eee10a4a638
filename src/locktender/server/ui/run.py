"""One run: what it waits for, its graph and timeline, tasks, values, logs, where its time went."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from markupsafe import Markup
from starlette.responses import Response, StreamingResponse

from locktender.base.durations import spoken
from locktender.base.errors import LocktenderError, NotFound
from locktender.base.ids import run_of
from locktender.base.states import ENDS, TERMINAL_RUNS, RunState
from locktender.client.run import AsyncRun
from locktender.client.run_details import (
    RunTasks,
    RunValues,
    TaskPart,
    graph_and_tasks,
    run_values,
    task_values,
)
from locktender.client.run_logs import all_lines, tail
from locktender.client.views import EventInfo, LogInfo, RunInfo
from locktender.observe.answer import Why
from locktender.server.api.reading import number
from locktender.server.ui.graph_svg import svg
from locktender.server.ui.pages import HEADERS, UiRoute, View
from locktender.server.ui.words import FAMILIES, GATE_TEXTS, clean, gate_text, iso

TABS = {
    "": "Overview",
    "tasks": "Tasks",
    "values": "Input and result",
    "logs": "Logs",
    "time": "Where the time went",
    "slots": "Queue and slots",
}
GROUPS = {
    "": "all",
    "running,scheduled": "running",
    "requested,pending": "waiting",
    "failed,timed_out,abandoned": "failed",
    "completed": "done",
    "skipped,cancelled": "skipped or cancelled",
}
"""Of states, in the filter of tasks."""
KINDS = {kind: family for family, (_, kinds) in FAMILIES.items() for kind in kinds.split()}
"""Of gates, for the timeline: the same colours and patterns as everywhere."""
TASKS_SHOWN = 50
LINES_SHOWN = 500
EVENTS_SHOWN = 200
MAX_TASKS_DRAWN = 20_000
"""Beyond it what reads every event of a run is not shown on a page."""
LINE_CHARS = 76
SHOWN_CHARS = 6_000
"""Of a value; the rest can be downloaded."""


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as JSON for people, cut."""

    text: str
    bytes: int
    cut: bool
    href: str


def pretty(value: Any, indent: str = "") -> str:
    """JSON with one line per member; lists of plain values share lines."""
    if isinstance(value, dict) and value:
        members = cast("dict[str, Any]", value).items()
        parts = [f"{_plain(key)}: {pretty(each, indent + '  ')}" for key, each in members]
    elif isinstance(value, list) and value:
        items = cast("list[Any]", value)
        if not any(isinstance(each, dict | list) for each in items):
            return _list([_plain(each) for each in items], indent)
        parts = [pretty(each, indent + "  ") for each in items]
    else:
        return _plain(value)
    first, last = "{}" if isinstance(value, dict) else "[]"
    inner = f",\n{indent}  ".join(parts)
    return f"{first}\n{indent}  {inner}\n{indent}{last}"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(items: list[str], indent: str) -> str:
    lines = [""]
    for place, item in enumerate(items, 1):
        text = item if place == len(items) else f"{item}, "
        if lines[-1] and len(lines[-1]) + len(text) > LINE_CHARS:
            lines.append("")
        lines[-1] += text
    if len(lines) == 1:
        return f"[{lines[0]}]"
    inner = f"\n{indent}  ".join(line.rstrip() for line in lines)
    return f"[\n{indent}  {inner}\n{indent}]"


def shown_value(raw: bytes | None, href: str) -> ShownValue | None:
    if raw is None:
        return None
    text = raw[: 40 * SHOWN_CHARS].decode(errors="replace")
    if len(raw) <= 40 * SHOWN_CHARS:
        try:
            text = pretty(json.loads(raw))
        except (ValueError, RecursionError):
            text = raw.decode(errors="replace")
    return ShownValue(text[:SHOWN_CHARS], len(raw), len(text) > SHOWN_CHARS, href)


async def show_run(view: View) -> Response:
    run, info = await view.run()
    tab = view.query("tab")
    tab = tab if tab in TABS else ""
    ended = info.state in TERMINAL_RUNS
    if ended and tab != "logs" and view.seen == f"{info.state} {info.generation}":
        return Response(status_code=204, headers=HEADERS)  # only late log lines still come
    why = None if ended else await _why(view, run, info)
    asked = view.query("state")
    states = tuple(each for each in asked.split(",") if each) if asked in GROUPS else ()
    after = number(view.query("after", "0"), "after")
    part = TaskPart(view.query("step"), states, after, TASKS_SHOWN)
    tasks = await graph_and_tasks(view.core, run.id, part)
    values: dict[str, Any] = {}
    if tab == "values":
        found = await run_values(view.core, run.id)
        values["given"] = shown_value(found.input, f"/runs/{run.id}/input.json")
        values["returned"] = shown_value(found.output, f"/runs/{run.id}/result.json")
    elif tab == "logs":
        values["tail"] = await tail(view.core, run.id, None, LINES_SHOWN)
    elif tab == "time" and sum(tasks.counts.values()) <= MAX_TASKS_DRAWN:
        known = info.state != RunState.SUBMITTED
        values["blame"] = view.hide_blame(await run.blame()) if known else None
    elif tab == "slots" and sum(tasks.counts.values()) <= MAX_TASKS_DRAWN:
        events = [each for each in await run.events() if each.slot or each.subject != "task"]
        values["events"] = [slot_line(each) for each in events[-EVENTS_SHOWN:]]
        values["more_events"] = len(events) - EVENTS_SHOWN
    elif tab == "":
        values["graph"] = Markup(svg(tasks.graph, run.id))  # noqa: S704 escaped by graph_svg
    defaults: dict[str, Any] = dict.fromkeys(
        ("given", "returned", "tail", "blame", "events", "graph", "more_events")
    )
    values = {**defaults, **values, "info": info, "tab": tab, "why": why, "tasks": tasks}
    values |= {
        "families": KINDS,
        "gate_texts": GATE_TEXTS,
        "tabs": TABS,
        "groups": GROUPS,
        "waits": _waits(why),
        "part": part,
        "asked": asked if asked in GROUPS else "",
        "paused": await _paused(view, info),
        "ended": ended,
        "may_retry": ended or info.state == RunState.HELD,
        "done": _done(tasks),
        "many": sum(tasks.counts.values()) > MAX_TASKS_DRAWN,
    }
    answer = await view.page("run.html", status=200, **values)
    if tab == "" and not view.fragment:
        view.api.timelines.begin(view.core, info, sum(tasks.counts.values()))
    return answer


@dataclass(frozen=True, slots=True)
class SlotLine:
    """A change of the run's place, or of slots of one of its tasks."""

    at: datetime
    who: str
    what: str
    kind: str
    gate: str
    details: str


_SAID = {"trace": "steps known"}
_SLOT_KINDS = {"claimed": "on", "expired": "bad", "waiting": "warn"}


def slot_line(event: EventInfo) -> SlotLine:
    data = event.data
    who = event.name or "the run"
    who = who if event.index is None else f"{who}[{event.index}]"
    what = event.slot or _SAID.get(event.subject) or f"{event.subject} {event.after}"
    if event.slot and event.slot != "waiting":
        what = f"slots {event.slot}"
    gate = str(data.get("gate", event.after)) if event.slot == "waiting" else ""
    parts: list[str] = []
    if event.slot == "waiting" and "limit" in data:
        parts.append(
            f"{data.get('used', 0)} of {data['limit']} in use, {data.get('need', 1)} needed"
        )
    slots = data.get("pools") if event.slot == "claimed" else data.get("released")
    if slots:
        parts.append(", ".join(f"{pool} {count}" for pool, count in slots.items()))
    if event.slot == "claimed":
        parts.append(f"on {data.get('worker', '')}, waited {spoken(int(data.get('waited_us', 0)))}")
    if data.get("waits") and not event.slot:
        waits = ", ".join(
            f"{gate_text(each)} {spoken(int(us))}" for each, us in data["waits"].items()
        )
        parts.append(f"waited: {waits}")
    if data.get("reason"):
        parts.append(str(data["reason"]))
    return SlotLine(
        event.at, who, what.replace("_", " "), _SLOT_KINDS.get(event.slot or "", ""), gate,
        "; ".join(parts),
    )  # fmt: skip


async def _why(view: View, run: AsyncRun[Any], info: RunInfo) -> Why | None:
    """None where it ends this moment, or cannot be explained."""
    try:
        return await view.hide_why(info, await run.why())
    except (NotFound, LookupError):
        return None


async def _paused(view: View, info: RunInfo) -> bool:
    """Whether it is paused itself: a pause of its flow is not resumed here."""
    if info.state in TERMINAL_RUNS:
        return False
    limits, _ = await view.core.store.limits()
    return info.number in limits.paused_runs


def _waits(why: Why | None) -> dict[str, str]:
    """Step → what its tasks wait for, in the words of `why`."""
    if why is None:
        return {}
    found = {group.step: "; ".join(each.text for each in group.reasons) for group in why.waiting}
    return found | {step: offer.text(why.now) for step, offer in why.offered.items()}


def _done(tasks: RunTasks) -> int:
    return sum(count for state, count in tasks.counts.items() if state in ENDS)


async def show_task(view: View) -> Response:
    run, info = await view.run()
    wanted = number(view.path("task"), "task")
    if run_of(wanted) != info.number:
        raise NotFound(f"run {run.id} has no task {wanted}.", field="task", got=wanted)
    task, values = await task_values(view.core, run.id, wanted)
    why = None
    if task.state not in ENDS and info.state not in TERMINAL_RUNS:
        try:
            why = await view.hide_why(info, await view.client.why(wanted))
        except LocktenderError:
            why = None  # it ended meanwhile
    return await view.page(
        "task.html",
        info=info,
        task=task,
        why=why,
        given=shown_value(values.input, f"/runs/{run.id}/tasks/{wanted}/input.json"),
        returned=shown_value(values.output, f"/runs/{run.id}/tasks/{wanted}/result.json"),
        tail=await tail(view.core, run.id, wanted, LINES_SHOWN),
        ended=info.state in TERMINAL_RUNS,
    )


def _download(values: RunValues, view: View, name: str) -> Response:
    raw = values.input if view.path("which") == "input" else values.output
    if raw is None or view.path("which") not in ("input", "result"):
        raise NotFound("there is no such value.", field="path", got=view.request.url.path)
    shown = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    return Response(raw, headers=shown, media_type="application/json")


async def download_value(view: View) -> Response:
    run, _ = await view.run()
    return _download(
        await run_values(view.core, run.id), view, f"{run.id}-{view.path('which')[:6]}.json"
    )


async def download_task_value(view: View) -> Response:
    run, info = await view.run()
    wanted = number(view.path("task"), "task")
    if run_of(wanted) != info.number:
        raise NotFound(f"run {run.id} has no task {wanted}.", field="task", got=wanted)
    _, values = await task_values(view.core, run.id, wanted)
    return _download(values, view, f"task-{wanted}-{view.path('which')[:6]}.json")


async def download_logs(view: View) -> Response:
    """All lines that are kept, by task and attempt; sent as they are read."""
    run, _ = await view.run()
    shown = {**HEADERS, "content-disposition": f'attachment; filename="{run.id}-logs.txt"'}
    lines = (
        "".join(_log_text(line) for line in part) async for part in all_lines(view.core, run.id)
    )
    return StreamingResponse(lines, headers=shown, media_type="text/plain; charset=utf-8")


def _log_text(line: LogInfo) -> str:
    step = line.name if line.index is None else f"{line.name}[{line.index}]"
    again = f" #{line.attempt}" if line.attempt > 1 else ""
    return f"{iso(line.at)} {line.level} {step}{again} {clean(line.message)}\n"


# -- actions ---------------------------------------------------------------------------------------


ROUTES = (
    UiRoute("/runs/{run}", show_run),
    UiRoute("/runs/{run}/tasks/{task}", show_task),
    UiRoute("/runs/{run}/logs.txt", download_logs),
    UiRoute("/runs/{run}/{which}.json", download_value),
    UiRoute("/runs/{run}/tasks/{task}/{which}.json", download_task_value),
)
