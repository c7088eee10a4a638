"""What a provisioner answered, checked: it is foreign code, and an answer may be anything.

What is wrong is never guessed at in the direction of more workers. A state that
nobody knows counts as alive; an answer that cannot be read is a lost answer, so
that whoever was asked for may come all the same and counts until then.

A provisioner at arm's length: it can neither keep whoever asks it, nor cancel or end them.

Each call is a task of its own and has a limit of time. One that swallows its
cancellation is left behind, within a number: beyond it nothing more is asked
until some of them have ended, and that is told like any other failure.
"""

from __future__ import annotations

import asyncio
import builtins
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, cast, get_args

import msgspec

from locktender.kernel.gate_names import counted
from locktender.provision.protocol import Capacity, Provisioned, ProvisionedState, Provisioner

STATES: tuple[str, ...] = get_args(ProvisionedState)
LONGEST_NAME = 200
LONGEST_WORDS = 1_000
LONGEST_SHOWN = 60
MOST_NAMED = 3
_encode = msgspec.json.Encoder().encode
_capacity = msgspec.json.Decoder(Capacity).decode


class WrongAnswer(Exception):
    """It answered what nobody can use: what it did is not known."""


class Listing(NamedTuple):
    workers: list[Provisioned]
    odd: dict[str, str]
    """Name → state, of those whose state nobody knows; among the workers they are running."""


class Grant(NamedTuple):
    """Who comes, of those that were asked for."""

    names: list[str]
    surplus: list[str]
    """More than were asked for: to be released."""
    shared: list[str]
    """Names that were given to more than one worker."""
    nameless: int
    """How many have no name of their own, and so may come without being told apart."""

    @property
    def wrong(self) -> str:
        """What is to be told; empty: nothing."""
        words: list[str] = []
        if self.surplus:
            more = counted(len(self.surplus), "worker")
            words.append(f"it granted {more} too many, told to end: {named(self.surplus)}")
        if self.nameless:
            words.append(
                f"it granted a name that another worker has: {named(self.shared)} "
                "(each needs the name it was asked for with)"
            )
        return "; ".join(words)


def granted(
    answer: object, asked: Sequence[str], taken: Callable[[str], bool] = lambda _: False
) -> Grant:
    """The answer to a request for `asked`; `taken`: whether a name is some other worker's."""
    names = _sequence(answer, "request()", "names")
    for name in names:
        if not _is_name(name):
            raise WrongAnswer(f"request() returned {_shown(name)} as the name of a worker")
    given = cast("list[str]", names)
    ours = set(asked)
    fresh = [name for name in dict.fromkeys(given) if name in ours or not taken(name)]
    fresh.sort(key=lambda name: name not in ours)  # stable: the names we made come first
    shared = sorted({name for name in given if given.count(name) > 1 or name not in fresh})
    most = len(asked)
    return Grant(fresh[:most], fresh[most:], shared, len(given) - len(fresh))


def listing(answer: object) -> Listing:
    workers: list[Provisioned] = []
    odd: dict[str, str] = {}
    for each in _sequence(answer, "list()", "Provisioned"):
        if not isinstance(each, Provisioned):
            raise WrongAnswer(f"list() returned {_shown(each)} where a Provisioned is due")
        if not _is_name(each.name):
            raise WrongAnswer(f"list() returned {_shown(each.name)} as the name of a worker")
        state = each.state
        if state not in STATES:
            odd[each.name] = _shown(each.state)
            state = "running"
        workers.append(
            Provisioned(each.name, state, each.since, one_line(each.detail), bool(each.released))
        )
    return Listing(workers, odd)


def odd_states(odd: dict[str, str]) -> str:
    """What is told of workers in states that nobody knows."""
    names = sorted(odd)
    states = named(sorted(set(odd.values())))
    count = "counts" if len(names) == 1 else "count"
    return (
        f"list() gives {named(names)} the state {states}, which is none of {', '.join(STATES)}: "
        f"{'it' if len(names) == 1 else 'they'} {count} as running"
    )


