"""Roles of `locktender db grant-worker` and `grant-submit`: every right they must not have is tried."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from tests.support.roles import arguments, as_role, made_role, verbs

from locktender.base.errors import InvalidInput, RoleRefused
from locktender.store.postgres import PostgresPlace, PostgresStore
from locktender.testing.postgres_server import connected, with_options

pytest_plugins = ["locktender.testing.postgres"]

WORKER = {
    "migration": {"select": "*"},
    "frozen_clock": {"select": "*"},
    "meta": {"select": "*"},
    "event": {"select": "seq at", "insert": "*"},
    # For the worker's own /health.
    "leader": {"select": "*"},
    "worker": {"select": "*", "insert": "*", "update": "lease_until lease_us body", "delete": "*"},
    "workers_version": {"select": "*", "insert": "*", "update": "value"},
    "lost_worker": {"select": "*"},
    "asked_worker": {"select": "name joined_at", "update": "joined_at"},
    "run": {"select": "seq id graph trace state"},
    "task": {
        "select": "*",
        "update": "state attempt started_at ended_at held output error",
    },
    "node_input": {"select": "*"},
    "graph": {"select": "*"},
    "orders": {"select": "*", "delete": "*"},
    "blob": {"select": "*", "insert": "*", "update": "put_at"},
    "log": {"select": "*", "insert": "*", "update": "body lines last_at"},
    "flow": {"select": "*", "insert": "*", "update": "announced_at body"},
    "schedule": {"select": "*"},
}
"""All that a worker's role may do. A table that is not named here is refused altogether."""
MAY = {
    *(
        "open",
        "close",
        "now",
        "wait",
        "put_blob",
        "get_blob",
        "graph",
        "heartbeat",
        "leave",
        "orders",
    ),
    *("accept", "finish", "keep_logs", "wait_for_offers", "announce", "flows", "schedules"),
    *(
        "set_schedule",
        "workers",
        "stale_writes",
        "wait_for_changes",
        "wait_for_ends",
        "forget_ends",
        "leader",
        "held_up",
    ),
}
"""Verbs of a worker, and those that ask no table."""
READS = {
    *(
        "executing_tasks",
        "lives",
        "log_counts",
        "log_total",
        "logs",
        "newest_logs",
        "run_states",
        "schedules_due",
        "stored_content",
        "task_page",
        "tasks",
        "tasks_of",
    ),
    # A notification that names offers: a worker accepts none that is not in the tables.
    "offer_again",
    # Any event may be added to the history: docs/security.md says so.
    "remark",
}
"""What the rights of a worker allow besides."""
REFUSED = asyncpg.InsufficientPrivilegeError


@pytest.fixture
async def role(postgres_url: str) -> AsyncIterator[str]:
    async with made_role(postgres_url) as name:
        yield name


async def catalog(url: str) -> dict[str, list[str]]:
    """Every table of the schema with its columns."""
    async with connected(url) as raw:
        rows = await raw.fetch(
            "SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_class c"
            " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
            " WHERE c.relnamespace = 'locktender'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')"
            " GROUP BY c.relname"
        )
    return {row[0]: list(row[1]) for row in rows}


def tries(table: str, columns: list[str]) -> Iterator[tuple[str, str, str]]:
    """(right, column, statement) for all that can be done with a table; none of it changes a row."""
    name = f"locktender.{table}"
    for column in columns:
        yield "select", column, f"SELECT {column} FROM {name} LIMIT 0"
        yield "update", column, f"UPDATE {name} SET {column} = DEFAULT WHERE false"
        yield (
            *("insert", column),
            f"INSERT INTO {name} ({column}) OVERRIDING SYSTEM VALUE SELECT {column} FROM {name} WHERE false",
        )
    yield "delete", "*", f"DELETE FROM {name}"
    yield "truncate", "*", f"TRUNCATE {name}"
    yield "alter", "*", f"ALTER TABLE {name} ADD COLUMN mine integer"
    yield "drop", "*", f"DROP TABLE {name}"
    yield "index", "*", f"CREATE INDEX ON {name} ({columns[0]})"
    trigger = "FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    yield "trigger", "*", f"CREATE TRIGGER mine BEFORE UPDATE ON {name} {trigger}"


