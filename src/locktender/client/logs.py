"""What the bodies of a run logged, as lines in the order of their time."""

from __future__ import annotations

import logging

import msgspec

from locktender.base import names
from locktender.base.changes import TaskRow
from locktender.base.graph import Graph, Node
from locktender.base.logs import MAX_BYTES, MAX_LINES, AttemptLog, LogFilter, LogRow, decode_log
from locktender.client.core import Core
from locktender.client.views import LogInfo, instant

_graph = msgspec.json.Decoder(Graph).decode
MOST = 100_000


async def logs(core: Core, run_id: str, task: int | None, limit: int) -> list[LogInfo]:
    """At most `limit` lines, of whole attempts, by task and attempt; then put in the order of their time."""
    most = names.count(limit, "limit", maximum=MOST)
    row = await core.row(run_id)
    nodes = _graph(await core.store.graph(row.graph)).nodes
    tasks = {each.id: each for each in await core.store.tasks(row.seq)}
    lines: list[LogInfo] = []
    after = (0, 0)
    while len(lines) < most:
        page = await core.store.logs(LogFilter(row.seq, task, after))
        if not page:
            break
        for each in page:
            after = each.task, each.token
            if each.task in tasks:
                lines += _lines(each, tasks[each.task], nodes)
    return sorted(lines[:most], key=lambda line: line.at)


def _lines(row: LogRow, task: TaskRow, nodes: tuple[Node, ...]) -> list[LogInfo]:
    log = decode_log(row.body)
    where = row.task, nodes[task.node].name, None if task.idx < 0 else task.idx, row.attempt
    lines = [
        LogInfo(instant(line.at), logging.getLevelName(line.level), line.logger, line.text, *where)
        for line in log.lines
    ]
    if log.dropped:
        first = lines[0].at if lines else instant(0)
        lines.insert(0, LogInfo(first, "WARNING", "locktender", _dropped(log), *where))
    return lines


def _dropped(log: AttemptLog) -> str:
    return (
        f"{log.dropped:,} earlier lines of this attempt were dropped: the last {MAX_LINES:,} lines"
        f" or {MAX_BYTES // 1024} kB are kept"
    )
