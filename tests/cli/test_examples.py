"""Every example, both as `python FILE` and as `locktender run FILE:flow`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.cli_harness import PROGRAM, CommandResult, environment, locktender

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 60.0
"""Of a processor: a slow one, or one that computes beside others, needs several times as long as another."""


class Example(NamedTuple):
    flow: str
    options: list[str]
    result: Any
    printed: str


KNOWN = {
    "downloads_window": Example("mirror", ["count=6"], "6 files, 6,600 bytes", "12 files"),
    "two_pools_weights": Example(
        "convert",
        ["pictures=2", "films=2"],
        [
            "film-0: transcoded",
            "film-1: transcoded",
            "picture-0: thumbnail",
            "picture-1: thumbnail",
        ],
        "picture-7: thumbnail",
    ),
    "tenants": Example("sync", ["customers=3"], 3, "initech 4"),
    "rate_limited_api": Example("enrich", ["cities=6"], {"Utopia": 6}, "{'Utopia': 15}"),
    "cpu_processes": Example("primes", ["upto=20000", "parts=4"], 2262, "9592"),
    "collect_and_clean_up": Example(
        "ingest", ["rows=8"], {"good": 6, "bad": 2}, "{'good': 8, 'bad': 2}"
    ),
}


class Ran(NamedTuple):
    said: CommandResult
    seconds: float
    """Of a processor, of its own and of those it waited for: how long it waited does not count."""


def ran(command: list[str], cwd: Path) -> Ran:
    out, err = (cwd / f"{os.urandom(4).hex()}.txt" for _ in range(2))
    with out.open("wb") as to_out, err.open("wb") as to_err:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment(), stdout=to_out, stderr=to_err
        )
        with threading_timer(110, process.kill):
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    said = CommandResult(process.returncode, out.read_text(), err.read_text())
    return Ran(said, used.ru_utime + used.ru_stime)


@contextmanager
def threading_timer(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ran, Ran, Path]]:
    """All examples in both ways, two at a time: they mostly wait."""

    def run(name: str) -> tuple[Ran, Ran, Path]:
        folder = tmp_path_factory.mktemp(name)
        file, known = str(EXAMPLES / f"{name}.py"), KNOWN[name]
        options = [part for each in known.options for part in ("--arg", each)]
        if name == "tenants":
            options += ["--tag", "tenant=acme"]
        script = ran([sys.executable, file], folder)
        return script, ran([*PROGRAM, "run", f"{file}:{known.flow}", *options], folder), folder

    with ThreadPoolExecutor(2) as several:
        return dict(zip(KNOWN, several.map(run, KNOWN), strict=True))


def test_all_examples_are_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_an_example_runs_as_a_script(both: dict[str, Any], name: str) -> None:
    script: Ran = both[name][0]
    assert script.said.code == 0, script.said.err
    assert KNOWN[name].printed in script.said.out
    assert script.seconds < SECONDS


@pytest.mark.parametrize("name", KNOWN)
def test_an_example_runs_from_the_command_line(both: dict[str, Any], name: str) -> None:
    command: Ran = both[name][1]
    assert command.said.code == 0, command.said.err
    assert json.loads(command.said.out) == KNOWN[name].result
    assert command.seconds < SECONDS


def test_the_limits_of_the_examples_held(both: dict[str, Any]) -> None:
    for name in ("two_pools_weights", "tenants"):
        audit = locktender("audit", "--json", cwd=both[name][2])
        assert audit.code == 0, audit.data["violations"]
        peaks = {each["name"]: each["peak"] for each in audit.data["peaks"]}
        if name == "tenants":
            assert peaks["tag:tenant=*acme"] == 1
            assert peaks["pool:system[acme]"] <= 2
        else:
            assert peaks["pool:disk"] == 2
            assert peaks["pool:memory"] <= 8


@pytest.mark.parametrize("name", KNOWN)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60
