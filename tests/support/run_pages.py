"""A real server with real runs, and a real browser that looks at its pages."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright
from tests.support.cli_harness import environment

from locktender.testing import eventually

STEPS = Path(__file__).parents[1] / "steps" / "page_steps.py"
AXE = Path(__file__).parents[1] / "browser" / "vendor" / "axe.min.js"
PATIENCE_MS = 60_000


class PageServer:
    """`locktender dev` with the flows of `page_steps`."""

    def __init__(self, port: int, token: str = "") -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    def ask(self, path: str, body: Any = None, method: str = "") -> Any:
        request = urllib.request.Request(
            f"{self.origin}/api/v1{path}",
            None if body is None else json.dumps(body).encode(),
            self._headers,
            method=method or ("GET" if body is None else "POST"),
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()}") from error

    def submit(self, flow: str, args: dict[str, Any], **options: Any) -> str:
        return self.ask("/runs", {"flow": flow, "args": args, **options})["id"]

    def state(self, run: str) -> str:
        return self.ask(f"/runs/{run}")["state"]

    def until(self, run: str, state: str) -> None:
        eventually(lambda: self.state(run) == state)


@contextmanager
def page_server(folder: Path, *options: str, token: str = "") -> Iterator[PageServer]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "locktender", "dev", str(STEPS), "--port", str(port), *options],
            cwd=folder,
            env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        server = PageServer(port, token)
        try:
            eventually(lambda: process.poll() is None and _answers(server), timeout=60)
            yield server
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _answers(server: PageServer) -> bool:
    try:
        return any(each["name"] == "pages many" for each in server.ask("/flows")["flows"])
    except (OSError, AssertionError):
        return False


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's. Skips where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(context: BrowserContext, url: str = "") -> Iterator[Page]:
    """A page that must not say anything in its console, nor open a dialog of the browser's."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(message.text)

    page.on("console", said)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    if url:
        page.goto(url)
    yield page
    assert page.evaluate("window.xss") is None
    page.close()
    assert not faults, faults


def serious(page: Page) -> list[str]:
    """What axe finds that is serious or worse."""
    # By evaluate: the Content-Security-Policy of the page refuses scripts that are added to it.
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
