"""Tasks of a worker's loop: a body may cancel its own, and nobody else's.

On the loop of a worker run its bodies and the engine itself, so `asyncio.all_tasks()`
in a body are the tasks of all of them. Cancelling them, as programs do at their
end, would end the worker, and the next one, and every other body in flight. Here
it is an error in the body that tries. What an attempt has left behind may be
cancelled by anybody once that attempt is over: a connection that one body has
opened and a later one closes.

Whoever is cancelled takes along what it waits for: asyncio asks that to be cancelled
first. What a body waits for may be another's (`gather(*all_tasks())`, a download that
two bodies wait for): that refuses, and only the body goes, as if it had used `shield`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import Context
from types import CodeType
from typing import Any

from locktender.base.errors import LocktenderError
from locktender.worker.executors.protocol import CURRENT, Attempt

ON_SIGINT: CodeType = asyncio.Runner._on_sigint.__code__  # pyright: ignore
"""Where asyncio carries out a Ctrl-C."""


class _Taking:
    """A body's task is being cancelled, and with it what it waits for."""

    __slots__ = ("job", "refused")

    def __init__(self, job: Attempt) -> None:
        self.job = job
        self.refused = False


class _Now(threading.local):
    """No context variable: what is called back later would have inherited it."""

    taking: _Taking | None = None


_now = _Now()


class OwnedTask(asyncio.Task[Any]):
    __slots__ = ("job",)
    job: Attempt
    """Set if it is the attempt itself, or its body has made it."""

    def cancel(self, msg: Any | None = None) -> bool:
        # Unset for the engine's own tasks, which are most: they pay nothing for it.
        owner: Attempt | None = getattr(self, "job", None)
        taking = _now.taking
        if taking is not None:
            if owner is not taking.job and not _is_over(owner):
                taking.refused = True
                return False
        else:
            self._check(owner)
        return super().cancel(msg) if owner is None else self._cancel_with(owner, msg)

    def _check(self, owner: Attempt | None) -> None:
        job = CURRENT.get(None)
        if job is None or job is owner or job.home is None or job.home.loop is not self.get_loop():
            return
        if _is_over(owner):
            return
        if sys._getframe(2).f_code is ON_SIGINT:  # pyright: ignore[reportPrivateUsage]
            return  # a Ctrl-C strikes in whatever code is running: it is not the body's
        whose = "of the worker itself" if owner is None else f"of step {owner.step.name}"
        raise LocktenderError(
            f"step {job.step.name} would cancel a task {whose}.",
            hint="Cancel only what the body has started: asyncio.all_tasks() are all tasks of its worker.",
        )

    def _cancel_with(self, owner: Attempt, msg: Any | None) -> bool:
        before, _now.taking = _now.taking, (taking := _Taking(owner))
        try:
            took = super().cancel(msg)
        finally:
            _now.taking = before
        if taking.refused:
            self._let_go(msg)
        return took

    def _let_go(self, msg: Any | None) -> None:
        """What it waits for has refused, and may never end: it has to go without."""
        waits_for: Any = self._fut_waiter  # pyright: ignore
        if isinstance(waits_for, OwnedTask):
            calls: list[tuple[Any, Context]] = waits_for._callbacks or []  # pyright: ignore
            for wake, context in calls:
                if getattr(wake, "__self__", None) is self:
                    waits_for.remove_done_callback(wake)
                    gone = self.get_loop().create_future()
                    gone.cancel(msg)
                    self.get_loop().call_soon(wake, gone, context=context)
        elif isinstance(waits_for, asyncio.Future) and not isinstance(waits_for, asyncio.Task):
            # The gathering of several is its own, and can go without them.
            asyncio.Future.cancel(waits_for, msg)  # pyright: ignore


def _is_over(owner: Attempt | None) -> bool:
    """Whether whoever made a task has ended. The engine never does."""
    return owner is not None and (owner.home is None or not owner.home.carries(owner))
