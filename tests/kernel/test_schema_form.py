"""Forms of JSON schemas: what is asked for, and what a sent form means."""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec
import pytest

from locktender.base.errors import InvalidInput
from locktender.server.ui.run import pretty
from locktender.server.ui.schema_form import form_fields, form_value


class Where(msgspec.Struct):
    city: str


class Answer(msgspec.Struct):
    ok: bool
    by: str
    count: int = 3
    note: str | None = None
    where: Where | None = None


SCHEMA = msgspec.json.schema(Answer)


class Mode(Enum):
    SLOW = "slow"
    FAST = "fast"


class Defaulted(msgspec.Struct):
    note: str | None = "as always"
    mode: Mode = Mode.FAST
    which: Literal["x", "y"] | None = "y"


def test_defaults_beside_a_reference_or_a_choice_are_shown():
    fields = form_fields(msgspec.json.schema(Defaulted))
    assert {each.label: each.value for each in fields} == {
        "note": "as always",
        "mode": '"fast"',
        "which": '"y"',
    }
    for each in fields[1:]:
        assert each.value in dict(each.choices)


def test_plain_members_have_fields_and_the_rest_is_json():
    kinds = {each.label: (each.kind, each.required, each.value) for each in form_fields(SCHEMA)}

    assert kinds == {
        "ok": ("choice", True, ""),
        "by": ("text", True, ""),
        "count": ("number", False, "3"),
        "note": ("text", False, ""),
        "where": ("area", False, ""),
    }
    assert [each.required for each in form_fields(SCHEMA)] == [True, True, False, False, False]


def test_a_sent_form_is_the_value():
    sent = {"payload.ok": "false", "payload.by": "ann", "payload.count": "7", "payload.note": ""}

    value = form_value(SCHEMA, {**sent, "payload.where": '{"city": "Ulm"}'})

    assert value == {"ok": False, "by": "ann", "count": 7, "where": {"city": "Ulm"}}
    assert msgspec.convert(value, Answer).count == 7


def test_a_text_that_was_cleared_is_empty_and_not_its_default():
    schema = {"type": "object", "properties": {"by": {"type": "string", "default": "ann"}}}

    assert form_value(schema, {"payload.by": ""}) == {"by": ""}
    assert form_value(schema, {}) == {}


def test_a_number_may_have_a_fraction_and_a_whole_one_may_not():
    schema = {"type": "object", "properties": {"a": {"type": "number"}, "n": {"type": "integer"}}}

    assert [each.whole for each in form_fields(schema)] == [False, True]


def test_without_a_schema_any_json_is_asked_for():
    [field] = form_fields({})
    assert (field.name, field.kind, field.required) == ("payload", "area", False)
    assert form_value({}, {"payload": '{"a": [1]}'}) == {"a": [1]}
    assert form_value({}, {"payload": " "}) is None
    assert form_value({"type": "string"}, {"payload": "as it is"}) == "as it is"
    with pytest.raises(InvalidInput) as refused:
        form_value({}, {"payload": "{a"})
    assert refused.value.field == "payload"


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2, 3], "b": {}, "c": [], "d": None},
        list(range(200)),
        ["two  spaces", "x" * 200, " "],
        [{"deep": [[1], [2]]}],
    ],
)
def test_a_value_for_people_is_the_same_value(value: object):
    assert msgspec.json.decode(pretty(value)) == value
