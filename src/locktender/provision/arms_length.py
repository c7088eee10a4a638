"""A provisioner at arm's length: it can neither keep whoever asks it, nor cancel or end them.

Each call is a task of its own and has a limit of time. One that swallows its
cancellation is left behind, within a number: beyond it nothing more is asked
until some of them have ended, and that is told like any other failure.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Mapping, Sequence

from locktender.kernel.naming import counted
from locktender.provision.answers import Grant, Listing, WrongAnswer, granted, listing
from locktender.provision.protocol import Provisioner

CANCEL_SECONDS = 1.0
"""How long a call may take to end once it is cancelled."""
MOST_LEFT_BEHIND = 10


class ArmsLength:
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
