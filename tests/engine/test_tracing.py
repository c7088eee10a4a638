"""Traces: the submitter's context reaches the body, through the store, in every executor and every process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.support.transports import served

from locktender import Client, RunFailed, connect
from locktender.observe import tracing
from locktender.testing import Engines, eventually
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

steps: Any = load(source(Path(__file__).parents[1] / "steps" / "traced_steps.py"))
TIMEOUT = "60s"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A program may set its provider only once; a test must not leave one behind.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def ids(span: ReadableSpan) -> list[str]:
    context = span.get_span_context()
    assert context is not None
    return [f"{context.trace_id:032x}", f"{context.span_id:016x}"]


def of_steps(exported: InMemorySpanExporter, count: int) -> dict[str, ReadableSpan]:
    def found() -> list[ReadableSpan]:
        spans = [s for s in exported.get_finished_spans() if s.name.startswith("locktender.step ")]
        return spans if len(spans) >= count else []

    spans = eventually(found, what="the spans")
    assert len(spans) == count
    return {span.name.rpartition(":")[2]: span for span in spans}


def test_a_steps_span_is_the_submitters_child(engine: Client, exported: InMemorySpanExporter):
    with trace.get_tracer("caller").start_as_current_span("caller") as caller:
        run = engine.submit(steps.everywhere)
    seen = run.result(TIMEOUT)

    spans = of_steps(exported, 3)
    context = caller.get_span_context()
    tasks = {task.step: task for task in run.tasks()}
    for name, inside in zip(("on_loop", "in_thread", "in_process"), seen, strict=True):
        span = spans[name]
        assert span.parent is not None
        assert span.parent.span_id == context.span_id
        assert inside == ids(span)
        assert inside[0] == f"{context.trace_id:032x}"
        attributes = dict(span.attributes or {})
        step = str(attributes["locktender.step"])
        assert attributes == {
            "locktender.run": run.id,
            "locktender.flow": run.info().flow,
            "locktender.task": tasks[step].id,
            "locktender.attempt": 1,
            "locktender.step": step,
            "locktender.worker": tasks[step].worker,
            "locktender.outcome": "completed",
        }
        assert span.status.status_code is StatusCode.UNSET


def test_a_trace_goes_on_through_a_server(engine: Client, exported: InMemorySpanExporter):
    with served(engine) as address, connect(address) as client:
        with trace.get_tracer("caller").start_as_current_span("caller") as caller:
            one = client.submit(steps.everywhere)
            [many] = client.submit_many(steps.everywhere, [()])
        alone = client.submit(steps.everywhere)
        for run in (one, many, alone):
            run.result(TIMEOUT)
    context = caller.get_span_context()
    spans = [each for each in exported.get_finished_spans() if each.name != "caller"]
    assert len(spans) == 9
    for span in spans:
        if dict(span.attributes or {})["locktender.run"] == alone.id:
            assert span.parent is None
            continue
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == (context.trace_id, context.span_id)


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (PARENT, PARENT),
        (f" {PARENT} ", PARENT),
        (f"cc{PARENT[2:]}-what-the-future-holds", PARENT),
        (f"{PARENT}-more", None),
        (f"ff{PARENT[2:]}", None),
        (PARENT.upper(), None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", None),
        ("x", None),
        ("", None),
        (f"{PARENT}\n{PARENT}", None),
    ],
)
def test_a_traceparent_that_is_none_is_ignored(given: str, kept: str | None):
    assert tracing.valid_parent(given) == kept


def test_a_worker_beside_the_leader_gets_it_too(
    make_engine: Engines, exported: InMemorySpanExporter
):
    leader = make_engine()
    make_engine(worker_labels={"role": "far"})
    with trace.get_tracer("caller").start_as_current_span("caller") as caller:
        run = leader.submit(steps.elsewhere)

    seen = run.result(TIMEOUT)

    span = of_steps(exported, 1)["far"]
    assert seen == ids(span)
    assert span.parent is not None
    assert span.parent.span_id == caller.get_span_context().span_id
    assert dict(span.attributes or {})["locktender.flow"] == run.info().flow


def test_each_attempt_has_a_span_and_a_failure_is_an_error(
    engine: Client, exported: InMemorySpanExporter
):
    run = engine.submit(steps.failing)
    with pytest.raises(RunFailed):
        run.result(TIMEOUT)

    of_steps_count = 2
    eventually(lambda: len(exported.get_finished_spans()) == of_steps_count)
    first, second = exported.get_finished_spans()
    assert [dict(span.attributes or {})["locktender.attempt"] for span in (first, second)] == [1, 2]
    for span in (first, second):
        assert span.parent is None  # nobody's context: a trace of its own
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "ValueError: no such luck"
        [event] = span.events
        assert "traced_steps.py" in str(dict(event.attributes or {})["exception.stacktrace"])


def test_without_a_provider_nothing_is_made(engine: Client):
    assert steps.where()[1] == "0" * 16
    assert engine.submit(steps.everywhere).result(TIMEOUT) == [["0" * 32, "0" * 16]] * 3


def test_a_program_without_it_never_loads_it(tmp_path: Path):
    (tmp_path / "plain.py").write_text(
        "import sys\n"
        "from locktender import flow, step\n"
        "@step\n"
        "async def one() -> int:\n"
        "    return 1\n"
        "@flow\n"
        "def f() -> int:\n"
        "    return one()\n"
        "if __name__ == '__main__':\n"
        "    print(f.run(), any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "plain.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "1 False", done.stderr
