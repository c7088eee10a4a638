"""Bodies and flows of generated programs (`tests/support/programs.py`).

A body decides from its plan and from its own record of executions how it ends.
The record is one file per run, in the folder `ran` beside the overlap records;
each execution appends one line: task, how it is to end, what it was given.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import zlib
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from locktender import (
    Fatal,
    StepError,
    current,
    flow,
    sleep,
    sleep_until,
    step,
    wait_event,
)
from locktender.testing.overlap import VARIABLE, recording

FOR_GOOD = 1_000_000
"""A plan that fails this often never succeeds."""


class Execution(NamedTuple):
    """One line of a run's record."""

    task: int
    outcome: str
    """`ok`, `error`, `fatal`, `late` or `held`: how the body was going to end."""
    given: str
    """Digest of its item and its arguments."""


def record_of(run: str) -> Path:
    return Path(os.environ[VARIABLE]).parent / "ran" / run


def executions(run: str) -> list[Execution]:
    """Every execution of a run's bodies so far, in order."""
    file = record_of(run)
    text = file.read_text(encoding="ascii") if file.exists() else ""
    whole = text.rpartition("\n")[0]
    found: list[Execution] = []
    for line in whole.split("\n") if whole else []:
        task, outcome, given = line.split(" ")
        found.append(Execution(int(task), outcome, given))
    return found


def plain(value: Any) -> Any:
    """A value without our own classes; a collected error is its message."""
    if isinstance(value, StepError):
        return {"error": value.message}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    return value


def digest(*values: Any) -> str:
    return f"{zlib.crc32(json.dumps(plain(values), sort_keys=True).encode()):08x}"


def failures_of(plan: Mapping[str, Any], item: Any) -> int:
    """How many executions of this task fail before one succeeds."""
    several: list[int] = plan["failures"]
    return several[int(digest(item), 16) % len(several)]


def outcome_of(plan: Mapping[str, Any], item: Any, number: int) -> str:
    """How execution `number` (from 1) of the task with this item ends."""
    return plan["how"] if number <= failures_of(plan, item) else "ok"


def result_of(plan: Mapping[str, Any], name: str, item: Any, args: Any) -> Any:
    base = int(digest(name, item, args), 16)
    if (size := plan.get("size")) is not None:
        return [(base + number) % 97 for number in range(size)]
    return base % 10


@contextmanager
def executing(name: str, item: Any, args: Any, plan: Mapping[str, Any]) -> Generator[str]:
    me = current()
    past = sum(each.task == me.task for each in executions(me.run))
    outcome = outcome_of(plan, item, past + 1)
    with ExitStack() as opened:
        for bound, weight in plan.get("bounds", ()):
            named = f"{me.run}/{bound[1:]}" if bound.startswith("/") else bound
            opened.enter_context(recording(named, label=name, weight=weight))
        file = record_of(me.run)
        file.parent.mkdir(exist_ok=True)
        line = f"{me.task} {outcome} {digest(item, args)}\n".encode("ascii")
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
        yield outcome


def ended(outcome: str, name: str, item: Any, args: Any, plan: Mapping[str, Any]) -> Any:
    if outcome == "error":
        raise ValueError("as planned")
    if outcome == "fatal":
        raise Fatal("as planned")
    return result_of(plan, name, item, args)


@step(retry_delay=0, jitter=False, max_abandons=1000)
async def on_loop(item: Any = None, *, name: str, args: Any, plan: dict[str, Any]) -> Any:
    with executing(name, item, args, plan) as outcome:
        if outcome in ("late", "held"):
            await asyncio.Event().wait()
        await asyncio.sleep(plan["pause"])
        return ended(outcome, name, item, args, plan)


@step(retry_delay=0, jitter=False, max_abandons=1000)
def in_thread(item: Any = None, *, name: str, args: Any, plan: dict[str, Any]) -> Any:
    with executing(name, item, args, plan) as outcome:
        time.sleep(plan["pause"])
        return ended(outcome, name, item, args, plan)


@step(executor="process", retry_delay=0, jitter=False, max_abandons=1000)
def in_process(item: Any = None, *, name: str, args: Any, plan: dict[str, Any]) -> Any:
    with executing(name, item, args, plan) as outcome:
        time.sleep(plan["pause"])
        return ended(outcome, name, item, args, plan)


HANDLER_PLANS: dict[str, dict[str, Any]] = {
    "succeeds": {"failures": [0], "how": "error"},
    "fails": {"failures": [FOR_GOOD], "how": "error"},
}


@step(max_abandons=1000)
async def handler_succeeds() -> Any:
    with executing("", None, None, HANDLER_PLANS["succeeds"]) as outcome:
        return ended(outcome, "", None, None, HANDLER_PLANS["succeeds"])


