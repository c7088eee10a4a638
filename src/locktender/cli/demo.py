"""What `locktender demo` does and prints.

Two processes work on one store: this one leads and works, the other works. In
the middle of a task the other one gets SIGKILL; its tasks are recovered and
started again. Every claim at the end is measured twice: from what the bodies
recorded themselves, and from the history.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.padding import Padding
from rich.text import Text

from locktender.base.clock import SECOND, SystemClock
from locktender.base.durations import spoken
from locktender.base.errors import AdmissionRejected, LocktenderError
from locktender.base.states import RunState
from locktender.cli import demo_flow, demo_proof
from locktender.cli.context import Context, start_logging
from locktender.cli.demo_flow import crawl
from locktender.cli.errors import BAD, OK
from locktender.cli.output import escape
from locktender.cli.shutdown import Interrupts
from locktender.client.client import Client
from locktender.client.run import Run
from locktender.client.submission import Submission
from locktender.store.open import settings_for

TENANTS = ("acme", "globex", "initech")
PAGES = list(range(6))
CEILING = 6
POOL = 2
PER_TENANT = 1
TIMEOUT_US = 30 * SECOND
SETTINGS: dict[str, Any] = {
    "max_active": CEILING,
    "pools": {"db": POOL},
    "tags": {"tenant=*": PER_TENANT},
    "grace": "2s",
}
EXPECTED = sum(page * 100 for page in PAGES)
T = TypeVar("T")


class DemoFailed(LocktenderError):
    """Something the demo waits for did not happen."""

    code = "demo_failed"


class Demo:
    def __init__(self, shell: Context, folder: Path, *, keep: bool) -> None:
        self._shell = shell
        self._folder = folder
        self._keep = keep
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._records = folder / "records"
        self._url = str(folder / "locktender.db")
        self._interrupts = Interrupts()

    def run(self) -> int:
        self._records.mkdir()
        self._introduce()
        # The demo kills a worker on purpose: the engine's warning about it is expected.
        start_logging(self._shell, level="critical")
        logging.captureWarnings(capture=False)
        settings = settings_for(self._url, SETTINGS)
        with self._interrupts, Client(settings, engine=True) as client:
            worker = self._start_worker()
            try:
                held = self._act(client, worker)
            finally:
                worker.kill()
                worker.wait()
                if worker.stdin:
                    worker.stdin.close()
                if worker.stdout:
                    worker.stdout.close()
            runs, refused, killed_at = held
            states = [run.wait(timeout="20s") for run in runs]
            results = [run.result() for run in runs if run.status() == "succeeded"]
        right = len(results) == len(runs) and all(value == EXPECTED for value in results)
        self._say(f"{states.count(RunState.SUCCEEDED)} of {len(runs)} runs succeeded, each result right"
                  if right else "[red]not every run gave the right result[/]")  # fmt: skip
        return self._prove(settings, refused, killed_at, right=right)

    def _introduce(self) -> None:
        if self._shell.json:
            return
        self._shell.say(
            "[bold]locktender demo[/]: a crawler for three tenants, two workers, four limits\n"
            f"  window   at most {demo_flow.WINDOW} pages of one run are fetched at once\n"
            f"  pool     {POOL} slots of [bold]db[/], shared by all runs, to save pages\n"
            f"  tag      {PER_TENANT} run per tenant at once\n"
            f"  ceiling  {CEILING} runs queued or running; more are refused\n"
        )

    # -- acts --------------------------------------------------------------------------------------

    def _act(
        self, client: Client, worker: subprocess.Popen[str]
    ) -> tuple[list[Run[Any]], int, int]:
        self._until(lambda: len(client.workers.list()) > 1, "the second worker to join")
        self._say(f"two workers: this process, which leads, and process {worker.pid}")
        tenants = [tenant for _ in range(CEILING // len(TENANTS)) for tenant in TENANTS]
        runs: list[Run[Any]] = [*client.submit_many(crawl, [self._call(each) for each in tenants])]
        self._say(f"submitted {len(runs)} runs, {len(runs) // len(TENANTS)} per tenant")
        refused = self._submit_beyond_ceiling(client)
        waiting = runs[-1]
        self._until(
            lambda: bool(self._open_bodies(worker.pid)), "the second worker to start a task"
        )
        self._show_why(waiting)
        killed_at = self._until(lambda: self._kill(worker), "the second worker to hold a slot")
        self._until(
            lambda: any(body.attempt > 1 for body in demo_proof.read(self._records)),
            "a killed task to start again",
        )
        took = spoken(self._clock.monotonic() - killed_at)
        self._say(f"found out, and a killed task runs again {took} later")
        runs.append(self._until(lambda: self._try(client), "the ceiling to let the refused run in"))
        self._say("a run has ended, so the refused one was taken now")
        return runs, refused, killed_at

    def _call(self, tenant: str) -> Submission:
        return Submission((PAGES, str(self._records), tenant), tags={"tenant": tenant})

    def _submit_beyond_ceiling(self, client: Client) -> int:
        """One more than the ceiling allows."""
        try:
            client.submit_many(crawl, [self._call(TENANTS[0])])
        except AdmissionRejected as error:
            self._say(
                f"one more was refused: [yellow]{error.got} of {CEILING} runs are active[/];"
                " nothing was stored"
            )
            return 1
        raise DemoFailed("a run above the ceiling was accepted.")

    def _try(self, client: Client) -> Run[Any] | None:
        try:
            return client.submit_many(crawl, [self._call(TENANTS[0])])[0]
        except AdmissionRejected:
            return None

    def _show_why(self, run: Run[Any]) -> None:
        answer = run.why()
        if answer.state != "queued" or self._shell.json:
            return
        self._say(f"[bold]locktender why {run.id[:12]}[/] answers:")
        self._shell.out.print(Padding(Text(answer.text(), style="dim"), (0, 0, 0, 9), expand=False))

    def _kill(self, worker: subprocess.Popen[str]) -> int | None:
        """When it was killed; None if it was in the middle of nothing. It is stopped to make sure."""
        worker.send_signal(signal.SIGSTOP)
        busy = len(self._open_bodies(worker.pid))
        if not busy:
            worker.send_signal(signal.SIGCONT)
            return None
        worker.kill()
        worker.wait()
        killed_at = self._clock.monotonic()
        slots = "a slot" if busy == 1 else f"{busy} slots"
        self._say(f"[bold red]SIGKILL[/] to process {worker.pid}, while it holds {slots} of db")
        return killed_at

    def _prove(self, settings: Any, refused: int, killed_at: int, *, right: bool) -> int:
        bodies = demo_proof.read(self._records)
        proof = demo_proof.prove(settings, bodies, killed_at)
        held = right and bool(refused) and proof.held and proof.twice > 0
        seconds = (self._clock.monotonic() - self._began) / SECOND
        if self._shell.json:
            self._shell.data({**proof.as_dict(), "held": held, "refused": refused,
                              "seconds": seconds})  # fmt: skip
            return OK if held else BAD
        self._say(
            f"{len(bodies)} bodies ran; {proof.twice} of them a second time, after the kill\n"
        )
        self._shell.out.print(demo_proof.table_of(proof))
        for violation in proof.violations:
            self._shell.say(f"  [red]{escape(str(violation))}[/]")
        verdict = (
            f"[bold green]Everything held[/]: {proof.promises} promises checked over"
            f" {proof.events} events"
            if held
            else "[bold red]Something did not hold; please report it.[/]"
        )
        self._shell.say(f"\n{verdict}, in {seconds:.1f} s.")
        self._show_next_steps()
        return OK if held else BAD

    def _show_next_steps(self) -> None:
        if self._keep:
            url = f"--url {self._url}"
            lines = [
                f"locktender runs list {url}",
                f"locktender audit {url}",
                f"locktender events {url}",
            ]
        else:
            lines = [
                "locktender demo --keep           keeps the store, to look into with the CLI",
                "locktender run FILE.py:flow      runs a flow of yours and shows what waits for what",
                "locktender --help                pools, limits, why, audit …",
            ]
        self._shell.say("\nTry next:")
        for line in lines:
            self._shell.say(f"  {escape(line)}")

    # -- the second process ------------------------------------------------------------------------

    def _start_worker(self) -> subprocess.Popen[str]:
        """In a session of its own: Ctrl-C goes to this process only."""
        command = [
            sys.executable, "-m", "locktender", "worker", "--app", demo_flow.__name__,
            "--url", self._url, "--set", "grace=1s", "--with-parent",
        ]  # fmt: skip
        return subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._shell.debug else subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )

    def _open_bodies(self, pid: int) -> list[demo_proof.DemoBody]:
        """Bodies that process runs now."""
        return [
            body
            for body in demo_proof.read(self._records)
            if body.pid == pid and body.end is None and body.step == "save"
        ]

    def _say(self, text: str) -> None:
        if not self._shell.json:
            seconds = (self._clock.monotonic() - self._began) / SECOND
            self._shell.say(f"{seconds:5.1f} s  {text}")

    def _until(self, ready: Callable[[], T | None], what: str) -> T:
        """The first true answer of `ready`."""
        until = self._clock.monotonic() + TIMEOUT_US
        while self._clock.monotonic() < until:
            answer = ready()
            if answer:
                return answer
            if self._interrupts.count:
                raise KeyboardInterrupt
            self._interrupts.wait(0.02)
        raise DemoFailed(
            f"the demo timed out: it waited {spoken(TIMEOUT_US)} for {what}.",
            hint="Is this machine very busy? --debug shows more.",
        )
