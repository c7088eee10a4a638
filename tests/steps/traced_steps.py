"""Bodies that say which span they run in."""

from __future__ import annotations

from opentelemetry import trace

from locktender import flow, step


def where() -> list[str]:
    context = trace.get_current_span().get_span_context()
    return [f"{context.trace_id:032x}", f"{context.span_id:016x}"]


@step
async def on_loop() -> list[str]:
    return where()


@step
def in_thread() -> list[str]:
    return where()


@step(executor="process")
def in_process() -> list[str]:
    return where()


@step(needs={"role": "far"})
async def far() -> list[str]:
    return where()


@step(retries=1, retry_delay="1ms")
async def fails() -> None:
    raise ValueError("no such luck")


@flow
def everywhere() -> list[list[str]]:
    return [on_loop(), in_thread(), in_process()]  # pyright: ignore


@flow
def elsewhere() -> list[str]:
    return far()


@flow
def failing() -> None:
    fails()
