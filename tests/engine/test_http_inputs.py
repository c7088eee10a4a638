"""Wrong requests to the HTTP API: each has its status, its field, and a message that says what to do."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.server_harness import Answer, fetch, process, served, until

from locktender import flow, step
from locktender.server import connections

TOO_LATE = "2001-01-01T00:00:00Z"


@step(pool="inputs undefined")
async def strict() -> int:
    return 1


@step(pools={"inputs small": 5})
async def large() -> int:
    return 1


@step
async def plain(n: int) -> int:
    return n


@flow(name="inputs plain")
def plainly(n: int = 1) -> int:
    return plain(n)


@flow(name="inputs strict")
def strictly() -> int:
    return strict()


@flow(name="inputs large")
def largely() -> int:
    return large()


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    url = tmp_path / "locktender.db"
    pools = {"inputs small": 2}
    async with (
        process(url, lead=True, work=True, strict_pools=True, pools=pools) as (core, engine),
        served(core, api=True) as found,
    ):
        await until(lambda: engine.leads, "the lead")
        yield found


RUN = {"flow": "inputs plain"}


def many(*wrong: dict[str, Any]) -> dict[str, Any]:
    return {**RUN, "runs": [{}, *wrong]}


MISSING = "0" * 26
DEEP = b'{"flow": "inputs plain", "args": {"n": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}"
BAD: list[tuple[str, str, str, Any, int, str, str | None]] = [
    # what, method, path, body, status, words of the message or hint, field
    ("empty", "POST", "/runs", b"", 400, "empty", "body"),
    ("truncated", "POST", "/runs", b'{"flow":\n "a', 400, "line 2, column 2", "body"),
    ("comma at the end", "POST", "/runs", b'{"flow": "a",}', 400, "line 1, column 14", "body"),
    ("twice", "POST", "/runs", b'{"flow": "a", "flow": "b"}', 422, "given twice", "flow"),
    ("pool twice", "PUT", "/pools/db", b'{"limit": 1, "limit": 2}', 422, "twice", "limit"),
    ("NaN", "POST", "/runs", b'{"flow": "a", "args": {"n": NaN}}', 400, "NaN", "body"),
    ("infinite", "POST", "/runs", b'{"flow": "a", "args": {"n": 1e999}}', 422, "larger", "args.n"),
    ("deep", "POST", "/runs", DEEP, 422, "more than 100 deep", "body"),
    ("half a character", "POST", "/runs", b'{"flow": "\\ud800"}', 422, "surrogate", "flow"),
    ("NUL", "POST", "/runs", b'{"flow": "a\\u0000b"}', 422, "NUL", "flow"),
    ("no UTF-8", "POST", "/runs", b'{"flow": "\xff"}', 400, "line 1, column 11", "body"),
    ("2^70", "POST", "/runs", {**RUN, "args": {"n": 2**70}}, 422, "64 bits", "args.n"),
    ("long number", "POST", "/runs", b'{"a": ' + b"9" * 5_000 + b"}", 422, "too long", None),
    ("a list", "POST", "/runs", [1], 422, "JSON object", "body"),
    ("no flow", "POST", "/runs", {}, 422, "flow is missing", "flow"),
    ("wrong type", "POST", "/runs", {**RUN, "priority": "high"}, 422, "whole number", "priority"),
    ("wrong args", "POST", "/runs", {**RUN, "args": [1]}, 422, "an object", "args"),
    ("wrong tag", "POST", "/runs", {**RUN, "tags": {"a": [1]}}, 422, "tags.a must be", "tags.a"),
    ("unknown field", "POST", "/runs", {**RUN, "priorty": 1}, 422, "'priority'", "priorty"),
    ("unknown flow", "POST", "/runs", {"flow": "inputs plan"}, 404, "'inputs plain'", "flow"),
    ("unknown argument", "POST", "/runs", {**RUN, "args": {"m": 1}}, 422, "'m'", None),
    ("wrong argument", "POST", "/runs", {**RUN, "args": {"n": "x"}}, 422, "int", None),
    ("wrong word", "POST", "/runs", {**RUN, "on_duplicate": "rejct"}, 422, "'reject'", "on_duplicate"),
    ("65 tags", "POST", "/runs", {**RUN, "tags": {f"t{n}": n for n in range(65)}}, 422, "at most 64", "tags"),
    ("path as tag", "POST", "/runs", {**RUN, "tags": {"a": "../../x"}}, 422, "path", "tags.a"),
    ("path as pool", "PUT", "/pools/..%5C..%5Cx", {"limit": 1}, 422, "path", "pool"),
    ("name that is no text", "PUT", "/pools/a%ff", {"limit": 1}, 400, "not UTF-8", "path"),
    ("filter that is no text", "GET", "/runs?flow=%ff", None, 400, "not UTF-8", "path"),
    ("path as schedule", "PUT", "/schedules/..", {**RUN, "every": "1h"}, 422, "path", "schedule"),
    ("past start", "POST", "/runs", {**RUN, "start_at": TOO_LATE}, 422, "in the past", "start_at"),
    ("past deadline", "POST", "/runs", {**RUN, "deadline": -5}, 422, "more than zero", "deadline"),
    ("no time zone", "POST", "/runs", {**RUN, "start_at": "2099-01-01T00:00:00"}, 422, "zone", "start_at"),
    ("conflict", "POST", "/runs", {**RUN, "debounce": 1, "throttle": "1/s"}, 422, "together", "throttle"),
    ("slots > limit", "POST", "/runs", {"flow": "inputs large"}, 422, "inputs small", None),
    ("undefined pool", "POST", "/runs", {"flow": "inputs strict"}, 422, "inputs undefined", None),
    ("no runs", "POST", "/runs/batch", {**RUN, "runs": []}, 422, "must not be empty", "runs"),
    ("too many", "POST", "/runs/batch", {**RUN, "runs": [{}] * 100_001}, 422, "at most 10,000 items", "runs"),
    ("wrong in many", "POST", "/runs/batch", {**RUN, "runs": [{}, {"key": 1}]}, 422, "a text", "runs[1].key"),
    ("second args", "POST", "/runs/batch", many({"args": {"n": "x"}}), 422, "runs[1]: ", "runs[1].n"),
    ("second tag", "POST", "/runs/batch", many({"tags": {"a": ".."}}), 422, "runs[1]: ", "runs[1].tags.a"),
    ("typo in many", "POST", "/runs/batch", {**RUN, "runs": [{}, {"tag": {}}]}, 422, "'tags'", "runs[1].tag"),
    ("malformed id", "GET", "/runs/..%5Cx", None, 404, "not the id of a run", "run"),
    ("short id", "GET", "/runs/abc", None, 404, "26 letters", "run"),
    ("missing run", "GET", f"/runs/{MISSING}", None, 404, "no run", "run"),
    ("cancel missing", "POST", f"/runs/{MISSING}/cancel", {}, 404, "no run", "run"),
    ("limit 0", "PUT", "/limits/max_concurrent_runs", {"value": 0}, 422, "pause", "max_concurrent_runs"),
    ("limit -2", "PUT", "/limits/max_concurrent_runs", {"value": -2}, 422, "-1", "max_concurrent_runs"),
    ("limit three", "PUT", "/limits/max_concurrent_runs", {"value": "three"}, 422, "whole", "max_concurrent_runs"),
    ("limit true", "PUT", "/limits/max_concurrent_runs", {"value": True}, 422, "whole", "max_concurrent_runs"),
    ("limit 1.5", "PUT", "/limits/max_concurrent_runs", {"value": 1.5}, 422, "whole number", "value"),
    ("pool 0", "PUT", "/pools/db", {"limit": 0}, 422, "pause", "pool db.limit"),
    ("pool true", "PUT", "/pools/db", {"limit": True}, 422, "whole number", "limit"),
    ("nothing of a pool", "PUT", "/pools/db", {}, 422, "say what", "limit"),
    ("burst alone", "PUT", "/pools/db", {"burst": 3}, 422, "rate", "burst"),
    ("no such limit", "PUT", "/limits/max_runs", {"value": 3}, 404, "max_concurrent_runs", "limit"),
    ("tag rule of nothing", "PUT", "/limits/tags/tenant", {}, 422, "say what", "limit"),
    ("two times", "PUT", "/schedules/s", {**RUN, "every": "1h", "cron": "* * * * *"}, 422, "one of", None),
    ("wrong cron", "PUT", "/schedules/s", {**RUN, "cron": "61 * * * *"}, 422, "cron", "cron"),
    ("filter", "GET", "/runs?tags=tenant=acme,kind", None, 422, "position 13", "tags"),
    ("filter by state", "GET", "/runs?status=failed,quued", None, 422, "position 8", "status"),
    ("typo of a state", "GET", "/runs?status=faild", None, 422, "Did you mean 'failed'?", "status"),
    ("unknown subject", "GET", "/events?subject=run,taks", None, 422, "Did you mean 'task'?", "subject"),
    ("wrong throttle", "POST", "/runs", {**RUN, "throttle": "x/min"}, 422, "60/min", "throttle"),
    ("wrong cursor", "GET", "/runs?cursor=x", None, 422, "not a cursor", "cursor"),
    ("no number", "GET", "/runs/ended?numbers=x", None, 422, "numbers is not written as it must be", "numbers"),
    ("page of 0", "GET", "/runs?limit=0", None, 422, "limit must be at least 1.", "limit"),
    ("page of three", "GET", "/runs?limit=three", None, 422, "whole number", "limit"),
    ("no number", "GET", f"/runs/{MISSING}/logs?task=null", None, 422, "whole number", "task"),
    ("unknown parameter", "GET", "/runs?lmit=3", None, 422, "'limit'", "lmit"),
    ("parameter twice", "GET", "/runs?limit=3&limit=4", None, 422, "twice", "limit"),
    ("whom to cancel", "POST", "/runs/cancel", {}, 422, "which runs", "ids"),
    ("ids and filter", "POST", "/runs/cancel", {"ids": [MISSING], "flow": "a"}, 422, "together", "ids"),
    ("no token", "POST", "/waits/answer", {"token": "x.y.z"}, 422, "not the token", "token"),
    ("no worker", "POST", "/workers/nobody/drain", None, 404, "nobody", "worker"),
    ("no method", "DELETE", "/runs", None, 405, "GET", "method"),
    ("no path", "GET", "/nothing", None, 404, "/api/v1/runs", "path"),
    ("nearly a path", "GET", "/run", None, 404, "Did you mean /api/v1/runs?", "path"),
    ("part of an id", "GET", "/runs/0123", None, 404, "/api/v1/runs?beginning=", "run"),
    ("no beginning", "GET", "/runs?beginning=", None, 422, "not the id of a run", "beginning"),
    ("ends in a text", "POST", "/runs", b'{"flow": "a', 400, "too early: Unterminated string at", "body"),
]  # fmt: skip


async def test_a_message_does_not_repeat_all_that_was_sent(port: int):
    found = await fetch(port, "/api/v1/runs", "POST", {"flow": "x" * 5_000})
    assert (found.status, len(found.text) < 1_000) == (404, True)
    for name in ("tags", "status", "cursor", "beginning"):
        found = await fetch(port, f"/api/v1/runs?{name}={'x' * 5_000}")
        assert (found.status, len(found.text) < 1_000) == (422, True), name


async def test_each_wrong_request_says_what_is_wrong(port: int):
    for what, method, path, body, status, words, field in BAD:
        found = await fetch(port, f"/api/v1{path}", method, body)
        said = f"{what}: {found.status} {found.text[:500]}"
        assert found.status == status, said
        assert found.data.keys() >= {"code", "message", "field", "got", "hint"}, said
        assert words in f"{found.data['message']} {found.data['hint']}", said
        assert field is None or found.data["field"] == field, said


async def test_bodies_that_are_not_read(port: int):
    async def sent(body: bytes, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await fetch(port, "/api/v1/runs", "POST", body, given)

    good = json.dumps(RUN).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        found = await sent(good, content_type=kind)
        assert (found.status, found.data["field"]) == (415, "content-type")
    # 10 GB of zeros in 10 MB: it is not unpacked to be refused
    bomb = gzip.compress(b"\0" * 1_000_000)
    found = await sent(bomb, content_encoding="gzip")
    assert (found.status, found.data["field"]) == (415, "content-encoding")
    large = json.dumps({**RUN, "args": {"n": "x" * 3_000_000}}).encode()
    found = await sent(large)
    assert (found.status, found.data["code"]) == (413, "too_large")
    assert (await sent(good, content_type="application/json; charset=utf-8")).status == 202


async def test_a_request_that_never_ends_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch):
    """A byte now and then does not keep a connection: the request has to be there in time."""
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.3)

    def drip() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
            slow.sendall(b"POST /api/v1/runs HTTP/1.1\r\nhost: 127.0.0.1\r\n")
            slow.settimeout(0.05)
            while True:
                try:
                    slow.sendall(b"x: y\r\n")
                    if not (found := slow.recv(1_000)):
                        return b"closed"
                except TimeoutError:
                    continue
                except OSError:
                    return b"closed"
                else:
                    return found

    assert await asyncio.to_thread(drip) == b"closed"
    monkeypatch.undo()
    assert (await fetch(port, "/api/v1/runs", "POST", RUN)).status == 202


async def test_a_client_that_goes_away_is_no_error_of_the_server(
    port: int, caplog: pytest.LogCaptureFixture
):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /api/v1/runs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: 100\r\nexpect: 100-continue\r\n\r\n".encode())
    assert b"100 Continue" in await reader.readline()  # the server reads the body
    with caplog.at_level("DEBUG", "locktender.server"):
        writer.close()
        await writer.wait_closed()
        assert (await fetch(port, "/api/v1/runs", "POST", RUN)).status == 202
    assert not [each for each in caplog.records if each.exc_info]


async def test_pages_of_strangers_are_refused(port: int):
    """By a name that means 127.0.0.1 today, and by a form of another origin."""
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "a@127.0.0.1",
        "",
    ):
        found = await fetch(port, "/api/v1/runs", headers={"host": host})
        assert (found.status, found.data["field"]) == (403, "host"), host
    for host in ("127.0.0.1", f"localhost:{port}", f"[::1]:{port}"):
        assert (await fetch(port, "/api/v1/runs", headers={"host": host})).status == 200
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}"):
        found = await fetch(
            port, "/api/v1/limits/max_active/reset", "POST", headers={"origin": origin}
        )
        assert (found.status, found.data["field"]) == (403, "origin")
    own = {"origin": f"http://127.0.0.1:{port}"}
    found = await fetch(port, "/api/v1/limits/max_active/reset", "POST", headers=own)
    assert found.status == 200
    # a form without an Origin, as old browsers send it, has no token of this server's pages
    form = {"content-type": "application/x-www-form-urlencoded"}
    found = await fetch(port, "/api/v1/limits/max_active/reset", "POST", b"", form)
    assert (found.status, found.data["field"]) == (403, "csrf")


async def test_what_was_sent_is_shown_as_it_was_sent(port: int):
    for body, got in (
        ({**RUN, "priority": "high"}, "high"),
        ({**RUN, "tags": {"a": [1, None]}}, [1, None]),
        ({**RUN, "on_duplicate": {"x": True}}, {"x": True}),
        ({**RUN, "start_at": "x" * 500}, '"' + "x" * 199 + "…"),
    ):
        answer = await fetch(port, "/api/v1/runs", "POST", body)
        assert (answer.status, answer.data["got"]) == (422, got), answer
    partly = {**RUN, "runs": [{"args": {"n": "x"}}], "partial": True}
    assert "'" not in str((await fetch(port, "/api/v1/runs/batch", "POST", partly)).data["got"])
    answer = await fetch(port, "/api/v1/runs", "POST", b'{"flow": "a\\u0000b"}')
    assert answer.data["got"] == "a\0b"
