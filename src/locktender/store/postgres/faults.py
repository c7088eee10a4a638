"""Errors of PostgreSQL and the network as `StoreError`s that say what to do next, without passwords."""

from __future__ import annotations

import asyncio
import socket
import ssl

import asyncpg

from locktender.base.errors import DataRefused, RoleRefused, StoreBusy, StoreError, StoreUnreachable

_AGAIN = "Nothing is lost: locktender retries, or repeat the call."

CONNECTION = (
    OSError,
    EOFError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
"""The connection was lost or could not be made."""
_WRONG = (asyncpg.InterfaceError, ssl.SSLError, PermissionError)
"""Those of them that no wait mends: a url that cannot be used, a certificate, a socket of another user."""
ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The server rolled the transaction back: it may run again."""
WORLD = (*CONNECTION, asyncpg.PostgresError, TimeoutError, asyncio.TimeoutError, UnicodeError)
"""Everything that is not an error in locktender."""


_REFUSED = ("21", "22", "23", "54")
"""Classes of SQLSTATE: cardinality violation (a row is written twice by one statement), data exception, integrity
constraint violation, program limit exceeded."""


def refuses_data(error: BaseException) -> bool:
    """A value that the server, or asyncpg before it was sent, does not take: the connection is intact."""
    state = getattr(error, "sqlstate", None) or ""
    return isinstance(error, asyncpg.DataError | UnicodeError) or state[:2] in _REFUSED


def translate(error: BaseException, where: str) -> StoreError:
    """The `StoreError` that stands for `error` of the store at `where`."""
    state = getattr(error, "sqlstate", None) or ""
    said = str(error).strip().rstrip(".") or type(error).__name__
    match state:
        case "28P01" | "28000":
            return StoreError(
                f"{where} refused the login ({said}).",
                field="url",
                got=where,
                hint="Check user and password in the url, and pg_hba.conf on the server.",
            )
        case "3D000":
            return StoreError(
                f"{where}: {said}.",
                field="url",
                got=where,
                hint="Create the database first: createdb NAME. Its tables are made by locktender.",
            )
        case "53300":
            return StoreBusy(
                f"{where} has no connection left ({said}).",
                hint="Raise max_connections, or put a pooler in between (url with ?pooled=true).",
            )
        case "53100":
            return StoreError(
                f"no space is left on the disk of {where}; nothing was stored.",
                hint="Free some space; the store then continues by itself.",
            )
        case "25006":
            return read_only(where)
        case "42501":
            return RoleRefused(
                f"{where}: {said}.",
                hint="Use the role that owns the schema. A worker's role is given its rights by: locktender db"
                " grant-worker ROLE.",
            )
        case "42704" if "configuration parameter" in said:
            return StoreError(
                f"{where} refused an option of the url ({said}).",
                field="url",
                got=where,
                hint="An option that is neither ours nor the driver's is a setting of the server: check its name.",
            )
        case "57014":
            return StoreBusy(f"a statement in {where} timed out ({said}).", hint=_AGAIN)
        case "55P03" | "40P01" | "40001":
            return StoreBusy(
                f"waiting for a lock in {where} timed out ({said}).",
                hint="Look for a long transaction in pg_stat_activity; then repeat the call.",
            )
        case _:
            pass
    if refuses_data(error):
        return DataRefused(f"{where} refused a value: {said}.", hint="Nothing was stored.")
    if isinstance(error, socket.gaierror):
        away = error.errno == socket.EAI_AGAIN
        return (StoreUnreachable if away else StoreError)(
            f"the host of {where} is not known ({said}).",
            field="url",
            got=where,
            hint="Check the host's name in the url.",
        )
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return StoreUnreachable(
            f"no PostgreSQL answers at {where}.",
            field="url",
            got=where,
            hint="Start the server, or check host and port in the url.",
        )
    if isinstance(error, TimeoutError):
        return StoreBusy(f"{where} did not answer in time.", hint=_AGAIN)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return StoreError(f"the url of {where} cannot be used: {said}.", field="url", got=where)
    if isinstance(error, CONNECTION):
        wrong = isinstance(error, _WRONG)
        return (StoreError if wrong else StoreUnreachable)(
            f"the connection to {where} was lost ({said}).",
            hint="The last write may or may not be stored; every call may be repeated.",
        )
    return StoreError(
        f"{where} failed: {said}.",
        hint="Nothing was stored; if it happens again, report it with this message.",
    )


def read_only(where: str) -> StoreError:
    return StoreError(
        f"{where} is read-only.",
        field="url",
        got=where,
        hint="It may be a hot standby: name the primary, or add target_session_attrs=read-write.",
    )


def too_old(where: str, version: int) -> StoreError:
    return StoreError(
        f"{where} is PostgreSQL {version // 10_000}; locktender needs 14 or newer.",
        hint="Upgrade the server.",
    )


def no_room(where: str, free: int, needed: int) -> StoreBusy:
    return StoreBusy(
        f"{where} has {free} connections left; this store may need {needed}.",
        field="max_connections",
        got=free,
        hint="Raise max_connections, or put a pooler in between (url with ?pooled=true).",
    )


def in_use(where: str, migration: str) -> StoreBusy:
    return StoreBusy(
        f"migration {migration!r} of {where} timed out waiting for locks.",
        hint="Look for a long transaction in pg_stat_activity; then: locktender db migrate.",
    )


def foreign(where: str, schema: str) -> StoreError:
    return StoreError(
        f"the schema {schema!r} of {where} has tables of another program.",
        field="schema",
        got=schema,
        hint="Name another one: ?schema=NAME in the url.",
    )
