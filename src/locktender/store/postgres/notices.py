"""The words of a notification: who wrote, what, and for whom.

    ORIGIN commit WORKER=TASK.TOKEN,TASK.TOKEN WORKER …

A worker named with offers may accept them at once; one named without, or with
too many, reads its orders. `*` means everybody looks: there were too many to name.
"""

from __future__ import annotations

from collections.abc import Iterable

from locktender.base.changes import Order

LONGEST = 7_000
"""Characters: a notification carries less than 8,000 bytes."""
MOST_OFFERS = 50
"""Carried for one worker: so many are a batch, and reading a batch costs little per task."""
COMMIT = "commit"
EVERYBODY = "*"


def of_commit(orders: Iterable[Order]) -> str:
    """What a leader's commit says."""
    concerned: dict[str, list[str] | None] = {}
    for order in orders:
        offers = concerned.setdefault(order.worker, [])
        if order.kind != "offer" or offers is None or len(offers) >= MOST_OFFERS:
            concerned[order.worker] = None
        else:
            offers.append(f"{order.task}.{order.token}")
    words = [
        worker if offers is None else f"{worker}={','.join(offers)}"
        for worker, offers in sorted(concerned.items())
    ]
    if sum(map(len, words)) + len(words) > LONGEST:
        words = sorted(concerned)
    if sum(map(len, words)) + len(words) > LONGEST:
        words = [EVERYBODY]
    return " ".join((COMMIT, *words))


def read(said: str) -> dict[str, list[tuple[int, int]]] | None:
    """Which workers it concerns, with their offers; none: nobody's orders changed. None: all should look."""
    verb, *words = said.split(" ")
    if verb != COMMIT:
        return {}
    if EVERYBODY in words:
        return None
    concerned: dict[str, list[tuple[int, int]]] = {}
    for word in words:
        worker, _, offers = word.partition("=")
        pairs = (each.partition(".") for each in offers.split(",") if each)
        try:
            concerned[worker] = [(int(task), int(token)) for task, _, token in pairs]
        except ValueError:
            # Anybody who may connect may notify.
            return None
    return concerned
