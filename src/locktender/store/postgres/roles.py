"""What a database role needs for one purpose, as SQL: `locktender db grant-worker` and `grant-submit`.

A worker writes its own row, the tasks that it accepts, their logs and large values, and the history of that. It
reads who leads (for its `/health`), no rule, no request, no argument of a run, and changes nothing that the leader
decides by. Rights are given by column where a table has both. docs/security.md says what such a role can still do.

All of it is one transaction and begins with nothing, so that granting again after an upgrade gives exactly what
this release needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from locktender.base.errors import InvalidInput, RoleRefused
from locktender.store.copying import Purpose
from locktender.store.postgres.composed_sql import columns
from locktender.store.postgres.session import PostgresSession

WORKER_TABLES: dict[str, str] = {
    "migration": "SELECT",
    "frozen_clock": "SELECT",
    "meta": "SELECT",
    "event": "SELECT (seq, at), INSERT",
    "leader": "SELECT",
    "worker": "SELECT, INSERT, UPDATE (lease_until, lease_us, body), DELETE",
    "workers_version": "SELECT (one, value), INSERT (one, value), UPDATE (value)",
    "lost_worker": "SELECT",
    "asked_worker": "SELECT (name, joined_at), UPDATE (joined_at)",
    "run": "SELECT (seq, id, graph, trace, state)",
    "task": "SELECT, UPDATE (state, attempt, started_at, ended_at, held, output, error)",
    "node_input": "SELECT",
    "graph": "SELECT",
    "orders": "SELECT, DELETE",
    "blob": "SELECT, INSERT, UPDATE (put_at)",
    "log": "SELECT, INSERT, UPDATE (body, lines, last_at)",
    "flow": "SELECT, INSERT, UPDATE (announced_at, body)",
    "schedule": "SELECT",
}
"""Table → what a worker's role may do with it. No other table is given to it."""
WORKER_FUNCTIONS = (
    "locktender_now()",
    "event_number(xid8)",
    "event_base()",
    "event_horizon()",
    "history_place()",
    "declare_schedule(text, bigint, bigint, bytea, bytea, bigint, bytea, bytea, text)",
)
SUBMIT_FUNCTION = "submit_run(text, bytea, boolean)"
_OWNER = """DO $grant$ BEGIN
    EXECUTE (
        SELECT format('{word} %I {way} %I', {role}, pg_get_userbyid(nspowner))
        FROM pg_catalog.pg_namespace WHERE nspname = {schema}
    );
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'the owner of the schema cannot end frozen connections of this role: %', SQLERRM;
END $grant$"""
_CLOSED = """DO $grant$ BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = {schema}::regnamespace AND p.proname = {other}
            AND has_function_privilege({role}, p.oid, 'EXECUTE')
    ) THEN REVOKE ALL ON SCHEMA {quoted_schema} FROM {quoted}; END IF;
END $grant$"""


