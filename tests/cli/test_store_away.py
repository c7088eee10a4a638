"""A server or worker that is started while its store does not answer waits for it; other commands fail at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from tests.support.cli_harness import PROGRAM, batch, environment, until
from tests.support.postgres_proxy import Proxy

pytest_plugins = ["locktender.testing.postgres"]
pytestmark = pytest.mark.timeout(300)  # real processes: on a busy machine each starts late

FLOWS = "from locktender import step\n\n\n@step\ndef one() -> int:\n    return 1\n"
WAITING = "opening the store failed, retrying: no PostgreSQL answers"
SERVICES = {"server": ["server", "--port", "0"], "worker": ["worker", "flows.py"]}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: the path of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="lt-") as made:
        yield Path(made)


class Service:
    """A command that goes on, and all that it said."""

    def __init__(self, words: list[str], cwd: Path) -> None:
        self.log = cwd / f"{words[0]}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*PROGRAM, *words], cwd=cwd, env=environment(), stdout=out, stderr=out
            )

    def says(self, text: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return text in " ".join(self.log.read_text().split())

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def test_a_service_waits_until_its_store_answers(postgres_url: str, tmp_path: Path, folder: Path):
    (tmp_path / "flows.py").write_text(FLOWS)
    proxy = Proxy(postgres_url, folder)
    with ExitStack() as opened:
        services = {
            name: Service([*words, "--url", proxy.url], tmp_path)
            for name, words in SERVICES.items()
        }
        for service in services.values():
            opened.callback(service.end)
        for service in services.values():
            until(lambda service=service: service.says(WAITING), "the line about the store")

        async def reachable() -> None:
            async with proxy.open(), asyncio.timeout(180):
                while not _all_open(services):  # noqa: ASYNC110 — other processes do it
                    await asyncio.sleep(0.05)
                for each in services.values():
                    each.process.send_signal(signal.SIGTERM)
                while any(each.process.poll() is None for each in services.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        asyncio.run(reachable())
        assert [each.process.returncode for each in services.values()] == [0, 0]


def _all_open(services: dict[str, Service]) -> bool:
    return services["server"].says("server on") and services["worker"].says("1 steps")


def test_a_service_that_waits_can_be_asked_to_end(tmp_path: Path):
    (tmp_path / "flows.py").write_text(FLOWS)
    url = f"postgresql://app@/x?host={tmp_path}"
    service = Service([*SERVICES["worker"], "--url", url], tmp_path)
    until(lambda: service.says(WAITING), "the line about the store")
    assert service.end() == 0
    assert "ended: SIGTERM" in service.log.read_text()


def _database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def test_what_no_wait_mends_fails_at_once(postgres_url: str, tmp_path: Path):
    (tmp_path / "flows.py").write_text(FLOWS)
    away = f"postgresql://app@/x?host={tmp_path}"
    wrong = {
        "database": (_database(postgres_url, "nowhere"), "createdb"),
        "scheme": ("mysql://db/x", "is not a kind of store"),
        "host": ("postgresql://app@no-host.invalid/x", "Check the host's name"),
        "port": ("postgresql://app@localhost:99999/x", "port"),
    }
    commands = {
        (name, kind): [*words, "--url", url]
        for kind, (url, _) in wrong.items()
        for name, words in SERVICES.items()
    }
    # Other commands are answered at once, whatever is wrong.
    commands |= {
        ("runs", "away"): ["runs", "list", "--url", away],
        ("db", "away"): ["db", "migrate", "--url", away],
    }
    wrong["away"] = (away, "no PostgreSQL answers")
    answers = batch({f"{a} {b}": words for (a, b), words in commands.items()}, tmp_path)
    for name, kind in commands:
        answer = answers[f"{name} {kind}"]
        assert answer.code == 2, (name, kind, answer)
        assert wrong[kind][1] in " ".join(answer.err.split()), (name, kind, answer.err)
        assert "retrying" not in answer.err
        assert "Traceback" not in answer.err
