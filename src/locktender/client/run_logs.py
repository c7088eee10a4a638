"""The log lines of one run: the newest, as they come, or all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from operator import attrgetter

import msgspec

from locktender.base import names
from locktender.base.changes import TaskRow
from locktender.base.graph import Node
from locktender.base.model import (
    MAX_BYTES,
    MAX_LINES,
    AttemptLog,
    LogFilter,
    LogRow,
    NewestLogs,
    decode_log,
)
from locktender.base.states import OUTBOX_RUNS, TERMINAL_RUNS
from locktender.client.core import Core
from locktender.client.run_details import nodes_of
from locktender.client.views import LogInfo, instant

MAX_LIMIT = 100_000
FOLLOW_SECONDS = 0.5
MAX_COUNTED = 2_000
"""Attempts whose lines are counted for a page: it may ask each second."""
ATTEMPTS_PER_READ = 20
"""Read at once for a few hundred lines: an attempt has up to 1,000."""
ATTEMPTS_PER_LONG_READ = 200
_at = attrgetter("at")


class LogTail(msgspec.Struct, frozen=True):
    """The newest lines of a run, in the order of their time."""

    lines: list[LogInfo]
    total: int
    """How many were logged, also those that were dropped."""
    more: bool
    """Whether so many attempts logged that not all were counted."""


async def tail(core: Core, run_id: str, task: int | None, limit: int) -> LogTail:
    row = await core.row(run_id)
    if row.state in OUTBOX_RUNS:
        return LogTail([], 0, False)
    lines = await logs(core, run_id, task, limit)
    found = await core.store.log_total(row.seq, task, MAX_COUNTED + 1)
    return LogTail(lines, found.lines, found.attempts > MAX_COUNTED)


async def logs(core: Core, run_id: str, task: int | None, limit: int) -> list[LogInfo]:
    """The newest `limit` lines, in the order of their time.

    Attempts are read from the one with the newest line on, until none that is left can have a newer line than
    those that were found: of a run of 100,000 items that are a few.
    """
    most = names.count(limit, "limit", maximum=MAX_LIMIT)
    row = await core.row(run_id)
    if row.state in OUTBOX_RUNS:
        return []
    nodes = await nodes_of(core.store, row.graph)
    where = NewestLogs(
        row.seq, task, limit=ATTEMPTS_PER_READ if most <= MAX_LINES else ATTEMPTS_PER_LONG_READ
    )
    lines: list[LogInfo] = []
    while page := await core.store.newest_logs(where):
        for each in reversed(page):
            lines += _lines(each.row, each.node, each.idx, nodes)
        lines = sorted(lines, key=_at)[-most:]
        last = page[-1].row
        if len(page) < where.limit or (len(lines) == most and lines[0].at >= instant(last.last_at)):
            break
        where = where._replace(before=(last.last_at, last.task, last.token))
    return lines


async def all_lines(core: Core, run_id: str) -> AsyncIterator[list[LogInfo]]:
    """Every line that is kept, by task and attempt."""
    row = await core.row(run_id)
    if row.state in OUTBOX_RUNS:
        return
    nodes = await nodes_of(core.store, row.graph)
    tasks = {each.id: each for each in await core.store.tasks(row.seq)}
    after = (0, 0)
    while page := await core.store.logs(LogFilter(row.seq, None, after)):
        yield [line for each in page if each.task in tasks for line in _of(each, tasks, nodes)]
        after = page[-1].task, page[-1].token


async def follow_logs(core: Core, run_id: str, task: int | None) -> AsyncIterator[LogInfo]:
    """Lines as they are stored, until the run has ended: about a second after they were logged."""
    seen: dict[tuple[int, int], int] = {}
    nodes = await nodes_of(core.store, (await core.row(run_id)).graph)
    tasks: dict[int, TaskRow] = {}
    while True:
        # First: what an attempt logged is stored before its end is.
        row = await core.row(run_id)
        counts = await core.store.log_counts(row.seq, task)
        lines: list[LogInfo] = []
        for (each, token), count in counts.items():
            known = seen.get((each, token), 0)
            if count <= known:
                continue
            if each not in tasks:
                tasks = {found.id: found for found in await core.store.tasks(row.seq)}
            where = LogFilter(row.seq, each, (each, token - 1), 1)
            for found in await core.store.logs(where) if each in tasks else ():
                lines += _of(found, tasks, nodes, known)
                seen[each, token] = found.lines
        for line in sorted(lines, key=_at):
            yield line
        if row.state in TERMINAL_RUNS and not lines:
            return
        if row.state not in TERMINAL_RUNS:
            await asyncio.sleep(FOLLOW_SECONDS)


class AttemptLines(msgspec.Struct, frozen=True):
    """How many lines one attempt has logged."""

    task: int
    token: int
    """Of the attempt."""
    lines: int


class LogCounts(msgspec.Struct, frozen=True):
    """How many lines each attempt of a run has logged, and the state of the run before they were counted."""

    state: str
    attempts: list[AttemptLines]


async def log_counts(core: Core, run_id: str, task: int | None) -> LogCounts:
    row = await core.row(run_id)
    if row.state in OUTBOX_RUNS:
        return LogCounts(row.state, [])
    counts = await core.store.log_counts(row.seq, task)
    return LogCounts(row.state, [AttemptLines(*where, count) for where, count in counts.items()])


async def attempt_logs(core: Core, run_id: str, task: int, token: int, known: int) -> list[LogInfo]:
    """Lines of one attempt but the first `known`."""
    row = await core.row(run_id)
    nodes = await nodes_of(core.store, row.graph)
    rows = {each.id: each for each in await core.store.tasks(row.seq)}
    where = LogFilter(row.seq, task, (task, token - 1), 1)
    return [
        line
        for found in await core.store.logs(where)
        if task in rows and found.token == token
        for line in _of(found, rows, nodes, known)
    ]


def _of(
    row: LogRow, tasks: dict[int, TaskRow], nodes: tuple[Node, ...], known: int = 0
) -> list[LogInfo]:
    task = tasks[row.task]
    return _lines(row, task.node, task.idx, nodes, known)


def _lines(
    row: LogRow, node: int, idx: int, nodes: tuple[Node, ...], known: int = 0
) -> list[LogInfo]:
    """`known`: so many lines of the attempt were read before."""
    log = decode_log(row.body)
    name = nodes[node].name if 0 <= node < len(nodes) else f"node {node}"
    where = row.task, name, None if idx < 0 else idx, row.attempt
    lines = [
        LogInfo(instant(line.at), logging.getLevelName(line.level), line.logger, line.text, *where)
        for line in log.lines[max(0, known - log.dropped) :]
    ]
    if log.dropped > known:
        first = lines[0].at if lines else instant(0)
        lines.insert(0, LogInfo(first, "WARNING", "locktender", _dropped(log), *where))
    return lines


def _dropped(log: AttemptLog) -> str:
    return (
        f"{log.dropped:,} earlier lines of this attempt were dropped: the last {MAX_LINES:,} lines"
        f" or {MAX_BYTES // 1024} kB are kept"
    )