@step(max_abandons=1000)
async def handler_fails() -> Any:
    with executing("", None, None, HANDLER_PLANS["fails"]) as outcome:
        return ended(outcome, "", None, None, HANDLER_PLANS["fails"])


@step(max_abandons=1000)
async def handler_succeeds_with(failure: StepError) -> Any:
    given = failed_at(failure)
    with executing("", None, given, HANDLER_PLANS["succeeds"]) as outcome:
        return ended(outcome, "", None, given, HANDLER_PLANS["succeeds"])


@step(max_abandons=1000)
async def handler_fails_with(failure: StepError) -> Any:
    given = failed_at(failure)
    with executing("", None, given, HANDLER_PLANS["fails"]) as outcome:
        return ended(outcome, "", None, given, HANDLER_PLANS["fails"])


def failed_at(failure: StepError) -> str:
    """The name of the call that failed, without the flows around it."""
    return str(failure.node).rpartition(".")[2]


BODIES: dict[str, Any] = {"async": on_loop, "thread": in_thread, "process": in_process}
HANDLERS: dict[tuple[str, bool], Any] = {
    ("succeeds", False): handler_succeeds,
    ("fails", False): handler_fails,
    ("succeeds", True): handler_succeeds_with,
    ("fails", True): handler_fails_with,
}


def flow_of(program: Mapping[str, Any]) -> Any:
    """A flow that makes the calls of a program and returns what each gives, by name."""
    handles: dict[str, Any] = {}

    def body() -> dict[str, Any]:
        handles.clear()
        make_calls(program["calls"], handles)
        return dict(handles)

    return flow(fail=program["fail"], max_parallel=program["max_parallel"], **_options(program))(
        body
    )


def _options(scope: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {"name": scope["name"], "sequential": scope["sequential"]}
    if scope["on_failure"]:
        options["on_failure"] = _handler(scope)
    return options


def _handler(scope: Mapping[str, Any]) -> Any:
    handler = HANDLERS[scope["on_failure"], scope["handler_takes"]]
    return handler.with_options(name=f"{scope['name']}_handler")


def make_calls(calls: list[Mapping[str, Any]], handles: dict[str, Any]) -> None:
    for call in calls:
        if "calls" in call:

            def body(call: Mapping[str, Any] = call) -> None:
                make_calls(call["calls"], handles)

            flow(**_options(call))(body)()
        else:
            handles[call["name"]] = _make_call(call, handles)


def _make_wait(call: Mapping[str, Any], handles: Mapping[str, Any]) -> Any:
    wait = call["wait"]
    options: dict[str, Any] = {"name": call["name"]}
    if call["after"]:
        options["after"] = [handles[each] for each in call["after"]]
    if call["when"]:
        options["when"] = _condition(call["when"], handles)
    if wait["kind"] == "event":
        if wait["default"] is not None:
            options["default"] = wait["default"]
        return wait_event(wait["event"], timeout=wait["time"], match=wait["match"], **options)
    value = handles[call["args"][0]] if call["args"] else None
    if wait["kind"] == "past":
        return sleep_until(datetime(2020, 1, 1, tzinfo=UTC), value, **options)
    return sleep(wait["time"], value, **options)


def _make_call(call: Mapping[str, Any], handles: Mapping[str, Any]) -> Any:
    if "wait" in call:
        return _make_wait(call, handles)
    options: dict[str, Any] = {"name": call["name"], "retries": call["retries"]}
    if call["after"]:
        options["after"] = [handles[each] for each in call["after"]]
    if call["when"]:
        options["when"] = _condition(call["when"], handles)
    if call["run_if"] != "success":
        options["run_if"] = call["run_if"]
    if call["on_failure"]:
        options["on_failure"] = _handler(call)
    if call["pools"]:
        options["pools"] = call["pools"]
    if call["timeout"]:
        options["timeout"] = call["timeout"]
    body = BODIES[call["body"]].with_options(**options)
    args = [handles[each] for each in call["args"]]
    given = {"name": call["name"], "args": args, "plan": call["plan"]}
    if call["over"] is None:
        return body(**given)
    over = call["over"]
    items = handles[over] if isinstance(over, str) else over
    takes = {"on_error": call["on_error"], "take_errors": call["take_errors"]}
    return body.map(items, window=call["window"], **takes, **given)


def _condition(when: Mapping[str, Any], handles: Mapping[str, Any]) -> Any:
    handle = handles[when["of"]]
    match when["op"]:
        case "true":
            return handle
        case "not":
            return ~handle
        case "==":
            return handle == when["value"]
        case _:
            return handle != when["value"]
