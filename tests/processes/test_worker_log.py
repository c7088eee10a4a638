"""A worker's log: lines of its own and of the bodies it runs, in one form, at the level that was set."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode

from locktender import secret
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]
pytestmark = pytest.mark.parametrize("store", ["sqlite"], indirect=True)

TIMEOUT = "90s"
STEPS = """
import asyncio
import logging
from locktender import current, flow, step
{configured}
log = logging.getLogger("shop")
quiet = logging.getLogger("own")
quiet.addHandler(logging.StreamHandler())


def speak(token):
    log.debug("a detail")
    log.info("an order")
    log.warning("%s", token)
    log.warning("no number %d", token)
    quiet.warning("once")
    current(required=True).log.debug("our detail")
    current(required=True).log.info("our order")


@step
async def on_loop(token: str) -> None:
    speak(token)


@step
def in_thread(token: str) -> None:
    speak(token)


@step(executor="process")
def in_process(token: str) -> None:
    speak(token)


@flow
def talk(kind: str, token: str) -> None:
    return {{"loop": on_loop, "thread": in_thread, "process": in_process}}[kind](token)
"""
BROKEN = "no number %d (cannot be formatted: TypeError)"
KINDS = ["loop", "thread", "process"]
TOKEN = 'hid"den \\ wörd'
FORM = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """The files are loaded here, too: what they configure must not reach another test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for each in root.manager.loggerDict.values():
        if isinstance(each, logging.Logger):
            each.disabled = False


def started(
    cluster: Cluster, folder: Path, level: str, configured: str = ""
) -> tuple[ClusterNode, Any, Path]:
    file = folder / f"talking_{level}_{len(configured)}.py"
    file.write_text(STEPS.format(configured=configured))
    flows: Any = load(source(file))
    os.environ["HG_TALK_TOKEN"] = TOKEN
    try:
        return cluster.worker(file, lead=True, log_level=level).ready(), flows, file
    finally:
        del os.environ["HG_TALK_TOKEN"]


def lines(node: ClusterNode, text: str) -> list[str]:
    return [line for line in node.log.splitlines() if text in line]


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        ("debug", ["a detail", "an order", "***", BROKEN, "once", "our detail", "our order"]),
        ("info", ["an order", "***", BROKEN, "once", "our order"]),
        (
            "warning",
            ["***", BROKEN, "once", "our order"],
        ),  # one's own log is kept from INFO up in any case
    ],
)
def test_log_lines_are_kept_and_printed_from_the_set_level(
    cluster: Cluster, tmp_path: Path, level: str, kept: list[str]
):
    worker, flows, file = started(cluster, tmp_path, level)
    client = cluster.client()
    for kind in KINDS:
        run = client.submit(flows.talk, kind, secret("env:HG_TALK_TOKEN"))
        run.wait(TIMEOUT)
        assert [line.message for line in run.logs()] == kept, kind

    printed = [
        each for each in kept if each != "once" and (level, each) != ("warning", "our order")
    ]
    names = [f"on_{kind}" if kind == "loop" else f"in_{kind}" for kind in KINDS]
    for text in printed:
        found = lines(worker, text)
        for name, line in zip(names, found, strict=True):
            whose = rf"\[{file.stem}:{name} task \d+\] "
            said = "" if text.startswith("our") else "shop: "
            assert re.search(rf"{FORM}[A-Z]+ {whose}{said}{re.escape(text)}$", line), line
    assert lines(worker, "once") == ["once"] * 3  # by the handler its logger has
    assert not re.search(r"hid.{0,3}den", worker.log)
    assert all(re.match(FORM, line) for line in lines(worker, "worker") if "drains" in line)


def test_a_file_that_configures_logging_is_left_alone(cluster: Cluster, tmp_path: Path):
    configured = 'logging.basicConfig(format="MINE %(message)s", level="INFO")'
    worker, flows, _ = started(cluster, tmp_path, "debug", configured)
    client = cluster.client()
    for kind in KINDS:
        run = client.submit(flows.talk, kind, "plain")
        run.wait(TIMEOUT)
        heard = [line.message for line in run.logs()]
        assert heard == ["an order", "plain", BROKEN, "once", "our detail", "our order"], kind

    assert lines(worker, "an order") == ["MINE an order"] * 3
    assert lines(worker, "a detail") == []
    # What `current().log` writes is ours to print, and in one form wherever the body runs.
    assert len([line for line in lines(worker, "our order") if re.match(FORM, line)]) == 3


def test_disabling_all_loggers_does_not_silence_the_worker(cluster: Cluster, tmp_path: Path):
    configured = "import logging.config; logging.config.dictConfig({'version': 1})"
    worker, flows, _ = started(cluster, tmp_path, "info", configured)
    client = cluster.client()
    for kind in KINDS:
        client.submit(flows.talk, kind, "plain").wait(TIMEOUT)

    assert len([line for line in lines(worker, "our order") if re.match(FORM, line)]) == 3
