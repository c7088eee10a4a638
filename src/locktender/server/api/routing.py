"""What every request passes before its handler: principal, scope, query, body. A route is one row of a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from locktender.base.config import Settings
from locktender.base.errors import DuplicateKey, InvalidInput, NotFound
from locktender.base.states import TERMINAL_RUNS
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.client.run import AsyncRun
from locktender.client.runs_async import ID_LENGTH
from locktender.client.views import RunInfo
from locktender.server.api.answers import StateConflict, answer, guarded
from locktender.server.api.bodies import NoQuery
from locktender.server.api.principal import Access, Principal, Scope, who_asks
from locktender.server.api.reading import as_body, as_query, body_bytes, check_address, parse
from locktender.server.api.streams import Followers
from locktender.server.api.submitting import SubmitGroups
from locktender.server.api.tenancy import (
    Tenant,
    check_tenant,
    own_tags,
    show_own_key,
    without_names,
)
from locktender.server.api.timelines import Timelines
from locktender.server.state import DemandAnswers, HealthAnswers

T = TypeVar("T")
MAX_BODY_BYTES = 2 * 1024 * 1024
SPARE_BYTES = 64 * 1024
"""For what stands around one value of the largest size."""


class Reply(msgspec.Struct, frozen=True):
    """What a handler answers; a `Response` says it itself."""

    value: Any
    status: int = 200
    headers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Api:
    """What handlers share: one per server."""

    core: Core
    access: Access
    groups: SubmitGroups
    followers: Followers
    health: HealthAnswers
    demand: DemandAnswers
    timelines: Timelines

    @property
    def most_bytes(self) -> int:
        return max(MAX_BODY_BYTES, self.settings.max_value_bytes) + SPARE_BYTES

    @property
    def settings(self) -> Settings:
        return self.core.settings


@dataclass(slots=True)
class ApiCall:
    """One request that may be answered: by whom, with what."""

    api: Api
    request: Request
    principal: Principal
    core: Core
    query: Any
    body: Any = None
    raw: Any = None
    """The body as it came, for `Idempotency-Key`."""

    @property
    def client(self) -> AsyncClient:
        return AsyncClient(self.core)

    def path(self, name: str) -> str:
        return self.request.path_params[name]

    async def run(self) -> tuple[AsyncRun[Any], RunInfo]:
        """The run that the path names. Another's is not there."""
        return await self.run_named(self.path("run"))

    async def run_named(self, run_id: str) -> tuple[AsyncRun[Any], RunInfo]:
        # One answer for both: a tenant must not learn whether a run of another exists.
        missing = NotFound(f"there is no run {run_id!r}.", field="run", got=run_id)
        try:
            run = await self.client.runs.get(run_id)
            info = await run.info()
        except NotFound as error:
            if len(run_id.strip()) != ID_LENGTH:
                missing = NotFound(
                    error.message,
                    field="run",
                    got=run_id,
                    hint="GET /api/v1/runs?beginning=… finds runs by the beginning of their id.",
                )
            raise missing from None
        if not self.principal.sees(info.tags):
            raise missing
        return run, info

    async def is_own(self, run_id: str) -> bool:
        try:
            await self.run_named(run_id)
        except NotFound:
            return False
        return True

    async def tags_of(self, numbers: Iterable[int]) -> dict[int, Mapping[str, str]]:
        """Of runs by their numbers."""
        labels = await self.core.store.run_labels(list(numbers))
        return {number: label.tags for number, label in labels.items()}

    async def check_runs(self, ids: Iterable[str]) -> list[str]:
        return [(await self.run_named(each))[0].id for each in ids]

    def only(self, tags: Mapping[str, Any] | None) -> dict[str, Any]:
        """Tags of a filter, a run or a schedule, bound to the principal's own."""
        return own_tags(self.principal, tags)

    def shown(self, rows: Iterable[T], tags: Callable[[T], Mapping[str, str]]) -> list[T]:
        return [row for row in rows if self.principal.sees(tags(row))]

    @staticmethod
    def refuse_ended(info: RunInfo, verb: str) -> None:
        """Raises `StateConflict` for a run that cannot be `verb` any more."""
        if info.state in TERMINAL_RUNS:
            raise conflict(
                info,
                f"cannot be {verb}: it has ended {info.state}",
                f"Only a run that has not ended can be {verb}.",
            )


def conflict(info: RunInfo, what: str, hint: str) -> StateConflict:
    return StateConflict(
        f"run {info.id} {what}.", state=info.state, field="run", got=info.id, hint=hint
    )


Handler = Callable[[ApiCall], Awaitable[Reply | Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One row of the table."""

    method: str
    path: str
    """Below /api/v1."""
    scope: Scope
    handler: Handler
    summary: str
    answer: Any
    """The type of what a good answer contains."""
    status: int = 200
    body: type[msgspec.Struct] | None = None
    optional: bool = False
    """The body may be left out."""
    query: type[msgspec.Struct] = NoQuery
    refuses: tuple[int, ...] = ()
    """Statuses of errors, beside those that any route may answer."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the request: name → what it says."""
    example: Any = None
    """Of the body."""
    tenant: Tenant = "none"
    """What a token that is bound to tags gets: see `tenancy`."""
    media: str = "application/json"
    also: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """Other good answers: status → type."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def group(self) -> str:
        return self.path.strip("/").partition("/")[0]


def endpoint(api: Api, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    """Of one route: from the request to the answer."""

    async def call(request: Request) -> Response:
        principal = who_asks(api.access, request, route.scope)
        check_address(request)
        check_tenant(principal, route.tenant)
        made = ApiCall(
            api,
            request,
            principal,
            api.core.acting(principal.name, only=principal.tags, token=principal.token),
            as_query(request, route.query),
        )
        if route.body is not None:
            await _read_body(made, route.body, optional=route.optional)
        if route.method != "GET":
            api.access.check_change(request, principal)
        try:
            found = await route.handler(made)
        except NotFound as error:
            raise without_names(error) if principal.tags else error from None
        except (DuplicateKey, InvalidInput) as error:
            show_own_key(principal, error)
            raise
        if isinstance(found, Response):
            return found
        return answer(found.value, found.status, found.headers)

    call.__name__ = route.name
    return guarded(call)


async def _read_body(call: ApiCall, kind: type[msgspec.Struct], *, optional: bool) -> None:
    headers = call.request.headers
    sent = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if optional and not sent:
        call.raw, call.body = {}, kind()
        return
    call.raw = parse(await body_bytes(call.request, call.api.most_bytes))
    call.body = as_body(call.raw, kind)
