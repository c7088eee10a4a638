"""Namespace `client.schedules`: runs of a flow at set times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from locktender.base.announced import check_arguments
from locktender.base.clock import SECOND
from locktender.base.durations import Duration
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.names import did_you_mean
from locktender.base.names import name as checked_name
from locktender.base.schedule_options import make_spec
from locktender.base.schedules import CatchUp, Overlap, ScheduleRow, TickOutcome, TickRow
from locktender.base.ticks import moment, zone
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge, documented_as
from locktender.client.by_name import announced_flow, prepare_named
from locktender.client.core import Core
from locktender.client.refusals import refusal
from locktender.client.run import AsyncRun, Run
from locktender.client.submission import Submission
from locktender.client.submit import definition_of, store_runs
from locktender.flows.by_name import announcement
from locktender.flows.flows import Flow
from locktender.flows.registry import registry
from locktender.store.protocol import SetSchedule
from locktender.store.retry import repeated

NEXT_TICKS = 5
LAST_TICKS = 20


@dataclass(frozen=True, slots=True)
class TickInfo:
    """What became of a tick: a run, or missed and why."""

    tick: datetime
    """When it was due."""
    outcome: TickOutcome
    """`ran` or `missed`."""
    run: str | None
    """The run that was made of it."""
    reason: str
    """Why it was missed: `run … still ran`, for example."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule: what was set, the next ticks, and what became of the last ones."""

    name: str
    flow: str
    args: dict[str, Any]
    cron: str | None
    every: float | None
    """Seconds."""
    at: datetime | None
    tz: str
    jitter: float
    """Seconds."""
    overlap: Overlap
    """`skip`, `queue`, `replace` or `allow`."""
    catch_up: CatchUp
    """`none`, `last` or `all`."""
    max_active: int | None
    """Active runs of it before `overlap` decides; None: any number."""
    paused: bool
    source: str
    """`live`: an operator set it; `declared`: `@flow(schedule=…)` did."""
    next: list[datetime]
    """The next ticks."""
    last: list[TickInfo]
    """What became of the last ones, the latest first."""
    active: list[str]
    """Its runs that have not ended, as the leader last saw them."""
    why: str
    """What it waits for, as one sentence."""
    tags: dict[str, str] = field(default_factory=dict[str, str])
    """Of its runs, beside those of the flow."""


@dataclass(frozen=True, slots=True)
class ScheduleChangeInfo:
    """Who changed a schedule, and when."""

    at: datetime
    who: str
    what: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str = ""


