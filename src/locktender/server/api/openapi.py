"""The OpenAPI 3.1 document, made of the table of routes. `docs/openapi.json` is a copy of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, cast

import msgspec

from locktender.base import version
from locktender.server.api.answers import Fault
from locktender.server.api.routing import ApiRoute
from locktender.server.api.submitting import MAX_KEY
from locktender.server.api.table import PREFIX, TABLE

_REF = "#/components/schemas/{name}"
_ANY_ROUTE = (400, 401, 403, 503)
"""Errors that every route may answer."""
_PATH_PARAMETERS = {
    "run": "The id of a run: 26 letters and digits.",
    "task": "The number of a task.",
    "flow": "The name of a flow.",
    "pool": "`db`; `api[acme]` for one key, `api[*]` for each.",
    "limit": "`max_concurrent_runs`, `max_active`, `tenant=acme` …",
    "rule": "`tenant`, `tenant=acme`, or `tenant=*` for each value.",
    "schedule": "The name of a schedule.",
    "topic": "The name of a topic.",
    "worker": "The id of a worker.",
    "reader": "The name of a reader of the history.",
    "key": "The key of a cached result, or the beginning of it.",
    "token": "The id or the name of a token.",
}
_MEANINGS = {
    401: "The token is missing, wrong, expired or revoked.",
    403: "The token does not allow it, or a page of another origin asks.",
    202: "Accepted",
    409: "The present state does not allow it; `state` is that state.",
    412: "`If-Match` names an older version.",
    413: "The body is too large.",
    415: "The body is not `application/json`, or is compressed.",
    422: "Well-formed, and wrong: `field`, `got` and `hint` say what.",
    429: "A ceiling is reached: try again after `Retry-After` seconds.",
    503: "The store does not answer, or too much is asked at once.",
}
_TAGS = {
    "runs": "Runs: submit, list, change.",
    "queue": "Runs that have not started.",
    "flows": "Flows that workers have announced.",
    "pools": "Named slots that tasks share.",
    "limit-costs": "What limits cost in waiting.",
    "limits": "Every other limit.",
    "limit-changes": "Who changed which limit.",
    "schedules": "Runs at set times.",
    "waits": "What runs wait for.",
    "topics": "Events for all who wait.",
    "events": "The history as it grows.",
    "history": "Every change of state, part by part.",
    "event-readers": "How far named readers of the history came.",
    "tasks": "Tasks by their number.",
    "cache": "Results of steps that are used again.",
    "workers": "Processes that run tasks.",
    "tokens": "Who may ask, and for what.",
    "whoami": "The token that asks.",
    "demand": "Tasks that lack only a worker.",
    "health": "This server.",
    "ready": "This server.",
}
_GIVES: dict[str, dict[str, str]] = {
    "submit_run": {"run": "$response.body#/id"},
    "submit_runs": {"run": "$response.body#/runs/0/run/id"},
    "retry_run": {"run": "$response.body#/id"},
    "run_schedule": {"run": "$response.body#/id"},
    "list_runs": {"run": "$response.body#/runs/0/id"},
    "list_waits": {"run": "$response.body#/waits/0/run"},
    "list_tasks": {"run": "$request.path.run", "task": "$response.body#/tasks/0/id"},
    "list_flows": {"flow": "$response.body#/flows/0/name"},
    "list_pools": {"pool": "$response.body#/pools/0/name"},
    "set_pool": {"pool": "$request.path.pool"},
    "list_limits": {"limit": "$response.body#/limits/0/name"},
    "set_limit": {"limit": "$request.path.limit"},
    "set_tag_limit": {"rule": "$request.path.rule"},
    "set_schedule": {"schedule": "$request.path.schedule"},
    "list_workers": {"worker": "$response.body#/workers/0/id"},
    "create_token": {"token": "$response.body#/id"},
    "keep_event_reader": {"reader": "$request.path.reader"},
}
"""Which answer has what other routes ask for in their path: the links of the document."""
_RUN = "06gyew94mce4dvabgtdp10qmt8"
_SHOWN_RUN: dict[str, Any] = {
    "id": _RUN, "flow": "build", "state": "running", "tags": {"tenant": "acme"}, "priority": 5, "key": None,
    "kind": "flow", "generation": 0, "queued_at": "2030-01-31T09:00:00Z", "started_at": "2030-01-31T09:00:01Z",
    "ended_at": None, "deadline_at": None, "error": None, "number": 17,
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "submit_run": {"id": _RUN, "submitted": "created", "url": f"{PREFIX}/runs/{_RUN}"},
    "get_run": _SHOWN_RUN,
    "list_runs": {"runs": [_SHOWN_RUN], "next": None},
    "count_runs": {"count": 3},
    "who_am_i": {"name": "ci", "scopes": ["read", "submit"], "tags": {"tenant": "acme"}},
}
"""Examples of good answers."""
FAULTS: dict[int, dict[str, Any]] = {
    400: {"code": "malformed", "message": "the body ends too early: Expecting value at line 1, column 10.",
          "field": "body", "got": '{"flow": ', "hint": None},
    401: {"code": "unauthorized", "message": "this token has expired.", "field": "authorization", "got": None,
          "hint": "Make one: locktender tokens create NAME --scope read"},
    403: {"code": "forbidden", "message": "this needs the scope 'operate'.", "field": "scope", "got": "read",
          "hint": None},
    404: {"code": "not_found", "message": "there is no flow 'biuld' here, and no worker has announced one of that"
          " name.", "field": "flow", "got": "biuld", "hint": "Did you mean 'build'?"},
    409: {"code": "conflict", "message": f"run {_RUN} cannot be cancelled: it has ended succeeded.",
          "field": "run", "got": _RUN, "hint": "Only a run that has not ended can be cancelled.",
          "state": "succeeded"},
    412: {"code": "limit_changed", "message": "pool db was changed meanwhile.", "field": "version",
          "got": "bfb93afa4b95f992", "hint": "Read it again, and decide anew."},
    422: {"code": "invalid_input", "message": "there is no field 'priorty'.", "field": "priorty", "got": 5,
          "hint": "Did you mean 'priority'?"},
    429: {"code": "admission_rejected", "message": "the ceiling max_active is reached: 15 of 15 runs are active;"
          " nothing was stored.", "field": "max_active", "got": 15,
          "hint": "Try again in 1s, or raise the ceiling: locktender limits set max_active N", "retry_after": 1.0},
    503: {"code": "unavailable", "message": "the store does not answer.", "field": None, "got": None,
          "hint": "Try again; see /health."},
}  # fmt: skip
"""Examples of errors, by status."""
Json = dict[str, Any]
_TEXT: Json = {"type": "string"}
_HEADERS: dict[str, Json] = {
    "Idempotency-Key": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_KEY,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "If-Match": {"type": "string", "pattern": r'^(W/)?"?[!#-+\--~]+"?$'},
}


_SECURITY: Json = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "`lt_…`, made by `locktender tokens create`. Of the scopes read, submit, operate and admin"
        " each includes those before it.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "locktender",
        "description": "Of a browser that logged in at `/login`; under TLS `__Host-locktender`. A change needs the"
        " header `X-CSRF-Token` too.",
    },
}


@cache
def document() -> Json:
    types = [*_types()]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = dict(zip((_key(each) for each in types), schemas, strict=True))
    paths: dict[str, Json] = {}
    for route in TABLE:
        paths.setdefault(f"{PREFIX}{route.path}", {})[route.method.lower()] = _operation(
            route, known
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Locktender",
            "version": version.installed(),
            "summary": "Durable workflows whose concurrency and cost are predictable.",
            "description": "Errors have the form {code, message, field, got, hint}. Times are UTC.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        # On loopback the server may be started without tokens: then none is asked for.
        "security": [{"token": []}, {"session": []}, {}],
        "components": {"schemas": components, "securitySchemes": _SECURITY},
    }


@cache
def encoded() -> bytes:
    """As it is served, and as the file has it: one value per line."""
    raw = msgspec.json.encode(document(), order="deterministic")
    return msgspec.json.format(raw, indent=1) + b"\n"


def _types() -> list[Any]:
    found: dict[str, Any] = {_key(Fault): Fault}
    for route in TABLE:
        for each in (route.answer, route.body, *route.also.values()):
            if each is not None:
                found[_key(each)] = each
    return list(found.values())


def _key(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _operation(route: ApiRoute, known: Mapping[str, Json]) -> Json:
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.group],
        "x-scope": route.scope,
        "x-tenant": route.tenant,
    }
    if route.scope == "public":
        operation["security"] = []
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.body is not None:
        content: Json = {"schema": known[_key(route.body)]}
        if route.example is not None:
            content["examples"] = _example(route.example)
        operation["requestBody"] = {
            "required": not route.optional,
            "content": {"application/json": content},
        }
    operation["responses"] = _responses(route, known)
    return operation


def _parameters(route: ApiRoute) -> list[Json]:
    found: list[Json] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    _, components = msgspec.json.schema_components([route.query])
    (own,) = (each for name, each in components.items() if name == route.query.__name__)
    for name, schema in cast("Json", own.get("properties", {})).items():
        plain: Json = dict(schema)
        parameter: Json = {"name": name, "in": "query", "required": False, "schema": plain}
        if "description" in plain:
            parameter["description"] = plain.pop("description")
        found.append(parameter)
    found += [
        {"name": name, "in": "header", "description": text, "schema": _HEADERS.get(name, _TEXT)}
        for name, text in route.headers.items()
    ]
    return found


def _responses(route: ApiRoute, known: Mapping[str, Json]) -> Json:
    good: Json = {
        "description": _meaning(route.status),
        "content": {route.media: {"schema": known[_key(route.answer)]}},
    }
    if route.media != "application/json":
        good["content"] = {route.media: {"schema": {"type": "string"}}}
        good["description"] = f"Messages, whose data is {route.answer.__name__} as JSON."
    if route.status == 202 and route.name in ("submit_run", "retry_run", "run_schedule"):
        good["headers"] = {"Location": {"schema": {"type": "string"}, "description": "The run."}}
    if (shown := ANSWERS.get(route.name)) is not None:
        good["content"][route.media]["examples"] = _example(shown)
    if links := _links(_GIVES.get(route.name, {})):
        good["links"] = links
    found: Json = {str(route.status): good}
    for status in sorted({*_ANY_ROUTE, *route.refuses} - route.also.keys()):
        found[str(status)] = {
            "description": _meaning(status),
            "content": {"application/json": {"schema": known[_key(Fault)]}},
        }
        if status in FAULTS:
            found[str(status)]["content"]["application/json"]["examples"] = _example(FAULTS[status])
        if status in (429, 503):
            found[str(status)]["headers"] = {
                "Retry-After": {"schema": {"type": "string"}, "description": "Seconds."}
            }
    for status, kind in route.also.items():
        found[str(status)] = {
            "description": _meaning(status),
            "content": {"application/json": {"schema": known[_key(kind)]}},
        }
    return dict(sorted(found.items()))


def _example(value: Any) -> Json:
    return {"example": {"value": value}}


def _links(gives: Mapping[str, str]) -> Json:
    """Of an answer: the operations whose path it fills."""
    found: Json = {}
    for route in TABLE:
        wanted = set(re.findall(r"{(\w+)}", route.path))
        if wanted and wanted <= gives.keys():
            parameters = {name: gives[name] for name in sorted(wanted)}
            found[route.name] = {"operationId": route.name, "parameters": parameters}
    return found


def _meaning(status: int) -> str:
    return _MEANINGS.get(status, HTTPStatus(status).phrase)
