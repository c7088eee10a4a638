"""The settings file: the nearest `locktender.toml`, or `[tool.locktender]` in `pyproject.toml`, upwards."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from locktender.base.errors import InvalidInput, InvalidSettings

log: logging.Logger = logging.getLogger(__name__)

OWN_FILE = "locktender.toml"
PROJECT_FILE = "pyproject.toml"
MAX_BYTES = 10_000_000
_OUR_TABLE = re.compile(
    rb"""^(?:\xef\xbb\xbf)?[\[ \t]*["']?tool["']?[ \t]*(\]|=|\.[ \t]*["']?locktender)""",
    re.MULTILINE,
)
"""A project file that may have our table: most that depend on us have none."""


class SettingsFile(NamedTuple):
    path: Path
    prefix: str
    """What stands before a key in messages: `tool.locktender.` in a project file."""
    table: dict[str, Any]


def nearest(cwd: Path) -> SettingsFile | None:
    """The settings file of `cwd` or of the nearest directory above it that has one.

    Above it a file counts only if it belongs to this user, to root or to the owner of `cwd`:
    in a folder that all users may write to, any of them could choose the store and the limits.
    """
    for directory in _upwards(cwd):
        trusted = None if directory == Path(cwd).absolute() else _trusted(cwd)
        own = _own(directory / OWN_FILE, trusted)
        project = _project(directory / PROJECT_FILE, trusted)
        if own is not None and project is not None:
            raise InvalidSettings(
                f"both {own.path} and [tool.locktender] in {project.path} have settings.",
                field="settings",
                hint="Keep one of them.",
            )
        found = own if own is not None else project
        if found is not None:
            return found
    return None


def _upwards(cwd: Path) -> Iterator[Path]:
    here = Path(cwd).absolute()
    yield here
    yield from here.parents


def _trusted(cwd: Path) -> set[int]:
    return {0, os.geteuid(), cwd.stat().st_uid}


def _own(path: Path, trusted: set[int] | None) -> SettingsFile | None:
    data = _read(path, trusted)
    return None if data is None else SettingsFile(path, "", _parse(path, data))


def _project(path: Path, trusted: set[int] | None) -> SettingsFile | None:
    data = _read(path, trusted, _OUR_TABLE)
    # Without our table it needs no parser: to import one and to parse the file takes several milliseconds.
    if data is None:
        return None
    tool: object = _parse(path, data).get("tool")
    table: object = (
        cast("dict[str, Any]", tool).get("locktender") if isinstance(tool, dict) else None
    )
    if table is None:
        return None
    if not isinstance(table, dict):
        raise InvalidSettings(
            f"{path}: tool.locktender must be a table.", field="tool.locktender", got=table
        )
    return SettingsFile(path, "tool.locktender.", cast("dict[str, Any]", table))


def _read(
    path: Path, trusted: set[int] | None, mentions: re.Pattern[bytes] | None = None
) -> bytes | None:
    """What is in the file; None: there is none, it does not mention this, or another user owns it."""
    try:
        # Not blocking: another user could put a pipe into a folder above the project.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            ours = trusted is None or found.st_uid in trusted
            regular = stat.S_ISREG(found.st_mode)
            data = os.read(file, MAX_BYTES + 1) if regular and (ours or mentions) else b""
        finally:
            os.close(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if trusted is not None and _owner(path) not in trusted:
            log.warning("settings in %s are ignored: %s", path, error.strerror)
            return None
        raise InvalidSettings(
            f"{path} cannot be read: {error.strerror}.",
            field="settings",
            hint="Make it readable, or remove it.",
        ) from error
    if mentions is not None and not mentions.search(data):
        return None
    if not ours:
        log.warning("settings in %s are ignored: the file belongs to user %s", path, found.st_uid)
        return None
    if not regular or len(data) > MAX_BYTES:
        raise InvalidSettings(
            f"{path} cannot be read: it is {'larger than 10 MB' if regular else 'not a regular file'}.",
            field="settings",
            hint="Make it a text file with one setting per line, or remove it.",
        )
    return data


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 — only where there is a file to read

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(
            f"{path} is not valid TOML: {error}.",
            field="settings",
            hint='Write one setting per line, as UTF-8: grace = "30s".',
        ) from error


_SERVER = re.compile(
    r"""
      [^/\\]* : \d+ (/.*)?            # host:5432/db, user@host:5432
    | [^/\\]+ : [^/\\]* @ [^/\\]+ (/.*)?   # user:password@host/db
    | (postgres|postgresql|https?|sqlite) (: | //) .*   # postgresql:/host/db, postgresql//host/db
    """,
    re.VERBOSE | re.DOTALL,
)


def check_path(url: str) -> None:
    """Refuses what would silently become the name of a SQLite file: a server without its scheme, a directory,
    a name with a line break."""
    if not url.isprintable():
        raise InvalidInput(
            "url has a line break or another character that cannot be printed.",
            field="url",
            got=url.rpartition("@")[2],
            hint="Look for a stray line break where it is set.",
        )
    if "://" not in url and url.endswith("/"):
        raise InvalidInput(
            "url names a directory, and the store is a file.",
            field="url",
            got=url,
            hint=f"Name a file in it: {url}locktender.db",
        )
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
