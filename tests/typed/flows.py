# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Flows as type checkers see them: `make check` runs mypy and pyright on this file, nothing runs it.

A line marked as wrong must be refused: an ignore that nothing needs is an error itself.
"""

from __future__ import annotations

from locktender import StepError, flow, step, wait_event


@step
async def download(name: str, mirror: str = "eu") -> bytes:
    return name.encode()


@step
def count(data: bytes) -> int:
    return len(data)


@step
def total(counts: list[int]) -> int:
    return sum(counts)


@step
def collected(counts: list[int | StepError]) -> int:
    return len(counts)


def by_name(name: str) -> str:
    return name.lower()


@step(cache="7d", cache_key=by_name, cache_scope="everywhere")
def cached(name: str) -> int:
    return len(name)


@step(cache=60.0, cache_key=("name", "mirror"))
async def cached_async(name: str, mirror: str = "eu") -> bytes:
    return name.encode()


@flow
def caches(names: list[str]) -> int:
    count(cached_async.with_options(cache=None)(names[0]))
    count(cached_async.with_options(cache="1h", cache_key="name", cache_scope="flow")(names[0]))
    return total(cached.map(names))


@step(cache_scope="run")  # type: ignore[call-overload, untyped-decorator]
def wrong_scope(name: str) -> int:
    return 0


@flow
def build(names: list[str]) -> int:
    return total(count.map(download.map(names, window=3, mirror="us")))


@flow
def asked(mirror: str) -> bytes:
    return download(
        wait_event("name", schema=str, timeout="2d"), wait_event("mirror", default="eu")
    )


@flow
def tolerant(names: list[str]) -> int:
    return collected(count.map(download.map(names), on_error="collect"))


@flow
def passed_on(names: list[str]) -> int:
    return collected(count.map(download.map(names, on_error="collect")))


@flow
def wrong(names: list[str]) -> int:
    count.map(names)  # type: ignore[arg-type]
    return total(download.map(names))  # type: ignore[arg-type]
