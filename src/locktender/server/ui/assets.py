"""What pages load: read once, named by a hash of its content, kept by browsers for a year.

`static/vendor` is fetched by `make vendor`; `vendor.lock` has its versions and hashes.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from locktender.base.errors import NotFound

PREFIX = "/ui"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    url: str
    kind: str
    body: bytes
    zipped: bytes


@cache
def assets() -> dict[str, Asset]:
    """Path below `static` → what is served for it."""
    found: dict[str, Asset] = {}
    root = resources.files("locktender.server.ui") / "static"
    for below in ("", "vendor"):
        for each in (root / below if below else root).iterdir():
            suffix = "." + each.name.rpartition(".")[2]
            if suffix in KINDS:
                name = f"{below}/{each.name}" if below else each.name
                found[name] = _asset(name, KINDS[suffix], each.read_bytes())
    return found


def _asset(name: str, kind: str, body: bytes) -> Asset:
    mark = hashlib.sha256(body).hexdigest()[:12]
    return Asset(f"{PREFIX}/{mark}/{name}", kind, body, gzip.compress(body, 9, mtime=0))


def asset_url(name: str) -> str:
    return assets()[name].url


async def serve_asset(request: Request) -> Response:
    """The file of this name. A hash that is not its own is one of another release: answered, and not kept."""
    name = request.path_params["name"]
    found = assets().get(name)
    if found is None:
        raise NotFound(f"there is no file {name!r}.", field="path", got=request.url.path[:200])
    current = request.url.path == found.url
    headers = {
        "cache-control": FOREVER if current else "no-store",
        "x-content-type-options": "nosniff",
        "vary": "accept-encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            found.zipped, headers={**headers, "content-encoding": "gzip"}, media_type=found.kind
        )
    return Response(found.body, headers=headers, media_type=found.kind)
