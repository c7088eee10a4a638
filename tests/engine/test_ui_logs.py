"""The logs of a run on its page and in a terminal: the newest lines, and how many there are."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.cli_harness import locktender
from tests.support.server_harness import fetch, process, served

from locktender import flow, step
from locktender.base.clock import SECOND
from locktender.base.model import AttemptLog, LogFilter, LogLine, decode_log, encode_log
from locktender.client import run_logs
from locktender.client.client_async import AsyncClient
from locktender.server.ui import run as run_page
from locktender.store.protocol import RunFilter

pytest_plugins = ["locktender.testing.postgres"]
ITEMS, LINES = 12, 5
log = logging.getLogger("ui logs")


@step
async def noisy(item: int) -> int:
    for line in range(LINES):
        log.warning("item %s line %s", item, line)
    return item


@flow(name="ui logs")
def many_lines() -> list[int]:
    return noisy.map(list(range(ITEMS)), window=1)


async def test_the_newest_lines_are_shown_with_how_many_there_are(
    store_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(run_page, "LINES_SHOWN", 7)
    monkeypatch.setattr(run_logs, "ATTEMPTS_PER_READ", 2)
    async with (
        process(store_url, lead=True, work=True) as (core, _),
        served(core, api=True) as port,
    ):
        run = await AsyncClient(core).submit(many_lines)
        await run.result("60s")
        page = (await fetch(port, f"/runs/{run.id}?tab=logs")).text
        assert page.count('<td class="text">') == 7
        assert "item 11 line 4" in page
        assert "item 10 line 3" in page
        assert "item 10 line 2<" not in page
        assert "The last 7 of 60 lines." in page
        assert f"locktender runs logs {run.id} --limit 100000" in page

        monkeypatch.setattr(run_logs, "MAX_COUNTED", 3)
        page = (await fetch(port, f"/runs/{run.id}?tab=logs")).text
        assert "The last 7 of more than 20 lines." in page

        every = await fetch(port, f"/runs/{run.id}/logs.txt")
        assert every.headers["content-disposition"].startswith("attachment")
        texts = every.text.splitlines()
        assert len(texts) == ITEMS * LINES
        assert texts[0].endswith("WARNING noisy[0] item 0 line 0")

        task = (await run.tasks())[0]
        page = (await fetch(port, f"/runs/{run.id}/tasks/{task.id}")).text
        assert "item 0 line 4" in page
        assert "The last" not in page

        newest = [line.message for line in await run.logs(limit=3)]
        assert newest == [f"item 11 line {each}" for each in (2, 3, 4)]
        said = await asyncio.to_thread(
            locktender, "runs", "logs", run.id, "--limit", "3", "--url", store_url, cwd=tmp_path
        )
        assert [line.split("item ")[1] for line in said.out.splitlines()] == [
            f"11 line {each}" for each in (2, 3, 4)
        ]
        assert "Only the last 3 lines are shown. More: --limit 100000." in said.err


async def test_what_an_old_attempt_logs_now_is_among_the_newest(tmp_path: Path):
    """Later attempts, of other tasks and with higher numbers, have logged before."""
    async with process(tmp_path / "a.db", lead=True, work=True) as (core, _):
        run = await AsyncClient(core).submit(many_lines)
        await run.result("60s")
        (row,) = await core.store.runs(RunFilter())
        (first, *_) = await core.store.logs(LogFilter(row.seq))
        at = max(line.at for line in await run.logs()) + timedelta(hours=1)
        later = LogLine(int(at.timestamp() * SECOND), logging.INFO, "ui logs", "and now this")
        log = decode_log(first.body)
        body = encode_log(AttemptLog(0, [*log.lines, later]))
        await core.store.keep_logs([first._replace(body=body, lines=LINES + 1, last_at=later.at)])
        newest = [line.message for line in await run.logs(limit=2)]
        assert newest == ["item 11 line 4", "and now this"]
