"""The tables of a store as `db copy` reads and writes them: columns and order, the same in both dialects.

A statement with `{table}` in a `.sql` file is a template: there is one statement
per table here, named after it (`copy_out` → `copy_out_run`). A dialect that
needs another text for one table writes that statement out in full.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from locktender.store.sql import Statement


class CopyTable(msgspec.Struct, frozen=True):
    columns: tuple[str, ...]
    key: int = 1
    """Rows are read in the order of the first `key` columns."""
    wide: bool = False
    """Its rows may hold values of users."""


def _table(columns: str, key: int = 1, *, wide: bool = False) -> CopyTable:
    return CopyTable(tuple(columns.split()), key, wide)


TABLES: dict[str, CopyTable] = {
    "graph": _table("hash body", wide=True),
    "run": _table(
        "seq id state kind flow graph tags priority key generation verdict lane rank1 rank2"
        " waits_for queued_at started_at ended_at deadline_us deadline_at queue_timeout_us"
        " dispatch_deadline_us params consts output error trace",
        wide=True,
    ),
    "lane": _table("id signature"),
    "queue": _table("lane rank1 rank2 run", 4),
    "active_key": _table("key run"),
    "counter": _table("name admitted closed"),
    "drain": _table("slot second closed"),
    "task": _table(
        "id node idx state attempt tries abandons offers token worker held requested_at"
        " scheduled_at started_at ended_at not_before eligible_at input output error",
        wide=True,
    ),
    "log": _table("task token attempt lines last_at body", 2, wide=True),
    "node_input": _table("run node input", 2, wide=True),
    "orders": _table("task kind worker token reason", 2),
    "worker": _table("id since lease_until lease_us body"),
    "lost_worker": _table("id lost_at"),
    "bucket": _table("pool tat"),
    "reservation": _table("task pool slots", 2),
    "linger": _table("task token pool slots until worker", 3),
    "unplaced": _table("run keeps"),
    "waiting": _table("run wake_at"),
    "mail": _table("n run name id match at payload task", wide=True),
    "mail_taken": _table("run n task", 2),
    "event_key": _table("id secret"),
    "event_wait": _table("task run name match since until"),
    "cached_result": _table("key step flow scope task made_at expires_at size output", wide=True),
    "throttle": _table("name until starts"),
    "silence": _table("worker unanswered until"),
    "outbox": _table("id n at body answer answered_at", wide=True),
    "flow": _table("name announced_at body"),
    "schedule": _table("name version next_at declared live state"),
    "schedule_tick": _table("name tick outcome run reason at", 2),
    "schedule_history": _table("seq at name who what before after reason"),
    "token": _table(
        "id name parent hash body created_at expires_at used_at revoked_at revoked_by made_with"
    ),
    "request": _table("seq at body taken"),
    "limit_rule": _table("kind name declared live", 2),
    "limit_history": _table("seq at who kind name before after reason"),
    "event": _table("seq at term cycle actor run body"),
}


def expand_templates(statements: Iterable[Statement]) -> list[Statement]:
    """The statements, with one per table in the place of each template."""
    read = list(statements)
    written = {each.name for each in read}
    expanded: list[Statement] = []
    for each in read:
        if "{table}" not in each.text:
            expanded.append(each)
            continue
        for name, table in TABLES.items():
            if f"{each.name}_{name}" not in written:
                text = each.text.format(
                    table=name,
                    columns=", ".join(table.columns),
                    key=", ".join(table.columns[: table.key]),
                    marks=", ".join("?" * len(table.columns)),
                )
                expanded.append(
                    msgspec.structs.replace(each, name=f"{each.name}_{name}", text=text)
                )
    return expanded
