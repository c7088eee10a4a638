"""What every page passes: principal, scope, CSRF, rendering, errors as pages. A page is rows of a table.

A handler gets a `View` and returns `await view.page("queue.html", ...)`. Asked by
htmx, the same handler answers only the block of the template that is named as the
element to be replaced, so that a page refreshes by parts without a second handler.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Literal, cast
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from locktender.base import version
from locktender.base.errors import LocktenderError, NotFound, StoreError
from locktender.client.client_async import AsyncClient
from locktender.client.core import Core
from locktender.client.run import AsyncRun
from locktender.client.views import RunInfo, instant
from locktender.observe.answer import Why
from locktender.observe.blame import Blame
from locktender.observe.tenants import Own, hidden_why
from locktender.server.api.answers import (
    Broken,
    Endpoint,
    Malformed,
    TooLarge,
    Unanswered,
    Unauthorized,
    UnsupportedType,
    status_of,
)
from locktender.server.api.login import login_url
from locktender.server.api.principal import Principal, Scope, own_origin
from locktender.server.api.routing import Api, ApiCall
from locktender.server.api.tenancy import (
    Tenant,
    check_tenant,
    hide_blame,
    hide_why,
    key_head,
    own_tags,
    shown_run,
)
from locktender.server.ui import words
from locktender.server.ui.assets import STYLES, THEME, asset_url, assets, inlined, source_of
from locktender.server.ui.dialogs import COMMANDS, Dialog, command_line, curl_line
from locktender.server.ui.first_steps import FirstSteps
from locktender.server.ui.reading import ActiveWork, SharedReadings

log: logging.Logger = logging.getLogger(__name__)
POLICY = (
    f"default-src 'none'; script-src 'self' {source_of(THEME)}; "
    f"style-src 'self' {' '.join(map(source_of, STYLES))}; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
FORM = "application/x-www-form-urlencoded"
HTML = "text/html; charset=utf-8"
MAX_FORM_FIELDS = 200


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, for the note that it leaves on the page."""

    text: str
    link: str = ""
    """Where what was made is; empty: nowhere."""
    kind: Literal["good", "bad"] = "good"