async def allowed(url: str, given: dict[str, list[str]]) -> set[tuple[str, str, str]]:
    """(table, right, column) that the role of this url can do."""
    found: set[tuple[str, str, str]] = set()
    async with connected(url) as raw:
        for table, columns in given.items():
            for right, column, statement in tries(table, columns):
                transaction = raw.transaction()
                await transaction.start()
                try:
                    await raw.execute(statement)
                    found.add((table, right, column))
                except REFUSED:
                    pass
                finally:
                    await transaction.rollback()
    return found


def expected(given: dict[str, list[str]]) -> set[tuple[str, str, str]]:
    found: set[tuple[str, str, str]] = set()
    for table, rights in WORKER.items():
        for right, columns in rights.items():
            several = columns.split()
            if columns == "*" and right != "delete":
                several = given[table]
            found |= {(table, right, column) for column in several}
    # To insert a column as the tries do, it has to be read too.
    readable = {(table, column) for table, right, column in found if right == "select"}
    return {
        (table, right, column)
        for table, right, column in found
        if right != "insert" or (table, column) in readable
    }


async def test_a_worker_role_has_no_other_right_on_any_table(postgres_url: str, role: str):
    place, url = PostgresPlace(postgres_url), as_role(postgres_url, role)
    given = await catalog(postgres_url)
    assert len(given) > 40
    with pytest.raises(REFUSED):
        async with connected(url) as raw:
            await raw.execute("SELECT 1 FROM locktender.meta")
    await place.grant("worker", role, revokes=False)
    assert await allowed(url, given) == expected(given)
    await place.grant("worker", role, revokes=False)
    assert await allowed(url, given) == expected(given)
    await place.grant("worker", role, revokes=True)
    assert await allowed(url, given) == set()


async def test_granting_again_takes_back_what_is_not_needed(postgres_url: str, role: str):
    place, url = PostgresPlace(postgres_url), as_role(postgres_url, role)
    await place.grant("worker", role, revokes=False)
    async with connected(postgres_url) as raw:
        await raw.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA locktender TO {role}")
        await raw.execute(f"GRANT UPDATE (declared) ON locktender.limit_rule TO {role}")
    await place.grant("worker", role, revokes=False)
    given = await catalog(postgres_url)
    assert await allowed(url, given) == expected(given)


async def test_neither_role_may_make_anything(postgres_url: str, role: str):
    place, url = PostgresPlace(postgres_url), as_role(postgres_url, role)
    await place.grant("worker", role, revokes=False)
    await place.grant("submit", role, revokes=False)
    async with connected(url) as raw:
        for statement in (
            "CREATE TABLE locktender.mine (n integer)",
            "CREATE FUNCTION locktender.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
            "CREATE OR REPLACE FUNCTION locktender.locktender_now() RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
            "ALTER FUNCTION locktender.submit_run(text, bytea, boolean) SET search_path = public",
            "CREATE TYPE locktender.mine AS ENUM ('a')",
            "ALTER SCHEMA locktender RENAME TO mine",
            "DROP SCHEMA locktender CASCADE",
            "SELECT nextval('locktender.request_seq_seq')",
        ):
            with pytest.raises((REFUSED, asyncpg.InvalidObjectDefinitionError)):
                await raw.execute(statement)


FUNCTIONS = (
    "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'locktender'::regnamespace"
    " AND has_function_privilege($1, p.oid, 'EXECUTE') ORDER BY 1"
)


async def test_functions_are_given_by_name(postgres_url: str, role: str):
    place = PostgresPlace(postgres_url)
    worker = [
        *("declare_schedule", "event_base", "event_horizon", "event_number", "history_place"),
        "locktender_now",
    ]
    async with connected(postgres_url) as raw:

        async def may() -> list[str]:
            return [row[0] for row in await raw.fetch(FUNCTIONS, role)]

        assert await may() == []
        await place.grant("submit", role, revokes=False)
        assert await may() == ["submit_run"]
        await place.grant("worker", role, revokes=False)
        assert await may() == sorted([*worker, "submit_run"])
        await place.grant("submit", role, revokes=True)
        assert await may() == worker
        assert await raw.fetchval("SELECT has_schema_privilege($1, 'locktender', 'USAGE')", role)
        await place.grant("submit", role, revokes=False)
        await place.grant("worker", role, revokes=True)
        assert await may() == ["submit_run"]
        assert await raw.fetchval("SELECT has_schema_privilege($1, 'locktender', 'USAGE')", role)
        await place.grant("submit", role, revokes=True)
        assert not await raw.fetchval(
            "SELECT has_schema_privilege($1, 'locktender', 'USAGE')", role
        )
        unsafe = await raw.fetch(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'locktender'::regnamespace AND prosecdef"
            " AND NOT coalesce(proconfig, '{}') @> ARRAY['search_path=pg_catalog, pg_temp']"
        )
        assert unsafe == []


