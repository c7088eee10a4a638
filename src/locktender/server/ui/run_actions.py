"""What can be done with a run on its page: cancel, retry, pause and resume it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from locktender.base.graph import TRACE
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.run_details import (
    TaskPart,
    graph_and_tasks,
)
from locktender.client.views import RunInfo
from locktender.server.api.routing import conflict
from locktender.server.ui.dialogs import Commands, Dialog, FormField, Given
from locktender.server.ui.pages import Done, UiRoute, View


def _refuse(info: RunInfo, verb: str, ended: bool) -> None:
    if (info.state in TERMINAL_RUNS) != ended and info.state != RunState.HELD:
        raise conflict(info, f"is {info.state}: it cannot be {verb}", "Reload the page.")


async def ask_cancel(view: View) -> Response:
    run, info = await view.run()

    def commands(given: Given) -> Commands:
        reason, force = given.get("reason", ""), bool(given.get("force"))
        body = {**({"reason": reason} if reason else {}), **({"force": True} if force else {})}
        return Commands(
            view.cli("runs cancel", run.id, reason=reason, force=force),
            view.curl("POST", f"/runs/{run.id}/cancel", body),
        )

    return await view.dialog(
        Dialog(
            "Cancel this run?",
            f"Nothing more of it starts. Steps that run are asked to stop, clean-up steps of {info.flow} run.",
            "Cancel the run",
            f"/runs/{run.id}/cancel",
            commands,
            danger=True,
            fields=(
                FormField("reason", "Reason", hint="Kept in the history."),
                FormField("force", "Without clean-up steps", "check"),
            ),
        )
    )


async def cancel(view: View) -> Response:
    run, info = await view.run()
    _refuse(info, "cancelled", ended=False)
    await run.cancel(view.sent("reason"), force=bool(view.sent("force")))
    return await view.done(Done("The run is being cancelled."))


async def ask_retry(view: View) -> Response:
    run, info = await view.run()
    step = view.query("step")
    tasks = await graph_and_tasks(view.core, run.id, TaskPart(limit=1))
    nodes = tasks.graph.nodes
    steps = [each.name for each in nodes if each.wait is None and each.name != TRACE]
    failed = info.state != RunState.SUCCEEDED
    choices = [("", "what has not succeeded")] if failed else []
    choices += [(each, f"{each} and all that follow it") for each in steps]

    def commands(given: Given) -> Commands:
        first = given.get("from_step", "")
        return Commands(
            view.cli("runs retry", run.id, from_=first),
            view.curl("POST", f"/runs/{run.id}/retry", {"from_step": first} if first else {}),
        )

    return await view.dialog(
        Dialog(
            f"Run again from {step}" if step else "Run again",
            "The run is queued again, with the same id. Steps that are not run again keep their results.",
            "Queue it again",
            f"/runs/{run.id}/retry",
            commands,
            fields=(
                FormField(
                    "from_step",
                    "Run again",
                    "choice",
                    step,
                    required=not failed,
                    choices=tuple(choices[:500]),
                ),
            ),
        )
    )


async def retry(view: View) -> Response:
    run, info = await view.run()
    _refuse(info, "run again", ended=True)
    await run.retry(from_step=view.sent("from_step") or None)
    return await view.done(Done("The run is queued again."))


async def ask_pause(view: View) -> Response:
    run, _ = await view.run()

    def commands(given: Given) -> Commands:
        reason = given.get("reason", "")
        return Commands(
            view.cli("runs pause", run.id, reason=reason),
            view.curl("POST", f"/runs/{run.id}/pause", {"reason": reason} if reason else None),
        )

    return await view.dialog(
        Dialog(
            "Pause this run?",
            "Nothing more of it starts; steps that run go on. It holds no place meanwhile.",
            "Pause the run",
            f"/runs/{run.id}/pause",
            commands,
            fields=(FormField("reason", "Reason", hint="Shown wherever the run is explained."),),
        )
    )


async def pause(view: View) -> Response:
    run, info = await view.run()
    _refuse(info, "paused", ended=False)
    await run.pause(view.sent("reason"))
    return await view.done(Done("The run is paused."))


async def ask_resume(view: View) -> Response:
    run, _ = await view.run()
    return await view.dialog(
        Dialog(
            "Resume this run?",
            "It takes its place in the queue again and goes on where it stopped.",
            "Resume the run",
            f"/runs/{run.id}/resume",
            lambda _: Commands(
                view.cli("runs resume", run.id), view.curl("POST", f"/runs/{run.id}/resume")
            ),
        )
    )


async def resume(view: View) -> Response:
    run, info = await view.run()
    _refuse(info, "resumed", ended=False)
    await run.resume()
    return await view.done(Done("The run goes on."))


def _action(name: str, ask: Any, do: Any) -> tuple[UiRoute, UiRoute]:
    path = f"/runs/{{run}}/{name}"
    return UiRoute(path, ask, "GET", "operate"), UiRoute(path, do, "POST", "operate")


ROUTES = (
    *_action("cancel", ask_cancel, cancel),
    *_action("retry", ask_retry, retry),
    *_action("pause", ask_pause, pause),
    *_action("resume", ask_resume, resume),
)
