"""Times, schedules and events that cannot be: each is refused with its code, message, field and hint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.steps import bad_wait_steps as flows

from locktender import (
    Client,
    InvalidFlow,
    InvalidInput,
    LocktenderError,
    NotFound,
    RunFailed,
    RunState,
    embedded,
)
from locktender.testing import check_history, eventually

TIMEOUT = "60s"
NOBODY = "0" * 26


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    place: Path = tmp_path_factory.mktemp("bad") / "locktender.db"
    with embedded(str(place), grace="2s") as client:
        yield client
    check_history(str(place))


def asking(client: Client) -> Any:
    run = client.submit(flows.asks, 1)
    eventually(lambda: run.status() is RunState.WAITING, timeout=TIMEOUT)
    return run


def ended(client: Client) -> Any:
    run = asking(client)
    run.send("approved", {"ok": True})
    assert run.result(TIMEOUT) == {"ok": True}
    return run


Case = tuple[Callable[[Client], object], type[LocktenderError], str, str, str]
CASES: dict[str, Case] = {
    "a cron that never fires": (
        lambda c: c.schedules.set("s", flows.plain, cron="0 0 30 2 *"),
        *(InvalidInput, "cron", "never fires: the month has no such day", "0 3 L 2 *"),
    ),
    "a cron that cannot be read": (
        lambda c: c.schedules.set("s", flows.plain, cron="61 * * * *"),
        *(InvalidInput, "cron", "cannot be read", "Five fields"),
    ),
    "a zone that does not exist": (
        lambda c: c.schedules.set("s", flows.plain, cron="0 3 * * *", tz="Europe/Berlim"),
        *(InvalidInput, "tz", "there is no time zone 'Europe/Berlim'", "Europe/Berlin"),
    ),
    "at in the past": (
        lambda c: c.schedules.set("s", flows.plain, at="2020-01-01T00:00"),
        *(InvalidInput, "at", "at lies in the past", "submit the flow"),
    ),
    "start_at in the past": (
        lambda c: c.submit(flows.plain, 1, start_at=datetime(2020, 1, 1, tzinfo=UTC)),
        *(InvalidInput, "start_at", "in the past", "start now"),
    ),
    "an event for an unknown run": (
        lambda c: c.runs.get(NOBODY).send("approved"),
        *(NotFound, "run", f"there is no run '{NOBODY}'", "runs list"),
    ),
    "an event for an ended run": (
        lambda c: ended(c).send("approved", {"ok": True}),
        *(InvalidInput, "run", "takes no event: it has ended succeeded", "has not ended"),
    ),
    "an event that nobody waits for": (
        lambda c: asking(c).send("aproved", {"ok": True}),
        *(InvalidInput, "event", "waits for no event 'aproved'", "approved"),
    ),
    "an event that is too large": (
        lambda c: asking(c).send("approved", {"ok": True, "x": "x" * 300_000}),
        *(InvalidInput, "payload", "the payload has 300,018 bytes", "262,144"),
    ),
    "an event of a wrong schema": (
        lambda c: asking(c).send("approved", {"ok": "yes"}),
        *(InvalidInput, "payload.ok", "must be a boolean", ""),
    ),
    "a topic event that is too large": (
        lambda c: c.events.send("paid", "x" * 300_000),
        *(InvalidInput, "payload", "bytes", "262,144"),
    ),
    "a name that nobody announced": (
        lambda c: c.submit("bad plan", {"n": 1}),
        *(NotFound, "flow", "no worker has announced", "Did you mean 'bad plain'?"),
    ),
    "a schedule of such a name": (
        lambda c: c.schedules.set("s", "bad plan", every="1h"),
        *(NotFound, "flow", "no worker has announced", "Did you mean 'bad plain'?"),
    ),
    "a negative sleep": (
        lambda c: c.submit(flows.negative),
        *(InvalidFlow, "sleep", "it is negative", "500ms"),
    ),
    "a sleep of 400 years": (
        lambda c: c.submit(flows.centuries),
        *(InvalidFlow, "sleep", "under 100 years", "500ms"),
    ),
    "a computed negative sleep": (
        lambda c: c.submit(flows.computed, -5).result(TIMEOUT),
        *(RunFailed, "sleep", "sleep must be more than zero. Got -5.", ""),
    ),
    "a computed sleep of 400 years": (
        lambda c: c.submit(flows.computed, 400 * 365 * 86_400).result(TIMEOUT),
        *(RunFailed, "sleep", "sleep must be under 100 years.", ""),
    ),
    "a sleep until the year 2500": (
        lambda c: c.submit(flows.until, "2500-01-01T00:00:00+00:00").result(TIMEOUT),
        *(RunFailed, "sleep_until", "within 100 years. Got '2500-01-01T00:00:00+00:00'.", ""),
    ),
    "a delay of 400 years": (
        lambda c: c.submit(flows.plain, 1, delay=timedelta(days=400 * 365)),
        *(InvalidInput, "delay", "under 100 years", "500ms"),
    ),
    "a negative delay": (
        lambda c: c.submit(flows.plain, 1, delay="-5s"),
        *(InvalidInput, "delay", "it is negative", "500ms"),
    ),
    "keep without a key": (
        lambda c: c.submit(flows.plain, 1, keep="newest"),
        *(InvalidInput, "keep", "keep='newest' needs a key", "key="),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_refused_with_its_field(client: Client, case: str):
    if "nobody announced" in case or "such a name" in case:
        assert client.submit("bad plain", {"n": 2}).result(TIMEOUT) == 2
    call, kind, field, message, hint = CASES[case]
    with pytest.raises(kind) as refused:
        call(client)
    error = refused.value
    assert error.field == field
    assert message in str(error)
    assert hint in (error.hint or "")
    assert error.code == kind.code
