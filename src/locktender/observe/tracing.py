"""OpenTelemetry: one span per attempt, in the trace of the client that submitted the run.

OpenTelemetry is used only if the program has imported it: otherwise a task
costs one lookup in `sys.modules`. The client's context travels with the run as
a W3C `traceparent`. The worker process starts and ends the span; a step in a
child process gets its context as the parent of its own spans.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from locktender.base.model import Failure

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

log: logging.Logger = logging.getLogger(__name__)
_PARENT = "traceparent"
_W3C = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]{0,200})?")


class TracedStep(Protocol):
    @property
    def name(self) -> str: ...


class TracedAttempt(Protocol):
    """What a span says of an attempt."""

    @property
    def run_id(self) -> str: ...
    @property
    def flow(self) -> str: ...
    @property
    def task(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def worker(self) -> str: ...
    @property
    def step(self) -> TracedStep: ...
    @property
    def trace(self) -> str | None: ...


def traceparent() -> str | None:
    """The caller's own context, to be stored with what it submits; None where it has none."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(_PARENT)


def valid_parent(text: str) -> str | None:
    """A `traceparent` that came with a request; None: it is none, and W3C says to go on without."""
    found = _W3C.fullmatch(text.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    # A later version may have more fields; the first ones mean the same.
    known = version != "ff" and (version != "00" or not more)
    return f"00-{trace}-{span}-{flags}" if known and int(trace, 16) and int(span, 16) else None


def start(attempt: TracedAttempt) -> Span | None:
    """The attempt's span; None where spans are not collected."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    try:
        tracer = _tracer()
        return None if tracer is None else _started(tracer, attempt)
    except Exception:
        # A broken exporter or sampler must not cost a task.
        log.exception("failed to start a span for task %s", attempt.task)
        return None


def enter(span: Any) -> None:
    """Makes the span the current one of this context, until the context ends."""
    from opentelemetry import context, trace  # noqa: PLC0415

    context.attach(trace.set_span_in_context(span))


def enter_remote(parent: str) -> None:
    """The same in another process, if the program there collects spans at all."""
    if "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry import context  # noqa: PLC0415

    context.attach(_context(parent))


def parent_of(span: Any) -> str | None:
    """The span as a `traceparent`."""
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

    carrier: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span))
    return carrier.get(_PARENT)


def end(span: Any, state: str, failure: Failure | None, reason: str | None) -> None:
    """How the attempt ended. Only a failure or a timeout is an error; what was asked for is none."""
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

    try:
        span.set_attribute("locktender.outcome", state)
        if reason is not None:
            span.set_attribute("locktender.reason", reason)
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure.text()))
            span.add_event("exception", _exception(failure))
        span.end()
    except Exception:
        log.exception("failed to end a span")


def _exception(failure: Failure) -> Mapping[str, str]:
    fields = {"exception.type": failure.type, "exception.message": failure.message}
    if failure.traceback is not None:
        fields["exception.stacktrace"] = failure.traceback
    return fields


_known: tuple[object, Tracer] | None = None


def _tracer() -> Tracer | None:
    global _known  # noqa: PLW0603 — one tracer per provider: making one takes a lock
    from opentelemetry import trace  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return None  # none is set
    if _known is None or _known[0] is not provider:
        _known = provider, provider.get_tracer("locktender")
    return _known[1]


def _started(tracer: Tracer, attempt: TracedAttempt) -> Span:
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    # Without a submitter's context it is a trace of its own, whatever is current in the worker.
    context = Context() if attempt.trace is None else _context(attempt.trace)
    return tracer.start_span(
        f"locktender.step {attempt.step.name}",
        context=context,
        kind=SpanKind.CONSUMER,
        attributes={
            "locktender.run": attempt.run_id,
            "locktender.flow": attempt.flow,
            "locktender.task": attempt.task,
            "locktender.attempt": attempt.number,
            "locktender.step": attempt.step.name,
            "locktender.worker": attempt.worker,
        },
    )


def _context(parent: str) -> Any:
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

    return tracecontext.TraceContextTextMapPropagator().extract({_PARENT: parent}, Context())
