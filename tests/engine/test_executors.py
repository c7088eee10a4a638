"""C3, B13: each executor × each way to end: told once, permit freed, work directory gone, no process left."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from locktender.worker.executors import sources
from locktender.worker.executors.current import current
from locktender.worker.executors.protocol import Attempt, Outcome

_harness: Any = sources.load(
    sources.CodeSource(
        "locktender_executor_harness",
        str(Path(__file__).parents[1] / "support" / "executor_harness.py"),
    )
)
Harness, KINDS, LONG, PATIENCE, STEPS, alive, until = (
    _harness.Harness, _harness.KINDS, _harness.LONG, _harness.PATIENCE, _harness.STEPS, _harness.alive,
    _harness.until,
)  # fmt: skip
StubStep: Any = sources.load(_harness.SOURCE).StubStep

every = pytest.mark.parametrize("kind", KINDS)


def stub(fn: Any) -> Any:
    return StubStep(fn.__name__, fn)


def jobs_alive(token: int) -> list[Attempt]:
    gc.collect()
    # By type: to be asked for its class wakes a lazy object of a library that another test has loaded.
    found = [each for each in gc.get_objects() if type(each) is Attempt]
    return [each for each in found if each.token == token]


@every
async def test_success(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        outcome = await harness.run("double", 21)

        assert outcome == Outcome("completed", b"42")
        assert harness.executor.free == 2


@every
async def test_failure_carries_the_users_frames(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        outcome = await harness.run("fail")

    assert outcome.state == "failed"
    assert outcome.failure.type == "ValueError"
    assert outcome.failure.message == "no such luck"
    assert 'raise ValueError("no such luck")' in outcome.failure.traceback
    assert "locktender/worker" not in outcome.failure.traceback
    assert outcome.failure.retryable is False  # retry_on=(OSError,)


@every
async def test_a_body_that_raises_what_closes_a_coroutine_has_failed(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        outcome = await harness.run("give_up", 1)

        assert outcome.state == "failed"
        assert harness.executor.free == 2


@every
async def test_timeout(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        outcome = await harness.run("hang", timeout_us=50_000)

        assert (outcome.state, outcome.reason) == ("timed_out", "timeout")
        assert outcome.failure.type == "timeout"
        assert "50ms" in outcome.failure.message
        assert harness.executor.free == 2


@every
async def test_a_late_end_is_timed_out_while_the_loop_is_held(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        await harness.run("double", 1)  # a child that is warm
        job = harness.start("overstay", 0.4, timeout_us=200_000)
        if kind != "async":
            # Where the machine is slow the loop may have ended it before: the verdict is the same.
            await until(lambda: harness.marker(job).exists() or harness.ends[1:])
            while harness.marker(job).exists():  # until the body has ended; nothing else goes on
                time.sleep(0.01)  # noqa: ASYNC251 — the very fault
            time.sleep(0.05)  # noqa: ASYNC251 — its word is on the way
        outcome = await harness.end_of(job)

    assert (outcome.state, outcome.reason) == ("timed_out", "timeout")
    assert outcome.failure.type == "timeout"


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_an_end_in_time_is_kept_while_the_loop_is_held(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loop: Any = asyncio.get_running_loop()
    async with Harness(kind, tmp_path) as harness:
        job = harness.start("end_on_go", timeout_us=LONG)
        await harness.begun(job)
        # From here on the loop is held: the body ends, and its end waits to be read.
        harness.marker(job, "go").touch()
        held_until = time.monotonic() + PATIENCE
        while harness.marker(job).exists() or not loop._selector.select(0):
            assert time.monotonic() < held_until
            time.sleep(0.002)  # noqa: ASYNC251 — the very fault
        assert harness.ends == []
        # And for so long that the timeout is due, too.
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + 2 * LONG / 1_000_000)
        outcome = await harness.end_of(job)

    assert outcome == Outcome("completed", b"42")


@every
@pytest.mark.parametrize("reason", ["cancel", "lease_lost", "drain"])
async def test_stop(kind: str, reason: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        outcome, pid = await harness.stopped("hang", reason)

        assert outcome == Outcome("cancelled", reason=reason)
        if kind == "process":
            assert not alive(pid)
        assert await harness.run("double", 1) == Outcome("completed", b"2")


@every
async def test_stop_before_the_body_begins(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        job = harness.start("hang")
        harness.executor.stop(job.token, "cancel")

        assert await harness.end_of(job) == Outcome("cancelled", reason="cancel")


@every
async def test_stopping_twice_and_stopping_nobody_change_nothing(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        harness.executor.stop(999, "cancel")
        job = harness.start("hang")
        await harness.begun(job)
        harness.executor.stop(job.token, "cancel")
        harness.executor.stop(job.token, "timeout")

        assert (await harness.end_of(job)).state == "cancelled"
        harness.executor.stop(job.token, "cancel")


@every
@pytest.mark.parametrize(
    ("step", "type_"), [("leave", "SystemExit"), ("interrupt", "KeyboardInterrupt")]
)
async def test_an_exit_in_a_body_fails_only_the_task(
    kind: str, step: str, type_: str, tmp_path: Path
):
    async with Harness(kind, tmp_path) as harness:
        outcome = await harness.run(step)

        assert (outcome.state, outcome.failure.type) == ("failed", type_)
        assert (await harness.run("double", 1)).state == "completed"


class Poison:
    """A step whose types exit: where a call is decoded, a result encoded, an error shown."""

    name, retry_on = "poison", None

    def __init__(self, where: str) -> None:
        self.where = where

    def decode_call(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        if self.where == "decode":
            sys.exit("bad pill")
        return [], {}

    async def fn(self) -> None:
        class Weird(Exception):
            def __str__(self) -> str:
                raise SystemExit(3)

        if self.where == "error":
            raise Weird
        if self.where == "retry":
            raise ValueError

    def encode_result(self, value: Any) -> bytes:
        raise KeyboardInterrupt


class Unasked(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        raise SystemExit(4)


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(
    ("where", "type_"),
    [
        ("decode", "invalid_arguments"),
        ("error", "Weird"),
        ("encode", "unserialisable_result"),
        ("retry", "internal"),
    ],
)
async def test_an_exit_beside_a_body_fails_only_the_task(
    kind: str, where: str, type_: str, tmp_path: Path
):
    async with Harness(kind, tmp_path) as harness:
        step: Any = Poison(where)
        if where == "retry":
            step.retry_on = (Unasked("Error", (Exception,), {}),)
        job = Attempt(1, 1, "run", step, b"")
        harness.executor.start(job, harness._done)
        outcome = await harness.end_of(job)

        assert (outcome.state, outcome.failure.type) == ("failed", type_)
        assert (await harness.run("double", 1)).state == "completed"


@every
async def test_unserialisable_result(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        outcome = await harness.run("odd")

    assert outcome.failure.type == "unserialisable_result"
    assert outcome.failure.retryable is False


@every
async def test_a_result_over_the_limit_is_refused_with_a_hint(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        outcome = await harness.run("large")

    assert outcome.failure.type == "result_too_large"
    assert "return its address" in outcome.failure.message
    assert outcome.failure.retryable is False

    async with Harness(kind, tmp_path, max_result=None) as harness:
        assert len((await harness.run("large")).output) == (3 << 20) + 2


@every
async def test_arguments_that_do_not_decode(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        job = harness.start("double")
        second = Attempt(9, 9, "run", job.step, b"{not json", source=job.source)
        harness.executor.start(second, harness._done)

        assert (await harness.end_of(second)).failure.type == "invalid_arguments"
        assert (await harness.end_of(job)).failure.type == "TypeError"


@every
async def test_beyond_the_permits_nothing_starts(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path, permits=1) as harness:
        first = harness.start("hang")
        second = harness.start("double", 1)
        assert harness.ends == []  # told from the loop, never from inside start

        refused = await harness.end_of(second)
        assert refused.failure.type == "internal"
        assert refused.failure.message.startswith("internal: ")
        harness.executor.stop(first.token, "cancel")
        assert (await harness.end_of(first)).state == "cancelled"


@every
async def test_one_token_is_started_once(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        job = harness.start("hang")
        heard: list[Outcome] = []
        harness.executor.start(job, lambda _, outcome: heard.append(outcome))
        await until(lambda: heard)

        assert "started twice" in (heard[0].failure.message if heard[0].failure else "")
        assert harness.executor.in_flight == 1


@every
async def test_kill_ends_everything(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        jobs = [harness.start("hang"), harness.start("hang")]
        for job in jobs:
            await harness.begun(job)
        harness.executor.kill()

        for job in jobs:
            assert await harness.end_of(job) == Outcome("cancelled", reason="kill")


@every
async def test_close_waits_for_what_ends_within_grace(kind: str, tmp_path: Path):
    harness = Harness(kind, tmp_path)
    job = harness.start("double", 4)

    assert await harness.executor.close(10_000_000) == []
    assert await harness.end_of(job) == Outcome("completed", b"8")


@every
async def test_what_starts_while_it_closes_is_handed_back(kind: str, tmp_path: Path):
    harness = Harness(kind, tmp_path)
    closing = asyncio.ensure_future(harness.executor.close(0))
    await until(lambda: harness.executor._attempts.closing)
    late = harness.start("double", 4)

    assert await harness.end_of(late) == Outcome("cancelled", reason="drain")
    assert await closing == []


@every
async def test_close_drains_what_does_not(kind: str, tmp_path: Path):
    harness = Harness(kind, tmp_path)
    job = harness.start("hang")
    await harness.begun(job)

    assert await harness.executor.close(1_000) == []
    assert await harness.end_of(job) == Outcome("cancelled", reason="drain")


@every
async def test_an_error_in_done_does_not_stop_the_executor(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with Harness(kind, tmp_path) as harness:
        job = Attempt(
            5, 5, "run", STEPS["double"], b"[1]", work_root=tmp_path, source=_harness.SOURCE
        )
        harness.executor.start(job, lambda *_: 1 / 0)
        await until(lambda: "ZeroDivisionError" in caplog.text)

        assert harness.executor.in_flight == 0


@every
async def test_attempts_of_one_task_have_their_own_directories(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        one, other = harness.start("hang"), harness.start("hang")
        await harness.begun(one)
        await harness.begun(other)
        assert harness.marker(one) != harness.marker(other)

        harness.executor.stop(one.token, "cancel")
        await harness.end_of(one)

        assert not harness.marker(one).parent.exists()
        assert harness.marker(other).exists()
        harness.executor.stop(other.token, "cancel")
        await harness.end_of(other)


async def test_a_body_that_swallows_its_cancel_stays_in_flight(
    tmp_path: Path,
):
    async with Harness("async", tmp_path) as harness:
        job = harness.start("unstopped")
        await harness.begun(job)
        harness.executor.stop(job.token, "cancel")
        await until(harness.marker(job, "swallowed").exists)

        (left,) = harness.executor.stopping()
        assert (left.token, left.reason) == (job.token, "cancel")
        assert left.since_us > 0
        assert harness.executor.free == 1

        harness.marker(job, "go").touch()
        assert await harness.end_of(job) == Outcome("cancelled", reason="cancel")


async def test_a_thread_keeps_its_permit_until_it_returns(tmp_path: Path):
    go, started = threading.Event(), threading.Event()

    def wait() -> str:
        started.set()
        go.wait(60)
        return "too late"

    async with Harness("thread", tmp_path, permits=1) as harness:
        for timeout_us in (10_000, 1_000_000, 30_000_000):
            job = Attempt(1, 1, "run", stub(wait), b"", timeout_us=timeout_us)
            harness.executor.start(job, harness._done)
            await until(lambda: started.is_set() or harness.ends)
            if started.is_set():
                break
            harness.ends.clear()  # it timed out before a thread had begun it: a longer time will do
        await until(harness.executor.stopping)

        assert harness.executor.in_flight == 1
        assert harness.executor.free == 0
        assert harness.executor.stopping()[0].reason == "timeout"
        assert harness.ends == []

        go.set()
        assert (await harness.end_of(job)).state == "timed_out"


async def test_threads_are_made_on_demand_and_reused(tmp_path: Path):
    async with Harness("thread", tmp_path, permits=8) as harness:
        for value in range(20):
            await harness.run("double", value)

        assert len(harness.executor._threads) == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_context_is_carried_and_kept_apart(kind: str, tmp_path: Path):
    traced: contextvars.ContextVar[str] = contextvars.ContextVar("traced")
    traced.set("outside")

    def look() -> list[Any]:
        job = current()
        assert job is not None
        seen = [traced.get(), job.token]
        traced.set("inside")
        return seen

    async with Harness(kind, tmp_path) as harness:
        for token in (1, 2):
            job = Attempt(token, token, "run", stub(look), b"")
            harness.executor.start(job, harness._done)
            outcome = await harness.end_of(job)
            assert outcome.output == f'["outside", {token}]'.encode()

    assert traced.get() == "outside"
    assert current() is None


async def test_the_outcomes_of_many_threads_are_all_told(tmp_path: Path):
    async with Harness("thread", tmp_path, permits=8) as harness:
        for _ in range(100):
            jobs = [harness.start("double", 1) for _ in range(8)]
            await until(lambda: harness.executor.in_flight == 0)
            assert len(jobs) == 8

        assert len(harness.ends) == 800


async def test_unlimited_async_permits(tmp_path: Path):
    async with Harness("async", tmp_path, permits=-1) as harness:
        jobs = [harness.start("double", 1) for _ in range(2_000)]

        assert harness.executor.free == -1
        assert harness.executor.in_flight == 2_000
        await until(lambda: len(harness.ends) == len(jobs))


async def test_the_holder_of_the_loop_can_be_named(tmp_path: Path):
    async with Harness("async", tmp_path) as harness:
        seen: list[Attempt | None] = []

        async def block() -> None:
            asker = threading.Thread(target=lambda: seen.append(harness.executor.holder()))
            asker.start()
            asker.join()

        job = Attempt(1, 1, "run", stub(block), b"")
        harness.executor.start(job, harness._done)
        await harness.end_of(job)

        assert seen == [job]
        assert harness.executor.holder() is None


async def test_a_task_cancelled_from_outside_is_told_too(tmp_path: Path):
    async with Harness("async", tmp_path) as harness:
        waiting, unborn = harness.start("hang"), None
        await harness.begun(waiting)
        unborn = harness.start("hang")
        await asyncio.sleep(0)  # it is handed to the body loop, and has not run there

        def cancel_all() -> None:
            for task in asyncio.all_tasks():
                task.cancel()

        harness.executor.body_loop.call(cancel_all)

        assert (await harness.end_of(waiting)).failure.type == "CancelledError"
        assert (await harness.end_of(unborn)).state == "failed"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_nothing_of_an_ended_job_is_kept(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        token = harness.start("double", 1).token
        await until(lambda: harness.ends)

        # An idle thread, or a task that has ended, must not hold on to the last job's values.
        await until(lambda: not jobs_alive(token))


async def test_an_async_function_may_run_in_a_thread(tmp_path: Path):
    async with Harness("thread", tmp_path) as harness:
        job = Attempt(1, 1, "run", STEPS["double_async"], b"[3]", work_root=tmp_path)
        harness.executor.start(job, harness._done)

        assert await harness.end_of(job) == Outcome("completed", b"6")


@every
async def test_to_close_it_again_closes_nothing_else(kind: str, tmp_path: Path):
    """A second signal closes executors that the first has closed."""
    async with Harness(kind, tmp_path) as harness:
        await harness.run("double", 21)
        await harness.executor.close(0)
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        assert await harness.executor.close(0) == []
        for each in others:
            os.close(each)
