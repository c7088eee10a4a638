"""Pauses of runs and of flows, async and sync. A pause is a rule: stored, audited, kept over a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from locktender.base import names
from locktender.base.announced import AnnouncedFlow
from locktender.base.clock import SECOND
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.limits import Limits, PauseRule
from locktender.base.model import RunRow
from locktender.base.names import did_you_mean
from locktender.base.states import TERMINAL_RUNS
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge
from locktender.client.by_name import announced_flow
from locktender.client.core import Core
from locktender.client.views import moment
from locktender.store.protocol import SetLimit

_dump = msgspec.json.Encoder().encode
MAX_REASON = 1_000


@dataclass(frozen=True, slots=True)
class PausedFlow:
    """A flow whose runs start nothing."""

    name: str
    by: str
    since: datetime | None
    reason: str


PausedFlows = list[PausedFlow]


@dataclass(frozen=True, slots=True)
class FlowInfo:
    """A flow that a worker has announced: what a client without its code must know to submit it."""

    name: str
    spoken: str
    """As its author wrote it: `build(accessions: list[str])`."""
    parameters: Mapping[str, Any]
    """JSON schema of the object of its arguments."""
    result: Mapping[str, Any]
    """JSON schema of its result; empty: any."""
    tags: Mapping[str, str]
    priority: int
    deadline: float | None
    """Seconds."""
    paused: bool


FlowInfos = list[FlowInfo]


def _flow_info(flow: AnnouncedFlow, limits: Limits) -> FlowInfo:
    return FlowInfo(
        name=flow.name,
        spoken=flow.spoken,
        parameters=flow.parameters,
        result=flow.result,
        tags=flow.tags,
        priority=flow.priority,
        deadline=None if flow.deadline_us is None else flow.deadline_us / SECOND,
        paused=limits.is_paused(flow.name),
    )


async def pause_runs(core: Core, ids: Iterable[str], reason: str) -> None:
    """All of them, or none if one has ended."""
    reason = _checked(reason)
    rows = [await core.row(each) for each in ids]
    for row in rows:
        if row.state in TERMINAL_RUNS:
            raise _ended(row)
    limits, _ = await core.store.limits()
    now = await core.store.now()
    await _set(
        core,
        [
            SetLimit(
                "run",
                row.id,
                _dump(PauseRule(core.who, now, reason, row.seq)),
                core.who,
                reason=reason,
            )
            for row in rows
            if row.seq not in limits.paused_runs
        ],
    )


async def resume_runs(core: Core, ids: Iterable[str]) -> None:
    """Those of them that are paused themselves. A pause of their flow stays."""
    rows = [await core.row(each) for each in ids]
    limits, _ = await core.store.limits()
    await _set(
        core,
        [SetLimit("run", row.id, None, core.who) for row in rows if row.seq in limits.paused_runs],
    )


async def _set(core: Core, changes: list[SetLimit]) -> None:
    if changes:
        await core.set_limits(changes)


def _checked(reason: object) -> str:
    text = names.text(reason, "reason") if reason else ""
    if len(text) > MAX_REASON:
        raise InvalidInput(
            f"the reason has {len(text):,} characters.",
            field="reason",
            got=f"{text[:40]}…",
            hint=f"At most {MAX_REASON:,} are kept.",
        )
    return text


def _ended(row: RunRow) -> InvalidInput:
    return InvalidInput(
        f"run {row.id} cannot be paused: it has ended {row.state}.",
        field="run",
        got=row.id,
        hint="Only a run that has not ended can be paused.",
    )


@public
class AsyncFlows:
    """Namespace `client.flows`: the flows that workers have announced; pause and resume all runs of one."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self) -> FlowInfos:
        """The flows that workers have announced, by name."""
        self._core.guard.check()
        limits, _ = await self._core.store.limits()
        found = sorted(await self._core.store.flows(), key=lambda flow: flow.name)
        return [_flow_info(flow, limits) for flow in found]

    async def get(self, flow: str) -> FlowInfo:
        """One of them. Raises `NotFound` where no worker has ever announced it."""
        self._core.guard.check()
        limits, _ = await self._core.store.limits()
        return _flow_info(await announced_flow(self._core, flow), limits)

    async def pause(self, flow: str, reason: str = "") -> None:
        """Starts nothing of a flow any more: no run, and no further task of those that execute.

        flow    the flow's name
        reason  kept in the history and shown by `why`; default none

        Tasks that run go on. Runs may be submitted and wait.
        """
        core = self._core
        core.guard.check()
        flow, reason = names.name(flow, "flow"), _checked(reason)
        limits, _ = await core.store.limits()
        if flow not in limits.paused_flows:
            rule = PauseRule(core.who, await core.store.now(), reason)
            await _set(core, [SetLimit("flow", flow, _dump(rule), core.who, reason=reason)])

    async def resume(self, flow: str) -> None:
        """Lets a paused flow go on. Raises `NotFound` if it is not paused."""
        core = self._core
        core.guard.check()
        limits, _ = await core.store.limits()
        if flow not in limits.paused_flows:
            raise NotFound(
                f"flow {flow!r} is not paused.",
                field="flow",
                got=flow,
                hint=did_you_mean(flow, limits.paused_flows) or "locktender flows list",
            )
        await _set(core, [SetLimit("flow", flow, None, core.who)])

    async def paused(self) -> PausedFlows:
        """The flows that are paused, by name."""
        self._core.guard.check()
        limits, _ = await self._core.store.limits()
        return [
            PausedFlow(flow, rule.by, moment(rule.since), rule.reason)
            for flow, rule in sorted(limits.paused_flows.items())
        ]


@public
class SyncFlows:
    """Namespace `client.flows`: the flows that workers have announced; pause and resume all runs of one."""

    def __init__(self, bridge: Bridge, flows: AsyncFlows) -> None:
        self._bridge = bridge
        self._flows = flows

    def list(self) -> FlowInfos:
        """The flows that workers have announced, by name."""
        return self._bridge.call(self._flows.list())

    def get(self, flow: str) -> FlowInfo:
        """One of them. Raises `NotFound` where no worker has ever announced it."""
        return self._bridge.call(self._flows.get(flow))

    def pause(self, flow: str, reason: str = "") -> None:
        """Starts nothing of a flow any more: no run, and no further task of those that execute.

        flow    the flow's name
        reason  kept in the history and shown by `why`; default none

        Tasks that run go on. Runs may be submitted and wait.
        """
        self._bridge.call(self._flows.pause(flow, reason))

    def resume(self, flow: str) -> None:
        """Lets a paused flow go on. Raises `NotFound` if it is not paused."""
        self._bridge.call(self._flows.resume(flow))

    def paused(self) -> PausedFlows:
        """The flows that are paused, by name."""
        return self._bridge.call(self._flows.paused())
