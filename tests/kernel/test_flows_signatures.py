"""Signatures of steps are the same on every Python version; stored arguments that do not fit are named."""

# ruff: noqa: UP006, UP007, UP045 — the old ways to write a type are what is tested

from __future__ import annotations

import dataclasses
import pathlib
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar, Union

import msgspec
import pydantic
import pytest

from locktender.base import codec
from locktender.base.errors import ArgumentMismatch, InvalidInput
from locktender.flows.annotations import canonical
from locktender.flows.definitions import StepDef
from locktender.worker.executors import failures

T = TypeVar("T")
Name = NewType("Name", str)


class Box(pydantic.BaseModel, Generic[T]):
    inside: T


class Note:
    """Metadata whose repr is an address."""


def signature(annotation: Any) -> str:
    def work(value: Any) -> None: ...

    work.__annotations__["value"] = annotation
    return StepDef(work, {"name": "work"}).signature


@pytest.mark.parametrize(
    "ways",
    [
        [Optional[int], Union[int, None], Union[None, int], int | None, None | int, "int | None"],
        [typing.List[int], list[int], "list[int]"],
        [typing.Sequence[str], Sequence[str]],
        [typing.Dict[str, int | None], dict[str, int | None]],
        [Literal["a", "b"], Literal["b", "a"]],
        [Annotated[int, Note()], Annotated[int, Note()]],
        [Annotated[int, msgspec.Meta(gt=3)], Annotated[int, msgspec.Meta(gt=3)]],
        [Name, str],
        [Box[Optional[int]], Box[int | None]],
        [pathlib.Path, "pathlib.Path"],
    ],
)
def test_types_that_are_equal_have_one_signature(ways: list[Any]):
    assert len({signature(each) for each in ways}) == 1


def test_types_that_differ_have_different_signatures():
    several = [
        int,
        str,
        int | None,
        int | str,
        list[int],
        list[int | None],
        Literal["a"],
        Literal["a", 1],
        Annotated[int, msgspec.Meta(gt=3)],
        Annotated[int, msgspec.Meta(gt=4)],
        Box[int],
        Box[str],
        Callable[[int], str],
        Note,
        tuple[int, ...],
        tuple[int, int],
    ]
    assert len({signature(each) for each in several}) == len(several)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Optional[int], "None | int"),
        (dict[str, list[float]], "dict[str, list[float]]"),
        (Callable[[int], str], "collections.abc.Callable[[int], str]"),
        (Literal[True, None, b"x"], "Literal[None, True, b'x']"),
        (pathlib.PurePath, "pathlib.PurePath"),
        (Any, "typing.Any"),
        (Note, f"{__name__}.Note"),
        ("Missing|None", "Missing | None"),
    ],
)
def test_the_canonical_text_is_pinned(annotation: Any, text: str):
    assert canonical(annotation) == text


def test_the_signature_asks_for_no_repr_of_an_annotation(monkeypatch: pytest.MonkeyPatch):
    before = signature(Optional[int]), signature(Union[int, list[str]])

    def refused(self: object) -> str:
        raise AssertionError("Python versions differ in this text")

    monkeypatch.setattr(type(Optional[int]), "__repr__", refused)
    monkeypatch.setattr(typing._GenericAlias, "__repr__", refused)  # type: ignore[attr-defined]
    assert (signature(Optional[int]), signature(Union[int, list[str]])) == before


def test_a_private_module_of_python_is_not_in_the_signature(monkeypatch: pytest.MonkeyPatch):
    before = signature(pathlib.Path)
    monkeypatch.setattr(pathlib.Path, "__module__", "pathlib._local")  # as Python 3.13 has it
    assert signature(pathlib.Path) == before


class StructOrder(msgspec.Struct):
    total: int
    currency: str


@dataclasses.dataclass
class DataOrder:
    total: int
    currency: str


class ModelOrder(pydantic.BaseModel):
    total: int
    currency: str


class TupleOrder(NamedTuple):
    total: int
    currency: str


def step_taking(kind: Any) -> StepDef:
    def charge(order: Any) -> None: ...

    charge.__annotations__["order"] = kind
    return StepDef(charge, {"name": "charge"})


@pytest.mark.parametrize(
    ("kind", "stored", "field"),
    [
        (StructOrder, {"total": 3}, "currency"),
        (StructOrder, {"amount": 3, "currency": "EUR"}, "total"),
        (StructOrder, {"total": "3", "currency": "EUR"}, "total"),
        (DataOrder, {"total": 3}, "currency"),
        (ModelOrder, {"total": 3}, "currency"),
        (list[StructOrder], [{"total": 3, "currency": "EUR"}, {"total": 3}], "[1].currency"),
        (DataOrder | None, {"total": 3}, "currency"),
    ],
)
def test_a_changed_class_names_step_argument_and_field(kind: Any, stored: Any, field: str):
    call = codec.render_call([codec.encode(stored)], {})

    with pytest.raises(ArgumentMismatch) as caught:
        step_taking(kind).decode_call(call)

    error = caught.value
    assert error.field == f"order.{field}"
    assert "the stored argument 'order' of step 'charge' does not fit the class" in error.message
    assert repr(field) in error.message
    assert error.hint is not None
    assert "runs retry" in error.hint
    failure = failures.bad_call(error)
    assert (failure.type, failure.retryable) == ("argument_mismatch", False)


def test_a_changed_tuple_names_its_class():
    with pytest.raises(ArgumentMismatch, match="class TupleOrder") as caught:
        step_taking(TupleOrder).decode_call(codec.render_call([b"[1]"], {}))
    assert caught.value.field == "order"


def test_an_argument_that_is_no_model_stays_invalid():
    with pytest.raises(InvalidInput) as caught:
        step_taking(int).decode_call(codec.render_call([b'"x"'], {}))
    assert failures.bad_call(caught.value).type == "invalid_arguments"