@public
class AsyncSchedules:
    """Namespace `client.schedules`: runs of a flow at set times, one per tick."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def set(
        self,
        name: str,
        flow: Flow[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | str | None = None,
        tz: str = "UTC",
        jitter: Duration | None = None,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "none",
        max_active: int | None = None,
        paused: bool = False,
        tags: Mapping[str, str | int | bool] | None = None,
    ) -> ScheduleInfo:
        """Sets a schedule: runs of `flow` with `args`, one per tick. Setting it again replaces it.

        flow        a flow, or the name of one that a worker has announced
        args        its arguments, by name; default none
        cron        five fields, in `tz`; or every="15m"; or at=... once
        tz          the zone of `cron` and of an `at` without one; default "UTC"
        jitter      each run comes up to this much later than its tick; default none
        overlap     while a run of it is active: "skip" (default) the tick, "queue" one, "replace" the run,
                    "allow" both
        catch_up    ticks while there was no leader: "none" (default) runs, the "last", or "all"
        max_active  active runs of it before `overlap` decides; default 1, with "allow" no bound
        paused      set it without starting it; default False
        tags        of its runs, beside those of the flow; default none

            schedules.set("nightly", build, {"names": ["a"]}, cron="0 3 * * 1-5", tz="Europe/Berlin")
        """
        core, named = self._core, checked_name(name, "name")
        core.guard.check()
        if not isinstance(flow, str) or flow in registry.flows:
            # With its code at hand the flow is announced here: no worker needs to have come before.
            definition = definition_of(flow)
            await core.store.announce([announcement(definition)])
            flow = definition.name
        spec = make_spec(
            flow, args, cron=cron, every=every, at=at, tz=tz, jitter=jitter, overlap=overlap,
            catch_up=catch_up, max_active=max_active, paused=paused, tags=tags,
        )  # fmt: skip
        check_arguments(await announced_flow(core, flow), msgspec.json.decode(spec.args))
        if spec.at is not None and spec.at <= await core.store.now():
            raise InvalidInput(
                "at lies in the past.", field="at", got=at, hint="For a run now: submit the flow."
            )
        await self._store(SetSchedule(named, "set", core.who, spec, only=core.only))
        return await self.get(named)

    async def get(self, name: str) -> ScheduleInfo:
        """A schedule with its next and last ticks. Raises `NotFound`."""
        row, store = await self._row(name), self._core.store
        ticks = await store.ticks([name], LAST_TICKS)
        return _info(row, ticks.get(name, []), await store.now())

    async def list(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        store = self._core.store
        self._core.guard.check()
        now = await store.now()
        rows = [row for row in await store.schedules() if row.spec is not None or row.unreadable]
        ticks = await store.ticks([row.name for row in rows], 1)
        return [_info(row, ticks.get(row.name, []), now) for row in rows]

    async def pause(self, name: str) -> None:
        """No tick becomes a run until `resume`; ticks that pass meanwhile are not caught up with."""
        await self._change(name, "paused")

    async def resume(self, name: str) -> None:
        """Ends a pause, also one by the engine (a flow that nobody knows)."""
        await self._change(name, "resumed")

    async def reset(self, name: str) -> None:
        """Takes an operator's setting away: what `@flow(schedule=...)` declares is in force, or nothing."""
        await self._change(name, "reset")

    async def delete(self, name: str) -> None:
        """Removes a schedule. Its runs go on. One that code declares comes back with the next worker: pause it."""
        await self._change(name, "deleted")

    async def run_now(self, name: str) -> AsyncRun[Any]:
        """Submits a run of its flow with its arguments, beside its ticks."""
        row = await self._row(name)
        if row.spec is None:
            raise NotFound(f"schedule {name!r}: {row.unreadable}.", field="schedule", got=name)
        args: dict[str, Any] = msgspec.json.decode(row.spec.args)
        call = Submission(kwargs=args, tags={**row.spec.tags, "schedule": name})
        [prepared] = await prepare_named(self._core, row.spec.flow, [call])
        [answer] = await store_runs(self._core, [prepared], partial=False)
        if (refused := refusal(answer, prepared.run)) is not None:
            raise refused
        return AsyncRun(self._core, answer.id, answer.outcome)

    async def history(self, name: str, limit: int = 100) -> list[ScheduleChangeInfo]:
        """Who changed a schedule, the latest first; also of one that was deleted."""
        self._core.guard.check()
        return [
            ScheduleChangeInfo(
                moment(each.at),
                each.who,
                each.what,
                None if each.before is None else msgspec.json.decode(each.before),
                None if each.after is None else msgspec.json.decode(each.after),
                each.reason,
            )
            for each in await self._core.store.schedule_history(name, limit)
        ]

    async def _change(self, name: str, what: Any) -> None:
        row = await self._row(name)
        if row.unreadable and what != "deleted":
            raise InvalidInput(
                f"schedule {name!r}: {row.unreadable}.",
                field="schedule",
                got=name,
                hint=f"Set it again (locktender schedules set {name} …) or delete it.",
            )
        await self._store(SetSchedule(name, what, self._core.who, only=self._core.only))

    async def _store(self, change: SetSchedule) -> None:
        core = self._core
        await repeated(
            lambda: core.store.set_schedule(change),
            f"schedule {change.name!r}",
            core.clock,
            core.guard.check,
        )
        core.changed()

    async def _row(self, name: str) -> ScheduleRow:
        self._core.guard.check()
        found = await self._core.store.schedules([name])
        if not found or (found[0].spec is None and not found[0].unreadable):
            known = [row.name for row in await self._core.store.schedules()]
            raise NotFound(
                f"there is no schedule {name!r}.",
                field="schedule",
                got=name,
                hint=did_you_mean(name, known) or "locktender schedules set NAME FLOW --cron …",
            )
        return found[0]