SHADOWS = (
    """CREATE FUNCTION pg_temp.called() RETURNS oid LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO pg_temp.callers VALUES (current_user);
        RETURN 1;
    END $$""",
    "CREATE TEMP TABLE callers (who text)",
    "GRANT ALL ON callers TO PUBLIC",
    "CREATE TEMP VIEW pg_class AS SELECT c.oid, pg_temp.called() AS relnamespace FROM pg_catalog.pg_class c",
    "CREATE TEMP VIEW pg_namespace AS SELECT pg_temp.called() AS oid, 'x' AS nspname",
    "CREATE TEMP VIEW outbox AS SELECT pg_temp.called() AS id",
    "CREATE TEMP VIEW schedule AS SELECT pg_temp.called() AS name",
)
"""What a role can make in its own session: names that a function of the owner might find first."""


async def test_no_callers_code_runs_with_the_owners_rights(postgres_url: str, role: str):
    place, url = PostgresPlace(postgres_url), as_role(postgres_url, role)
    await place.grant("worker", role, revokes=False)
    await place.grant("submit", role, revokes=False)
    async with connected(url) as raw:
        for statement in SHADOWS:
            await raw.execute(statement)
        await raw.execute("SET search_path = pg_temp, pg_catalog")
        await raw.execute("SELECT locktender.submit_run($1, 'x', true)", "a" * 26)
        await raw.execute(
            "SELECT locktender.declare_schedule('s', 1, NULL, 'x', 'x', 1, NULL, 'x', '')"
        )
        assert await raw.fetch("SELECT who FROM pg_temp.callers") == []


async def test_a_submitter_reaches_no_table(postgres_url: str, role: str):
    await PostgresPlace(postgres_url).grant("submit", role, revokes=False)
    given, url = await catalog(postgres_url), as_role(postgres_url, role)
    assert await allowed(url, given) == set()
    store = PostgresStore(url)
    with pytest.raises(RoleRefused):
        await store.open()


async def test_a_worker_role_is_refused_every_other_verb(postgres_url: str, role: str):
    await PostgresPlace(postgres_url).grant("worker", role, revokes=False)
    store = PostgresStore(as_role(postgres_url, role))
    await store.open()
    done: dict[str, Any] = {}
    try:
        for name, verb in verbs().items():
            if name in MAY:
                continue
            try:
                done[name] = await getattr(store, name)(*arguments(verb))
            except RoleRefused:
                pass
            except Exception as error:  # noqa: BLE001 — whatever it is, it was not refused
                done[name] = error
    finally:
        await store.close()
    assert done.keys() == READS, done


async def test_a_worker_role_changes_no_schedule_of_an_operator(postgres_url: str, role: str):
    await PostgresPlace(postgres_url).grant("worker", role, revokes=False)
    call = "SELECT locktender.declare_schedule($1, 2, NULL, $2, $3, 7, NULL, NULL, '')"
    row = "SELECT declared, live, version FROM locktender.schedule WHERE name = 'nightly'"
    async with connected(postgres_url) as raw, connected(as_role(postgres_url, role)) as worker:
        await raw.execute(
            "INSERT INTO locktender.schedule (name, version, live, state) VALUES ('nightly', 1, 'op', '{}')"
        )
        await worker.execute(call, "nightly", b"code", b"{}")
        assert tuple(await raw.fetchrow(row) or ()) == (b"code", b"op", 2)
        await worker.execute(call, "nightly", None, None)
        assert tuple(await raw.fetchrow(row) or ()) == (b"code", b"op", 2)
        told = await raw.fetch("SELECT who, what FROM locktender.schedule_history")
        assert [tuple(each) for each in told] == [("code", "declared")] * 2


