"""How many files and sockets this process may have open at once.

The soft bound is 1,024 on most systems, whatever the hard one is: a program that waits with
`select` cannot watch more. Our own processes do not use it, and raise the soft bound. Child
processes that run bodies get the bound back that the process was started with: their code is the
user's. A program that has an engine embedded keeps its bound.
"""

from __future__ import annotations

from contextlib import suppress

try:
    import resource
except ImportError:  # pragma: no cover — Windows has no bound of this kind
    resource = None  # type: ignore[assignment]

FOR_BODIES = 65_536
"""Of a process whose async bodies have 1,000 permits. Not more: some containers have a hard bound of 2^30, and
there are programs that close every number up to the bound when they start."""

_at_start: list[int] = []
"""The soft bound before the first `allow`; empty: nothing was raised."""


def bound() -> int | None:
    """How many may be open at once; None: there is no bound."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def allow(wanted: int) -> None:
    """Raises the soft bound to `wanted`, or to the hard one where that is lower. It never lowers it."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    # macOS refuses more than the kernel's own bound, below "infinity": the process goes on with what it has.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        _at_start.append(soft)


def at_start() -> int | None:
    """The soft bound that this process was started with; None: it still has it."""
    return _at_start[0] if _at_start else None


def give_back(soft: int | None) -> None:
    """In a child: the bound that its worker was started with (`at_start` there)."""
    if resource is None or soft is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