def _info(row: ScheduleRow, ticks: list[TickRow], now: int) -> ScheduleInfo:
    spec = row.spec
    if spec is None:
        return _unreadable(row)
    after = max(row.state.last, now)
    coming: list[int] = []
    tz, unknown = spec.tz, ""
    try:
        zone(tz)
    except InvalidInput as error:  # it was set on a machine that knows the zone
        tz, unknown = "UTC", f"; times are in UTC here: {error.message} {error.hint}"
    if not row.paused and not (unknown and spec.cron):
        coming = list(islice(spec.timing(row.state.anchor).ticks(after), NEXT_TICKS))
    return ScheduleInfo(
        name=row.name,
        flow=spec.flow,
        args=msgspec.json.decode(spec.args),
        cron=spec.cron,
        every=None if spec.every_us is None else spec.every_us / SECOND,
        at=None if spec.at is None else moment(spec.at, tz),
        tz=spec.tz,
        jitter=spec.jitter_us / SECOND,
        overlap=spec.overlap,
        catch_up=spec.catch_up,
        max_active=spec.max_active,
        paused=row.paused,
        source="declared" if row.live is None else "live",
        next=[moment(tick, tz) for tick in coming],
        last=[TickInfo(moment(each.tick, tz), *each[1:4]) for each in ticks],
        active=[run.id for run in row.state.runs],
        why=_why(row, coming, ticks, tz, known=not unknown) + unknown,
        tags=spec.tags,
    )


def _unreadable(row: ScheduleRow) -> ScheduleInfo:
    return ScheduleInfo(
        name=row.name,
        flow="",
        args={},
        cron=None,
        every=None,
        at=None,
        tz="UTC",
        jitter=0.0,
        overlap="skip",
        catch_up="none",
        max_active=None,
        paused=True,
        source="live",
        next=[],
        last=[],
        active=[],
        why=f"{row.unreadable}; no tick of it becomes a run: set it again or delete it",
    )


def _why(row: ScheduleRow, coming: list[int], ticks: list[TickRow], tz: str, *, known: bool) -> str:
    if row.state.stopped:
        text = f"paused by the engine: {row.state.stopped}"
    elif row.paused:
        text = "paused"
    elif row.state.queued is not None:
        text = f"tick {_said(row.state.queued, tz)} waits for the run before it"
    elif coming:
        text = f"scheduled: next tick {_said(coming[0], tz)}"
    else:
        text = "no tick follows" if known else "its next tick is known where its zone is"
    if ticks and ticks[0].outcome == "missed":
        text += f"; the last was skipped because {ticks[0].reason}"
    return text


def _said(tick: int, tz: str) -> str:
    return f"{moment(tick, tz):%Y-%m-%d %H:%M:%S} ({tz})"


@public
class SyncSchedules:
    """Namespace `client.schedules`: runs of a flow at set times, one per tick."""

    def __init__(self, bridge: Bridge, schedules: AsyncSchedules) -> None:
        self._bridge = bridge
        self._schedules = schedules

    @documented_as(AsyncSchedules.set)
    def set(
        self,
        name: str,
        flow: Flow[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | str | None = None,
        tz: str = "UTC",
        jitter: Duration | None = None,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "none",
        max_active: int | None = None,
        paused: bool = False,
        tags: Mapping[str, str | int | bool] | None = None,
    ) -> ScheduleInfo:
        return self._bridge.call(
            self._schedules.set(
                name, flow, args, cron=cron, every=every, at=at, tz=tz, jitter=jitter,
                overlap=overlap, catch_up=catch_up, max_active=max_active, paused=paused, tags=tags,
            )
        )  # fmt: skip

    def get(self, name: str) -> ScheduleInfo:
        """A schedule with its next and last ticks. Raises `NotFound`."""
        return self._bridge.call(self._schedules.get(name))

    def list(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        return self._bridge.call(self._schedules.list())

    def pause(self, name: str) -> None:
        """No tick becomes a run until `resume`; ticks that pass meanwhile are not caught up with."""
        self._bridge.call(self._schedules.pause(name))

    def resume(self, name: str) -> None:
        """Ends a pause, also one by the engine (a flow that nobody knows)."""
        self._bridge.call(self._schedules.resume(name))

    def reset(self, name: str) -> None:
        """Takes an operator's setting away: what `@flow(schedule=...)` declares is in force, or nothing."""
        self._bridge.call(self._schedules.reset(name))

    def delete(self, name: str) -> None:
        """Removes a schedule. Its runs go on. One that code declares comes back with the next worker: pause it."""
        self._bridge.call(self._schedules.delete(name))

    def run_now(self, name: str) -> Run[Any]:
        """Submits a run of its flow with its arguments, beside its ticks."""
        return Run(self._bridge, self._bridge.call(self._schedules.run_now(name)))

    def history(self, name: str, limit: int = 100) -> list[ScheduleChangeInfo]:
        """Who changed a schedule, the latest first; also of one that was deleted."""
        return self._bridge.call(self._schedules.history(name, limit))
