"""Who is measured, in which environment, on which store, and with which settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True)
class Contender:
    name: str
    adapter: str
    """Module of `bench.peers.adapters`, and what it is told after a colon."""
    store: Literal["postgres", "sqlite"]
    environment: str = ""
    """Folder in .bench and file in requirements/; none: the environment of this repository."""
    settings: str = ""
    kind: Literal["ours", "peer", "bare"] = "peer"

    def version(self) -> str:
        """Of the peer itself, as pinned."""
        if not self.environment:
            return ""
        package = {"absurd": "absurd-sdk"}.get(self.environment, self.environment)
        lines = (REQUIREMENTS / f"{self.environment}.txt").read_text().splitlines()
        return next(line.split("==")[1] for line in lines if line.startswith(f"{package}=="))


# One rule for the peers that poll for work (absurd, dbos, huey): their documented option for it is set to 10 ms.
# The others are told of work by the database or by their server.
CONTENDERS = (
    Contender("ours, server + worker", "ours:server", "postgres",
              settings="as shipped; no limit on concurrent runs", kind="ours"),
    Contender("ours, embedded PostgreSQL", "ours:embedded", "postgres",
              settings="as shipped; no limit on concurrent runs", kind="ours"),
    Contender("ours, embedded SQLite", "ours:embedded", "sqlite",
              settings="as shipped; no limit on concurrent runs", kind="ours"),
    Contender("bare asyncpg loop", "bare:postgres", "postgres",
              settings="50,000 rows, claim + complete in batches of 200; limit: asyncio.Semaphore", kind="bare"),
    Contender("bare SQLite loop", "bare:sqlite", "sqlite",
              settings="200,000 rows, claim + complete in batches of 200; limit: asyncio.Semaphore", kind="bare"),
    Contender("pgqueuer", "pgqueuer", "postgres", "pgqueuer",
              "`pgq run` as shipped, batches of 10; limit: concurrency_limit=10"),
    Contender("pgqueuer, batch 200", "pgqueuer:200", "postgres", "pgqueuer",
              "`pgq run --batch-size 200`; limit: concurrency_limit=10"),
    Contender("absurd", "absurd", "postgres", "absurd",
              "start_worker(concurrency=50, poll_interval=0.01), 0.25 as shipped; a step: a task; "
              "limit: concurrency=10, of the worker"),
    Contender("dbos", "dbos", "postgres", "dbos",
              "steps: of one workflow, 100 awaited together; polling_interval_sec=0.01, 1 as shipped; "
              "limit: global_concurrency=10"),
    Contender("procrastinate", "procrastinate", "postgres", "procrastinate",
              "`procrastinate worker --concurrency=50`; limit: --concurrency=10, of the worker"),
    Contender("huey", "huey", "sqlite", "huey",
              "`huey_consumer -w 10 -d 0.01 -m 0.01`, as shipped 0.1 to 10; fsync; "
              "limit: 10 threads of the worker"),
    Contender("prefect", "prefect", "sqlite", "prefect",
              "`prefect server start` on SQLite as shipped; steps: mapped tasks; limit: 10 threads of the flow"),
)  # fmt: skip


def chosen(only: list[str]) -> list[Contender]:
    """Those whose name or adapter contains a word of `only`; the bare loops of their stores come with them."""
    if not only:
        return list(CONTENDERS)
    named = [
        each for each in CONTENDERS if any(word in f"{each.name} {each.adapter}" for word in only)
    ]
    stores = {each.store for each in named}
    return [
        each
        for each in CONTENDERS
        if each in named or (each.kind == "bare" and each.store in stores)
    ]
