"""The queue: who is next, what each waits for, and for how long."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from locktender.base.errors import InvalidInput
from locktender.base.graph import TRACE
from locktender.base.ids import MAX_RUNS
from locktender.client.parts import MAX_EXAMINED, queue_in_parts
from locktender.client.run_details import nodes_of
from locktender.client.views import RunInfo, instant
from locktender.observe.answer import Why
from locktender.observe.rebuilt import places
from locktender.observe.why_queued import queued_whys
from locktender.server.api.routing import ApiCall, conflict
from locktender.server.ui.dialogs import Commands, Dialog, FormField, Given, number
from locktender.server.ui.pages import Done, UiRoute, View
from locktender.server.ui.words import address, requested
from locktender.store.protocol import QueueEntry, QueuePlace, Store

PAGE = 50
MAX_STEPS = 4


class QueuedRow(msgspec.Struct, frozen=True):
    """One queued run as the page shows it."""

    position: int
    run: RunInfo
    why: Why
    steps: tuple[str, ...]
    more_steps: int

    @property
    def paused(self) -> bool:
        return any(each.gate.startswith("pause") for each in self.why.reasons)


async def show_queue(view: View) -> Response:
    after = _place(view)
    store = view.core.store
    entries, last = await _page(view, after)
    whys, _ = await queued_whys(store, entries)
    numbers = [entry.run.seq for entry in entries]
    rows = await _rows(store, entries, view.hidden(zip(numbers, whys, strict=False)))
    opened, (limits, _) = await store.open_runs(), await store.limits()
    following = ""
    if last is not None:
        following = address("/queue", after=last.run, position=last.position)
    return await view.page(
        "queue.html",
        rows=rows,
        opened=opened,
        oldest=instant(opened.oldest_at) if opened.oldest_at else None,
        places=await _places(view, entries),
        max_runs=limits.max_concurrent_runs,
        max_active=limits.max_active,
        runs_paused=limits.runs_paused,
        fair=None if limits.fair is None else limits.fair.key,
        next=following,
        first="/queue" if after else "",
    )


def _place(view: View) -> QueuePlace | None:
    run, position = view.query("after"), view.query("position", "0")
    if not run:
        return None
    if not (run.isdecimal() and position.isdecimal() and int(run[:20]) <= MAX_RUNS):
        raise InvalidInput(
            "this is not a place in the queue.", field="after", got=run, hint="/queue"
        )
    return QueuePlace(int(run), int(position[:18]))


async def _page(view: View, after: QueuePlace | None) -> tuple[list[QueueEntry], QueuePlace | None]:
    """The entries of one page, and where the next one begins."""
    found, place = await queue_in_parts(
        view.core, view.principal.tags, PAGE + 1, after, MAX_EXAMINED
    )
    if len(found) > PAGE:
        place = QueuePlace(found[PAGE - 1].run.seq, found[PAGE - 1].position)
    return found[:PAGE], place


async def _places(view: View, entries: list[QueueEntry]) -> int:
    """How many runs hold a place. Beside a queued run that is a small read, however long the queue is."""
    for entry in entries[:1]:
        beside = await view.core.store.beside(entry.run.seq, 1)
        if beside is not None:
            return places(beside).ledger.run_gate.used
    return (await view.work()).places


async def _rows(store: Store, entries: list[QueueEntry], whys: list[Why]) -> list[QueuedRow]:
    graphs: dict[str, list[str]] = {}
    found: list[QueuedRow] = []
    for entry, why in zip(entries, whys, strict=False):
        graph = entry.run.graph
        if graph not in graphs:
            graphs[graph] = await _steps(store, graph)
        steps = graphs[graph]
        shown = tuple(steps[:MAX_STEPS])
        found.append(
            QueuedRow(entry.position, RunInfo.of(entry.run), why, shown, len(steps) - len(shown))
        )
    return found


async def _steps(store: Store, graph: str) -> list[str]:
    """None of a run that was submitted by name: a worker says its steps when it starts."""
    if not graph:
        return []
    return [node.name for node in await nodes_of(store, graph) if node.step != TRACE]


async def ask_cancel(view: View) -> Response:
    _, info = await view.run()
    ApiCall.refuse_ended(info, "cancelled")

    def commands(given: Given) -> Commands:
        reason = given.get("reason", "")
        body = {"ids": [info.id], **({"reason": reason} if reason else {})}
        return Commands(
            view.cli("queue cancel", info.id, reason=reason),
            view.curl("POST", "/queue/cancel", body),
        )

    return await view.dialog(
        Dialog(
            f"Cancel run {info.id[:12]}?",
            "It leaves the queue and ends cancelled. If it has started meanwhile, it goes on.",
            "Cancel the run",
            f"/queue/{info.id}/cancel",
            commands,
            danger=True,
            fields=(FormField("reason", "Reason", hint="Kept in the history."),),
        )
    )


async def cancel(view: View) -> Response:
    run, info = await view.run()
    asked = await view.client.queue.cancel(run.id, reason=view.sent("reason"))
    if asked.started or asked.over:
        raise conflict(
            info, "has left the queue", "Its page has what can be done with a run that has started."
        )
    return await view.done(Done(requested("Cancelling {}", asked), f"/runs/{run.id}"))


async def ask_priority(view: View) -> Response:
    _, info = await view.run()

    def commands(given: Given) -> Commands:
        priority = number(given["priority"])
        return Commands(
            view.cli("queue reprioritise", info.id, priority),
            view.curl("PUT", f"/runs/{info.id}/priority", {"priority": priority}),
        )

    return await view.dialog(
        Dialog(
            f"Priority of run {info.id[:12]}",
            "Of queued runs the one with the higher priority starts first.",
            "Set the priority",
            f"/queue/{info.id}/priority",
            commands,
            fields=(
                FormField(
                    "priority",
                    "Priority",
                    "number",
                    str(info.priority),
                    "−1,000,000 to 1,000,000; 0 where none was given.",
                    required=True,
                ),
            ),
        )
    )


async def set_priority(view: View) -> Response:
    run, info = await view.run()
    asked = await view.client.queue.reprioritise(run.id, number(view.sent("priority")))
    if asked.started or asked.over:
        raise conflict(info, "has left the queue", "Only a queued run has a place to change.")
    return await view.done(Done(requested("Changing the priority of {}", asked)))


ROUTES = (
    UiRoute("/queue", show_queue),
    UiRoute("/queue/{run}/cancel", ask_cancel, scope="operate"),
    UiRoute("/queue/{run}/cancel", cancel, "POST", "operate"),
    UiRoute("/queue/{run}/priority", ask_priority, scope="operate"),
    UiRoute("/queue/{run}/priority", set_priority, "POST", "operate"),
)
