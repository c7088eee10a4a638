"""What becomes of the entries of the outbox: one set of rules for both stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from locktender.store.protocol import OutboxAnswer, OutboxMove, OutboxRun, Submitted

MADE = "created"


def pack_run(run: OutboxRun) -> bytes:
    """The body of an entry."""
    return msgspec.msgpack.encode(run)


unpack_run: Callable[[bytes], OutboxRun] = msgspec.msgpack.Decoder(OutboxRun).decode
unpack_answer: Callable[[bytes], OutboxAnswer] = msgspec.json.Decoder(OutboxAnswer).decode


def answered(
    moves: Sequence[OutboxMove], submitted: Sequence[Submitted]
) -> tuple[list[str], list[tuple[str, bytes]]]:
    """The entries that have become runs, and the answers to the others.

    `submitted`: the store's answers to those moves that have a run, in order.
    """
    gone: list[str] = []
    answers: list[tuple[str, bytes]] = []
    results = iter(submitted)
    for move in moves:
        if move.run is None:
            answer = OutboxAnswer(failure=move.failure)
        else:
            result = next(results)
            if result.outcome == MADE:
                gone.append(move.entry.id)
                continue
            answer = OutboxAnswer(submitted=result)
        answers.append((move.entry.id, msgspec.json.encode(answer)))
    return gone, answers
