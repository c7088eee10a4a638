"""Handing prepared runs to the store: pools and labels checked, large values put away, one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from locktender.base import codec, graph_check
from locktender.base.errors import InvalidFlow, InvalidInput
from locktender.base.graph import Graph
from locktender.base.labels import check_labels
from locktender.base.limits import Limits
from locktender.client.core import Core
from locktender.client.repeating import repeated
from locktender.client.submission import Prepared
from locktender.store.protocol import Submit, Submitted

MOST_AT_ONCE = 10_000
"""Runs in one transaction: so many cost a fraction of a second, in which nobody else can write."""
FRESH_US = 500_000


async def hand_in(core: Core, prepared: Sequence[Prepared], *, partial: bool) -> list[Submitted]:
    """One answer per run, in order. All or none, unless `partial`; once each, even if an answer is lost."""
    if not partial and len(prepared) > MOST_AT_ONCE:
        raise InvalidInput(
            f"{len(prepared):,} runs cannot be taken all or none; at most {MOST_AT_ONCE:,} can.",
            field="runs",
            got=len(prepared),
            hint="Use partial=True, or several calls.",
        )
    graphs = {each.run.graph: each.graph for each in prepared}.values()
    if (declared := core.settings.labels) is not None:
        for graph in graphs:
            check_labels(graph, declared)
    await check_pools(core, graphs)
    results: list[Submitted] = []
    for start in range(0, len(prepared), MOST_AT_ONCE):
        chunk = prepared[start : start + MOST_AT_ONCE]
        runs = [each.run for each in chunk]
        most = core.settings.blob_over_bytes
        for index, run in enumerate(runs):
            if len(run.params) > most or len(run.consts) > most:
                params, consts = (
                    await _put_away(core, run.params),
                    await _put_away(core, run.consts),
                )
                runs[index] = msgspec.structs.replace(run, params=params, consts=consts)
        bodies = {each.run.graph: each.body for each in chunk}
        submit = Submit(runs, bodies, partial)
        results += await repeated(
            core, lambda submit=submit: core.store.submit(submit), "a submission"
        )
        core.changed()
    return results


async def check_pools(core: Core, graphs: Iterable[Graph]) -> None:
    """Refuses what can never start, by the limits in force now, as the leader will see them."""
    needing = [graph for graph in graphs if any(node.pools for node in graph.nodes)]
    if not needing:
        return
    seen = core.limits_read
    if seen is not None and core.clock.monotonic() - seen[0] < FRESH_US:
        # A read of its own for every submission would cost as much as the submission. A limit that was
        # lowered meanwhile is as one that is lowered a moment later: `why` says *never*.
        with suppress(InvalidInput, InvalidFlow):
            _check_all(core, needing, seen[1])
            return
    read_at = core.clock.monotonic()
    limits, _ = await core.store.limits()
    core.limits_read = read_at, limits
    _check_all(core, needing, limits)


def _check_all(core: Core, graphs: Sequence[Graph], limits: Limits) -> None:
    if core.settings.strict_pools:
        limits = msgspec.structs.replace(limits, strict_pools=True)
    for graph in graphs:
        graph_check.check_pools(graph, limits)


async def _put_away(core: Core, raw: bytes) -> bytes:
    if len(raw) <= core.settings.blob_over_bytes:
        return raw
    return codec.blob_ref(await core.store.put_blob(raw), len(raw))
