"""What describes the API: the document that is checked in, its examples, the page, and the table behind them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from openapi_spec_validator import validate
from tests.support.server_harness import fetch, process, served

from locktender.base.errors import AdmissionRejected
from locktender.client.remote.faults import _errors
from locktender.server.api import openapi
from locktender.server.api.answers import Fault, status_of
from locktender.server.api.principal import Scope
from locktender.server.api.routing import ApiRoute
from locktender.server.api.table import TABLE

CHECKED_IN = Path(__file__).parent.parent.parent / "docs" / "openapi.json"
WRITE = "python -m tests.engine.test_http_docs"


def test_the_checked_in_document_is_the_one_served():
    assert CHECKED_IN.read_bytes() == openapi.encoded(), f"write it again: {WRITE}"


def test_the_document_is_openapi():
    validate(json.loads(openapi.encoded()))


def test_every_reference_of_the_document_leads_somewhere():
    text = openapi.encoded().decode()
    schemas = openapi.document()["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= set(schemas)
    names = [each.name for each in TABLE]
    assert len(names) == len(set(names))


def test_examples_of_answers_are_answers():
    kinds = {each.name: each.answer for each in TABLE}
    for name, shown in openapi.ANSWERS.items():
        made = msgspec.convert(shown, kinds[name])
        assert msgspec.to_builtins(made).keys() == shown.keys()
    codes = {
        each.code: status_of(each(""))
        for each in _errors()
        if each.__module__.startswith(("locktender.base.", "locktender.server."))
        and each is not AdmissionRejected
    }
    codes[AdmissionRejected.code] = 429
    for status, shown in openapi.FAULTS.items():
        assert isinstance(msgspec.convert(shown, Fault), Fault)
        assert codes[shown["code"]] == status


def test_every_path_is_filled_by_the_answer_of_another_route():
    """So that generated requests reach what there is, and not only 404."""
    operations = [
        each for methods in openapi.document()["paths"].values() for each in methods.values()
    ]
    linked = {
        link["operationId"]: set(link["parameters"])
        for operation in operations
        for response in operation["responses"].values()
        for link in response.get("links", {}).values()
    }
    nothing_names_it = {"send_to_topic", "get_cached"}
    for route in TABLE:
        wanted = set(re.findall(r"{(\w+)}", route.path))
        if wanted and route.name not in nothing_names_it:
            assert linked.get(route.name) == wanted, route.name


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.name)
def test_every_route_has_a_scope_and_an_example_that_fits(route: ApiRoute):
    assert route.scope in get_args(Scope)
    # what changes something needs more than the right to read; answering a wait has a token of its own
    if route.method != "GET" and route.name != "answer_wait":
        assert route.scope in ("submit", "operate", "admin")
    if route.body is not None:
        assert route.example is not None
        msgspec.convert(route.example, route.body)
    operation = openapi.document()["paths"][f"/api/v1{route.path}"][route.method.lower()]
    assert operation["x-scope"] == route.scope


async def test_the_documents_are_served_without_anything_foreign(tmp_path: Path):
    async with (
        process(tmp_path / "locktender.db", lead=True, work=False) as (core, _),
        served(core, api=True) as port,
    ):
        served_one = await fetch(port, "/api/v1/openapi.json")
        assert json.loads(CHECKED_IN.read_bytes()) == served_one.data
        page = await fetch(port, "/api/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script" not in page.text
        loaded: list[Any] = re.findall(
            r'<(?:link|img|script)[^>]*(?:href|src)="([^"]*)"', page.text
        )
        assert loaded == ["/api/docs.css"]
        assert (await fetch(port, "/api/docs.css")).headers["content-type"].startswith("text/css")
        for route in TABLE:
            assert f'id="{route.name}"' in page.text
        # a worker's port has no API
    async with (
        process(tmp_path / "locktender.db", lead=False, work=True) as (core, _),
        served(core) as port,
    ):
        assert (await fetch(port, "/api/v1/runs")).status == 404


if __name__ == "__main__":
    CHECKED_IN.write_bytes(openapi.encoded())
