"""A real server with real runs, and a real browser that reads its pages."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.support.cli_harness import environment
from tests.support.leases import KEPT

from locktender.testing import eventually

ROOT = Path(__file__).parents[2]
STEPS = ROOT / "tests" / "steps" / "ui_steps.py"
AXE = ROOT / "tests" / "browser" / "vendor" / "axe.min.js"
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    " --disable-sync --no-first-run"
)
PATIENCE_MS = 60_000
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
expect.set_options(timeout=PATIENCE_MS)


class Site:
    """A server by its address."""

    def __init__(self, origin: str, folder: Path) -> None:
        self.origin = origin
        self.folder = folder

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        below: str = "/api/v1",
    ) -> tuple[int, str]:
        """Status and text of an answer."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"{self.origin}{below}{path}", data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        status, text = self.ask(method, path, body, headers)
        assert status < 300, text
        return json.loads(text)

    def submit(self, flow: str, args: Mapping[str, Any], **options: Any) -> str:
        return self.call("POST", "/runs", {"flow": flow, "args": args, **options})["id"]

    def submit_all(self, flow: str, runs: list[dict[str, Any]]) -> list[str]:
        made = self.call("POST", "/runs/batch", {"flow": flow, "runs": runs})["runs"]
        return [each["run"]["id"] for each in made]

    def state(self, run: str) -> str:
        return self.call("GET", f"/runs/{run}")["state"]

    def until(self, run: str, *states: str) -> None:
        eventually(lambda: self.state(run) in states, timeout=60)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def site(folder: Path, *options: str, port: int = 0) -> Iterator[Site]:
    """`locktender dev` on the flows of `ui_steps`, on any free port if none is given."""
    port = port or free_port()
    found = Site(f"http://127.0.0.1:{port}", folder)
    command = [sys.executable, "-m", "locktender", "dev", str(STEPS), "--port", str(port), *options]
    with (folder / "server.log").open("wb") as log:
        kept = {f"LOCKTENDER_{name.upper()}": str(value) for name, value in KEPT.items()}
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment(), **kept},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        try:
            eventually(lambda: _answers(found, process), timeout=120)
            yield found
        finally:
            process.kill()
            process.wait()


def _answers(found: Site, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, (found.folder / "server.log").read_text()
    try:
        return found.ask("GET", "/ready", below="")[0] == 200
    except OSError:
        return False


@contextmanager
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS.split())
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def reading(browser: Browser, origin: str, *, refused: int = 0, **options: Any) -> Iterator[Page]:
    """A page of a reader of its own. Nothing may be said on its console, and no script of a name may run.

    `refused`: the status of an answer that the browser may report.
    """
    context: BrowserContext = browser.new_context(
        base_url=origin, **{"viewport": WIDE, "color_scheme": "dark", **options}
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    try:
        yield page
        assert page.evaluate("window.xss") is None
        said = [each for each in faults if not refused or f"status of {refused}" not in each]
        assert not said, said
    finally:
        context.close()


def serious(page: Page) -> list[str]:
    """What axe-core calls serious or critical."""
    # A script of the test's own: the page's policy is not asked.
    page.evaluate(AXE.read_text() + "; null")
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa']})"
    )
    return [
        f"{each['id']}: {node['html'][:160]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
