"""`why` and `blame` for a tenant: numbers of other tenants' runs stay, their names are removed."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

import msgspec
from msgspec.structs import replace

from locktender.base.ids import run_of
from locktender.kernel.reasons import GateOpening, Reason
from locktender.observe.answer import Why
from locktender.observe.blame import Blame, GateTime
from locktender.observe.holders import LostTo
from locktender.observe.timeline import Timeline

OTHERS: Final = "others"
_RUN_ID: Final = re.compile(r"\b[0-9a-z]{26}\b", re.IGNORECASE)
_PAUSED_BY: Final = re.compile(r" is paused by .* (\([^()]* ago\))$", re.DOTALL)
_TASK: Final = re.compile(r"\b(task|number) (\d+)\b")


class Own(msgspec.Struct, frozen=True):
    """What may be named."""

    runs: Set[str]
    """Ids."""
    number: int
    """Of the run that is asked about: its tasks may be named."""
    key_head: str = ""
    """What stands before its key in the store, and not in what its owner sent."""


def named_runs(why: Why) -> set[str]:
    """Ids of all runs that an answer names."""
    reasons = [*why.reasons, *(each for step in why.waiting for each in step.reasons)]
    openings = [*why.lets_start, *(each for step in why.waiting for each in step.lets_start)]
    found = {holder.run for reason in reasons for holder in reason.holders}
    found |= {run for opening in openings for run in opening.runs}
    texts = [*(each.text for each in reasons), *(each.text for each in openings), why.note]
    return found | {each for text in texts for each in _RUN_ID.findall(text)}


def hidden_why(why: Why, own: Own) -> Why:
    """The answer without the names of others: of those who hold a gate it says how many they are."""
    return replace(
        why,
        reasons=tuple(_reason(each, own) for each in why.reasons),
        lets_start=tuple(_opening(each, own) for each in why.lets_start),
        waiting=tuple(
            replace(
                step,
                reasons=tuple(_reason(each, own) for each in step.reasons),
                lets_start=tuple(_opening(each, own) for each in step.lets_start),
            )
            for step in why.waiting
        ),
        note=_text(why.note, own),
        # Of the whole store: rules, workers and sessions of the database by name.
        held_up=(),
        troubles=(),
    )


def _reason(reason: Reason, own: Own) -> Reason:
    shown = tuple(each for each in reason.holders if each.run in own.runs)
    hidden = len(reason.holders) - len(shown)
    return replace(
        reason,
        text=_text(_PAUSED_BY.sub(r" is paused \1", reason.text), own),
        holders=shown,
        more_holders=reason.more_holders + hidden,
        basis=_text(reason.basis, own),
    )


def _opening(opening: GateOpening, own: Own) -> GateOpening:
    tasks = tuple(each for each in opening.tasks if run_of(each) == own.number)
    runs = tuple(each for each in opening.runs if each in own.runs)
    if tasks == opening.tasks and runs == opening.runs:
        return replace(opening, text=_text(opening.text, own))
    parts = [] if opening.limit is None else [f"{opening.gate} at {opening.limit:,}"]
    if opening.ends:
        parts.append(f"{opening.ends:,} of those that hold {opening.gate} to end")
    return replace(
        opening, tasks=tasks, runs=runs, text=", or ".join(parts) or f"{opening.gate} to open"
    )


def _text(text: str, own: Own) -> str:
    """Ids are the only other names of others in our texts; a key in them is the run's own."""
    if own.key_head:
        for quote in "'\"":
            text = text.replace(f"key {quote}{repr(own.key_head)[1:-1]}", f"key {quote}", 1)
    text = _RUN_ID.sub(lambda found: found[0] if found[0] in own.runs else "of another", text)
    return _TASK.sub(lambda found: _numbered(found, own), text)


def _numbered(found: re.Match[str], own: Own) -> str:
    number = int(found[2])
    is_own = own.number == (run_of(number) if found[1] == "task" else number)
    return found[0] if is_own else f"another {'task' if found[1] == 'task' else 'one'}"


def hidden_blame(blame: Blame, own: Set[str]) -> Blame:
    """The answer without the names of others: what was lost to them is one sum."""
    return replace(blame, gates=tuple(_gate(each, own) for each in blame.gates))


def _gate(gate: GateTime, own: Set[str]) -> GateTime:
    return replace(gate, to=_lost(gate.to, own))


def hidden_timeline(timeline: Timeline, own: Set[str]) -> Timeline:
    """The same of a timeline: others have no id in it."""
    return replace(
        timeline,
        whats=[replace(each, to=_lost(each.to, own)) for each in timeline.whats],
        holders=[each if each in own else "" for each in timeline.holders],
    )


def _lost(to: tuple[LostTo, ...], own: Set[str]) -> tuple[LostTo, ...]:
    shown = [each for each in to if each.run in own]
    lost = sum(each.us for each in to if each.run not in own)
    return (*shown, LostTo(OTHERS, lost)) if lost else tuple(shown)
