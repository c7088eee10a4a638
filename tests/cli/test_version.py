"""The version is said in one place: what is installed."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import locktender
from locktender import embedded
from locktender.base.version import installed

SOURCES = Path(locktender.__file__).parent


def test_a_worker_tells_the_version_that_is_installed(url: Path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "9.8.7")
    installed.cache_clear()
    try:
        with embedded(url) as engine:
            assert [worker.version for worker in engine.workers.list()] == ["9.8.7"]
    finally:
        installed.cache_clear()
    monkeypatch.undo()
    assert installed() == version("locktender")


def test_nobody_else_says_it():
    written = re.compile(r"\bVERSION = [\"']\d|importlib\.metadata")
    saying = [file.name for file in SOURCES.rglob("*.py") if written.search(file.read_text())]
    assert saying == ["version.py"]
