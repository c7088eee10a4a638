"""Submitting in a transaction of the application without a client: the connection is all that is needed.

The role of the connection needs one right, which `locktender db grant-submit` gives. It can read nothing of the
store. So a flow whose code is not here is known by its name alone: the leader checks the arguments by what workers
announced, and fills in what the flow decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from locktender.base.announced import AnnouncedFlow
from locktender.base.clock import Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.durations import Duration
from locktender.base.errors import InvalidInput
from locktender.base.model import Keep, OnDuplicate
from locktender.base.tracebacks import public
from locktender.client.by_name import is_elsewhere, prepare_announced
from locktender.client.outbox import store_by, store_by_async
from locktender.client.submission import Submission, TagValues
from locktender.client.submit import Prepared, prepare
from locktender.flows.flows import Flow
from locktender.store.open import settings_for

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}")
_DECIDED = {
    "priority": "priority",
    "deadline": "deadline_us",
    "queue_timeout": "queue_timeout_us",
    "dispatch_deadline": "dispatch_deadline_us",
}


@dataclass(frozen=True, slots=True)
class _Application:
    settings: Settings
    clock: Clock


@public
def submit_in(
    connection: Any,
    flow: Flow[..., Any] | str,
    /,
    *args: Any,
    tags: TagValues | None = None,
    priority: int | None = None,
    key: str | None = None,
    on_duplicate: OnDuplicate = "attach",
    keep: Keep | None = None,
    max_queued: int | None = None,
    debounce: Duration | None = None,
    throttle: str | None = None,
    deadline: Duration | None = None,
    queue_timeout: Duration | None = None,
    dispatch_deadline: Duration | None = None,
    delay: Duration | None = None,
    start_at: datetime | None = None,
    notify: bool = True,
    schema: str = "locktender",
    **kwargs: Any,
) -> str:
    """Submits a run in the transaction of an open connection, without a client; returns the run's id.

    connection  of psycopg, psycopg2, SQLAlchemy (or a session of it) or Django. Its role needs what
                `locktender db grant-submit` gives, and nothing else
    flow        a flow, or the name of one that is not loaded here: its arguments go by name
    notify      False spares busy applications the lock of NOTIFY; default True
    schema      the schema of the store; default "locktender"

    The other options are those of `submit`. The run exists if and when the transaction commits. Ceilings,
    keys, and the arguments of a flow that is not loaded here are judged after that: a run that is refused
    is *rejected*, with the reason.

        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO orders ...")
            run_id = submit_in(connection, "bill", order=7)
    """
    call = Submission(
        args, kwargs, tags, priority, key, on_duplicate, deadline, queue_timeout, dispatch_deadline,
        delay, start_at, keep=keep, max_queued=max_queued, debounce=debounce, throttle=throttle,
    )  # fmt: skip
    prepared, unset = _prepared(flow, call)
    store_by(_checked(schema), connection, prepared, unset, notify=notify)
    return prepared.run.id


@public
async def submit_in_async(
    connection: Any,
    flow: Flow[..., Any] | str,
    /,
    *args: Any,
    tags: TagValues | None = None,
    priority: int | None = None,
    key: str | None = None,
    on_duplicate: OnDuplicate = "attach",
    keep: Keep | None = None,
    max_queued: int | None = None,
    debounce: Duration | None = None,
    throttle: str | None = None,
    deadline: Duration | None = None,
    queue_timeout: Duration | None = None,
    dispatch_deadline: Duration | None = None,
    delay: Duration | None = None,
    start_at: datetime | None = None,
    notify: bool = True,
    schema: str = "locktender",
    **kwargs: Any,
) -> str:
    """`submit_in()` for a connection of asyncpg, of psycopg or SQLAlchemy in their async form.

    async with connection.transaction():
        run_id = await submit_in_async(connection, "bill", order=7)
    """
    call = Submission(
        args, kwargs, tags, priority, key, on_duplicate, deadline, queue_timeout, dispatch_deadline,
        delay, start_at, keep=keep, max_queued=max_queued, debounce=debounce, throttle=throttle,
    )  # fmt: skip
    prepared, unset = _prepared(flow, call)
    await store_by_async(_checked(schema), connection, prepared, unset, notify=notify)
    return prepared.run.id


def _prepared(flow: object, call: Submission) -> tuple[Prepared, list[str]]:
    """The run, and which of its options the flow decides."""
    here = _Application(settings_for(None, {}), SystemClock())
    if not is_elsewhere(flow):
        return prepare(flow, call, here.settings, here.clock), []
    [prepared] = prepare_announced(here, AnnouncedFlow(str(flow), ""), [call])
    given: Mapping[str, object] = {name: getattr(call, name) for name in _DECIDED}
    return prepared, ["tags", *(_DECIDED[name] for name, value in given.items() if value is None)]


def _checked(schema: object) -> str:
    if isinstance(schema, str) and _SCHEMA.fullmatch(schema):
        return schema
    raise InvalidInput(
        "invalid schema name.",
        field="schema",
        got=schema,
        hint="Use lower case letters, digits and _, at most 40, not beginning with pg_.",
    )
