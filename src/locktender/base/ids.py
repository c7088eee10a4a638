"""Ids. A run's id is made by its submitter; everything else is derived from numbers that never repeat.

run id   26 characters, time-ordered, random: safe to make anywhere
run      the number the store gave the run (commit order on SQLite)
task     run << 20 | ordinal: one range scan finds all tasks of a run
token    term << 38 | n: a later attempt always has the larger token (2^25 terms of 2^38)
"""

from __future__ import annotations

from typing import NewType

RunId = NewType("RunId", str)

TASK_BITS = 20
MAX_TASKS_PER_RUN = 1 << TASK_BITS
MAX_RUNS = 1 << (63 - TASK_BITS)
TOKEN_BITS = 38

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_LETTERS = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))
"""A random byte as a character: by its low five bits."""
ENTROPY = 17
"""Random bytes per id of `run_ids`."""


def run_id(now: int, entropy: bytes) -> RunId:
    """48 bits of milliseconds, then 82 of `entropy` (11 bytes or more): sorts by time of submission."""
    number = (now // 1000) << 82 | int.from_bytes(entropy[:11], "big") >> 6
    return RunId("".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)]))


def run_ids(now: int, entropy: bytes) -> list[RunId]:
    """As `run_id`, one per `ENTROPY` bytes: ids are made by the ten thousand."""
    # Ten characters hold the milliseconds and two random bits, sixteen the other eighty.
    heads = [run_id(now, bytes([two << 6]) + bytes(10))[:10] for two in range(4)]
    text = entropy.translate(_LETTERS).decode()
    return [
        RunId(heads[entropy[at] & 3] + text[at + 1 : at + ENTROPY])
        for at in range(0, len(entropy) - ENTROPY + 1, ENTROPY)
    ]


def id_of(digest: bytes) -> RunId:
    """Of the first 130 bits of `digest`: an id that can be made again. It says nothing of a time."""
    number = int.from_bytes(digest[:17], "big") >> 6
    return RunId("".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)]))


def task_id(run: int, ordinal: int) -> int:
    return run << TASK_BITS | ordinal


def run_of(task: int) -> int:
    return task >> TASK_BITS


def ordinal_of(task: int) -> int:
    return task & (MAX_TASKS_PER_RUN - 1)


MAX_TERM = 1 << 25


def token(term: int, n: int) -> int:
    return term << TOKEN_BITS | n


def term_of(token: int) -> int:
    return token >> TOKEN_BITS
