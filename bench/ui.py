"""The web UI in a real browser, on a store with a long past and a long queue.

    python -m bench ui                                   both stores, as the issue of the UI asks
    python -m bench.ui --on sqlite --finished 10000 --queued 1000 --items 10000 --long 0

100,000 runs are done through an engine, 10,000 are queued behind a limit, tasks wait at a pool, one run has mapped
100,000 items. A browser that has nothing of a page yet opens it several times, after a pause, so that the server
has nothing fresh either. *First paint* is what the browser says (first contentful paint); that of `/health`, some
words of plain text, is what the browser takes itself. *CPU* is of the server
process from the request until the page is still, and of the database server's processes beside it. Then the queue
grows to 1,000,000 and its pages are read by HTTP. The past is audited before: an audit that has it to read takes a
twentieth of a core beside the leader, whatever page is open. Needs chromium.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from bench import ui_steps as steps
from bench.cluster import cpu_seconds
from bench.report import Figure
from bench.sleepers import STORES
from locktender import Client, RunState, Submission, connect, embedded
from locktender.testing import eventually
from locktender.testing.postgres_server import connected, copy_of, server, template
from locktender.testing.postgres_server import run as wait_for

FINISHED, QUEUED, ITEMS, LONG = 100_000, 10_000, 100_000, 1_000_000
BATCH = 10_000
AT_ONCE = 2_000
ROUNDS = 5
HOLDERS, HELD_EACH, SLOTS = 8, 20, 40
TENANTS = 50
REST_SECONDS = 2.0
"""Before a page is opened: what the server has read for the last one is old then."""
IDLE_SECONDS = 15.0
PATIENCE = "900s"
PAINT_MS, RUN_MS, HEAP_MB, IDLE_SHARE = 300.0, 1_000.0, 50.0, 1.0
FOLLOWING = re.compile(r'href="(/queue\?after=[^"]+)"')
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    " --disable-sync --no-first-run"
)


NOTED = """
new MutationObserver((_, self) => {
  if (!document.querySelector(SELECTOR)) return;
  self.disconnect();
  requestAnimationFrame(() => { window.drawnAt = performance.now(); });
}).observe(document, { subtree: true, childList: true, attributes: true });
"""
"""Notes when an element is there and painted: who asks from outside asks twice a second."""


class Sizes(NamedTuple):
    finished: int = FINISHED
    queued: int = QUEUED
    items: int = ITEMS
    long: int = LONG


@dataclass
class Served:
    """A server process, and the processes of its database."""

    origin: str
    pid: int
    database: psutil.Process | None

    def cpu_ms(self) -> tuple[float, float]:
        """Of the server and of the database, so far."""
        return cpu_seconds(self.pid) * 1e3, self._database_ms()

    def _database_ms(self) -> float:
        if self.database is None:
            return 0.0
        ended = self.database.cpu_times()
        total = ended.children_user + ended.children_system
        for each in self.database.children():
            try:
                times = each.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total * 1e3

    def get(self, path: str) -> tuple[float, str]:
        """Milliseconds and text of an answer."""
        began = time.perf_counter()
        with urllib.request.urlopen(f"{self.origin}{path}", timeout=600) as answer:
            text = answer.read().decode()
        return (time.perf_counter() - began) * 1e3, text


def fill(url: str, sizes: Sizes) -> None:
    """The past: runs that were really done."""
    with embedded(url) as client:
        client.limits.set_max_concurrent_runs(AT_ONCE)
        client.limits.set_max_active(-1)
        for first in range(0, sizes.finished, BATCH):
            numbers = range(first, min(sizes.finished, first + BATCH))
            client.submit_many(
                steps.order,
                [Submission((n,), key=f"order-{n}", tags=_tags(n)) for n in numbers],
            )
        client.submit(steps.many, list(range(sizes.items))).result(PATIENCE)
        active = ["queued", "running", "waiting"]
        eventually(lambda: not client.runs.list(status=active, limit=1), PATIENCE)


def _tags(n: int) -> dict[str, str]:
    return {"tenant": f"t{n % TENANTS}", "team": "growth" if n % 3 else "billing"}


@contextmanager
def _process(*command: str) -> Generator[tuple[int, dict[str, Any]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "locktender", *command, "--json", "--with-parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def url_of(store: str) -> Generator[str]:
    """A new store. Without fsync: what is measured here reads."""
    with ExitStack() as opened:
        if store == "sqlite":
            folder = opened.enter_context(tempfile.TemporaryDirectory())
            yield str(Path(folder) / "locktender.db")
            return
        base = opened.enter_context(server())
        yield opened.enter_context(copy_of(base, opened.enter_context(template(base))))


def _database(url: str) -> psutil.Process | None:
    """The database server, which is nobody's child."""
    return wait_for(_parent_of_backend(url)) if url.startswith("postgres") else None


