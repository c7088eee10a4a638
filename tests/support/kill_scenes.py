"""Flows that wait, each with a client that may be killed at any commit: `python kill_scenes.py URL FILE …`

`drive` submits and sends. Whoever repeats it after a kill changes nothing: runs have keys, events have ids.
`check` waits for the end and compares the results. What holds at every instant is the checker's business.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support import killed_at

from locktender import Client, InvalidInput, NotFound, Run, RunState, Submission, connect
from locktender.base.states import TERMINAL_RUNS
from locktender.client.schedules import TickInfo
from locktender.testing import eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

STEPS_FILE = Path(__file__).parents[1] / "steps" / "kill_steps.py"
steps: Any = load(source(STEPS_FILE))
PATIENCE = "120s"
SLEEPERS = 3
HOUR = 3_600.0
SOON = 0.7
NIGHTS = 3
"""Ticks of each schedule."""
FEW = {"place": "few"}
"""The tag of flows whose runs share two places: they give them back and take them again."""
OVERLAPS = ("queue", "skip", "replace")


@dataclass(frozen=True)
class Case:
    """One repetition of a flow. Its name is part of every key and id."""

    name: str
    folder: Path
    waiters: int = 1_000

    @property
    def latch(self) -> Path:
        return self.folder / f"{self.name}.latch"


Play = Callable[[Client, Case], None]


def _submit(client: Client, flow: Any, case: Case, calls: list[tuple[Any, ...]]) -> list[Run[Any]]:
    """The same runs, however often: also those that have ended."""
    tags = {"case": case.name, **({} if flow is steps.told else FEW)}
    found = client.runs.list(tags=tags, limit=len(calls) + 1)
    if found:
        assert len(found) == len(calls), "a submission was repeated, or stored in part"
        return [client.runs.get(run.id) for run in sorted(found, key=lambda run: str(run.key))]
    calls_with_keys = [
        Submission(call, key=f"{case.name}-{n:04}", tags=tags) for n, call in enumerate(calls)
    ]
    return client.submit_many(flow, calls_with_keys)


def _send(run: Run[Any], event: str, payload: object, number: int = 0) -> None:
    # When this is repeated the run may have taken it and ended.
    with suppress(InvalidInput):
        run.send(event, payload, id=f"{event}-{number}")


# -- a sleep in a diamond


def _diamonds(client: Client, case: Case) -> list[Run[Any]]:
    return _submit(client, steps.diamond, case, [(n,) for n in range(SLEEPERS)])


def drive_diamond(client: Client, case: Case) -> None:
    _diamonds(client, case)


def check_diamond(client: Client, case: Case) -> None:
    assert [run.result(PATIENCE) for run in _diamonds(client, case)] == [
        2 * n for n in range(SLEEPERS)
    ]


# -- an approval, and another branch for what is not approved in time


def _approvals(client: Client, case: Case) -> list[Run[Any]]:
    return _submit(client, steps.approval, case, [(1, HOUR), (2, SOON), (3, HOUR)])


def drive_approval(client: Client, case: Case) -> None:
    yes, _, cancelled = _approvals(client, case)
    _send(yes, "approved", {"by": "ann"})
    eventually(lambda: cancelled.waits() or cancelled.status() in TERMINAL_RUNS, PATIENCE)
    cancelled.cancel()


def check_approval(client: Client, case: Case) -> None:
    yes, late, cancelled = _approvals(client, case)
    assert yes.result(PATIENCE) == ["approved", {"by": "ann"}]
    assert late.result(PATIENCE) == ["late", 2]
    assert cancelled.wait(PATIENCE)
    assert cancelled.status() is RunState.CANCELLED
    assert _taken(yes) == 1
    assert _taken(late) == 0


def _taken(run: Run[Any]) -> int:
    return sum(event.subject == "mail" and event.after == "delivered" for event in run.events())


# -- events that are sent before the waits for them


def _early(client: Client, case: Case) -> Run[Any]:
    return _submit(client, steps.early, case, [(str(case.latch),)])[0]


def drive_early(client: Client, case: Case) -> None:
    run = _early(client, case)
    for number in range(2):
        _send(run, "go", f"{case.name}-{number}", number)
    case.latch.touch()


def check_early(client: Client, case: Case) -> None:
    run = _early(client, case)
    assert run.result(PATIENCE) == [f"{case.name}-0", f"{case.name}-1"]
    assert _taken(run) == 2


# -- one event of a topic to many waiters


def _told(client: Client, case: Case) -> list[Run[Any]]:
    return _submit(client, steps.told, case, [(case.name,)] * case.waiters)


def drive_topic(client: Client, case: Case) -> None:
    runs = {run.id for run in _told(client, case)}

    def all_wait() -> bool:
        waits = {each.run for each in client.events.waiting(limit=1_000_000)}
        left = runs - waits
        return not left or all(client.runs.get(run).status() in TERMINAL_RUNS for run in left)

    eventually(all_wait, PATIENCE)
    client.events.send("news", "for another", match={"case": "none"}, id=f"{case.name}-0")
    client.events.send("news", case.name, match={"case": case.name}, id=f"{case.name}-1")


def check_topic(client: Client, case: Case) -> None:
    runs = _told(client, case)
    assert {run.result(PATIENCE) for run in runs} == {case.name}


# -- schedules whose runs last longer than from one tick to the next


def drive_nightly(client: Client, case: Case) -> None:
    for overlap in OVERLAPS:
        name = f"{case.name}-{overlap}"
        try:
            client.schedules.get(name)
        except NotFound:
            client.schedules.set(
                name,
                "kill night",
                {"overlap": name},
                every="1s",
                overlap=overlap,
                catch_up="all",
            )


def check_nightly(client: Client, case: Case) -> None:
    names = [f"{case.name}-{overlap}" for overlap in OVERLAPS]
    for name in names:
        eventually(lambda name=name: len(client.schedules.get(name).last) >= NIGHTS, PATIENCE)
    for name in names:
        client.schedules.pause(name)
    for name in names:
        last: list[TickInfo] = client.schedules.get(name).last
        apart = [(one.tick - other.tick).total_seconds() for one, other in pairwise(last)]
        # Each tick once, in order; the one that waits for the run before it is not decided on yet.
        assert set(apart) <= {1.0, 2.0}, last
        assert apart.count(2.0) <= name.endswith("queue"), last
        runs = client.runs.list(tags={"schedule": name}, limit=1_000)
        made = [tick.run for tick in last if tick.run is not None]
        # Those of the last ticks that are shown; the checker knows that no other tick made two.
        assert len(set(made)) == len(made), last
        assert set(made) <= {run.id for run in runs}, last
        assert all(tick.reason for tick in last if tick.run is None), last
        ends = {RunState.SUCCEEDED, RunState.CANCELLED}
        for run in runs:
            state = client.runs.get(run.id).wait(PATIENCE)
            assert state in (ends if name.endswith("replace") else {RunState.SUCCEEDED}), run


SCENES: dict[str, tuple[Play, Play]] = {
    "diamond": (drive_diamond, check_diamond),
    "approval": (drive_approval, check_approval),
    "early": (drive_early, check_early),
    "topic": (drive_topic, check_topic),
    "nightly": (drive_nightly, check_nightly),
}


def drive(url: str, file: str, folder: str, waiters: str, case: str, *scenes: str) -> None:
    """A client of its own, killed as FILE says."""
    killed_at.watch(Path(file))
    with connect(url) as client:
        for scene in scenes:
            SCENES[scene][0](client, Case(f"{case}-{scene}", Path(folder), int(waiters)))


if __name__ == "__main__":
    drive(*sys.argv[1:])
