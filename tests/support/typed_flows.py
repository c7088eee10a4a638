"""What users write, as a strict type checker sees it. `test_flows_typing.py` runs pyright on this file.

Every `pyright: ignore` below marks a mistake that must be found: an ignore
that hides nothing is itself an error here.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from locktender.base.codec import StepError
from locktender.flows.flows import flow
from locktender.flows.handles import as_handle, not_
from locktender.flows.steps import step


@dataclass
class Stats:
    lines: int
    words: dict[str, int]


@step(pools={"ncbi": 1}, retries=3, timeout="2m")
async def download(accession: str, mirror: str = "eu") -> str:
    return f"{mirror}/{accession}"


@step
def measure(path: str) -> Stats:
    return Stats(len(path), {})


@step(pool="db", executor="process", retry_on=(TimeoutError,))
def index(path: str, depth: int = 1) -> int:
    return len(path) * depth


@step
def total(numbers: list[int]) -> int:
    return sum(numbers)


@step
def report(results: list[int | StepError]) -> str:
    return str(len(results))


@step
def half(number: int) -> float:
    return number / 2


@step
def explain(result: int | StepError) -> str:
    return str(result)


@step
def tidy() -> None: ...


@flow
def inner(path: str) -> int:
    return index(path)


@flow(max_parallel=8, tags={"team": "search"}, on_failure=tidy)
def build(accessions: list[str], deep: bool = False) -> int:
    files = download.map(accessions, window=3, mirror="us")
    assert_type(files, list[str])
    numbers = index.map(files)
    assert_type(numbers, list[int])
    collected = index.map(files, on_error="collect")
    assert_type(collected, list[int | StepError])
    assert_type(report(collected), str)
    # Errors pass on: the items of the next map are what the step takes, or errors.
    halves = half.map(collected)
    assert_type(halves, list[float | StepError])
    assert_type(half.map(collected, on_error="collect"), list[float | StepError])
    assert_type(explain.map(collected, take_errors=True), list[str])

    one = download("SRR1")
    assert_type(one, str)
    stats = measure(one)
    assert_type(stats.lines, int)
    assert_type(stats.words["a"], int)
    count = total([index(one), stats.lines])
    assert_type(count, int)
    assert_type(inner(files[0]), int)

    careful = index.with_options(
        after=[count], when=(count > 3) & (stats.lines != 0), timeout="5s", retries=0
    )
    assert_type(careful(one, depth=2), int)
    tidy.with_options(when=as_handle(count).is_in([1, 2]), run_if="always")()
    tidy.with_options(when=not_(count > 3))()
    return total(numbers)


def mistakes(files: list[str]) -> None:
    index(3)  # pyright: ignore[reportArgumentType]
    index()  # pyright: ignore[reportCallIssue]
    index("a", width=1)  # pyright: ignore[reportCallIssue]
    index.map([1, 2])  # pyright: ignore[reportCallIssue, reportArgumentType]
    half.map(index.map(files, on_error="collect"), take_errors=True)  # pyright: ignore[reportCallIssue, reportArgumentType]
    tidy.map([1])  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    total(report.map(files))  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownArgumentType]
    total(index.map(files, on_error="collect"))  # pyright: ignore[reportArgumentType]
    index.map(files, on_error="ignore")  # pyright: ignore[reportCallIssue, reportArgumentType]
    index.with_options(retrys=3)  # pyright: ignore[reportCallIssue]
    build.run(3)  # pyright: ignore[reportArgumentType]


async def outside() -> None:
    assert_type(index("a"), int)
    assert_type(await download.fn("a"), str)
    assert_type(build.run(["a"], deep=True), int)
