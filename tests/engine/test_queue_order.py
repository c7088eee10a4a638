"""D8: of equal runs the one that was submitted first starts first, however the leader learns of them."""

from __future__ import annotations

from typing import Any

from tests.support.server_harness import PATIENCE, process, until

from locktender import connect_async, flow, step
from locktender.client.run import AsyncRun
from locktender.kernel.scheduler import Scheduler
from locktender.store.protocol import ChangeNotice, Gathered
from locktender.testing import check_history

pytest_plugins = ["locktender.testing.postgres"]
SILENT: dict[str, Any] = {
    "max_concurrent_runs": 1,
    "heartbeat": "5m",
    "worker_lease": "20m",
    "leader_renew": "5m",
    "leader_lease": "20m",
}
"""No transaction of its own is open while it reads: events behind one that is open are told later."""


@step
async def passed_on(n: int) -> int:
    return n


@flow
def in_order(n: int) -> int:
    return passed_on(n)


async def test_d8_a_notified_run_waits_for_older_ones(postgres_url: str):
    """The leader reads; then two runs come, and only the second is named to it."""
    async with (
        process(postgres_url, lead=True, work=True, **SILENT) as (_, engine),
        connect_async(postgres_url) as client,
    ):
        await until(lambda: engine.leader, "a leader")
        leader = engine.leader
        assert leader is not None
        term: Any = leader
        changes = term._changes
        gather, notice = changes.gather, leader.notice
        runs: list[AsyncRun[int]] = []

        async def gather_before(scheduler: Scheduler) -> Gathered:
            found = await gather(scheduler)
            if not runs and not term._sweep_due:  # else this turn reads once more
                runs.extend([await client.submit(in_order, n) for n in range(2)])
                newest, _ = await client.runs.list()
                notice(ChangeNotice(look=True))
                notice(ChangeNotice(look=False, queued=(newest.number,)))
            return found

        changes.gather = gather_before
        leader.notice = lambda told: None  # type: ignore[method-assign]
        leader.wake()
        await until(lambda: len(runs) == 2, "two runs")
        for n, run in enumerate(runs):
            assert await run.result(PATIENCE) == n
        newest, oldest = await client.runs.list()
        assert newest.started_at is not None
        assert oldest.started_at is not None
        assert oldest.started_at < newest.started_at
        leader.notice = notice  # type: ignore[method-assign]
    check_history(postgres_url)
