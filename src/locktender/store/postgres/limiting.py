"""Changing limits: what code declares and what operators set, apart, with a history."""

from __future__ import annotations

from locktender.base.events import NOBODY, pack
from locktender.base.limits import Limits
from locktender.store.admission import recounted
from locktender.store.decode import decode_tags
from locktender.store.history import CLIENT
from locktender.store.limiting import check, judge
from locktender.store.postgres.compose import Parts, columns
from locktender.store.postgres.session import Session, limit_rows
from locktender.store.protocol import SetLimit


async def set_limits(tx: Session, changes: list[SetLimit]) -> None:
    check(changes)
    # Code declares the same limits at every start: mostly there is nothing to write.
    if not judge(changes, limit_rows(await tx.all("limit_list"))).asked:
        return
    async with tx.transaction("begin_alone"):
        changed = judge(changes, limit_rows(await tx.all("limit_list")))
        if not changed.asked:
            return
        if changed.recount:
            # The leader's commit in flight may close runs: it ends first, and the next waits for us,
            # finds another version of the limits, and reckons anew.
            await tx.run("leader_lock")
            await _recount(tx, changed.after)
        [now] = await tx.row("now")
        for row in changed.rows:
            if row.effective is None:
                await tx.run("limit_remove", row.kind, row.name)
            else:
                await tx.run("limit_put", row.kind, row.name, row.declared, row.live)
        for entry in changed.history:
            await tx.run("limit_history_add", now, *entry)
        await tx.run("limits_changed")
        parts = Parts()
        parts.add("now", alias="clock")
        parts.add("open_fence", alias="fence")
        parts.add("told_given", [NOBODY], [pack(changed.asked)], alias="told")
        parts.add("event_add", now, 0, 0, CLIENT)
        parts.add("wake", *tx.hint("limit"))
        await tx.compose(parts)


async def _recount(tx: Session, limits: Limits) -> None:
    """Counters follow the rules: new ones start from the active runs, in the transaction that sets the rule."""
    tags = await tx.all("active_tags")
    active = recounted(limits, ((decode_tags(each), n) for each, n in tags))
    await tx.run("counter_remove", [row[0] for row in await tx.all("counter_names")])
    await tx.run("counter_put", *columns(sorted(active.items()), 2))