def capacity_of(provisioner: Provisioner, needs: dict[str, str]) -> Capacity | None:
    """What it says that a worker would bring."""
    try:
        answer = cast("object", provisioner.capacity(needs))
    except (Exception, SystemExit, CancelledError) as error:
        raise WrongAnswer(spoken_error(error, "cannot tell what a worker would bring")) from error
    if answer is None:
        return None
    if not isinstance(answer, Capacity):
        raise WrongAnswer(f"capacity() returned {_shown(answer)} where a Capacity or None is due")
    try:
        # It is stored with every name that is asked for: what cannot be read back is of no use.
        return _capacity(_encode(answer))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise WrongAnswer(spoken_error(error, "capacity() returned a wrong Capacity")) from error


def spoken_error(error: BaseException, what: str) -> str:
    """In one line: it is logged, and told by `why`."""
    if isinstance(error, TimeoutError):
        return f"{what}: it did not answer in time"
    return f"{what}: {one_line(error) or type(error).__name__}"


def one_line(words: object) -> str:
    try:
        return " ".join(str(words).split())[:LONGEST_WORDS]
    except Exception:  # noqa: BLE001 — even to speak of itself is foreign code
        return type(words).__name__


def named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()


def _sequence(answer: object, verb: str, of: str) -> list[object]:
    if not isinstance(answer, list | tuple):
        raise WrongAnswer(f"{verb} returned {_shown(answer)} where a list of {of} is due")
    return list(cast("Sequence[object]", answer))


def _shown(value: object) -> str:
    try:
        text = one_line(repr(value))
    except Exception:  # noqa: BLE001 — as above
        text = type(value).__name__
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


CANCEL_SECONDS = 1.0
"""How long a call may take to end once it is cancelled."""
MOST_LEFT_BEHIND = 10


class ProvisionerCalls:
    def __init__(self, provisioner: Provisioner, patience_seconds: float) -> None:
        self._provisioner = provisioner
        self._patience = patience_seconds
        self._left_behind: set[asyncio.Task[object]] = set()

    async def request(
        self,
        needs: Mapping[str, str],
        reason: str,
        names: Sequence[str],
        taken: Callable[[str], bool],
    ) -> Grant:
        """Raised is TimeoutError or WrongAnswer where they may come all the same; anything else: nobody will."""
        many, asked = len(names), builtins.list(names)
        answer = await self._call(
            lambda: self._provisioner.request(many, dict(needs), reason, asked)
        )
        return granted(answer, names, taken)

    async def list(self) -> Listing:
        return listing(await self._call(self._provisioner.list))

    async def release(self, name: str) -> None:
        await self._call(lambda: self._provisioner.release(name))

    async def close(self) -> None:
        """It takes its time: workers drain."""
        await self._call(self._provisioner.close, limited=False)

    async def _call(self, verb: Callable[[], Awaitable[object]], *, limited: bool = True) -> object:
        if limited and len(self._left_behind) >= MOST_LEFT_BEHIND:
            raise WrongAnswer(
                f"{counted(len(self._left_behind), 'call')} of it did not end when cancelled"
            )
        call = asyncio.create_task(_answer(verb), name="locktender-provisioner")
        self._left_behind.add(call)
        call.add_done_callback(self._ended)
        try:
            await asyncio.wait({call}, timeout=self._patience if limited else None)
        finally:
            # Also where we are cancelled ourselves: what is still asked for is asked for no longer.
            late = not call.done()
            if late:
                call.cancel()
                await asyncio.wait({call}, timeout=CANCEL_SECONDS)
        if late:
            raise TimeoutError
        if call.cancelled():
            raise WrongAnswer("it cancelled itself")
        return call.result()

    def _ended(self, call: asyncio.Task[object]) -> None:
        self._left_behind.discard(call)
        if not call.cancelled():
            call.exception()  # looked at: nobody may be waiting for it any longer


async def _answer(verb: Callable[[], Awaitable[object]]) -> object:
    try:
        return await verb()
    except SystemExit as error:
        # Let out of a task it would end the loop of whoever leads.
        raise WrongAnswer(f"it raised SystemExit({error.code!r})") from error
