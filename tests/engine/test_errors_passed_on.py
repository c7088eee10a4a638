"""Errors of a map that collects them pass through the maps behind it; a failure handler is given the failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import cli_harness

from locktender import Client, InvalidFlow, RunFailed, RunState, StepError, TaskState, flow, step

pytest_plugins = ["locktender.testing.plugin"]
TIMEOUT = "60s"
GIVEN: dict[str, list[Any]] = {}


@pytest.fixture(autouse=True)
def _given() -> Iterator[None]:
    GIVEN.clear()
    yield
    GIVEN.clear()


def given(where: str, value: Any) -> Any:
    GIVEN.setdefault(where, []).append(value)
    return value


@step
def fetch(number: int) -> int:
    if given("fetch", number) == 2:
        raise ValueError(f"no {number}")
    return number


@step
def double(number: int) -> int:
    return 2 * given("double", number)


@step
def add_one(number: int) -> int:
    return given("add_one", number) + 1


@step
def describe(result: int | StepError) -> str:
    return f"error: {result.message}" if isinstance(result, StepError) else str(result)


@flow
def chain(numbers: list[int]) -> list[int | StepError]:
    return add_one.map(double.map(fetch.map(numbers, on_error="collect"), window=1))


@flow
def picked(numbers: list[int]) -> str:
    return describe(fetch.map(numbers, on_error="collect")[0])


@flow
def mistaken(numbers: list[int]) -> int:
    return double(number=fetch.map(numbers, on_error="collect")[0])  # type: ignore[arg-type]


@flow
def compared(numbers: list[int]) -> int:
    fetched = fetch.map(numbers, on_error="collect")
    return double.with_options(when=fetched[0] > 0)(4)  # type: ignore[operator]


@flow
def described(numbers: list[int]) -> list[str]:
    return describe.map(double.map(fetch.map(numbers, on_error="collect")), take_errors=True)


def test_an_error_passes_through_the_maps_behind_it(engine: Client):
    run = engine.submit(chain, [1, 2, 3])

    one, error, three = run.result(TIMEOUT)

    assert (one, three) == (3, 7)
    assert isinstance(error, StepError)
    assert (error.node, error.type, error.message) == ("fetch", "ValueError", "no 2")
    assert sorted(GIVEN["double"]) == [1, 3]
    assert sorted(GIVEN["add_one"]) == [2, 6]


def test_task_and_history_say_the_body_was_not_called(engine: Client):
    run = engine.submit(chain, [1, 2, 3])
    run.result(TIMEOUT)
    said = "its item is the error of fetch, which it passes on: ValueError: no 2"

    passed = {task.name: task for task in run.tasks() if task.index == 1 and task.name != "fetch"}
    assert {task.state for task in passed.values()} == {TaskState.SKIPPED}
    errors = [task.error for task in passed.values() if task.error is not None]
    assert [(error.type, error.message) for error in errors] == [("passed_on", said)] * 2
    events = [event for event in run.events() if event.after == "skipped"]
    assert [(event.name, event.data["reason"]) for event in events] == [
        ("double", said),
        ("add_one", said),
    ]

    url = engine.settings.url
    shown = cli_harness.locktender(
        "runs", "show", run.id, "--tasks", "--url", url, cwd=Path(url).parent, COLUMNS="200"
    )
    assert shown.out.count("1 not called for an error") == 2
    assert shown.out.count(said) == 2


def test_a_map_that_takes_errors_is_called_with_them(engine: Client):
    assert engine.submit(described, [1, 2]).result(TIMEOUT) == ["2", "error: no 2"]


def test_outside_a_flow_errors_pass_on_too():
    error = StepError.of("ValueError", "no 2", "fetch")

    assert double.map([1, error]) == [2, error]
    assert describe.map([1, error], take_errors=True) == ["1", "error: no 2"]


@step
def on_call_failure(failure: StepError) -> None:
    given("call", (failure.node, failure.type, failure.message))


@step
def on_flow_failure(failure: StepError, channel: str = "ops") -> None:
    given("flow", (failure.node, failure.type, failure.message, channel))


@step
def without() -> None:
    given("without", None)


@flow(on_failure=on_flow_failure)
def fails(number: int) -> int:
    double(1)
    return fetch.with_options(on_failure=on_call_failure, name="get")(number)


@flow(on_failure=without)
def fails_plainly(number: int) -> int:
    return fetch(number)


def test_a_failure_handler_is_given_the_failure_if_it_takes_one(engine: Client):
    run = engine.submit(fails, 2)

    assert run.wait(TIMEOUT) is RunState.FAILED

    assert GIVEN["call"] == [("get", "ValueError", "no 2")]
    assert GIVEN["flow"] == [("get", "ValueError", "no 2", "ops")]
    assert engine.submit(fails_plainly, 2).wait(TIMEOUT) is RunState.FAILED
    assert GIVEN["without"] == [None]


def test_a_retried_run_gives_its_handler_the_failure_again(engine: Client):
    run = engine.submit(fails, 2)
    run.wait(TIMEOUT)

    run.retry().wait(TIMEOUT)

    assert GIVEN["call"] == [("get", "ValueError", "no 2")] * 2


def test_a_picked_item_goes_to_a_step_that_takes_errors(engine: Client):
    assert engine.submit(picked, [3]).result(TIMEOUT) == "3"
    assert engine.submit(picked, [2]).result(TIMEOUT) == "error: no 2"
    with pytest.raises(
        InvalidFlow, match="takes int as 'number', but an item of 'fetch' may be an error"
    ):
        engine.submit(mistaken, [3])


def test_a_comparison_with_an_error_names_the_error(engine: Client):
    assert engine.submit(compared, [3]).result(TIMEOUT) == 8
    with pytest.raises(
        RunFailed,
        match=r"a collected error of 'fetch' \(ValueError: no 2\) cannot be compared with >",
    ):
        engine.submit(compared, [2]).result(TIMEOUT)
