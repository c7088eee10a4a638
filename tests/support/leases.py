"""Leases that end when a test says so.

A lease short enough to wait for can be lost by a healthy process on a busy machine.
So processes have leases they keep (`KEPT`), and of one that was killed or stopped the
test ends the lease in the store, as if its time had passed.
"""

from __future__ import annotations

from typing import Any

from tests.support.beside import opened
from tests.support.cluster import ClusterNode

from locktender.testing.postgres_server import execute, run
from locktender.testing.processes import EngineProcess

KEPT: dict[str, Any] = {
    "worker_lease": "10m",
    "heartbeat": "500ms",
    "leader_lease": "10m",
    "leader_renew": "500ms",
}
"""Nobody loses these, however busy the machine is."""


def lapse(url: str, *nodes: ClusterNode | EngineProcess) -> None:
    """The leases of these processes, which are dead or stand still, have ended: as workers and as leaders."""
    for node in nodes:
        lapse_worker(url, f"%-{node.pid}-%")
        _update(url, "leader", f"expires_at = 0 WHERE owner LIKE '%-{node.pid}-%'")


def lapse_worker(url: str, name: str) -> None:
    """The lease of a worker of this name (as LIKE has it) has ended."""
    _update(url, "worker", f"lease_until = 0 WHERE id LIKE '{name}'")


def _update(url: str, table: str, change: str) -> None:
    if "://" in url:
        run(execute(url, f"UPDATE locktender.{table} SET {change}"))
        return
    with opened(url) as db:
        db.execute(f"UPDATE {table} SET {change}")