@dataclass(slots=True)
class View:
    """One request for a page that may be answered."""

    api: Api
    request: Request
    principal: Principal
    core: Core
    readings: SharedReadings | None = None
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    stale: bool = False
    """What the page shows may lack the last change: it asks again a moment later."""
    mark: int | None = field(init=False)
    """Of the live feed, before anything was read for this page. None: nobody follows the history."""

    def __post_init__(self) -> None:
        self.mark = None if self.readings is None else self.readings.feed.mark

    @property
    def client(self) -> AsyncClient:
        return AsyncClient(self.core)

    def changing(self) -> AsyncClient:
        """Its change is stored with its reason, and refused where the form opened before another change."""
        version, reason = self.sent("version"), self.sent("reason")
        return AsyncClient(self.core.acting(self.principal.name, version or None, reason=reason))

    def path(self, name: str) -> str:
        return self.request.path_params[name]

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default).strip()

    def sent(self, name: str, default: str = "") -> str:
        """A field of the form that was sent."""
        return self.form.get(name, default).strip()

    def may(self, scope: Scope) -> bool:
        return scope in self.principal.scopes

    @property
    def shared(self) -> SharedReadings:
        """What all pages of this server read together."""
        if self.readings is None:
            raise LookupError("a page of an error reads nothing")
        return self.readings

    @property
    def fragment(self) -> str:
        """The block that htmx asks for; empty: the whole page."""
        headers = self.request.headers
        return headers.get("hx-target", "") if headers.get("hx-request") == "true" else ""

    @property
    def seen(self) -> str:
        """What the page shows already, as its block said (`hx-headers`); empty: the whole page is asked for."""
        return self.request.headers.get("x-seen", "") if self.fragment else ""

    def own(self, tags: Mapping[str, str]) -> dict[str, Any]:
        """A filter by tags, bound to those of the principal."""
        return own_tags(self.principal, tags)

    def hidden(self, whys: Iterable[tuple[int, Why]]) -> list[Why]:
        """Each with the number of its run; without names of runs that somebody else has."""
        found = list(whys)
        if not self.principal.tags:
            return [why for _, why in found]
        ids = {why.id for _, why in found}
        head = key_head(self.principal)
        return [hidden_why(why, Own(ids, number, head)) for number, why in found]

    async def hide_why(self, info: RunInfo, why: Why) -> Why:
        """Of a run that is the principal's: without names of runs that somebody else has."""
        return await hide_why(self._call, info, why)

    def hide_blame(self, blame: Blame) -> Blame:
        return hide_blame(self._call, blame)

    @property
    def _call(self) -> ApiCall:
        """The same request as the API sees it: what is hidden there is hidden here."""
        return ApiCall(self.api, self.request, self.principal, self.core, None)

    async def work(self) -> ActiveWork:
        """All active work, as one reading for all pages has it."""
        found, stale = await self.shared.work()
        self.stale = self.stale or stale
        return found

    async def now(self) -> datetime:
        return instant(await self.core.store.now())

    async def run(self, run_id: str | None = None) -> tuple[AsyncRun[Any], RunInfo]:
        """The run that the path names. Another's is not there."""
        wanted = self.path("run") if run_id is None else run_id
        run = await self.client.runs.get(wanted)
        info = await run.info()
        if not self.principal.sees(info.tags):
            raise NotFound(f"there is no run {run.id!r}.", field="run", got=wanted)
        return run, self.shown(info)

    def shown(self, info: RunInfo) -> RunInfo:
        """With its key as who asks chose it."""
        return shown_run(self.principal, info)

    async def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """The page, or the block of it that was asked for."""
        found = templates().get_template(template)
        given = {**self.context(), "now": await self.now(), **values}
        block = found.blocks.get(self.fragment)
        if block is None:
            return html(found.render(given), status)
        answer = html("".join(block(found.new_context(given))), status)
        if self.stale:
            answer.headers["hx-trigger"] = "stale"
        return answer

    def context(self) -> dict[str, Any]:
        """What every template has."""
        request = self.request
        return {
            "me": self.principal,
            "may": self.may,
            "csrf": csrf_token(self.api, request),
            "seen": "" if self.stale or self.mark is None else self.mark,
            "path": request.url.path,
            "query": request.query_params,
            "cli": self.cli,
            "start": FirstSteps(self),
            "curl": self.curl,
            "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        }

    async def dialog(self, dialog: Dialog) -> Response:
        """The dialog; or, for a form in which something was changed, its commands alone."""
        changed = self.fragment == COMMANDS
        given = self.request.query_params if changed else dialog.initial()
        return await self.page("dialog.html", dialog=dialog, commands=dialog.commands_of(given))

    async def done(self, done: Done, status: int = 200) -> Response:
        """The note that an action leaves. The page refreshes itself then."""
        self.shared.changed()
        answer = await self.page("toast.html", done=done, status=status)
        if done.kind == "good":
            answer.headers["hx-trigger"] = "acted"
        return answer

    @property
    def origin(self) -> str:
        """This server as the browser reached it."""
        return f"{self.request.url.scheme}://{self.request.url.netloc}"

    def curl(self, method: str, path: str, body: object = None) -> str:
        """The same by the HTTP API, with the address this page was read from."""
        return curl_line(self.origin, method, path, body, token=self.principal.by != "loopback")

    def cli(self, verb: str, *words: object, **options: object) -> str:
        """The same by the command line, as `command_line` takes it."""
        return command_line(self.origin, verb, *words, **options)


Handler = Callable[[View], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class UiRoute:
    """One row of the table. A POST changes something: it is checked against forgery."""

    path: str
    handler: Handler
    method: Literal["GET", "POST"] = "GET"
    scope: Scope = "read"


OWN = ("/runs", "/queue", "/search", "/inbox", "/schedules")
"""Pages that show a token bound to tags only what is its own."""
NUMBERS = frozenset({"/", "/pools", "/pools/{pool}", "/limits"})
"""Pages that show it shared things, without names of others."""


def tenant_of(route: UiRoute) -> Tenant:
    """What a page is to a token that is bound to tags, as routes of the API say it."""
    if route.path in NUMBERS:
        return "numbers"
    return "own" if any(f"{route.path}/".startswith(f"{own}/") for own in OWN) else "none"


@cache
def templates() -> Environment:
    found = Environment(
        loader=PackageLoader("locktender.server.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters, shared = cast("dict[str, Any]", found.filters), cast("dict[str, Any]", found.globals)
    filters.update(words.FILTERS)
    shared.update(words.GLOBALS, asset=asset_url, inlined=inlined, version=version.installed())
    shared["ui"] = found.get_template("macros.html").module
    return found


def prepare_pages() -> None:
    """Compiles templates and packs assets, a third of a second: else who first visits a page waits for it."""
    for name in templates().list_templates():
        templates().get_template(name)
    assets()


def html(text: str, status: int = 200) -> Response:
    return Response(text, status, HEADERS, HTML)


def csrf_token(api: Api, request: Request) -> str:
    """What forms and scripts of this page send with a change; none where nobody has logged in."""
    try:
        return api.access.csrf(request)
    except LocktenderError:
        return ""


def login_form(message: str = "", target: str = "/") -> str:
    return templates().get_template("login.html").render(message=message, target=target)


def ui_endpoint(api: Api, route: UiRoute, readings: SharedReadings) -> Endpoint:
    async def call(request: Request) -> Response:
        view: View | None = None
        try:
            principal = api.access.identify(request)
            view = View(
                api,
                request,
                principal,
                api.core.acting(principal.name, only=principal.tags, token=principal.token),
                readings,
            )
            principal.check(route.scope)
            check_tenant(principal, tenant_of(route))
            if route.method == "POST":
                await _read_form(view)
            return await route.handler(view)
        except LocktenderError as error:
            if isinstance(error, Unauthorized):
                return _to_login(request)
            return error_page(api, request, _public(error, request), view)
        except TimeoutError:
            error = Unanswered("the store does not answer.", hint="Try again; see /health.")
            return error_page(api, request, error, view)
        except Exception:
            log.exception("failed to answer %s", request.url.path)
            error = Broken("locktender itself failed.", hint="The server's log says why.")
            return error_page(api, request, error, view)

    call.__name__ = route.handler.__name__
    return call


def _public(error: LocktenderError, request: Request) -> LocktenderError:
    """The message of the store may name hosts and users: it goes to the log only."""
    if not isinstance(error, StoreError):
        return error
    log.warning("failed to answer %s: %s", request.url.path, error)
    return Unanswered("the store cannot be read.", hint="The server's log says why.")


async def _form(request: Request, most: int) -> dict[str, str]:
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    length = headers.get("content-length", "")
    if kind != FORM or not length.isdecimal():
        raise UnsupportedType("this is not a form.", field="content-type", got=kind, hint=FORM)
    if int(length[:20]) > most:
        raise TooLarge(f"a form has at most {most} bytes.", field="body", got=length[:20])
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except ValueError:
        raise Malformed("this form cannot be read.", field="body") from None


async def _read_form(view: View) -> None:
    view.form = await _form(view.request, view.api.most_bytes)
    view.api.access.check_change(view.request, view.principal, view.form.get("csrf"))


def _to_login(request: Request) -> Response:
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("hx-request") == "true":
        where = login_url(_page_of(request))
        return Response(status_code=401, headers={**HEADERS, "hx-redirect": where})
    return RedirectResponse(login_url(asked if request.method == "GET" else "/"), 303, HEADERS)


def _page_of(request: Request) -> str:
    """The page of this server that htmx asks from: what it asks for may be a dialog."""
    page = request.headers.get("hx-current-url", "")
    origin = own_origin(request)
    return page.removeprefix(origin).partition("#")[0] if page.startswith(f"{origin}/") else "/"


TITLES = {
    403: "Not allowed",
    404: "There is nothing here",
    409: "Not in this state",
    412: "Changed by another user",
    422: "That cannot be done",
    429: "At the ceiling",
    500: "Locktender failed",
    503: "No answer",
}


def error_page(
    api: Api, request: Request, error: LocktenderError, view: View | None = None
) -> Response:
    """A page that says what is wrong and what to do; for htmx the same as a note."""
    status = status_of(error)
    if view is None:
        view = View(api, request, Principal("", frozenset()), api.core)
    given = {
        **view.context(),
        "error": error.as_dict(),
        "status": status,
        "title": TITLES.get(status, "That cannot be done"),
    }
    if request.headers.get("hx-request") == "true":
        done = Done(f"{error.message} {error.hint or ''}".strip(), kind="bad")
        text = templates().get_template("toast.html").render({**given, "done": done})
        answer = html(text, status)
        answer.headers.update({"hx-retarget": "#toasts", "hx-reswap": "beforeend"})
        return answer
    return html(templates().get_template("error.html").render(given), status)
