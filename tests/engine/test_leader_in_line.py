"""While submitters hold their lock for long, the leader goes on with what runs (PostgreSQL)."""

from __future__ import annotations

import threading

from locktender import embedded, flow, step
from locktender.store.postgres.options import parse
from locktender.store.postgres.session import SUBMITTERS
from locktender.testing import check_history, eventually
from locktender.testing.postgres_server import connected
from locktender.testing.postgres_server import run as run_async

pytest_plugins = ["locktender.testing.postgres"]
_go_on = threading.Event()
TIMEOUT = "60s"


@step
def waiting(n: int) -> int:
    assert _go_on.wait(60)
    return n


@step
async def added(n: int) -> int:
    return n + 1


@flow
def chain(n: int) -> int:
    for _ in range(20):
        n = added(n)
    return n


@flow
def gated(n: int) -> int:
    return chain(waiting(n))


def test_g1_a_leader_that_cannot_wake_goes_on_with_what_runs(postgres_url: str):
    lock = "({}, {})".format(*parse(postgres_url).lock(SUBMITTERS))
    with embedded(postgres_url, grace="2s") as client:
        running = client.submit(gated, 1)
        eventually(lambda: any(each.state == "running" for each in running.tasks()))
        late = client.submit(chain, 1, delay="1ms")
        assert late.result(TIMEOUT) == 21
        late = client.submit(chain, 2, delay="2s")

        async def hold() -> None:
            async with connected(postgres_url) as submitter:
                await submitter.execute(f"SELECT pg_advisory_lock{lock}")
                _go_on.set()
                result = await_result()
                assert result == 21
                assert late.status().value in ("waiting", "queued")

        def await_result() -> int:
            return running.result(TIMEOUT)

        run_async(hold())
        assert late.result(TIMEOUT) == 22
    check_history(postgres_url)
