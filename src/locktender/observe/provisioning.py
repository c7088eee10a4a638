"""What the leader's provisioner does about tasks that wait for a worker, for whoever asks beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from locktender.kernel.explain import Reason
from locktender.store.protocol import Store

WORKER_GATE = "worker"


async def provisioner_words(store: Store) -> str | None:
    """As the leader stored them last; None: nobody leads, or who leads starts no workers."""
    if await store.leader() is None:
        return None
    found = await store.provisioned()
    return None if found.said is None else found.said.words(found.now)


async def provisioner_note(store: Store, waiting: Iterable[Sequence[Reason]]) -> str:
    """Empty where none of those who wait lacks only a worker: for others nobody is started."""
    if not any(all(reason.gate == WORKER_GATE for reason in each) for each in waiting if each):
        return ""
    if await store.leader() is None:
        return "No process leads: start an engine on this store."
    words = await provisioner_words(store)
    if words is None:
        return "No provisioner: workers are started by hand."
    return f"Provisioner: {words}."