async def test_what_cannot_be_granted_is_refused(postgres_url: str, role: str):
    place = PostgresPlace(postgres_url)
    for name, said in (
        ("nobody_of_this_name", "has no role"),
        ("postgres", "is a superuser"),
        ("public", "cannot be given rights"),
        ("pg_monitor", "cannot be given rights"),
        ("", "1 to 63 bytes"),
        ("x" * 64, "1 to 63 bytes"),
        ("a$grant$b", "1 to 63 bytes"),
    ):
        for purpose in ("worker", "submit"):
            with pytest.raises(InvalidInput, match=said):
                await place.grant(purpose, name, revokes=False)
    await place.grant("worker", role, revokes=False)
    async with made_role(postgres_url) as other:
        # The server only warns where one who has a right may not give it.
        for mine in (PostgresPlace(as_role(postgres_url, each)) for each in (other, role)):
            with pytest.raises(RoleRefused, match="Nothing was changed") as refused:
                await mine.grant("worker", other, revokes=False)
            assert "--print" in refused.value.hint
        with pytest.raises(RoleRefused, match="Nothing was changed"):
            await PostgresPlace(as_role(postgres_url, role)).grant("worker", role, revokes=True)
    empty = PostgresPlace(with_options(postgres_url, schema="not_there"))
    with pytest.raises(InvalidInput, match="has no schema 'not_there'"):
        await empty.grant("worker", role, revokes=False)


async def test_a_name_with_quotes_is_a_name(postgres_url: str):
    name = f'o\'brien "{os.urandom(4).hex()}"'
    quoted = '"' + name.replace('"', '""') + '"'
    place = PostgresPlace(postgres_url)
    async with connected(postgres_url) as raw:
        await raw.execute(f"CREATE ROLE {quoted}")
        try:
            for revokes in (False, True):
                await place.grant("worker", name, revokes=revokes)
                await place.grant("submit", name, revokes=revokes)
            assert await raw.fetch(FUNCTIONS, name) == []
        finally:
            await raw.execute(f"DROP OWNED BY {quoted}")
            await raw.execute(f"DROP ROLE {quoted}")


async def test_what_is_printed_is_what_is_granted(postgres_url: str, role: str):
    """Another schema's name, and the transaction that a DBA runs."""
    url = with_options(postgres_url, schema="apps")
    await PostgresPlace(url).migrate()
    script = PostgresPlace(url).grant_script("worker", role, revokes=False)
    async with connected(postgres_url) as raw:
        await raw.execute(script)
        assert await raw.fetchval("SELECT has_table_privilege($1, 'apps.task', 'SELECT')", role)
        assert not await raw.fetchval(
            "SELECT has_schema_privilege($1, 'locktender', 'USAGE')", role
        )
    store = PostgresStore(with_options(as_role(postgres_url, role), schema="apps"))
    await store.open()
    await store.close()


async def test_the_owner_may_end_connections_of_a_worker(postgres_url: str):
    """Else one that freezes in a statement would keep its locks."""
    member = "SELECT pg_has_role($1, $2, 'USAGE')"
    async with made_role(postgres_url, "CREATEROLE") as owner, connected(postgres_url) as raw:
        await raw.execute(
            f"GRANT CREATE ON DATABASE {await raw.fetchval('SELECT current_database()')} TO {owner}"
        )
        url = with_options(as_role(postgres_url, owner), schema="owned")
        place = PostgresPlace(url)
        await place.migrate()
        with pytest.raises(InvalidInput, match="has the rights of the schema's owner"):
            await place.grant("worker", owner, revokes=False)
        async with made_role(postgres_url) as worker:
            await raw.execute(f"GRANT {worker} TO {owner} WITH ADMIN OPTION")
            await raw.execute(f"GRANT {worker} TO CURRENT_USER")
            await raw.execute(f"REVOKE {worker} FROM {owner}")
            assert not await raw.fetchval(member, owner, worker)
            await PostgresPlace(with_options(postgres_url, schema="owned")).grant(
                "worker", worker, revokes=False
            )
            assert await raw.fetchval(member, owner, worker)
            await PostgresPlace(with_options(postgres_url, schema="owned")).grant(
                "worker", worker, revokes=True
            )
            assert not await raw.fetchval(member, owner, worker)
            # One that may not give roles grants the rest, with a warning of the server.
            await place.grant("worker", worker, revokes=False)
            assert not await raw.fetchval(member, owner, worker)
