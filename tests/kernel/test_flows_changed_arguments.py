"""A step takes what its argument is when it is called, whatever the body does to it before or after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locktender.base.errors import Unserialisable
from locktender.base.graph import AnyTemplate, Const, DictOf, ListOf, Output, Param
from locktender.flows.flows import flow
from locktender.flows.steps import step
from locktender.flows.trace import Traced, trace


@step
def take(value: Any, beside: Any = None) -> Any: ...


@dataclass
class Wanted:
    names: list[str] = field(default_factory=list[str])
    size: int = 0


class Model(pydantic.BaseModel):
    names: list[str] = []


class Record(msgspec.Struct):
    names: list[str] = []


def value_of(traced: Traced, template: AnyTemplate | None) -> Any:
    """What a worker is given for `template`; results of steps stand as their number."""
    match template:
        case Param(name):
            return msgspec.json.decode(traced.params)[name]
        case Const(index):
            return msgspec.json.decode(traced.consts)[index]
        case ListOf(items):
            return [value_of(traced, each) for each in items]
        case DictOf(fields):
            return {key: value_of(traced, each) for key, each in fields.items()}
        case Output(node):
            return f"result {node}"
        case _:
            raise AssertionError(template)


def taken(traced: Traced) -> list[Any]:
    """What each step of the run is given first, or is mapped over."""
    return [
        value_of(traced, node.args[0] if node.over is None else node.over)
        for node in traced.graph.nodes
    ]


def templates(traced: Traced) -> list[AnyTemplate | None]:
    return [node.args[0] if node.over is None else node.over for node in traced.graph.nodes]


def test_a_list_that_is_left_alone_is_the_parameter():
    @flow
    def left(xs: list[int]):
        take(xs)
        return take.map(xs)

    traced = trace(left, ([1, 2],))

    assert templates(traced) == [Param("xs"), Param("xs")]
    assert traced.consts == b"[]"


def test_a_list_changed_before_the_call_is_taken_as_it_is_then():
    @flow
    def changed(xs: list[int]):
        xs.append(99)
        return take(xs)

    traced = trace(changed, ([1, 2],))

    assert taken(traced) == [[1, 2, 99]]
    assert traced.params == b'{"xs":[1,2]}', "what was submitted stays what was submitted"


def test_a_list_sorted_in_place_is_mapped_in_its_new_order():
    @flow
    def ordered(xs: list[int]):
        xs.sort()
        return take.map(xs)

    assert taken(trace(ordered, ([3, 1, 2],))) == [[1, 2, 3]]


def test_a_dict_changed_between_two_calls_is_two_values():
    @flow
    def between(d: dict[str, int]):
        take(d)
        d["n"] += 1
        take(d)
        d["n"] -= 1
        return take(d)

    traced = trace(between, ({"n": 1},))

    assert taken(traced) == [{"n": 1}, {"n": 2}, {"n": 1}]
    assert templates(traced) == [Param("d"), Const(0), Param("d")]


def test_a_mutable_default_is_what_python_makes_of_it():
    @flow
    def grows(x: int, seen: list[int] = []) -> Any:  # noqa: B006 — what users write
        seen.append(x)
        return take(seen)

    assert [taken(trace(grows, (n,))) for n in range(3)] == [[[0]], [[0, 1]], [[0, 1, 2]]]


def test_the_result_of_a_flow_is_what_it_is_at_the_end():
    @flow
    def ends(xs: list[int]) -> Any:
        take(xs)
        xs.clear()
        return xs

    traced = trace(ends, ([1],))

    assert value_of(traced, traced.graph.result) == []
    assert taken(traced) == [[1]]


def test_a_list_that_was_given_a_result_is_taken_with_it():
    @flow
    def mixed(xs: list[Any], d: dict[str, Any]):
        first = take(0)
        xs.append(first)
        d["last"] = first
        take(xs)
        take.map(xs)
        return take(d)

    traced = trace(mixed, ([1], {"a": 2}))

    assert taken(traced)[1:] == [
        [1, "result 0"],
        [1, "result 0"],
        {"a": 2, "last": "result 0"},
    ]


def test_a_nested_parameter_is_taken_as_at_the_call():
    @flow
    def inside(xs: list[int]):
        first = take(0)
        take([xs, first])
        xs.append(2)
        take([xs, first])
        return take({"k": [xs]})

    traced = trace(inside, ([1],))

    assert taken(traced)[1:] == [[[1], "result 0"], [[1, 2], "result 0"], {"k": [[1, 2]]}]
    assert traced.graph.nodes[1].args == (ListOf((Param("xs"), Output(0))),)


def test_a_flow_in_a_flow_changes_what_it_was_handed():
    @flow
    def within(xs: list[int]):
        xs.append(len(xs))
        return take(xs)

    @flow
    def around(xs: list[int]):
        within(xs)
        return within(xs)

    assert taken(trace(around, ([],))) == [[0], [0, 1]]


def test_a_condition_compares_with_what_the_list_was_then():
    @flow
    def conditional(xs: list[int]):
        first = take(0)
        when = first == xs
        xs.append(2)
        return take.with_options(when=when)(xs)

    traced = trace(conditional, ([1],))

    condition = traced.graph.nodes[1].when
    assert value_of(traced, getattr(condition, "right", None)) == [1]
    assert taken(traced)[1] == [1, 2]


@pytest.mark.parametrize("make", [Wanted, Model, Record])
def test_an_object_changed_in_place_is_taken_as_it_is_then(make: Callable[[], Any]):
    @flow
    def changes(wanted: Any):
        take(wanted)
        wanted.names.append("a")
        take(wanted)
        wanted.names = []
        return take(wanted)

    traced = trace(changes, (make(),))

    assert [each["names"] for each in taken(traced)] == [[], ["a"], []]
    assert templates(traced) == [Param("wanted"), Const(0), Param("wanted")]


@pytest.mark.parametrize("make", [set, bytearray])
def test_other_containers_are_taken_as_they_are_then(make: Callable[[list[int]], Any]):
    @flow
    def emptied(several: Any):
        take(several)
        several.clear()
        return take(several)

    traced = trace(emptied, (make([65]),))

    assert templates(traced) == [Param("several"), Const(0)]
    assert taken(traced)[1] == ("" if make is bytearray else [])


def test_what_a_list_cannot_hold_is_refused_where_it_is_used():
    @flow
    def spoiled(xs: list[Any]):
        xs.append(object())
        return take(xs)

    with pytest.raises(Unserialisable, match=r"take\.value\[1\]"):
        trace(spoiled, ([1],))


def test_a_changed_list_does_not_reach_the_next_run():
    @flow
    def sometimes(xs: list[int], change: bool):
        if change:
            xs.append(0)
        return take(xs)

    calls = [False, True, False, True, True, False]

    assert [taken(trace(sometimes, ([n], change))) for n, change in enumerate(calls)] == [
        [[n, 0] if change else [n]] for n, change in enumerate(calls)
    ]


# Any body at all ----------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)
Move = tuple[str, int, int, Any]
moves = st.tuples(
    st.sampled_from(["take", "take", "map", "wrap", "set", "add", "drop", "turn", "swap"]),
    st.integers(0, 1),
    st.integers(0, 5),
    values,
)


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def containers(value: Any) -> list[Any]:
    """`value` and all lists and dicts in it."""
    if not isinstance(value, list | dict):
        return []
    several: Any = value.values() if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return [value, *(inner for each in several for inner in containers(each))]


def change(whole: Any, word: str, place: int, new: Any) -> None:
    """Changes something inside `whole`, in place."""
    several = containers(whole)
    inside: Any = several[place % len(several)]
    listed = is_list(inside)
    match word:
        case "set" if inside:
            inside[place % len(inside) if listed else next(iter(inside))] = new
        case "add" if listed:
            inside.append(new)
        case "add":
            inside[f"k{place}"] = new
        case "drop" if inside:
            inside.pop() if listed else inside.popitem()
        case "turn" if listed:
            inside.reverse()
        case "swap" if listed:
            inside[:] = [inside[:]]
        case _:
            return


@flow
def any_body(xs: Any, ys: Any, program: list[Move]) -> Any:
    for word, which, place, new in program:
        value = (xs, ys)[which]
        match word:
            case "take":
                take(value)
                note(copy.deepcopy(value))
            case "map" if is_list(value):
                take.map(value)
                note(copy.deepcopy(value))
            case "wrap":
                take({"both": [value, xs]})
                note({"both": copy.deepcopy([value, xs])})
            case _:
                change(value, word, place, copy.deepcopy(new))


noted: list[Any] = []


def note(value: Any) -> None:
    noted.append(value)


lists_and_dicts = values.filter(lambda value: isinstance(value, list | dict))


@given(lists_and_dicts, lists_and_dicts, st.lists(moves, max_size=8), st.booleans())
def test_every_step_is_given_what_its_argument_was_at_the_call(
    xs: Any, ys: Any, program: list[Move], same: bool
):
    noted.clear()

    traced = trace(any_body, (xs, xs if same else ys, program))

    assert taken(traced) == noted
