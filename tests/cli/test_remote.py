"""Every command that talks to a store, through a server: the same words as with the file itself."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import transports
from tests.support.cli_harness import locktender

from locktender import Client, embedded, flow, step, wait_event
from locktender.server.options import HttpOptions
from locktender.testing import check_history, eventually

pytestmark = pytest.mark.timeout(300)


@step(cache="7d", name="remote:price", pool="db")
def price(item: str) -> int:
    logging.getLogger("shop").warning("priced %s", item)
    return len(item)


@flow(name="remote-bill")
def bill(items: list[str]) -> list[int]:
    return price.map(items)


@flow(name="approve")
def approve() -> Any:
    return wait_event("approved", timeout="2d")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Client]:
    with embedded(tmp_path / "locktender.db") as client:
        yield client
    check_history(tmp_path / "locktender.db")


READS = [
    "runs list", "runs list --status succeeded --json", "runs show RUN", "runs show RUN --tasks --json",
    "runs logs RUN", "queue list", "queue list --json", "why QUEUED", "blame RUN", "pools list", "pools info db",
    "limits list", "limits list --json", "limits history", "limits cost", "workers list", "schedules list",
    "schedules show nightly", "waiting", "events --limit 5", "events RUN", "events RUN --follow --json",
    "flows list", "cache list", "tokens list", "runs list --flow remote-bill --limit 1",
]  # fmt: skip
"""What both answer the same, but for how long ago something was."""
TIMES = re.compile(
    r"((just now|\d+(\.\d+)?\s?(ms|us|s|m|min|h|d|%)(\s+ago)?\b)\s*)+|\d\d:\d\d:\d\d\.\d+| +|─+"
    r'|"(now|as_of|lease_until|\w+_us)":[^,}]+'
)


FEW = ("runs show RUN", "queue list --json", "pools info db", "events RUN --follow --json")


@pytest.mark.parametrize("lines", [FEW, pytest.param(READS, marks=pytest.mark.long)], ids=len)
def test_a_server_answers_a_command_as_the_file_does(
    engine: Client, tmp_path: Path, lines: list[str]
):
    file = str(tmp_path / "locktender.db")
    engine.pools.set("db", 4)
    run = engine.submit(bill, ["pen", "ink"])
    run.result("60s")
    engine.submit(approve)
    eventually(lambda: len(engine.events.waiting()) == 1)
    engine.schedules.set("nightly", bill, {"items": ["pen"]}, cron="0 3 * * 1-5")
    engine.limits.pause()
    names = {"RUN": run.id, "QUEUED": engine.submit(bill, ["x"]).id}
    with transports.served(engine) as url:
        for line in lines:
            words = [names.get(word, word) for word in line.split()]
            here, there = (locktender(*words, "--url", each, cwd=tmp_path) for each in (file, url))
            assert (there.code, there.err) == (0, here.err), line
            assert TIMES.sub(" ", there.out) == TIMES.sub(" ", here.out), line


def test_a_server_carries_out_what_a_command_changes(engine: Client, tmp_path: Path):
    engine.limits.pause()
    queued = engine.submit(bill, ["x"])
    with transports.served(engine) as url:

        def change(*words: str) -> str:
            done = locktender(*words, "--url", url, cwd=tmp_path)
            assert done.code == 0, (words, done.err)
            return done.out

        change("queue", "reprioritise", queued.id, "9")
        eventually(lambda: queued.info().priority == 9)
        change("queue", "cancel", queued.id)
        assert queued.wait("60s") == "cancelled"
        change("runs", "retry", queued.id)
        change("limits", "resume")
        assert queued.result("60s") == [1]
        change("pools", "set", "db", "3")
        change("pools", "pause", "db")
        assert engine.pools.get("db").paused
        change("flows", "pause", "remote-bill")
        assert [each.name for each in engine.flows.paused()] == ["remote-bill"]
        assert change("events", "--consumer", "billing", "--json")
        assert [each.name for each in engine.events.readers()] == ["billing"]


@pytest.mark.parametrize(
    "line",
    [
        "audit", "worker flows.py",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("db status", "server --port 0", "dev flows.py", "run flows.py:total", "db backup a.db")
        ),
    ],
)  # fmt: skip
def test_what_needs_the_database_says_so(tmp_path: Path, line: str):
    (tmp_path / "flows.py").write_text(
        "from locktender import flow, step\n\n\n@step\ndef one() -> int:\n    return 1\n\n\n"
        "@flow\ndef total() -> int:\n    return one()\n"
    )
    answer = locktender(*line.split(), "--url", "https://flows.example.org", cwd=tmp_path)
    assert answer.code == 2
    assert "needs the database itself" in answer.err
    assert "the database that the server uses" in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


def test_the_token_comes_from_the_environment(engine: Client, tmp_path: Path):
    token = engine.tokens.create("ops", ["read"]).token
    with transports.served(engine, HttpOptions(auth="tokens")) as url:
        refused = locktender("runs", "list", "--url", url, cwd=tmp_path)
        assert refused.code == 1
        assert "token" in refused.err
        listed = locktender(
            "runs", "list", cwd=tmp_path, LOCKTENDER_URL=url, LOCKTENDER_TOKEN=token
        )
        assert listed.code == 0
        told = {"LOCKTENDER_URL": url, "LOCKTENDER_TOKEN": token}
        config = locktender("config", "show", cwd=tmp_path, **told)
        assert config.code == 0
        assert token not in config.out
