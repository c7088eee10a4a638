"""Schedules: when each makes runs next, what became of its last ticks, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from locktender.base.errors import NotFound
from locktender.base.names import name as checked_name
from locktender.client.schedules import ScheduleInfo, TickInfo
from locktender.server.ui.dialogs import Commands, Dialog
from locktender.server.ui.pages import Done, UiRoute, View
from locktender.server.ui.words import segment

SCHEDULES_SHOWN = 100
TICKS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class ShownSchedule:
    info: ScheduleInfo
    when: str
    """`cron 0 3 * * 1-5`, `every 15m`, or the one moment."""
    missed: Sequence[TickInfo]
    """Of the last ticks: those that became no run, and why."""


def when_of(info: ScheduleInfo) -> str:
    if info.cron is not None:
        return f"cron {info.cron}"
    if info.every is not None:
        return f"every {info.every:g} s" if info.every < 60 else f"every {info.every / 60:g} min"
    return "once" if info.at is None else f"once, {info.at:%Y-%m-%d %H:%M:%S}"


async def show_schedules(view: View) -> Response:
    every = await view.client.schedules.list()
    listed = [each for each in every if view.principal.sees(each.tags)]
    found: list[ShownSchedule] = []
    for each in listed[:SCHEDULES_SHOWN]:
        info = await view.client.schedules.get(each.name)
        missed = [tick for tick in info.last if tick.outcome == "missed"]
        found.append(ShownSchedule(info, when_of(info), missed))
    return await view.page(
        "schedules.html",
        schedules=found,
        more=len(listed) - len(found),
        ticks_shown=TICKS_SHOWN,
    )


async def _schedule(view: View) -> ScheduleInfo:
    """The one that the path names. Another's is not there."""
    name = checked_name(view.path("schedule"), "schedule")
    found = await view.client.schedules.get(name)
    if not view.principal.sees(found.tags):
        raise NotFound(f"there is no schedule {name!r}.", field="schedule", got=name)
    return found


def _dialog(view: View, name: str, verb: str, title: str, text: str, button: str) -> Dialog:
    path = f"/schedules/{segment(name)}/{verb}"
    word = {"run": "run-now"}.get(verb, verb)
    made = Commands(view.cli(f"schedules {word}", name), view.curl("POST", path))
    return Dialog(title, text, button, path, lambda _: made)


async def ask_pause(view: View) -> Response:
    name = (await _schedule(view)).name
    text = "Ticks that pass meanwhile become no runs, and are not caught up with. Its active runs go on."
    return await view.dialog(
        _dialog(view, name, "pause", f"Pause {name}?", text, "Pause the schedule")
    )


async def pause(view: View) -> Response:
    name = (await _schedule(view)).name
    await view.client.schedules.pause(name)
    return await view.done(Done(f"Schedule {name} is paused."))


async def ask_resume(view: View) -> Response:
    name = (await _schedule(view)).name
    text = "Its next tick becomes a run again."
    return await view.dialog(
        _dialog(view, name, "resume", f"Resume {name}?", text, "Resume the schedule")
    )


async def resume(view: View) -> Response:
    name = (await _schedule(view)).name
    await view.client.schedules.resume(name)
    return await view.done(Done(f"Schedule {name} goes on."))


async def ask_run(view: View) -> Response:
    info = await _schedule(view)
    name = info.name
    text = f"Submits a run of {info.flow} with the arguments of the schedule, beside its ticks."
    return await view.dialog(_dialog(view, name, "run", f"Run {name} now?", text, "Run now"))


async def run_now(view: View) -> Response:
    run = await view.client.schedules.run_now((await _schedule(view)).name)
    return await view.done(Done("A run was submitted.", f"/runs/{run.id}"))


ROUTES = (
    UiRoute("/schedules", show_schedules),
    UiRoute("/schedules/{schedule}/pause", ask_pause, "GET", "operate"),
    UiRoute("/schedules/{schedule}/pause", pause, "POST", "operate"),
    UiRoute("/schedules/{schedule}/resume", ask_resume, "GET", "operate"),
    UiRoute("/schedules/{schedule}/resume", resume, "POST", "operate"),
    UiRoute("/schedules/{schedule}/run", ask_run, "GET", "submit"),
    UiRoute("/schedules/{schedule}/run", run_now, "POST", "submit"),
)
