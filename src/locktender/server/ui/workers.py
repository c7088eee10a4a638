"""Workers: what each can take, what it does, and why it takes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response

from locktender.base.clock import SECOND
from locktender.base.errors import NotFound
from locktender.client.views import WorkerInfo
from locktender.client.workers import placed_tasks
from locktender.kernel.explain_workers import pressures
from locktender.server.ui.dialogs import Commands, Dialog
from locktender.server.ui.pages import Done, UiRoute, View
from locktender.server.ui.words import plural, segment

CELLS_SHOWN = 48
"""ExecutorPermits of one executor that are drawn."""
WORKERS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """A permit in use."""

    run: str
    task: int
    name: str
    stop: bool = False
    """It was asked to stop, and has not."""


@dataclass(frozen=True, slots=True)
class ExecutorPermits:
    """The permits of one executor."""

    executor: str
    limit: int
    """−1: unlimited."""
    cells: Sequence[Cell]
    used: int

    @property
    def free(self) -> int:
        """Empty cells that are drawn."""
        return max(0, min(self.limit, CELLS_SHOWN) - len(self.cells)) if self.limit > 0 else 0

    @property
    def more(self) -> int:
        return max(0, max(self.limit, self.used) - len(self.cells) - self.free)


@dataclass(frozen=True, slots=True)
class ShownWorker:
    info: WorkerInfo
    state: str
    why: str
    """Why it takes nothing, or less than it could; empty: it takes what comes."""
    permits: Sequence[ExecutorPermits]


def state_of(worker: WorkerInfo) -> str:
    if worker.unreadable:
        return "unreadable"
    if worker.stalled:
        return "stalled"
    if not worker.alive:
        return "lost"
    if worker.draining:
        return "ending" if worker.ending else "draining"
    return "alive"


def why_of(worker: WorkerInfo) -> str:
    """Why it takes nothing, in a sentence."""
    match state_of(worker):
        case "unreadable":
            return f"It gets no tasks: {worker.unreadable}."
        case "stalled":
            return "It gets no tasks: its lease has passed. It keeps those it has until it is declared lost."
        case "lost":
            return "It is gone: its lease has passed, and its tasks were given to others."
        case "ending":
            return "It gets no tasks: its process was told to end, and waits for what runs."
        case "draining":
            return "It gets no tasks: an operator drains it. What runs there ends."
        case _:
            pass
    if worker.passed_over_until is not None:
        until = f"{worker.passed_over_until:%H:%M:%S} UTC"
        return f"It gets no tasks until {until}: it left {worker.unanswered} offers unanswered."
    felt = ", ".join(pressures(worker.pressed, worker.memory, round(worker.p99 * SECOND)))
    if worker.share < 100 and felt:
        return f"It uses {worker.share} % of its permits: {felt}."
    if worker.full:
        return f"No room for {', '.join(worker.full)}: nearly all of those permits are in use."
    if worker.free == 0 and worker.in_flight:
        return "All its permits are in use."
    return ""


async def show_workers(view: View) -> Response:
    workers = await view.client.workers.list()
    order = {"alive": 0, "draining": 1, "ending": 1, "stalled": 2, "unreadable": 2, "lost": 3}
    workers.sort(key=lambda each: (order[state_of(each)], each.host, each.id))
    shown = workers[:WORKERS_SHOWN]
    placed = await _placed(view, {each.id for each in shown})
    found = [
        ShownWorker(each, state_of(each), why_of(each), _permits(each, placed.get(each.id, {})))
        for each in shown
    ]
    # One that drains is alive, and takes nothing.
    alive = [each for each in workers if state_of(each) in ("alive", "draining", "ending")]
    takes = [each for each in alive if state_of(each) == "alive"]
    return await view.page(
        "workers.html",
        workers=found,
        more=len(workers) - len(shown),
        alive=len(alive),
        total=len(workers),
        in_flight=sum(each.in_flight for each in workers if each.alive),
        free=sum(each.free for each in takes),
        unlimited=any(each.total_permits < 0 and -1 in each.permits.values() for each in takes),
        drained=sum(1 for each in workers if state_of(each) in ("draining", "ending")),
        lost=sum(1 for each in workers if state_of(each) in ("stalled", "unreadable")),
        versions=sorted({each.version for each in alive}),
    )


async def _placed(view: View, workers: set[str]) -> dict[str, dict[str, list[Cell]]]:
    """Worker → executor → what it runs, of runs that the principal may see."""
    found: dict[str, dict[str, list[Cell]]] = {}
    for each in await placed_tasks(view.core):
        if each.worker in workers:
            mine = view.principal.sees(each.tags)
            cell = Cell(
                each.run if mine else "", each.task, each.name if mine else "", each.unstopped
            )
            found.setdefault(each.worker, {}).setdefault(each.executor, []).append(cell)
    return found


def _permits(worker: WorkerInfo, cells: Mapping[str, Sequence[Cell]]) -> list[ExecutorPermits]:
    return [
        ExecutorPermits(
            name, limit, tuple(cells.get(name, ()))[:CELLS_SHOWN], len(cells.get(name, ()))
        )
        for name, limit in sorted(worker.permits.items())
        if limit or cells.get(name)
    ]


async def _worker(view: View) -> WorkerInfo:
    wanted = view.path("worker")
    for each in await view.client.workers.list():
        if each.id == wanted:
            return each
    raise NotFound(f"there is no worker {wanted!r}.", field="worker", got=wanted)


async def ask_drain(view: View) -> Response:
    worker = await _worker(view)
    number = worker.in_flight
    shown = plural(number, "task that runs there ends", "tasks that run there end")
    running = f" {shown} in {'its' if number == 1 else 'their'} own time." if number else ""
    return await view.dialog(
        Dialog(
            f"Drain {worker.id}?",
            f"It gets no more tasks.{running}",
            "Drain the worker",
            f"/workers/{segment(worker.id)}/drain",
            lambda _: Commands(
                view.cli("workers drain", worker.id),
                view.curl("POST", f"/workers/{segment(worker.id)}/drain"),
            ),
        )
    )


async def drain(view: View) -> Response:
    worker = await _worker(view)
    await view.client.workers.drain(worker.id)
    return await view.done(Done(f"Worker {worker.id} gets no more tasks."))


async def ask_undrain(view: View) -> Response:
    worker = await _worker(view)
    return await view.dialog(
        Dialog(
            f"Give {worker.id} tasks again?",
            "It takes tasks as before.",
            "Give it tasks",
            f"/workers/{segment(worker.id)}/undrain",
            lambda _: Commands(
                view.cli("workers undrain", worker.id),
                view.curl("POST", f"/workers/{segment(worker.id)}/undrain"),
            ),
        )
    )


async def undrain(view: View) -> Response:
    worker = await _worker(view)
    await view.client.workers.undrain(worker.id)
    return await view.done(Done(f"Worker {worker.id} gets tasks again."))


ROUTES = (
    UiRoute("/workers", show_workers),
    UiRoute("/workers/{worker}/drain", ask_drain, "GET", "operate"),
    UiRoute("/workers/{worker}/drain", drain, "POST", "operate"),
    UiRoute("/workers/{worker}/undrain", ask_undrain, "GET", "operate"),
    UiRoute("/workers/{worker}/undrain", undrain, "POST", "operate"),
)
