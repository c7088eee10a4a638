"""The event loop of async bodies, in a thread of its own: a body that blocks it cannot hold the engine.

Bodies share this loop with each other and with nothing else. SystemExit and
KeyboardInterrupt of a task or callback leave `run_forever`: the attempt that started it
fails, and the loop is entered again; what was ready stays ready. If the loop itself fails,
the thread ends and `on_death` is called; the executor then starts another loop.

A body may cancel its own tasks and those of attempts that have ended. Cancelling a task of
another attempt is an error in the body that tries (`asyncio.all_tasks()` has the tasks of all
bodies). A cancelled body also cancels what it waits for; a task of another attempt refuses that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, TypeVar

from locktender.base.errors import LocktenderError
from locktender.worker.executors import failures
from locktender.worker.executors.protocol import CURRENT, Attempt
from locktender.worker.loop_lag import context_of, running_handle

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
LEFT_TASKS_SECONDS = 1.0
"""How long tasks that bodies left behind may take to end when the loop is closed."""


async def _generator() -> AsyncGenerator[None]:
    yield None


_aclose: Any = _generator().aclose()
_ACLOSE: type[Any] = type(_aclose)  # pyright: ignore[reportUnknownVariableType]
"""What closes an async generator."""
_aclose.close()


class OwnedTask(asyncio.Task[Any]):
    __slots__ = ("attempt",)
    attempt: Attempt | None
    """The attempt that made it; None: not known."""

    def cancel(self, msg: Any | None = None) -> bool:
        owner = self.attempt
        asking = _cancelling.attempt
        if asking is not None:
            if owner is not asking and not _is_over(owner):
                _cancelling.refused = True
                return False
            return super().cancel(msg)
        caller = CURRENT.get(None)
        if caller is not None and caller is not owner and not _is_over(owner):
            whose = "of the worker itself" if owner is None else f"of step {owner.step.name}"
            raise LocktenderError(
                f"step {caller.step.name} would cancel a task {whose}.",
                hint="Cancel only what the body has started: asyncio.all_tasks() are all tasks of its worker.",
            )
        if owner is None:
            return super().cancel(msg)
        _cancelling.attempt, _cancelling.refused = owner, False
        try:
            cancelled = super().cancel(msg)
        finally:
            _cancelling.attempt = None
        if _cancelling.refused:
            self._stop_waiting(msg)
        return cancelled

    def _stop_waiting(self, msg: Any | None) -> None:
        """What it waits for belongs to another attempt and may never end: it waits no longer.

        asyncio has no public name for what a task waits for.
        """
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
            # The future of a gather is the body's own.
            asyncio.Future.cancel(waits_for, msg)  # pyright: ignore


class _Cancelling(threading.local):
    """No context variable: a callback that runs later would have inherited it."""

    attempt: Attempt | None = None
    """Its task is being cancelled, and with it what that waits for."""
    refused: bool = False


_cancelling = _Cancelling()


def _is_over(owner: Attempt | None) -> bool:
    return owner is not None and (owner.host is None or not owner.host.runs(owner))


class _Loop(asyncio.SelectorEventLoop):
    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride] — it differs between versions
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        eager_start: bool | None = None,
    ) -> asyncio.Task[T]:
        attempt = CURRENT.get(None)
        if type(coro) is _ACLOSE:
            # Closed by the collector, in the context of whichever body ran: it is not known whose it is.
            context = context or copy_context()
            context.run(CURRENT.set, None)  # pyright: ignore[reportArgumentType]
            attempt = None
        elif attempt is not None and (
            eager_start is not None or self.get_task_factory() is not None
        ):
            more: Any = {} if eager_start is None else {"eager_start": eager_start}
            return super().create_task(coro, name=name, context=context, **more)
        task = OwnedTask(coro, loop=self, name=name, context=context)
        task.attempt = attempt
        return task

    def stop(self) -> None:
        if (attempt := CURRENT.get(None)) is not None:
            raise LocktenderError(
                f"step {attempt.step.name} would stop the loop of its worker, and with it every other step.",
                hint="Return from the body, or raise an error: only its own task ends then.",
            )
        super().stop()


class BodyLoop:
    """Made on the engine's loop; `call` hands work over from there."""

    def __init__(
        self, on_death: Callable[[BaseException], None], on_end: Callable[[], None]
    ) -> None:
        """Both are called in its thread."""
        self.loop: asyncio.AbstractEventLoop = _Loop()
        self._on_death = on_death
        self._on_end = on_end
        self.ended: threading.Event = threading.Event()
        self._closing = False
        self.thread: threading.Thread = threading.Thread(
            target=self._main, name="locktender-bodies", daemon=True
        )
        self.thread.start()

    def call(self, callback: Callable[..., object], *args: object) -> None:
        self.loop.call_soon_threadsafe(callback, *args)

    def close(self) -> None:
        """The thread ends soon; not while a body blocks it."""
        self._closing = True
        try:
            self.loop.call_soon_threadsafe(self.loop.stop, context=Context())
        except RuntimeError:
            return  # it has ended

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._closing:
                try:
                    self.loop.run_forever()
                except BaseException as error:
                    if not _fail_attempt(error):
                        raise
            self._end_tasks()
        except BaseException as error:  # noqa: BLE001 — whatever ends this thread, its attempts end too
            if not self._closing:
                self._on_death(error)
        finally:
            with suppress(Exception):  # a loop that failed may not close either
                self.loop.close()
            self.ended.set()
            self._on_end()

    def _end_tasks(self) -> None:
        """What bodies have left behind."""
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=LEFT_TASKS_SECONDS))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


def _fail_attempt(error: BaseException) -> bool:
    """Fail the attempt whose task or callback raised it. False: the loop itself failed."""
    trace = error.__traceback__
    handle = None
    while trace is not None and handle is None:
        handle, trace = _handle_of(trace)
    if handle is None:
        return False
    # The frames before are the loop's own; kept with the error, they would keep everything alive.
    error.with_traceback(trace)
    context = context_of(handle)
    attempt = context.get(CURRENT)
    if attempt is None:
        log.error(
            "a task or callback raised %s, and it is not known which step started it: the worker goes on",
            failures.name_of(error),
            exc_info=error,
        )
    else:
        context.run(_fail, attempt, error)
    return True


def _handle_of(trace: TracebackType) -> tuple[asyncio.Handle | None, TracebackType | None]:
    return running_handle(trace.tb_frame, outer=False), trace.tb_next


def _fail(attempt: Attempt, error: BaseException) -> None:
    """In the context of the attempt: its secrets are known there."""
    if attempt.raised is not None:
        return
    failure = failures.of_exception(error, attempt.step.retry_on)
    running = attempt.host is not None and attempt.host.fail(attempt, failure)
    log.warning(
        "step %s: something its body started raised %s: %s. %s; the worker goes on",
        attempt.step.name,
        failure.type,
        failure.message,
        f"Task {attempt.task} fails with it"
        if running
        else f"Its attempt of task {attempt.task} is over",
    )
