"""What PostgreSQL and the network report, as errors that say what to do next. No password is in any."""

from __future__ import annotations

import asyncio
import socket

import asyncpg

from locktender.base.errors import StoreBusy, StoreError

_AGAIN = "Nothing is lost: it is tried again, or repeat the call."

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
"""The connection is gone, or never was."""
ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The server undid the transaction: it may be run again."""
WORLD = (*CONNECTION, asyncpg.PostgresError, TimeoutError, asyncio.TimeoutError)
"""Everything that is not a fault of ours."""


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
                hint="Free some space; the store goes on by itself then.",
            )
        case "25006":
            return read_only(where)
        case "42501":
            return StoreError(
                f"{where}: {said}.",
                hint="Give this role the right to create and use the schema.",
            )
        case "57014":
            return StoreBusy(f"{where} took too long and was stopped ({said}).", hint=_AGAIN)
        case "55P03" | "40P01" | "40001":
            return StoreBusy(
                f"others hold what is to be written in {where} for too long ({said}).",
                hint="Look for a long transaction in pg_stat_activity; then repeat the call.",
            )
        case _:
            pass
    if isinstance(error, socket.gaierror):
        return StoreError(
            f"the host of {where} is not known ({said}).",
            field="url",
            got=where,
            hint="Check the host's name in the url.",
        )
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return StoreError(
            f"no PostgreSQL answers at {where}.",
            field="url",
            got=where,
            hint="Start the server, or check host and port in the url.",
        )
    if isinstance(error, TimeoutError):
        return StoreBusy(f"{where} did not answer in time.", hint=_AGAIN)
    if isinstance(error, CONNECTION):
        return StoreError(
            f"the connection to {where} was lost ({said}).",
            hint="Whether the last write was stored is not known; every verb may be repeated.",
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
        f"{where} has {free} connections left; this process may need {needed}.",
        field="max_connections",
        got=free,
        hint="Raise max_connections, or put a pooler in between (url with ?pooled=true).",
    )


def in_use(where: str, migration: str) -> StoreBusy:
    return StoreBusy(
        f"{where} is in use so much that migration {migration!r} found no moment.",
        hint="Look for a long transaction in pg_stat_activity; then: locktender db migrate.",
    )


def foreign(where: str, schema: str) -> StoreError:
    return StoreError(
        f"the schema {schema!r} of {where} has tables of another program.",
        field="schema",
        got=schema,
        hint="Name another one: ?schema=NAME in the url.",
    )