async def _parent_of_backend(url: str) -> psutil.Process | None:
    async with connected(url) as connection:
        return psutil.Process(await connection.fetchval("SELECT pg_backend_pid()")).parent()


def stand(client: Client, sizes: Sizes) -> None:
    """The present: runs that hold places and slots, what waits for those, and runs that wait for an answer."""
    client.limits.set_max_concurrent_runs(-1)
    for n in range(20):
        client.submit(steps.approval, n, tags=_tags(n))
    waiting = "20 runs wait for an answer"
    eventually(lambda: len(client.runs.list(status=["waiting"], limit=50)) == 20, PATIENCE, waiting)
    client.pools.set("bench db", limit=SLOTS)
    client.limits.set_max_concurrent_runs(HOLDERS)
    client.limits.set_tag("tenant", per_value=True, limit=4)
    for n in range(HOLDERS):
        client.submit(steps.holding, list(range(HELD_EACH)), tags=_tags(n))
    eventually(
        lambda: len(client.runs.list(status=["running"], limit=50)) >= HOLDERS, PATIENCE, "held"
    )
    client.schedules.set("bench nightly", steps.order, {"n": 1}, cron="0 3 * * *")
    queue(client, 0, sizes.queued)


def queue(client: Client, first: int, last: int) -> None:
    for at in range(first, last, BATCH):
        numbers = range(at, min(last, at + BATCH))
        client.submit_many(
            steps.order,
            [Submission((n,), tags=_tags(n), priority=5 * (n % 7 == 0)) for n in numbers],
        )


class Opened(NamedTuple):
    """What opening a page took."""

    paint: float
    whole: float
    """Until its last part is drawn, where that was asked for."""
    cpu: float
    database: float
    heap: float


def open_page(browser: Browser, served: Served, path: str, *, drawn: str = "") -> Opened:
    """Opens a page anew. `drawn`: an element that stands when it is whole."""
    context = browser.new_context(base_url=served.origin, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(120_000)
    if drawn:
        page.add_init_script(NOTED.replace("SELECTOR", json.dumps(drawn)))
    page.goto("about:blank")
    # A new window loads pages of the browser's own for its bars: those are no part of ours.
    page.wait_for_timeout(REST_SECONDS * 1e3)
    before = served.cpu_ms()
    page.goto(path, wait_until="load")
    if drawn:
        page.locator(drawn).wait_for()
    page.wait_for_timeout(300)
    whole = page.evaluate("window.drawnAt ?? NaN")
    paint = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    )
    after = served.cpu_ms()
    heap = _heap(page)
    context.close()
    return Opened(paint, whole, after[0] - before[0], after[1] - before[1], heap)


def _heap(page: Page) -> float:
    session: Any = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize") / 1e6


def pages(client: Client) -> dict[str, str]:
    held = client.runs.list(status=["running"], limit=1)[0].id
    return {
        "overview": "/",
        "runs": "/runs",
        "runs, failed": "/runs?status=failed,timed_out",
        "runs, queued, by gate": "/runs?status=queued&group=gate",
        "runs of a tag": "/runs?tags=tenant%3Dt7",
        "a search": "/runs?q=order-4711",
        "queue": "/queue",
        "run that waits": f"/runs/{held}",
        "pools": "/pools",
        "pool": "/pools/bench%20db",
        "limits": "/limits",
        "workers": "/workers",
        "schedules": "/schedules",
        "inbox": "/inbox",
    }


def _told(store: str, name: str, several: list[Opened], most: float) -> Figure:
    paint = statistics.median(each.paint for each in several)
    cpu = statistics.median(each.cpu for each in several)
    database = statistics.median(each.database for each in several)
    note = f"the first visit {several[0].paint:.0f}; server {cpu:.0f} ms of CPU"
    note += f", database {database:.0f} ms" if database else ""
    return Figure(f"{store}: {name}, first paint", paint, "ms", f"<= {most:g}", paint <= most, note)


def opened(browser: Browser, served: Served, client: Client, store: str) -> Iterator[Figure]:
    bare = statistics.median(open_page(browser, served, "/health").paint for _ in range(ROUNDS))
    yield Figure(
        f"{store}: /health, first paint", bare, "ms", note="no styles, no scripts: the floor"
    )
    for name, path in pages(client).items():
        several = [open_page(browser, served, path) for _ in range(ROUNDS)]
        yield _told(store, name, several, PAINT_MS)


