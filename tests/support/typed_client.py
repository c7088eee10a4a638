"""What users write, as a strict type checker sees it. `test_client_typing.py` runs pyright on this file.

Every `pyright: ignore` below marks a mistake that must be found: an ignore
that hides nothing is itself an error here.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

from locktender import (
    AdmissionRejected,
    AsyncRun,
    DuplicateKey,
    Run,
    RunState,
    Submission,
    connect,
    embedded,
    embedded_async,
    flow,
    step,
)


@step(pools={"db": 1})
def index(path: str) -> int:
    return len(path)


@flow(tags={"team": "search"})
def build(paths: list[str], depth: int = 1) -> list[int]:
    return index.map(paths)


@flow
def nothing() -> int:
    return index("")


@flow
def weigh(weights: list[float]) -> int:
    return index("")


def sync_code() -> None:
    with embedded(max_concurrent_runs=4) as engine:
        run = engine.submit(
            build, ["a"], tags={"tenant": "acme"}, priority=5, key="k", deadline="1h"
        )
        assert_type(run, Run[list[int]])
        assert_type(run.result(timeout="10m"), list[int])
        assert_type(run.status(), RunState)
        assert_type(engine.submit(build, ["a"], 3), Run[list[int]])
        assert_type(engine.submit(build, paths=["a"]), Run[list[int]])
        assert_type(engine.submit(nothing), Run[int])
        assert_type(engine.submit(weigh, [1, 2]), Run[int])
        assert_type(engine.submit("module:build", ["a"]), Run[Any])
        assert_type(engine.submit_many(nothing, [(), Submission(priority=1)]), list[Run[int]])
        some = engine.submit_many(nothing, [()], partial=True)
        assert_type(some, list[Run[int] | AdmissionRejected | DuplicateKey])
        assert_type(build.run(["a"]), list[int])
        engine.submit(build, [1])  # pyright: ignore[reportCallIssue, reportArgumentType]
        engine.submit(build, ["a"], "deep")  # pyright: ignore[reportCallIssue, reportArgumentType]
        engine.submit(nothing, 1)  # pyright: ignore[reportCallIssue, reportArgumentType]
        engine.submit(build, ["a"], key=7)  # pyright: ignore[reportCallIssue, reportArgumentType]
        with engine.slots("db", 2, timeout="5s") as held:
            held.check()


async def async_code() -> None:
    async with embedded_async() as engine:
        run = await engine.submit(build, ["a"], tags={"tenant": "acme"})
        assert_type(run, AsyncRun[list[int]])
        assert_type(await run.result(), list[int])
        await engine.submit(build, [1])  # pyright: ignore[reportCallIssue, reportArgumentType]
        async with engine.slots("db") as held:
            assert_type(held.slots, int)


connect().pools.set("db", limit="4")  # pyright: ignore[reportArgumentType]
