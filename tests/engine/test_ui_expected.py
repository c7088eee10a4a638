"""What the pages say of queued runs is what `why` says of each."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.server_harness import fetch, process, served, until

from locktender import flow, step
from locktender.base.clock import SECOND
from locktender.base.durations import spoken
from locktender.client.client_async import AsyncClient
from locktender.server.ui.words import about

QUEUED = 12


@step
async def lasting(latch: str) -> str:
    while latch and not await asyncio.to_thread(Path(latch).exists):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return latch


@flow(name="expected lasts")
def lasts(latch: str) -> str:
    return lasting(latch)


async def test_expected_waits_of_pages_are_those_of_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Given 12 queued runs behind two that execute, when nobody leads and time stands still."""
    url, latch = str(tmp_path / "a.db"), str(tmp_path / "latch")
    async with process(url, lead=True, work=True) as (core, _):
        client = AsyncClient(core)
        for _ in range(5):
            await (await client.submit(lasts, "")).result("60s")
        await client.limits.set_max_concurrent_runs(2)
        first = [await client.submit(lasts, latch) for _ in range(2)]
        for run in first:
            await until(lambda run=run: _runs(run), "the first runs")
        queued = [await client.submit(lasts, latch) for _ in range(QUEUED)]
        started = (await first[0].info()).started_at
        assert started is not None
    async with (
        process(url, lead=False, work=False) as (core, _),
        served(core, api=True) as port,
    ):
        store: Any = core.store
        beside = store.beside
        now = int(started.timestamp() * SECOND) + 30 * SECOND

        async def frozen(run: int, most: int) -> Any:
            view = await beside(run, most)
            lasted = [each * SECOND for each in (3, 9, 20, 70, 8)]
            return view and msgspec.structs.replace(view, now=now, lasted=lasted)

        monkeypatch.setattr(store, "beside", frozen)
        client = AsyncClient(core)
        queue = _expected((await fetch(port, "/queue")).text, "q")
        runs = _expected((await fetch(port, "/runs?status=queued")).text, "r")
        for number, run in enumerate(queued):
            why = await client.why(run.id)
            (reason,) = why.reasons
            assert why.estimate_us is not None
            assert reason.p90_us is not None
            said = (f"within {spoken(reason.p90_us)}", about(why.estimate_us))
            assert queue[run.id] == said
            # Of a list of runs the first ten are counted; the newest stand first.
            assert runs.get(run.id) == (said if number >= QUEUED - 10 else None)
        assert len({said for _, said in queue.values()}) > 3


async def _runs(run: Any) -> bool:
    return await run.status() == "running"


def _expected(page: str, kind: str) -> dict[str, tuple[str, str]]:
    """Run → what is said of the wait, and on hovering."""
    found: dict[str, tuple[str, str]] = {}
    for row in page.split("<tr data-row")[1:]:
        run = re.search(rf'id="{kind}-(\w+)"', row)
        said = re.search(r'<span title="[^"]*(within [^"]*)">([^<]*)</span>', row)
        if run and said:
            found[run[1]] = html.unescape(said[1]), html.unescape(said[2])
    return found
