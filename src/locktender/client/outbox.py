"""Submitting inside a transaction of the application: the run exists if, and only if, that transaction commits.

The caller's connection stores one row by one function of our schema (`submit_run`), and the leader makes a run
of it. Ceilings and keys are judged then. Until then the run is *submitted*; one that is refused is *rejected*.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Sequence
from typing import Any, Literal, cast

from locktender.base.errors import InvalidInput
from locktender.client.core import Core
from locktender.client.submit import Prepared
from locktender.store.open import schema_of
from locktender.store.outbox import pack_run
from locktender.store.protocol import OutboxRun

Unset = Sequence[str]
Driver = Literal["asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django"]
_DRIVERS: tuple[Driver, ...] = ("asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django")
_KNOWN = (
    "Give it an open connection of asyncpg, psycopg, psycopg2, SQLAlchemy (or a session of it) or Django to the"
    " same PostgreSQL database."
)


def submit_by(core: Core, connection: object, prepared: Prepared, *, notify: bool) -> None:
    """Stores the run of a client for plain code with its caller's transaction."""
    store_by(schema_of(core.settings.url), connection, prepared, notify=notify)


async def submit_by_async(
    core: Core, connection: object, prepared: Prepared, *, notify: bool
) -> None:
    """Stores the run of an async client with its caller's transaction."""
    await store_by_async(schema_of(core.settings.url), connection, prepared, notify=notify)


def store_by(
    schema: str | None, connection: object, prepared: Prepared, unset: Unset = (), *, notify: bool
) -> None:
    """Stores the run with the caller's transaction, over a connection for plain code."""
    driver, values = _row_of(connection, prepared, unset, notify=notify)
    if _is_async(driver, connection):
        raise _wrong("the connection is async, and the call is not.", connection)
    if driver == "sqlalchemy":
        cast("Any", connection).execute(_alchemy_text(schema), values)
    else:
        with cast("Any", connection).cursor() as cursor:
            cursor.execute(_text(schema, "%s", "%s", "%s"), tuple(values.values()))


async def store_by_async(
    schema: str | None, connection: object, prepared: Prepared, unset: Unset = (), *, notify: bool
) -> None:
    """Stores the run with the caller's transaction, over a connection for async code."""
    driver, values = _row_of(connection, prepared, unset, notify=notify)
    if not _is_async(driver, connection):
        raise _wrong("the call is async, and the connection is not.", connection)
    given = cast("Any", connection)
    stored: Awaitable[object]
    if driver == "asyncpg":
        stored = given.execute(_text(schema, "$1", "$2", "$3"), *values.values())
    elif driver == "sqlalchemy":
        stored = given.execute(_alchemy_text(schema), values)
    else:
        stored = given.execute(_text(schema, "%s", "%s", "%s"), tuple(values.values()))
    await stored


def _row_of(
    connection: object, prepared: Prepared, unset: Unset, *, notify: bool
) -> tuple[Driver, dict[str, Any]]:
    found = {each.__module__.partition(".")[0] for each in type(connection).__mro__}
    driver: Driver | None = next((each for each in _DRIVERS if each in found), None)
    if driver is None:
        raise _wrong(
            f"{type(connection).__name__} is not a connection that is known here.", connection
        )
    body = pack_run(OutboxRun(prepared.run, prepared.body, tuple(unset)))
    return driver, {"id": prepared.run.id, "body": body, "tell": notify}


def _is_async(driver: Driver, connection: object) -> bool:
    return driver == "asyncpg" or type(connection).__name__.startswith("Async")


def _wrong(message: str, connection: object) -> InvalidInput:
    return InvalidInput(message, field="connection", got=type(connection).__name__, hint=_KNOWN)


def _text(schema: str | None, run_id: str, body: str, tell: str) -> str:
    if schema is None:
        raise InvalidInput(
            "only a store on PostgreSQL takes part in transactions of an application.",
            field="connection",
            hint="Leave connection= out, or use a store in the application's database: postgresql://….",
        )
    return f'SELECT "{schema}".submit_run(CAST({run_id} AS text), CAST({body} AS bytea), CAST({tell} AS boolean))'


def _alchemy_text(schema: str | None) -> Any:
    # Only a caller that has SQLAlchemy comes here.
    return importlib.import_module("sqlalchemy").text(_text(schema, ":id", ":body", ":tell"))
