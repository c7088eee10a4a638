"""What is neither a url nor meant as a path: a server's address whose scheme was forgotten."""

from __future__ import annotations

import re

from locktender.base.errors import InvalidInput

_SERVER = re.compile(
    r"""
      [^/\\]* : \d+ (/.*)?            # host:5432/db, user@host:5432
    | [^/\\]+ : [^/\\]* @ [^/\\]+ (/.*)?   # user:password@host/db
    | (postgres|postgresql|https?|sqlite) : .*   # postgresql:/host/db
    """,
    re.VERBOSE | re.DOTALL,
)


def check_path(url: str) -> None:
    """Refuses what would become a file of a strange name, in which a whole cluster waits for nobody."""
    if "://" in url or not _SERVER.fullmatch(url):
        return
    # What comes before the @ may be a password.
    shown = url.rpartition("@")[2]
    raise InvalidInput(
        f"{shown} looks like a server, but has no scheme.",
        field="url",
        got=shown,
        hint="Write postgresql://USER@HOST:PORT/DATABASE, or ./ before the path of a file.",
    )
