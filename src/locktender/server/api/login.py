"""`/login` and `/logout`: a browser gives a token once and gets a cookie.

The cookie is `HttpOnly`, `SameSite=Strict` and, under TLS, `Secure`. It holds a
session of the store, which ends after half a day, with `/logout`, and with its token.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import Response

from locktender.server.api.answers import (
    Endpoint,
    Forbidden,
    Malformed,
    Unauthorized,
    UnsupportedType,
    raw,
)
from locktender.server.api.principal import Access, check_origin
from locktender.server.api.reading import read_all
from locktender.server.api.token_access import SESSION_SECONDS, TokenAccess, cookie_name

FORM = "application/x-www-form-urlencoded"
MAX_BYTES = 8 * 1024
HTML = "text/html; charset=utf-8"
POLICY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; form-action 'self';"
        " frame-ancestors 'none'; base-uri 'none'"
    ),
    # Not no-referrer: with that, browsers send `Origin: null` with a form.
    "referrer-policy": "same-origin",
}


def login_page(message: str = "", target: str = "/") -> str:
    """The form as HTML. `target`: where to go afterwards."""
    said = f'<p role="alert">{escape(message)}</p>' if message else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Log in · Locktender</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/api/docs.css"></head><body>
<h1>Locktender</h1>
{said}<form method="post" action="/login">
<input type="hidden" name="next" value="{escape(target)}">
<p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus></p>
<p><button type="submit">Log in</button></p>
</form>
<p>A token is made with: <code>locktender tokens create NAME --scope read</code></p>
</body></html>
"""


def login_routes(
    access: Access, page: Callable[[str, str], str] = login_page
) -> dict[str, dict[str, Endpoint]]:
    """Path → method → handler. `page`: the form as HTML, of a message and where to go afterwards."""

    async def show_login(request: Request) -> Response:
        target = safe_target(request.query_params.get("next"))
        if not isinstance(access, TokenAccess):
            return _go(target)  # no login is needed here
        return raw(page("", target).encode(), HTML, 200, POLICY)

    async def log_in(request: Request) -> Response:
        check_same_site(request)
        form = await read_form(request)
        target = safe_target(form.get("next"))
        if not isinstance(access, TokenAccess):
            return _go(target)
        try:
            session = await access.log_in(form.get("token", "").strip())
        except Unauthorized as error:
            said = page(error.message, target)
            return raw(said.encode(), HTML, 401, {**POLICY, "www-authenticate": "Bearer"})
        answer = _go(target)
        _set_cookie(answer, request, session, SESSION_SECONDS)
        return answer

    async def log_out(request: Request) -> Response:
        principal = access.identify(request)
        form = await read_form(request) if _has_form(request) else {}
        access.check_change(request, principal, form.get("csrf"))
        if not isinstance(access, TokenAccess):
            return _go("/")
        await access.log_out(request)
        answer = _go("/login")
        _set_cookie(answer, request, "", 0)
        return answer

    return {"/login": {"GET": show_login, "POST": log_in}, "/logout": {"POST": log_out}}


def login_url(target: str) -> str:
    """Where a page sends a browser that has not logged in."""
    return f"/login?next={quote(safe_target(target), safe='/')}"


def safe_target(given: str | None) -> str:
    """A path of this server; anything else would send people elsewhere after they log in."""
    plain = given is not None and given.startswith("/") and given.isprintable()
    if given is None or not plain or given.startswith("//") or "\\" in given:
        return "/"
    return given[:2_000]


def check_same_site(request: Request) -> None:
    """A page of another origin must not log a browser in: the user would work with that page's token."""
    check_origin(request)
    site = request.headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin"):
        raise Forbidden(
            "requests from a page of another origin are refused.", field="sec-fetch-site", got=site
        )


async def read_form(request: Request) -> dict[str, str]:
    """Fields of a plain form, each once."""
    if not _has_form(request):
        raise UnsupportedType(f"the body must be {FORM}.", field="content-type")
    body = await read_all(request, MAX_BYTES)
    try:
        found = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=50)
    except ValueError as error:
        raise Malformed(f"the form cannot be read: {error}.", field="body") from None
    return {name: values[-1] for name, values in found.items()}


def _has_form(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM


def _go(target: str) -> Response:
    return raw(b"", HTML, 303, {"location": target})


def _set_cookie(answer: Response, request: Request, value: str, seconds: int) -> None:
    answer.set_cookie(
        cookie_name(request),
        value,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )
