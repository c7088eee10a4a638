"""`submit` of both clients, typed: a checker sees a flow's positional parameters and its result.

Python's types cannot say *the flow's own keywords, and these options*, so
keyword arguments of the flow are checked when it is traced.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar, overload

from locktender.base.durations import Duration
from locktender.base.model import Keep, OnDuplicate
from locktender.base.tracebacks import public
from locktender.client.run import AsyncRun, Run
from locktender.client.submission import Submission, TagValues

if TYPE_CHECKING:
    from locktender.flows.flows import Flow

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@public
class SyncSubmitting:
    @overload
    def submit(
        self,
        flow: Flow[Concatenate[A, B, C, ...], T],
        a: A,
        b: B,
        c: C,
        /,
        *rest: Any,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> Run[T]: ...
    @overload
    def submit(
        self,
        flow: Flow[Concatenate[A, B, ...], T],
        a: A,
        b: B,
        /,
        *,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> Run[T]: ...
    @overload
    def submit(
        self,
        flow: Flow[Concatenate[A, ...], T],
        a: A,
        /,
        *,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> Run[T]: ...
    @overload
    def submit(
        self,
        flow: Flow[..., T],
        /,
        *,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> Run[T]: ...
    @overload
    def submit(
        self,
        flow: str,
        /,
        *args: Any,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> Run[Any]: ...
    def submit(
        self,
        flow: Flow[..., Any] | str,
        /,
        *args: Any,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> Run[Any]:
        """Submits a run of `flow` and returns at once. Arguments are the flow's own, and these options:

        tags               added to the flow's own tags, at most 64 in all; default none
        priority           -1,000,000 to 1,000,000, higher first; default the flow's (0)
        key                one active run per key; default none
        on_duplicate       where an active run has the key: "attach" (default) returns that run, which must
                           have the same arguments; "reject"; "replace" cancels it; "skip_if_finished"
                           returns also a run that has succeeded
        keep               runs of the key wait for each other, and one executes: "newest" drops the
                           oldest one that waits, "oldest" skips this submission; default none
        max_queued         with `keep`: how many runs of the key may wait; default 1
        debounce           the run waits so long; another of the key drops it, and waits anew, so that the
                           last one runs; default none
        throttle           "10/min": so many runs of the key (else of the flow) start in any such time, the
                           others wait; runs of a key may then execute side by side; default none
        deadline           the run ends *timed_out* this long after now; default the flow's (none)
        queue_timeout      how long each task may wait at its limits; default the flow's (none)
        dispatch_deadline  how long each may wait for a worker once every limit has room; default "4h"
        delay              the run waits so long before it is queued, and holds nothing meanwhile; default none
        start_at           the same until a moment: a datetime with a time zone; default none
        connection         an open connection of yours to the same PostgreSQL database: the run exists if and
                           when its transaction commits, and ceilings and keys are judged after that;
                           default none
        notify             with `connection`: False spares busy applications the lock of NOTIFY, and the run
                           is seen up to 0.1 s later; default True

        An option wins over a parameter of the flow of the same name: give that one by position.
        Raises `AdmissionRejected` at a ceiling, `DuplicateKey` where the key is taken.

            run = client.submit(build, ["a", "b"], tags={"tenant": "acme"}, key="build-42")
        """
        submission = Submission(
            args, kwargs, tags, priority, key, on_duplicate, deadline, queue_timeout, dispatch_deadline,
            delay, start_at, keep=keep, max_queued=max_queued, debounce=debounce,
            throttle=throttle,
        )  # fmt: skip
        if connection is not None:
            return self._submit_by(connection, flow, submission, notify=notify)
        return self._submit(flow, submission)

    def _submit_by(
        self, connection: object, flow: object, submission: Submission, *, notify: bool
    ) -> Run[Any]:
        raise NotImplementedError

    def _submit(self, flow: object, submission: Submission) -> Run[Any]:
        raise NotImplementedError


@public
class AsyncSubmitting:
    @overload
    async def submit(
        self,
        flow: Flow[Concatenate[A, B, C, ...], T],
        a: A,
        b: B,
        c: C,
        /,
        *rest: Any,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> AsyncRun[T]: ...
    @overload
    async def submit(
        self,
        flow: Flow[Concatenate[A, B, ...], T],
        a: A,
        b: B,
        /,
        *,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> AsyncRun[T]: ...
    @overload
    async def submit(
        self,
        flow: Flow[Concatenate[A, ...], T],
        a: A,
        /,
        *,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> AsyncRun[T]: ...
    @overload
    async def submit(
        self,
        flow: Flow[..., T],
        /,
        *,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> AsyncRun[T]: ...
    @overload
    async def submit(
        self,
        flow: str,
        /,
        *args: Any,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> AsyncRun[Any]: ...
    async def submit(
        self,
        flow: Flow[..., Any] | str,
        /,
        *args: Any,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        keep: Keep | None = None,
        max_queued: int | None = None,
        debounce: Duration | None = None,
        throttle: str | None = None,
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        connection: Any = None,
        notify: bool = True,
        **kwargs: Any,
    ) -> AsyncRun[Any]:
        """Submits a run of `flow` and returns at once. Arguments are the flow's own, and these options:

        tags               added to the flow's own tags, at most 64 in all; default none
        priority           -1,000,000 to 1,000,000, higher first; default the flow's (0)
        key                one active run per key; default none
        on_duplicate       where an active run has the key: "attach" (default) returns that run, which must
                           have the same arguments; "reject"; "replace" cancels it; "skip_if_finished"
                           returns also a run that has succeeded
        keep               runs of the key wait for each other, and one executes: "newest" drops the
                           oldest one that waits, "oldest" skips this submission; default none
        max_queued         with `keep`: how many runs of the key may wait; default 1
        debounce           the run waits so long; another of the key drops it, and waits anew, so that the
                           last one runs; default none
        throttle           "10/min": so many runs of the key (else of the flow) start in any such time, the
                           others wait; runs of a key may then execute side by side; default none
        deadline           the run ends *timed_out* this long after now; default the flow's (none)
        queue_timeout      how long each task may wait at its limits; default the flow's (none)
        dispatch_deadline  how long each may wait for a worker once every limit has room; default "4h"
        delay              the run waits so long before it is queued, and holds nothing meanwhile; default none
        start_at           the same until a moment: a datetime with a time zone; default none
        connection         an open connection of yours to the same PostgreSQL database: the run exists if and
                           when its transaction commits, and ceilings and keys are judged after that;
                           default none
        notify             with `connection`: False spares busy applications the lock of NOTIFY, and the run
                           is seen up to 0.1 s later; default True

        An option wins over a parameter of the flow of the same name: give that one by position.
        Raises `AdmissionRejected` at a ceiling, `DuplicateKey` where the key is taken.

            run = client.submit(build, ["a", "b"], tags={"tenant": "acme"}, key="build-42")
        """
        submission = Submission(
            args, kwargs, tags, priority, key, on_duplicate, deadline, queue_timeout, dispatch_deadline,
            delay, start_at, keep=keep, max_queued=max_queued, debounce=debounce,
            throttle=throttle,
        )  # fmt: skip
        if connection is not None:
            return await self._submit_by(connection, flow, submission, notify=notify)
        return await self._submit(flow, submission)

    async def _submit_by(
        self, connection: object, flow: object, submission: Submission, *, notify: bool
    ) -> AsyncRun[Any]:
        raise NotImplementedError

    async def _submit(self, flow: object, submission: Submission) -> AsyncRun[Any]:
        raise NotImplementedError
