"""Tracebacks of errors that leave the public API: the user's lines, and one of ours.

A call of the client goes through several of our functions, mostly to another thread and back. Where it raises,
Python would print a line for each of them, and the user's own line would be lost among those. So every public
method and function is decorated with `public`, which takes our frames out of an error that passes it.
`LOCKTENDER_TRACEBACKS=full` keeps them all (`short` is the default), as does the command line's `--debug`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from locktender.base.errors import LocktenderError

log: logging.Logger = logging.getLogger(__name__)
VARIABLE: Final = "LOCKTENDER_TRACEBACKS"
T = TypeVar("T")
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
# Not asked of sysconfig, which takes longer to load than most commands run.
_STANDARD = (f"{Path(os.__file__).parent}{os.sep}", "<frozen ")
_INSTALLED = ("site-packages", "dist-packages")
_SPECIAL = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__"})
_MAX_CHAINED = 20


def public(api: T) -> T:
    """A function, or every public method of a class, that raises errors without our own frames."""
    if not isinstance(api, type):
        return _decorated(api)
    for name, member in list(vars(api).items()):
        if inspect.isfunction(member) and (name in _SPECIAL or not name.startswith("_")):
            setattr(api, name, _decorated(member))
    return api


def _decorated(fn: Any) -> Any:
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return await fn(*args, **kwargs)
            except BaseException as error:
                shorten(error)
                raise

        return call_async

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except BaseException as error:
            shorten(error)
            raise

    return call


def shorten(error: BaseException) -> None:
    """Takes our frames out of `error` and what caused it, unless they are what a reader needs."""
    if _full(os.environ.get(VARIABLE, "")) or not _is_the_users(error):
        return
    chained: BaseException | None = error
    for _ in range(_MAX_CHAINED):
        if chained is None:
            return
        chained.__traceback__ = _without_ours(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


@functools.cache
def _full(value: str) -> bool:
    word = value.strip().lower()
    if word not in {"", "short", "full"}:
        log.warning("%s=%s is invalid: use full or short; tracebacks are short.", VARIABLE, value)
    return word == "full"


def _is_the_users(error: BaseException) -> bool:
    """Not a fault of our own, which only our frames explain: we raised it on purpose, or the user's code did."""
    if isinstance(error, LocktenderError | KeyboardInterrupt):
        return True
    kept = [each for each, ours in _frames(error.__traceback__) if not ours]
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last in kept


def _frames(trace: TracebackType | None) -> list[tuple[TracebackType, bool]]:
    """Each frame, and whether it is ours, or the standard library's on our behalf."""
    found: list[tuple[TracebackType, bool]] = []
    ours = True  # what raised it here was called by us
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_OURS):
            ours = True
        elif not file.startswith(_STANDARD) or any(each in file for each in _INSTALLED):
            ours = False
        found.append((trace, ours))
        trace = trace.tb_next
    return found


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept: TracebackType | None = None
    for each, ours in reversed(_frames(trace)):
        if not ours:
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