@dataclass(frozen=True, slots=True)
class Grant:
    purpose: Purpose
    role: str
    schema: str
    revokes: bool = False

    def statements(self) -> list[str]:
        """All of it as SQL without parameters: what is printed is what is run."""
        if self.purpose == "worker":
            made = self._no_worker() if self.revokes else self._worker()
        else:
            made = self._no_submit() if self.revokes else self._submit()
        return made

    def script(self) -> str:
        """One transaction for `psql`."""
        return "\n".join(["BEGIN;", *(f"{each};" for each in self.statements()), "COMMIT;"])

    def _worker(self) -> list[str]:
        schema, role = _name(self.schema), _name(self.role)
        given = [
            f"GRANT {rights} ON TABLE {schema}.{_name(table)} TO {role}"
            for table, rights in WORKER_TABLES.items()
        ]
        functions = ", ".join(f"{schema}.{each}" for each in WORKER_FUNCTIONS)
        return [
            *self._taken(),
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            *given,
            f"GRANT EXECUTE ON FUNCTION {functions} TO {role}",
            self._membership(),
        ]

    def _taken(self) -> list[str]:
        schema, role = _name(self.schema), _name(self.role)
        functions = ", ".join(f"{schema}.{each}" for each in WORKER_FUNCTIONS)
        return [
            f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}",
            f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM {role}",
            f"REVOKE ALL ON FUNCTION {functions} FROM {role}",
        ]

    def _no_worker(self) -> list[str]:
        return [*self._taken(), self._membership(), self._no_usage("submit_run")]

    def _submit(self) -> list[str]:
        schema, role = _name(self.schema), _name(self.role)
        return [
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"GRANT EXECUTE ON FUNCTION {schema}.{SUBMIT_FUNCTION} TO {role}",
        ]

    def _no_submit(self) -> list[str]:
        schema, role = _name(self.schema), _name(self.role)
        return [
            f"REVOKE ALL ON FUNCTION {schema}.{SUBMIT_FUNCTION} FROM {role}",
            self._no_usage("locktender_now"),
        ]

    def _membership(self) -> str:
        """The schema's owner may end connections of the role: one that freezes in a statement keeps its locks."""
        word, way = ("REVOKE", "FROM") if self.revokes else ("GRANT", "TO")
        return _OWNER.format(word=word, way=way, role=_text(self.role), schema=_text(self.schema))

    def _no_usage(self, other: str) -> str:
        """The schema is closed to the role unless it has rights for the other purpose."""
        return _CLOSED.format(
            role=_text(self.role),
            quoted=_name(self.role),
            schema=_text(self.schema),
            quoted_schema=_name(self.schema),
            other=_text(other),
        )


async def apply(tx: PostgresSession, grant: Grant) -> None:
    """Runs it. Refuses a role that there is not, and one that no grant limits."""
    _, ours = await tx.row("schema_exists", grant.schema)
    if not ours:
        raise InvalidInput(
            f"{tx.options.shown} has no schema {grant.schema!r} of locktender yet.",
            field="url",
            hint="locktender db migrate makes it.",
        )
    found = await tx.one("role_facts", grant.role, grant.schema)
    if found is None:
        raise InvalidInput(
            f"{tx.options.shown} has no role {grant.role!r}.",
            field="role",
            got=grant.role,
            hint=f"Make it first, in psql: CREATE ROLE {_name(grant.role)} LOGIN PASSWORD '…'",
        )
    superuser, owns, owner = found
    if superuser or owns:
        why = "is a superuser" if superuser else f"has the rights of the schema's owner {owner}"
        raise InvalidInput(
            f"the role {grant.role!r} {why}: no grant limits it.",
            field="role",
            got=grant.role,
            hint="Make a role of its own for this.",
        )
    async with tx.transaction():
        for statement in grant.statements():
            await tx.conn.execute(statement)
        if grant.purpose == "worker":
            await _check(tx, grant)


async def _check(tx: PostgresSession, grant: Grant) -> None:
    """The server only warns where one who has a right himself may not give it or take it back."""
    asked = [
        (table, right)
        for table, rights in WORKER_TABLES.items()
        for right in re.findall("[A-Z]+", rights)
    ]
    has = await tx.all("role_rights", grant.role, grant.schema, *columns(asked, 2))
    if len(has) != (0 if grant.revokes else len(asked)):
        raise RoleRefused(f"this role may not give or take back rights in {tx.options.shown}.")


def refused(error: RoleRefused, grant: Grant) -> RoleRefused:
    """Who runs the command may not grant."""
    word = "revoke" if grant.revokes else "grant"
    return RoleRefused(
        f"{error.message} Nothing was changed.",
        hint=f"Use the role that owns the schema, or let it run what --print shows, to {word} these rights.",
    )


def checked(role: str) -> str:
    """A role's name as it was given; refuses what is none."""
    if not role or not role.isprintable() or "$grant$" in role or len(role.encode()) > MAX_NAME:
        raise InvalidInput(f"the name of a role has 1 to {MAX_NAME} bytes.", field="role", got=role)
    if role.lower() in {"public", "none"} or role.startswith("pg_"):
        raise InvalidInput(
            "this role cannot be given rights of its own.",
            field="role",
            got=role,
            hint="Name a role that a process logs in with.",
        )
    return role


MAX_NAME = 63


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