def large_run(
    browser: Browser, served: Served, client: Client, store: str, items: int
) -> Iterator[Figure]:
    run = client.runs.list(flow=steps.many.name, status=[RunState.SUCCEEDED], limit=1)[0].id
    several = [
        open_page(browser, served, f"/runs/{run}", drawn="#timeline[data-ready]")
        for _ in range(ROUNDS)
    ]
    what = f"run of {items:,} items"
    yield _told(store, what, several, PAINT_MS)
    heap = max(each.heap for each in several)
    again = statistics.median(each.whole for each in several[1:])
    for name, whole in {"drawn": several[0].whole, "drawn again": again}.items():
        title = f"{store}: {what}, timeline {name}"
        yield Figure(title, whole, "ms", f"<= {RUN_MS:g}", whole <= RUN_MS)
    yield Figure(f"{store}: {what}, JS heap", heap, "MB", f"<= {HEAP_MB:g}", heap <= HEAP_MB)
    tasks = [open_page(browser, served, f"/runs/{run}?tab=tasks") for _ in range(ROUNDS)]
    yield _told(store, f"{what}, its tasks", tasks, PAINT_MS)


def idle(browser: Browser, served: Served, store: str) -> Iterator[Figure]:
    """What a page costs that is open while nothing happens, beside what the server costs without it."""

    def share() -> float:
        began, before = time.monotonic(), sum(served.cpu_ms())
        time.sleep(IDLE_SECONDS)
        return (sum(served.cpu_ms()) - before) / (time.monotonic() - began) / 10

    time.sleep(REST_SECONDS)
    alone = share()
    for path in ("/", "/queue"):
        context = browser.new_context(base_url=served.origin)
        page = context.new_page()
        page.goto(path, wait_until="load")
        page.wait_for_timeout(REST_SECONDS * 1e3)
        more = share() - alone
        context.close()
        name = f"{store}: {path} open and idle, share of a core"
        note = f"{alone:.2f} % without it"
        yield Figure(name, more, "%", f"<= {IDLE_SHARE:g}", more <= IDLE_SHARE, note)


def long_queue(served: Served, client: Client, store: str, sizes: Sizes) -> Iterator[Figure]:
    """Pages of a queue of 1,000,000: the first ones, and one that begins in its middle."""
    if sizes.long <= sizes.queued:
        return
    queue(client, sizes.queued, sizes.long)
    last = client.runs.list(status=["queued"], limit=1)[0].number
    middle = client.runs.list(status=["queued"], limit=1, before=last - sizes.long // 2)[0].number
    following = FOLLOWING.search(served.get("/queue")[1])
    assert following is not None
    places = {
        "first page": "/queue",
        "second page": html.unescape(following[1]),
        "from the middle": f"/queue?after={middle}&position={sizes.long // 2}",
    }
    for name, path in places.items():
        took: list[float] = []
        cpu: list[float] = []
        for _ in range(ROUNDS):
            time.sleep(REST_SECONDS)
            before = sum(served.cpu_ms())
            took.append(served.get(path)[0])
            cpu.append(sum(served.cpu_ms()) - before)
        median = statistics.median(took)
        what = f"{store}: queue of {sizes.long:,}, {name}, answered"
        note = f"{statistics.median(cpu):.0f} ms of CPU"
        yield Figure(what, median, "ms", f"<= {PAINT_MS:g}", median <= PAINT_MS, note)


def measure(store: str, sizes: Sizes) -> Iterator[Figure]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    with url_of(store) as url:
        began = time.monotonic()
        command = [sys.executable, "-m", "bench.ui", "--fill", url, *map(str, sizes)]
        subprocess.run(command, check=True)
        audit = [sys.executable, "-m", "locktender", "audit", "--url", url]
        subprocess.run(audit, check=True, stdout=subprocess.DEVNULL)
        with (
            _process("server", "--port", "0", "--url", url) as (pid, said),
            _process("worker", "--app", steps.__name__, "--url", url),
            connect(url) as client,
            sync_playwright() as playwright,
        ):
            served = Served(f"http://127.0.0.1:{said['port']}", pid, _database(url))
            stand(client, sizes)
            print(f"     {store}: filled in {time.monotonic() - began:.0f} s", flush=True)
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS.split())
            yield from opened(browser, served, client, store)
            yield from large_run(browser, served, client, store, sizes.items)
            yield from idle(browser, served, store)
            browser.close()
            yield from long_queue(served, client, store, sizes)


def run() -> list[Figure]:
    return [figure for store in STORES for figure in measure(store, Sizes())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=STORES, action="append")
    for name, value in Sizes()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--fill", nargs="+", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill:
        fill(given.fill[0], Sizes(*map(int, given.fill[1:])))
        return
    sizes = Sizes(given.finished, given.queued, given.items, given.long)
    for store in given.on or STORES:
        for figure in measure(store, sizes):
            print(figure.line(), flush=True)


if __name__ == "__main__":
    main()
