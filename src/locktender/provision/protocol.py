"""What a provisioner is, and how it is called.

A provisioner starts workers when the leader asks. It is the operator's code: it
may raise, hang or return a wrong value. Each call is a task with a time limit, so
that it can neither block nor cancel the leader. A wrong value raises
`WrongAnswer`: what the call did is not known.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol, cast, get_args

import msgspec

ProvisionedState = Literal["starting", "running", "ended", "failed"]


class Provisioned(msgspec.Struct, frozen=True):
    """One requested worker, as its provisioner lists it."""

    name: str
    state: ProvisionedState
    """*ended*: it exited well, or was released."""
    since: int = 0
    """When it was requested, by the clock of the provisioner's process."""
    detail: str = ""
    """Where it runs; for an ended worker why it ended, such as its last error."""
    released: bool = False
    """It was released: then it has not failed if it never joined."""


class Capacity(msgspec.Struct, frozen=True):
    """What one more worker would bring."""

    permits: dict[str, int]
    """Per executor; −1 is unlimited, 0 none."""
    total: int = -1
    """Over all executors; −1 is unlimited."""
    labels: dict[str, str] = {}
    steps: dict[str, str] | None = None
    """Step → signature. None: not known before the worker has joined."""


class Provisioner(Protocol):
    """Starts and ends workers when `max_workers` allows more; see docs/provisioning.md."""

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        """What a worker with these labels would bring; None: it cannot start one. Answers from memory."""
        ...

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        """Start `n` workers with these labels, called `names`. Returns the names that were granted.

        It need not wait until they run. An error means that none of them will come; if some
        will, their names are returned. After a timeout or `WrongAnswer` the leader assumes that
        all may come, or those that `may_come` of it names.
        """
        ...

    async def list(self) -> list[Provisioned]:
        """All requested workers that live, and those that ended lately."""
        ...

    async def release(self, name: str) -> None:
        """Let this worker drain and end. An unknown name changes nothing."""
        ...

    async def close(self) -> None:
        """Nothing more will be requested; workers that end with this process end now."""
        ...


log: logging.Logger = logging.getLogger(__name__)
STATES: tuple[str, ...] = get_args(ProvisionedState)
MAX_ERROR_LENGTH = 1_000
MAX_REPR_LENGTH = 60


class WrongAnswer(Exception):
    """The provisioner returned a value that cannot be used, or does not know what its request did."""

    def __init__(self, message: str, may_come: Collection[str] | None = None) -> None:
        super().__init__(message)
        self.may_come = may_come
        """Of the requested workers; None: all."""


UNSURE = (TimeoutError, WrongAnswer)


class ProvisionerCalls:
    def __init__(self, provisioner: Provisioner, timeout_seconds: float) -> None:
        self._provisioner = provisioner
        self._timeout = timeout_seconds

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        try:
            answer = cast("object", self._provisioner.capacity(needs))
        except SystemExit as error:
            raise WrongAnswer(f"capacity() raised SystemExit({error.code!r})") from error
        if answer is not None and not isinstance(answer, Capacity):
            raise WrongAnswer(f"capacity() must return a Capacity or None, not {_short(answer)}")
        return answer

    async def request(
        self, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> builtins.list[str]:
        """The names that were granted.

        After TimeoutError or WrongAnswer the workers may still come; after any other error they do not.
        """
        asked = builtins.list(names)
        answer = await self._call(
            lambda: self._provisioner.request(len(asked), dict(needs), reason, asked.copy())
        )
        granted = _items(answer, "request() must return a list of names")
        for name in granted:
            if name not in names:
                raise WrongAnswer(
                    f"request() returned {_short(name)}, which is not one of the requested names"
                )
        return cast("builtins.list[str]", granted)

    async def list(self) -> builtins.list[Provisioned]:
        answer = await self._call(self._provisioner.list)
        listed = _items(answer, "list() must return a list of Provisioned")
        for each in listed:
            if not isinstance(each, Provisioned):
                raise WrongAnswer(f"list() must return Provisioned objects, not {_short(each)}")
            if each.state not in STATES:
                raise WrongAnswer(
                    f"list() returned worker {each.name} in state {_short(each.state)};"
                    f" the states are {', '.join(STATES)}"
                )
        return cast("builtins.list[Provisioned]", listed)

    async def release(self, name: str) -> None:
        await self._call(lambda: self._provisioner.release(name))

    async def close(self) -> None:
        """Without a time limit: workers drain meanwhile. The caller limits it."""
        await self._call(self._provisioner.close, limited=False)

    async def _call(self, verb: Callable[[], Awaitable[object]], *, limited: bool = True) -> object:
        call = asyncio.create_task(_answer(verb), name="locktender-provisioner")
        call.add_done_callback(_retrieve_error)
        try:
            await asyncio.wait({call}, timeout=self._timeout if limited else None)
        finally:
            # Also when the caller is cancelled. A call that ignores it is not waited for.
            late = not call.done()
            if late:
                call.cancel()
        if late:
            raise TimeoutError
        if call.cancelled():
            raise WrongAnswer("the call cancelled itself")
        return call.result()


def granted_names(
    names: Sequence[str], answers: Sequence[BaseException | None], what: str
) -> list[str]:
    """The names to return, if each worker is requested by a call of its own: None is success.

    If it is not known of some whether they come (TimeoutError, WrongAnswer), that is raised with
    all that may come. So is the first error, if none comes.
    """
    errors = [each for each in answers if each is not None]
    for each in errors:
        log.warning("provisioner: %s", error_text(each, what))
    pairs = list(zip(names, answers, strict=False))
    come = [name for name, each in pairs if each is None or isinstance(each, UNSURE)]
    for each in errors:
        if isinstance(each, UNSURE):
            if len(come) == len(pairs):
                raise each
            raise WrongAnswer(str(each) or "timed out", may_come=come) from each
    if errors and not come:
        raise errors[0]
    return come


def error_text(error: BaseException, what: str) -> str:
    """In one line, for the log and for `why`."""
    if isinstance(error, TimeoutError):
        return f"{what}: timed out"
    text = " ".join(str(error).split())[:MAX_ERROR_LENGTH]
    return f"{what}: {text or type(error).__name__}"


async def _answer(verb: Callable[[], Awaitable[object]]) -> object:
    try:
        return await verb()
    except SystemExit as error:
        # A task that raises SystemExit ends the loop, and with it the leader.
        raise WrongAnswer(f"the call raised SystemExit({error.code!r})") from error


def _retrieve_error(call: asyncio.Task[object]) -> None:
    """So that asyncio does not report the error of a call that timed out."""
    if not call.cancelled():
        call.exception()


def _items(answer: object, rule: str) -> list[object]:
    if not isinstance(answer, list | tuple):
        raise WrongAnswer(f"{rule}, not {_short(answer)}")
    return list(cast("Sequence[object]", answer))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_REPR_LENGTH else f"{text[:MAX_REPR_LENGTH]}…"
