"""Sleeps and waits for events in generated programs: where they stand, what they give, who answers them.

They are drawn apart from the rest of a program, so that the calls of a seed stay as they are. A wait stands
behind a call; some of what followed the call follows the wait. What it gives does not depend on when it is over:
whoever sends an event twice sends the same.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from locktender import Client, InvalidInput, Run
from locktender.base.errors import StoreError

Call = dict[str, Any]
Program = dict[str, Any]
ANSWER_SECONDS = 0.02
SHORT = ("1ms", "20ms", "60ms")
TOPICS = 5


def add_waits(program: Program) -> Program:
    draw = Random(f"waits {program['seed']}")
    if draw.random() < 0.4:
        return program
    later: dict[str, list[str]] = {}
    _into(program, draw, later, [0], program["seed"])
    return {**program, "delay": draw.choice((None, None, None, "1ms", "40ms"))}


def waits_of(scope: dict[str, Any]) -> list[Call]:
    inner = [each for call in scope.get("calls", ()) for each in waits_of(call)]
    return [scope, *inner] if "wait" in scope else inner


def _into(
    scope: dict[str, Any],
    draw: Random,
    later: dict[str, list[str]],
    count: list[int],
    seed: int,
) -> None:
    """`later`: the waits behind each call so far."""
    made: list[Call] = []
    for call in scope["calls"]:
        if "calls" in call:
            _into(call, draw, later, count, seed)
            made.append(call)
            continue
        _follow(call, draw, later)
        made.append(call)
        while draw.random() < 0.3:
            count[0] += 1
            wait = _wait(f"w{count[0]}", call, draw, seed)
            made.append(wait)
            later.setdefault(call["name"], []).append(wait["name"])
    scope["calls"] = made


def _follow(call: Call, draw: Random, later: dict[str, list[str]]) -> None:
    """What takes the result of a call, or waits for it, may follow a wait behind it instead."""
    for field in ("args", "after"):
        moved: list[str] = []
        for name in call[field]:
            waits = later.get(name, [])
            moved.append(draw.choice(waits) if waits and draw.random() < 0.7 else name)
        call[field] = sorted(set(moved))
    if call["when"] is not None:
        waits = later.get(call["when"]["of"], [])
        if waits and draw.random() < 0.5:
            call["when"] = {**call["when"], "of": draw.choice(waits)}
    others = [name for waits in later.values() for name in waits]
    if others and draw.random() < 0.3:
        call["after"] = sorted({*call["after"], draw.choice(others)})


def _wait(name: str, behind: Call, draw: Random, seed: int) -> Call:
    # A collected error is passed on as it is stored, not as the object that a body is given.
    passes = behind["on_error"] != "collect" and draw.random() < 0.7
    call: Call = {
        "name": name,
        "over": None,
        "args": [behind["name"]] if passes else [],
        "after": [] if passes else [behind["name"]],
        "when": None,
        "run_if": "success",
        "on_failure": None,
        "retries": 0,
        "plan": {"how": "wait", "failures": [0], "bounds": []},
    }
    if draw.random() < 0.15:
        op = draw.choice(("true", "not", "!="))
        call["when"] = {"of": behind["name"], "op": op, "value": draw.randint(0, 9)}
    if draw.random() < 0.5:
        kind = draw.choices(("sleep", "past"), (85, 15))[0]
        return {**call, "wait": {"kind": kind, "time": draw.choice(SHORT)}}
    comes, topic = draw.random() < 0.7, draw.random() < 0.4
    call |= {"args": [], "after": sorted({*call["args"], *call["after"]})}
    wait = {
        "kind": "event",
        "event": f"topic{seed % TOPICS}" if topic else f"event {name}",
        "match": {"seed": seed, "wait": name} if topic else None,
        "comes": comes,
        "early": comes and draw.random() < 0.5,
        "time": None if comes else draw.choice(SHORT),
        "default": None if comes or draw.random() < 0.25 else draw.randint(1, 9),
        "payload": draw.randint(0, 9),
    }
    return {**call, "wait": wait}


def fails(wait: dict[str, Any]) -> bool:
    """Whether no event comes, and nothing else is given in its place."""
    return wait["kind"] == "event" and not wait["comes"] and wait["default"] is None


def value_of(wait: dict[str, Any], passed: Any) -> Any:
    if wait["kind"] != "event":
        return passed
    return wait["payload"] if wait["comes"] else wait["default"]


# -- who answers


@contextmanager
def answered(client: Client, run: Run[Any], program: Program) -> Generator[None]:
    """Sends every event that is to come, once before its wait stands and again when it does."""
    awaited = [call for call in waits_of(program) if call["wait"].get("comes")]
    if not awaited:
        yield
        return
    stop = threading.Event()
    answers = _Answers(client, run, program["seed"], awaited)
    helper = threading.Thread(target=answers.send, args=(stop,))
    helper.start()
    try:
        yield
    finally:
        stop.set()
        helper.join()


class _Answers:
    def __init__(self, client: Client, run: Run[Any], seed: int, awaited: list[Call]) -> None:
        self._client = client
        self._run = run
        self._seed = seed
        self._awaited = awaited
        self._sent: set[tuple[int, object]] = set()

    def send(self, stop: threading.Event) -> None:
        for call in self._awaited:
            if call["wait"]["early"]:
                self._one(call["wait"], "early")
        while not stop.wait(ANSWER_SECONDS):
            with suppress(StoreError):
                self._look()

    def _look(self) -> None:
        for each in self._run.waits():
            if (each.task, each.since) in self._sent:
                continue
            for call in self._awaited:
                wait = call["wait"]
                if wait["event"] == each.event and (wait["match"] or {}) == each.match:
                    self._one(wait, f"{each.task} {each.since}")
                    self._sent.add((each.task, each.since))

    def _one(self, wait: dict[str, Any], name: str) -> None:
        given = f"{self._run.id} {wait['event']} {wait['match']} {name}"[:200]
        with suppress(InvalidInput):  # the run has ended
            if wait["match"] is not None:
                match = {"wait": wait["match"]["wait"], "seed": self._seed}
                self._client.events.send(wait["event"], wait["payload"], match=match, id=given)
            else:
                self._run.send(wait["event"], wait["payload"], id=given)
