"""The calls of a map's items: what they share is read once, and the item is put in its places."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.worlds import items

from locktender.base.graph import AnyTemplate, Const, Item
from locktender.kernel import render
from locktender.kernel.render import ItemCall, RenderScope

SCOPE = RenderScope({}, (b'"shared"', b'{"a": [1, "\\u0000"]}'), {}, [])


def call(
    item: bytes, args: tuple[AnyTemplate, ...], kwargs: dict[str, AnyTemplate]
) -> dict[str, object]:
    node = items(args=args, kwargs=kwargs)
    return msgspec.json.decode(ItemCall(node, render.shared(node, SCOPE)).of(item))


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((Item(),), {}, {"args": [{"n": [7]}], "kwargs": {}}),
        ((Item(("n", 0)),), {}, {"args": [7], "kwargs": {}}),
        ((Const(0), Item()), {}, {"args": ["shared", {"n": [7]}], "kwargs": {}}),
        (
            (Item(), Const(1)),
            {"b": Const(0), "c": Item()},
            {
                "args": [{"n": [7]}, {"a": [1, "\0"]}],
                "kwargs": {"b": "shared", "c": {"n": [7]}},
            },
        ),
    ],
)
def test_the_item_stands_in_its_places(
    args: tuple[AnyTemplate, ...], kwargs: dict[str, AnyTemplate], expected: object
):
    assert call(b'{"n": [7]}', args, kwargs) == expected


def test_a_part_that_the_item_does_not_have_is_an_error():
    with pytest.raises(LookupError):
        call(b"1", (Item(("n",)),), {})
