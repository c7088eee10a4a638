"""The overview: the canal with its gates, what is wrong, and what became of runs lately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from starlette.responses import RedirectResponse, Response

from locktender.client.views import RunInfo, WorkerInfo, instant
from locktender.server.state import DemandAnswer, Health, Need
from locktender.server.ui.canal import canal, gate_href, passed_at, rates, series
from locktender.server.ui.first_steps import submit_known
from locktender.server.ui.pages import HEADERS, UiRoute, View
from locktender.server.ui.reading import ActiveWork
from locktender.server.ui.words import address, gate_text, plural
from locktender.store.protocol import RunFilter

CEILING = 0.9
LAG_SECONDS = 60.0
MAX_FAILED = 6
MAX_ALERTS = 12
MAX_GATES = 12


class Alert(msgspec.Struct, frozen=True):
    """Something that an operator should look at."""

    text: str
    href: str = ""
    link: str = "Show"
    kind: Literal["warn", "bad"] = "warn"


async def show_overview(view: View) -> Response:
    if view.principal.tags:
        # Numbers over all runs are nobody's own.
        return RedirectResponse("/runs", 303, HEADERS)
    work = await view.work()
    health, _ = await view.api.health.answer()
    alerts = [
        *_troubles(health),
        *_of_work(work),
        *demand_alerts(await view.api.demand.answer(), await view.client.workers.list()),
    ]
    failed = await view.core.store.failed_lately(MAX_FAILED)
    lately = await view.shared.lately()
    found = rates(lately)
    passed = await view.shared.passed(work.now)
    waiting = [each for each in work.gates if each.gate and each.waiting]
    waiting.sort(key=lambda each: -each.waiting)
    idle = not lately.read and not work.opened.active
    empty = idle and not await view.core.store.runs(RunFilter(limit=1))
    return await view.page(
        "overview.html",
        canal=canal(work, found, passed),
        rates=found,
        series=series(lately),
        gates=[
            (each, gate_href(each), passed_at(each.gate, found, passed))
            for each in waiting[:MAX_GATES]
        ],
        more_gates=len(waiting) - MAX_GATES,
        alerts=alerts[:MAX_ALERTS],
        failed=[RunInfo.of(row) for row in failed],
        work=work,
        oldest=instant(work.opened.oldest_at) if work.opened.oldest_at else None,
        empty=empty,
        submit_known=await submit_known(view) if empty else "",
    )


def _troubles(health: Health) -> Iterator[Alert]:
    for each in health.problems:
        yield Alert(f"{each[:1].upper()}{each[1:]}.".replace("..", "."), "/health", "Health", "bad")
    if health.history_lag_seconds > LAG_SECONDS:
        yield Alert(
            "The history is held up by an open transaction: runs go on; audit, checkpoints and pruning wait.",
            "/health",
            "Which session",
        )


def _of_work(work: ActiveWork) -> Iterator[Alert]:
    opened = work.opened
    if work.max_active >= 0 and opened.active > CEILING * work.max_active:
        yield Alert(
            f"The admission ceiling is near: {opened.active:,} of {work.max_active:,} runs are active."
            " Beyond it submissions are refused.",
            "/limits",
            "Limits",
            "bad" if opened.active >= work.max_active else "warn",
        )
    for each in work.gates:
        if each.never:
            what = plural(each.never, each.what)
            yield Alert(
                f"{what} can never start as limits are now: {gate_text(each.gate)} has {each.limit}.",
                gate_href(each),
                "The gate",
                "bad",
            )
        elif each.paused:
            yield Alert(
                f"{plural(each.waiting, each.what)} wait for the end of a pause: {gate_text(each.gate)}.",
                gate_href(each),
            )
    if opened.held:
        yield Alert(
            f"{plural(opened.held, 'run is', 'runs are')} held for an operator.",
            address("/runs", status="held"),
            kind="bad",
        )


def demand_alerts(demand: DemandAnswer, workers: Sequence[WorkerInfo]) -> Iterator[Alert]:
    for need in demand.by_need:
        if need.matching_workers:
            continue
        labels = "".join(f", {key}={value}" for key, value in need.needs.items())
        what = f"{plural(need.tasks, 'task')} of step {need.step} ({need.executor}{labels})"
        drained = sum(_would_fit(each, need) for each in workers)
        if drained:
            fits = plural(drained, "worker that fits drains", "workers that fit drain")
            yield Alert(f"{what} wait: {fits}, and there is no other.", "/workers", "Workers")
        else:
            yield Alert(f"No worker fits {what}.", "/workers", "Workers", "bad")


def _would_fit(worker: WorkerInfo, need: Need) -> bool:
    """Whether it drains, and its executors and labels fit."""
    return (
        worker.alive
        and worker.draining
        and worker.permits.get(need.executor, 0) != 0
        and all(worker.labels.get(key) == value for key, value in need.needs.items())
    )


ROUTES = (UiRoute("/", show_overview),)
