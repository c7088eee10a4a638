"""The loop of a worker: no body can end it.

asyncio hands SystemExit and KeyboardInterrupt of any task or callback out of the
loop, so that `sys.exit()` ends a program. A worker is not its bodies' program:
with a plain loop, one body whose inner task exits would end worker after worker,
each time as if the worker had been lost. Here such an exception ends only the
attempt whose code raised it, and the loop goes on where it was: what was ready
stays ready. Whose it is stands in the context of the handle that ran, as for
`loop_watch`; where nobody's attempt is found there it is logged. So is what the
handler of a signal raises while the loop waits, whatever it is: a body has set it,
and it strikes where nobody's code runs.

What is not a body's leaves as ever: an error of the task the loop was run for, a
Ctrl-C, and what the loop itself cannot do. Nothing is paid for it until something is
raised. Its tasks know whose they are: `executors/owned_tasks`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Coroutine, Generator
from contextvars import Context
from types import TracebackType
from typing import Any, TypeVar

from locktender.base.errors import LocktenderError
from locktender.worker.executors import failures
from locktender.worker.executors.owned_tasks import ON_SIGINT, OwnedTask
from locktender.worker.executors.protocol import CURRENT, Attempt
from locktender.worker.loop_lag import context_of, is_run_frame, running_handle

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")


class LastingLoop(asyncio.SelectorEventLoop):
    _main: asyncio.Future[Any] | None = None
    _told_to_stop: bool = False

    def run_forever(self) -> None:
        self._told_to_stop = False
        while True:
            try:
                super().run_forever()
            except BaseException as error:
                if self._leaves(error) or not _blame(error):
                    raise
            else:
                return
            # A stop in the same turn, before the exception, was forgotten on the way out.
            if self._told_to_stop:
                return

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        main: Any = asyncio.ensure_future(future, loop=self)  # pyright: ignore
        before, self._main = self._main, main
        try:
            return super().run_until_complete(main)  # pyright: ignore
        finally:
            self._main = before

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride] — it differs between versions
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        eager_start: bool | None = None,
    ) -> asyncio.Task[T]:
        if self.is_closed():
            return super().create_task(coro)  # says so
        job = CURRENT.get(None)
        if job is None:
            return OwnedTask(coro, loop=self, name=name, context=context)
        # A factory is a body's: it makes that body's tasks, never the engine's.
        if eager_start is not None or self.get_task_factory() is not None:
            more: Any = {} if eager_start is None else {"eager_start": eager_start}
            return super().create_task(coro, name=name, context=context, **more)
        task = OwnedTask(coro, loop=self, name=name, context=context)
        task.job = job
        return task

    def stop(self) -> None:
        job = CURRENT.get(None)
        if job is not None and job.home is not None and job.home.loop is self:
            raise LocktenderError(
                f"step {job.step.name} would stop the loop of its worker, and with it every other step.",
                hint="Return from the body, or raise an error: only its own task ends then.",
            )
        self._told_to_stop = True
        super().stop()

    def _leaves(self, error: BaseException) -> bool:
        """Whether it is the end of what the loop was run for: nobody else would hear of it."""
        main = self._main
        return (
            main is not None and main.done() and not main.cancelled() and main.exception() is error
        )


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a loop that no body can end."""
    with asyncio.Runner(loop_factory=LastingLoop) as runner:
        return runner.run(main)


def _blame(error: BaseException) -> bool:
    """Ends the attempt whose code raised it, or says that nobody is known. False: it is no code's at all."""
    handle, trace = _raiser(error.__traceback__)
    if _is_interrupt(error):
        return False
    if handle is None:
        if not _is_handlers(error.__traceback__):
            return False
        log.error(
            "the handler of a signal raised %s outside any step: the worker goes on. Whichever step has"
            " set it: let it raise only while its body runs, or give the step executor='process'",
            failures.name_of(error),
            exc_info=error,
        )
        return True
    # The frames before are the loop's own; kept with the error, they would keep everything alive.
    error.with_traceback(trace)
    context = context_of(handle)
    job = None if _is_finaliser(handle) else context.get(CURRENT)
    if job is None:
        log.error(
            "something on the worker's loop raised %s, and it is not known which step started it:"
            " the worker goes on",
            failures.name_of(error),
            exc_info=error,
        )
    else:
        context.run(_end, job, error)
    return True


def _end(job: Attempt, error: BaseException) -> None:
    """In the context of the attempt: its secrets are known there."""
    if job.raised is not None:
        return
    failure = failures.of_exception(error, job.step.retry_on)
    running = job.home is not None and job.home.fail(job, failure)
    log.warning(
        "step %s: something its body started raised %s: %s. %s; the worker goes on",
        job.step.name,
        failure.type,
        failure.message,
        f"Task {job.task} fails with it" if running else f"Its attempt of task {job.task} is over",
    )


def _raiser(trace: TracebackType | None) -> tuple[asyncio.Handle | None, TracebackType | None]:
    """The handle that ran, and the traceback of what it called; None: the loop itself was interrupted."""
    while trace is not None:
        if is_run_frame(trace.tb_frame):
            return running_handle(trace.tb_frame), trace.tb_next
        trace = trace.tb_next
    return None, None


def _is_handlers(trace: TracebackType | None) -> bool:
    """Whether code that is not the loop's own was called in the middle of the loop: only the handler of a
    signal is. What the loop raises itself (it is closed, its selector is broken) it would raise for ever."""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module not in (__name__, "selectors") and not module.startswith("asyncio."):
            return True
        trace = trace.tb_next
    return False


def _is_finaliser(handle: asyncio.Handle) -> bool:
    """An async generator is closed in the context of whoever happened to collect it: maybe another body's."""
    task: Any = getattr(getattr(handle, "_callback", None), "__self__", None)
    if not isinstance(task, asyncio.Task):
        return False
    return type(task.get_coro()).__name__ == "async_generator_athrow"  # pyright: ignore


def _is_interrupt(error: BaseException) -> bool:
    """Whether somebody may have pressed Ctrl-C: signals reach only the main thread, and only a handler
    that raises. A worker's own does not (`cli/serving`)."""
    if (
        not isinstance(error, KeyboardInterrupt)
        or threading.current_thread() is not threading.main_thread()
    ):
        return False
    handler = signal.getsignal(signal.SIGINT)
    function = getattr(handler, "func", handler)  # asyncio's is a partial
    return handler is signal.default_int_handler or getattr(function, "__code__", None) is ON_SIGINT
