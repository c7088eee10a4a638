"""What pages load: read once, named by a hash of its content, kept by browsers for a year.

`static/vendor` is fetched by `make vendor`; `tools/vendor.lock.json` has its versions and hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from markupsafe import Markup
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
STYLES = ("app.css", "run.css", "vendor/uPlot.min.css")
THEME = "theme.js"
_COMMENT = re.compile(rb"/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(rb"(?:\s*([{};,])|(?<=:))\s+|\s+(?=[{}])")


@dataclass(frozen=True, slots=True)
class Asset:
    url: str
    kind: str
    body: bytes
    zipped: bytes
    squeezed: bytes | None
    """By brotli, as `make vendor` left it; None: it is not one of those."""


@cache
def assets() -> dict[str, Asset]:
    """Path below `static` → what is served for it."""
    found: dict[str, Asset] = {}
    root = resources.files("locktender.server.ui") / "static"
    for below in ("", "vendor"):
        folder = root / below if below else root
        files = {each.name: each for each in folder.iterdir() if each.is_file()}
        for each in files.values():
            suffix = "." + each.name.rpartition(".")[2]
            if suffix in KINDS:
                name = f"{below}/{each.name}" if below else each.name
                beside = files.get(f"{each.name}.br")
                squeezed = None if beside is None else beside.read_bytes()
                found[name] = _asset(name, KINDS[suffix], each.read_bytes(), squeezed)
    return found


def _asset(name: str, kind: str, body: bytes, squeezed: bytes | None) -> Asset:
    shorter = body if name.startswith("vendor/") else _shorter(name, body)
    mark = hashlib.sha256(shorter).hexdigest()[:12]
    zipped = gzip.compress(shorter, 9, mtime=0)
    return Asset(f"{PREFIX}/{mark}/{name}", kind, shorter, zipped, squeezed)


def _shorter(name: str, body: bytes) -> bytes:
    """Without indentation and lines that are a comment; styles without any space that says nothing."""
    lines = (line.strip() for line in body.splitlines())
    found = b"\n".join(line for line in lines if line and not line.startswith(b"//"))
    if not name.endswith(".css"):
        return found
    return _SPACE.sub(rb"\1", _COMMENT.sub(b"", found)).replace(b";}", b"}")


@cache
def inlined(name: str) -> Markup:
    """What a page has in itself: a browser paints nothing before it has all styles, and each request takes time.

    The Content-Security-Policy names the hash of each, and allows no other.
    """
    body = (resources.files("locktender.server.ui") / "static" / name).read_bytes()
    return Markup((body if name.startswith("vendor/") else _shorter(name, body)).decode())  # noqa: S704 our own files


def source_of(name: str) -> str:
    """The hash of what is inlined, as a policy names it."""
    digest = hashlib.sha256(inlined(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


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
    accepted = request.headers.get("accept-encoding", "")
    body, encoding = found.body, ""
    if found.squeezed is not None and "br" in accepted:
        body, encoding = found.squeezed, "br"
    elif "gzip" in accepted:
        body, encoding = found.zipped, "gzip"
    if encoding:
        headers["content-encoding"] = encoding
    return Response(body, headers=headers, media_type=found.kind)
