"""Pictures of every page of the UI, `docs/images/ui-*.png`: of a server with work at its gates.

Needs chromium. `python tools/ui_pictures.py [FOLDER]`
"""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
FLOWS = """
import asyncio
import random

from locktender import flow, step, wait_event


@step
async def fetch(source: str) -> list[int]:
    await asyncio.sleep(0.2)
    return list(range(12))


@step(pool="warehouse", retries=1, retry_delay="1s")
async def load(row: int) -> int:
    await asyncio.sleep(random.uniform(0.5, 2.0))
    if random.random() < 0.02:
        raise ConnectionError("the warehouse closed the connection")
    return row


@step(pools={"gpu": 2})
async def train(rows: list[int]) -> float:
    await asyncio.sleep(random.uniform(3, 6))
    return 0.93


@step(pool="mail api")
async def report(score: float) -> str:
    await asyncio.sleep(0.3)
    return f"score {score}"


@flow(name="nightly-etl")
def etl(source: str):
    return load.map(fetch(source), window=4)


@flow(name="train-model")
def model(source: str):
    return report(train(load.map(fetch(source), window=6)))


@flow(name="refund")
def refund(order: int):
    return wait_event("approved", timeout="2d")
"""
PAGES = {
    "overview": "/",
    "runs": "/runs?status=queued,running,failed,succeeded",
    "queue": "/queue",
    "pools": "/pools",
    "pool": "/pools/warehouse",
    "limits": "/limits",
    "workers": "/workers",
    "schedules": "/schedules",
    "inbox": "/inbox",
}
LIGHT = ("overview", "queue")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


class Api:
    def __init__(self, origin: str) -> None:
        self.origin = origin

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 — our own server
            f"{self.origin}{path}", data, {"content-type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return json.load(answer)

    def ready(self) -> bool:
        try:
            return bool(self("GET", "/ready"))
        except OSError:
            return False


def fill(api: Api) -> str:
    """Work at every gate; the id of a run to look at."""
    chance = random.Random(7)  # noqa: S311
    for name, limits in {
        "warehouse": {"limit": 5, "lease": "30s"},
        "gpu": {"limit": 4},
        "mail api": {"limit": 10, "rate": "60/min", "burst": 5},
    }.items():
        api("PUT", f"/api/v1/pools/{name.replace(' ', '%20')}", limits)
    api("PUT", "/api/v1/limits/max_concurrent_runs", {"value": 8})
    api("PUT", "/api/v1/limits/tags/tenant=*", {"limit": 4, "max_active": 1000})
    api(
        "PUT", "/api/v1/schedules/nightly",
        {"flow": "nightly-etl", "args": {"source": "orders"}, "cron": "0 3 * * 1-5", "tz": "Europe/Berlin"},
    )  # fmt: skip
    for order in (4711, 4712):
        api("POST", "/api/v1/runs", {"flow": "refund", "args": {"order": order}, "priority": 50})
    ids: list[str] = []
    for at in range(110):
        flow = chance.choice(["nightly-etl", "nightly-etl", "train-model"])
        tags = {
            "tenant": chance.choice(["acme", "globex", "initech", "umbrella"]),
            "team": chance.choice(["growth", "billing"]),
        }
        body = {
            "flow": flow,
            "args": {"source": f"orders-{at}"},
            "tags": tags,
            "priority": chance.choice([0, 0, 5]),
        }
        ids.append(api("POST", "/api/v1/runs", body)["id"])
        if at < 60:
            time.sleep(0.7)
    return next(each for each in ids if api("GET", f"/api/v1/runs/{each}")["state"] == "running")


def take(browser: Browser, origin: str, pages: dict[str, str], folder: Path) -> None:
    views = [("dark", name, (1280, 800)) for name in pages]
    views += [("light", name, (1280, 800)) for name in LIGHT]
    views += [("phone", name, (390, 844)) for name in ("overview", "queue")]
    for theme, name, (width, height) in views:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="light" if theme == "light" else "dark",
        )
        page = context.new_page()
        page.goto(f"{origin}{pages[name]}")
        page.locator("h1").first.wait_for()
        page.wait_for_timeout(1500)
        ending = "" if theme == "dark" else f"-{theme}"
        page.screenshot(path=folder / f"ui-{name}{ending}.png")
        context.close()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "flows.py").write_text(FLOWS)
        command = [sys.executable, "-m", "locktender", "dev", "flows.py", "--port", str(port)]
        server = subprocess.Popen(command, cwd=scratch, stdout=subprocess.DEVNULL)  # noqa: S603
        try:
            api = Api(f"http://127.0.0.1:{port}")
            while not api.ready():
                time.sleep(0.2)
            pages = {"run": f"/runs/{fill(api)}", **PAGES}
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
                take(browser, api.origin, pages, folder)
                browser.close()
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
