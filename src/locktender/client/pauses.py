"""Pauses of runs and of flows, async and sync. A pause is a rule: stored, audited, kept over a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from locktender.base import names
from locktender.base.clock import SECOND
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.limits import PauseRule
from locktender.base.model import RunRow
from locktender.base.names import did_you_mean
from locktender.base.states import TERMINAL_RUNS
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.views import moment
from locktender.store.protocol import RunFilter, SetLimit

_dump = msgspec.json.Encoder().encode
MAX_REASON = 1_000


class PausedFlow(msgspec.Struct, frozen=True):
    """A flow whose runs start nothing."""

    name: str
    by: str
    since: datetime | None
    reason: str


PausedFlows = list[PausedFlow]


class FlowInfo(msgspec.Struct, frozen=True):
    """A flow that workers have announced, or that is paused."""

    name: str
    state: str
    """`open`, or `paused`: its runs start nothing."""
    signature: str
    """As its author wrote it; empty: no worker has announced it."""
    paused_by: str | None
    paused_since: datetime | None
    reason: str


FlowInfos = list[FlowInfo]


class FlowDetail(msgspec.Struct, frozen=True):
    """What a client without its code must know to submit a flow."""

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


async def pause_runs(core: Core, rows: Sequence[RunRow], reason: str) -> list[str]:
    """All of them, or none if one has ended; their ids."""
    reason = _checked(reason)
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
    return [row.id for row in rows]


async def resume_runs(core: Core, rows: Sequence[RunRow]) -> list[str]:
    """Those of them that are paused themselves; their ids. A pause of their flow stays."""
    limits, _ = await core.store.limits()
    ids: list[str] = [row.id for row in rows if row.seq in limits.paused_runs]
    await _set(core, [SetLimit("run", each, None, core.who) for each in ids])
    return ids


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


async def _check_known(core: Core, flow: str) -> None:
    """A pause of a name that nothing has would seem to be in force."""
    from locktender.flows.registry import registry

    announced = {each.name for each in await core.store.flows()}
    if flow in announced or flow in registry.flows:
        return
    if not await core.store.runs(RunFilter(flow=flow, limit=1)):
        raise NotFound(
            f"there is no flow {flow!r}: no worker has announced it, and there is no run of it.",
            field="flow",
            got=flow,
            hint=did_you_mean(flow, announced) or "locktender flows list shows what there is.",
        )


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

    async def get(self, flow: str) -> FlowDetail:
        """One of them, with the schema of its parameters. Raises `NotFound` where no worker has announced it."""
        from locktender.client.by_name import announced_flow

        self._core.guard.check()
        limits, _ = await self._core.store.limits()
        found = await announced_flow(self._core, flow)
        return FlowDetail(
            name=found.name,
            spoken=found.spoken,
            parameters=found.parameters,
            result=found.result,
            tags=found.tags,
            priority=found.priority,
            deadline=None if found.deadline_us is None else found.deadline_us / SECOND,
            paused=limits.is_paused(found.name),
        )

    async def pause(self, flow: str, reason: str = "") -> None:
        """Starts nothing of a flow any more: no run, and no further task of those that execute.

        flow    the flow's name
        reason  kept in the history and shown by `why`; default none

        Tasks that run go on. Runs may be submitted and wait. Raises `NotFound` for a flow that no worker has
        announced, of which there is no run, and that is not loaded here.
        """
        core = self._core
        core.guard.check()
        flow, reason = names.name(flow, "flow"), _checked(reason)
        limits, _ = await core.store.limits()
        if flow not in limits.paused_flows:
            await _check_known(core, flow)
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

    async def list(self) -> FlowInfos:
        """The flows that workers have announced or that are paused, by name, each with its state."""
        self._core.guard.check()
        limits, _ = await self._core.store.limits()
        spoken = {each.name: each.spoken for each in await self._core.store.flows()}
        found: FlowInfos = []
        for name in sorted({*spoken, *limits.paused_flows}):
            rule = limits.paused_flows.get(name)
            found.append(
                FlowInfo(
                    name,
                    "open" if rule is None else "paused",
                    spoken.get(name, ""),
                    None if rule is None else rule.by,
                    None if rule is None else moment(rule.since),
                    "" if rule is None else rule.reason,
                )
            )
        return found

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

    def get(self, flow: str) -> FlowDetail:
        """One of them, with the schema of its parameters. Raises `NotFound` where no worker has announced it."""
        return self._bridge.call(self._flows.get(flow))

    def pause(self, flow: str, reason: str = "") -> None:
        """Starts nothing of a flow any more: no run, and no further task of those that execute.

        flow    the flow's name
        reason  kept in the history and shown by `why`; default none

        Tasks that run go on. Runs may be submitted and wait. Raises `NotFound` for a flow that no worker has
        announced, of which there is no run, and that is not loaded here.
        """
        self._bridge.call(self._flows.pause(flow, reason))

    def list(self) -> FlowInfos:
        """The flows that workers have announced or that are paused, by name, each with its state."""
        return self._bridge.call(self._flows.list())

    def resume(self, flow: str) -> None:
        """Lets a paused flow go on. Raises `NotFound` if it is not paused."""
        self._bridge.call(self._flows.resume(flow))

    def paused(self) -> PausedFlows:
        """The flows that are paused, by name."""
        return self._bridge.call(self._flows.paused())
