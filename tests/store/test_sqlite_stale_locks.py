"""Lock files that killed leaders leave beside a SQLite store are removed, and none that somebody uses."""

from __future__ import annotations

from pathlib import Path

from locktender.base.clock import SECOND
from locktender.base.model import WorkerRow
from locktender.store.protocol import Elect, Heartbeat, RemoveUnused
from locktender.store.sqlite.liveness import Liveness
from locktender.store.sqlite.store import SqliteStore


def files(url: Path) -> set[str]:
    return {each.name for each in url.with_name(url.name + "-live").iterdir()}


async def test_the_lock_of_a_killed_leader_is_removed_later(url: Path):
    store = SqliteStore(url)
    await store.open()
    killed, lost, comes = Liveness(url), Liveness(url), Liveness(url)
    for owner in ("old-leads", "older-leads"):
        killed.hold(owner)
    killed.close()  # as the kernel does: the files stay, free
    lost.hold("w-lost")
    row = WorkerRow("w-lost", "host", 1, "1", {"async": 1}, -1, -1)
    await store.heartbeat(Heartbeat(row, 600 * SECOND))
    store._opened.live.close()
    lost.close()
    comes.hold("w-comes")  # it holds its lock, and has no row yet
    lead = await store.elect(Elect("now-leads", 600 * SECOND))
    everybody = {"old-leads.lock", "older-leads.lock", "w-lost.lock", "w-comes.lock"}
    assert everybody <= files(url)

    await store.remove_unused(RemoveUnused(lead.term))

    # Whoever has a row keeps its file: free, it proves that its process is dead.
    assert {"w-lost.lock", "w-comes.lock"} <= files(url)
    assert not {"old-leads.lock", "older-leads.lock"} & files(url)
    assert Liveness(url).proof("w-lost") == "gone"
    assert Liveness(url).proof("w-comes") == "held"
    assert Liveness(url).proof("now-leads") != "gone"
    comes.close()
    await store.close()


def test_an_opener_of_a_removed_file_gets_another(url: Path):
    """Both want one name: the holder is never without a file that others see."""
    first, second = Liveness(url), Liveness(url)
    for _ in range(200):
        first.hold("owner")
        second.remove_stale(())
        assert second.proof("owner") == "held"
        first.close()
        assert second.remove_stale(()) == 1
        assert second.proof("owner") == "none"
