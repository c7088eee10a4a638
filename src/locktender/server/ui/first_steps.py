"""What to type first where there are no runs yet: a file with a flow, a worker that knows it, a run of it.

Each command works as it is pasted. A worker needs the store itself; all else asks this server.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from locktender.server.ui.pages import View

EXAMPLE = """\
from locktender import flow, step
@step
def greet(name: str) -> str: return f"hello {name}"
@flow
def hello(name: str = "world") -> str: return greet(name)
"""
MAX_FLOWS = 20
"""Of those that workers know: looked at for one that takes no arguments."""


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Commands of empty pages."""

    view: View

    @property
    def file(self) -> str:
        return f"cat > hello.py <<'EOF'\n{EXAMPLE}EOF"

    @property
    def worker(self) -> str:
        return f"locktender worker hello.py --url {self._store}"

    @property
    def submit(self) -> str:
        return self.view.cli("submit", "hello.py:hello")

    @property
    def schedule(self) -> str:
        return self.view.cli(
            "schedules set", "nightly", "hello.py:hello", cron="0 3 * * 1-5", tz="Europe/Berlin"
        )

    @property
    def note(self) -> str:
        """What a shell must know before."""
        known = (
            "" if self._shows_store else " LOCKTENDER_URL is the address of this server's database."
        )
        token = "" if self.view.principal.by == "loopback" else " LOCKTENDER_TOKEN is your token."
        return known + token

    @property
    def _shows_store(self) -> bool:
        """Whether the page may say where the store is: on this machine alone, and without a password in it."""
        settings = self.view.core.settings
        return self.view.principal.by == "loopback" and settings.shown_url == settings.url

    @property
    def _store(self) -> str:
        if not self._shows_store:
            return '"$LOCKTENDER_URL"'
        url = self.view.core.settings.url
        return shlex.quote(url if "://" in url else os.path.abspath(url))  # noqa: PTH100 of text, not of a file


async def submit_known(view: View) -> str:
    """A run of a flow that workers know, if possible of one that needs no arguments; empty: they know none."""
    flows = await view.client.flows.list()
    found = ""
    for each in flows[:MAX_FLOWS]:
        needed = (await view.client.flows.get(each.name)).parameters.get("required", [])
        # A placeholder in capitals for each argument: what a flow of the reader's needs is not invented.
        line = view.cli("submit", each.name, arg=[f"{name}={name.upper()}" for name in needed])
        if not needed:
            return line
        found = found or line
    return found
