"""Changes of all runs that match a filter, in slices.

A leader carries out what it finds in one cycle: 100,000 requests at once would stall it, and a
request of another client would wait behind them. So a slice is asked for when the leader has carried
out the one before, or after `LONGEST_WAIT_US` where no leader is at work. Runs are read from the
newest to the oldest by number, so one whose state changes meanwhile is neither missed nor read twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from locktender.base import names
from locktender.base.clock import SECOND
from locktender.base.errors import InvalidInput
from locktender.base.model import Request, RunRow
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.core import Core
from locktender.client.submission import TagValues
from locktender.client.views import Requested
from locktender.store.protocol import RunFilter

SLICE = 500
"""Runs read, and requests left for the leader, at a time."""
EXAMINED = 2_000
"""Runs that one statement examines for them."""
LONGEST_WAIT_US = SECOND
MAX_PAUSED = 1_000
"""Each paused run is a rule, and every process reads all rules."""

GROUPS = ("active", "ended")
"""What `status=` takes beside the states."""

Status = str | list[str] | tuple[str, ...]


class Matching:
    """Runs by state, tags and flow."""

    def __init__(self, status: Any, tags: TagValues | None, flow: str | None) -> None:
        self._where = filter_of(status, tags, flow, SLICE)

    async def slices(self, core: Core) -> AsyncIterator[list[RunRow]]:
        """All that match, the newest first."""
        where, before = self._where, None
        while True:
            part = await core.store.examine_runs(
                msgspec.structs.replace(where, before=before), EXAMINED
            )
            if part.rows:
                yield part.rows
            if part.place is None:
                return
            before = part.place

    async def count(self, core: Core) -> int:
        return sum([len(rows) async for rows in self.slices(core)])


def filter_of(status: Any, tags: TagValues | None, flow: str | None, limit: int) -> RunFilter:
    """A checked filter of runs."""
    states = None
    if status is not None:
        given = [status] if isinstance(status, str) else list(status)
        states = list(dict.fromkeys(one for each in given for one in _states(each)))
    if flow is not None:
        flow = names.text(flow, "flow")
    return RunFilter(states=states, tags=names.tags(tags), flow=flow, limit=limit)


def _states(given: Any) -> list[str]:
    """A state, or those of a group: "active" is every state of a run that has not ended, "ended" every other."""
    known = [state.value for state in RunState]
    if given in known:
        return [given]
    if given in GROUPS:
        return [each for each in known if (each in TERMINAL_RUNS) == (given == "ended")]
    states = (
        f"A run is {', '.join(known[:-1])} or {known[-1]};"
        ' "active" is each that has not ended, "ended" each that has.'
    )
    meant = names.nearest(given, [*known, *GROUPS])
    raise InvalidInput(
        f"{given!r} is not a state of a run.",
        field="status",
        got=given,
        hint=f"{meant} {states}" if meant else states,
    )


def needs_filter(
    status: object, tags: Mapping[str, Any] | None, flow: str | None, verb: str
) -> None:
    if status is None and not tags and flow is None:
        raise InvalidInput(
            f"say which runs to {verb}.",
            field="run",
            hint='Give an id, several, or a filter such as tags={"tenant": "acme"}.',
        )


async def ask_all(
    core: Core,
    matching: Matching,
    request: Callable[[str], Request],
    over: frozenset[RunState],
    done: Callable[[RunRow], bool],
) -> Requested:
    """Leaves one request per run that is in no state of `over`; `done`: the leader carried it out."""
    wanted: list[str] = []
    left: list[RunRow] = []
    async for rows in matching.slices(core):
        asked = [row.id for row in rows if row.state not in over]
        left += [row for row in rows if row.state in over]
        if not asked:
            continue
        if wanted:
            await _carried_out(core, wanted[-1], done)
        await core.store.ask([request(each) for each in asked])
        core.changed()
        wanted += asked
    return Requested(
        tuple(wanted),
        await core.leader(),
        over=tuple(row.id for row in left if row.state in TERMINAL_RUNS),
        started=tuple(row.id for row in left if row.state not in TERMINAL_RUNS),
    )


async def _carried_out(core: Core, run_id: str, done: Callable[[RunRow], bool]) -> None:
    """The last request of a slice is; requests are carried out in their order."""
    until, mark = core.clock.monotonic() + LONGEST_WAIT_US, -1
    while not done(await core.row(run_id)):
        left = until - core.clock.monotonic()
        if left <= 0:
            return
        mark = await core.store.wait(min(left, LONGEST_WAIT_US // 10), mark)


async def bounded_rows(
    core: Core, matching: Matching, most: int, wanted: Callable[[RunRow], bool], verb: str
) -> list[RunRow]:
    """All that match, refused where they are more than `most`."""
    found: list[RunRow] = []
    async for rows in matching.slices(core):
        found += [row for row in rows if wanted(row)]
        if len(found) > most:
            raise InvalidInput(
                f"more than {most:,} runs match; at most {most:,} can be {verb} one by one.",
                field="run",
                got=len(found),
                hint="Pause their flow (locktender flows pause FLOW) or their tag"
                " (locktender limits pause tag KEY=VALUE).",
            )
    return found
