"""Submissions by name in one process: names of flows that are here, secrets, large graphs, cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from locktender import (
    Client,
    InvalidInput,
    NotFound,
    RunFailed,
    RunState,
    embedded_async,
    flow,
    secret,
    step,
)
from locktender.base.announced import AnnouncedFlow, check_arguments
from locktender.client import by_name
from locktender.flows.by_name import announcement
from locktender.flows.registry import Registry
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.plugin"]

ALL_TRANSPORTS = "long"


@step
def length(text: str) -> int:
    return len(text)


@step
def double(n: int) -> int:
    return 2 * n


@flow(name="here text")
def of_text(text: str) -> int:
    return length(text)


@flow(name="here dict")
def of_dict(values: dict[str, int]) -> int:
    return double(values["n"])


@flow(name="here wide")
def wide(n: int) -> list[int]:
    return [double(i) for i in range(n)]


@flow(name="here only by position")
def by_position(n: int, /, *, k: int = 1) -> int:
    return double(n + k)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of this process do not have the code; its worker has."""
    monkeypatch.setattr(by_name, "registry", Registry())


def known(client: Client, name: str) -> Callable[[], bool]:
    def asked() -> bool:
        try:
            client.submit(name, {"no such": 1})
        except NotFound:
            return False
        except InvalidInput:
            return True
        return False

    return asked


def test_a_local_flow_named_takes_arguments_by_name_too(engine: Client):
    assert engine.submit("here text", {"text": "abc"}).result("60s") == 3
    assert engine.submit("here text", "abcd").result("60s") == 4
    # an object that is the argument itself stays one
    assert engine.submit("here dict", {"n": 4}).result("60s") == 8
    assert engine.submit("here dict", {"values": {"n": 5}}).result("60s") == 10


@pytest.mark.usefixtures("elsewhere")
def test_g6_an_embedded_engine_traces_what_it_knows(engine: Client):
    eventually(known(engine, "here wide"))
    assert engine.submit("here only by position", {"n": 2, "k": 3}).result("60s") == 10
    # so large that the traced graph is kept as a blob
    run = engine.submit("here wide", {"n": 3_000})
    assert run.result("120s") == [2 * i for i in range(3_000)]


@pytest.mark.usefixtures("elsewhere")
def test_g6_a_secret_stays_a_reference_in_the_traced_graph(
    engine: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SHOP_TOKEN", "swordfish-1234")
    eventually(known(engine, "here text"))
    run = engine.submit("here text", {"text": secret("env:SHOP_TOKEN")})
    assert run.result("60s") == len("swordfish-1234")


@pytest.mark.usefixtures("elsewhere")
async def test_g6_the_async_client_submits_by_name(tmp_path: Any):
    async with embedded_async(tmp_path / "a.db") as client:
        while True:
            try:
                run = await client.submit("here text", {"text": "ab"})
            except NotFound:
                continue
            assert await run.result("60s") == 2
            break
        several = await client.submit_many("here text", [{"text": "a"}, {"text": "abc"}])
        assert [await each.result("60s") for each in several] == [1, 3]


@pytest.mark.usefixtures("elsewhere")
def test_g6_a_retried_named_run_keeps_its_trace(engine: Client):
    eventually(known(engine, "here dict"))
    run = engine.submit("here dict", {"values": {"m": 4}})
    with pytest.raises(RunFailed):
        run.result("60s")
    assert [task.name for task in run.tasks()] == ["locktender:trace"]


def test_announced_parameters_say_what_they_take():
    said = announcement(of_text.definition)
    assert said.parameters == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    }
    assert said.result == {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "value", "field"),
    [
        ({"type": "integer"}, True, "x"),
        ({"type": "integer", "minimum": 3}, 2, "x"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "a", "x"),
        ({"enum": ["a", "b"]}, "c", "x"),
        ({"type": "string", "maxLength": 2}, "abc", "x"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"k": "v"}, "x.k"),
        ({"prefixItems": [{"type": "integer"}], "items": False}, ["a"], "x.0"),
        ({"$ref": "#/$defs/P"}, {"q": 1}, "x.p"),
        ({"type": "string", "format": "date-time"}, "tomorrow", "x"),
        ({"type": "array", "items": {"type": "string", "format": "date"}}, ["2027-02-30"], "x.0"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(schema: Any, value: Any, field: str):
    flow = AnnouncedFlow(
        "f",
        "s",
        parameters={
            "properties": {"x": schema},
            "$defs": {"P": {"type": "object", "required": ["p"], "properties": {}}},
        },
    )
    with pytest.raises(InvalidInput) as refused:
        check_arguments(flow, {"x": value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 3.0),
        ({"type": "number"}, 3),
        ({}, object),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ({"type": "string"}, {"$locktender.secret": "env:X"}),
        ({"type": "unheard of"}, 3),
        ({"type": "string", "format": "date-time"}, "2027-01-31T09:00"),  # as Pydantic reads it
        ({"type": "string", "format": "date-time"}, "2027-01-31T09:00:00.5+01:00"),
        ({"type": "string", "format": "unheard of"}, "x"),
    ],
)
def test_an_argument_that_may_fit_is_accepted(schema: Any, value: Any):
    check_arguments(AnnouncedFlow("f", "s", parameters={"properties": {"x": schema}}), {"x": value})


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("options", [{"delay": "1h"}, {"key": "k", "debounce": "1h"}])
def test_options_of_time_hold_by_name(engine: Client, options: dict[str, Any]):
    eventually(known(engine, "here text"))
    run = engine.submit("here text", {"text": "a"}, **options)
    assert run.status() is RunState.WAITING
    run.cancel()
    with pytest.raises(InvalidInput):
        engine.submit("here text", {"text": "a"}, throttle="nonsense")
