"""`submit` of the sync client, typed: a checker sees a flow's positional parameters and its result.

Python's types cannot say *the flow's own keywords, and these options*, so that
keyword arguments of the flow are checked when it is traced.

`submit` of the async client, typed: a checker sees a flow's positional parameters and its result.

Python's types cannot say *the flow's own keywords, and these options*, so that
keyword arguments of the flow are checked when it is traced.
"""

from __future__ import annotations

from typing import Any, Concatenate, TypeVar, overload

from locktender.base.durations import Duration
from locktender.base.model import OnDuplicate
from locktender.client.run import AsyncRun, Run
from locktender.client.submit import Submission, TagValues
from locktender.flows.flows import Flow

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Submitting:
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        **kwargs: Any,
    ) -> Run[Any]:
        """Hands a run in. Raises `AdmissionRejected` at a ceiling, `DuplicateKey` where `key` is taken.

        Arguments are the flow's, and these options, whose names win over parameters
        of the same name (hand such parameters over by position):

        tags, priority      over those of the flow
        key                 one active run per key; `on_duplicate` says what a second one does:
                            "attach" to the first (it must have the same parameters), "reject",
                            "replace" it, or "skip_if_finished"
        deadline            the run ends *timed_out* then
        queue_timeout       how long each of its tasks may wait at its gates
        dispatch_deadline   how long each may wait for a worker once every other gate is open
        """
        submission = Submission(
            args, kwargs, tags, priority, key, on_duplicate, deadline, queue_timeout, dispatch_deadline
        )  # fmt: skip
        return self._submit(flow, submission)

    def _submit(self, flow: object, submission: Submission) -> Run[Any]:
        raise NotImplementedError


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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
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
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        **kwargs: Any,
    ) -> AsyncRun[Any]:
        """Hands a run in. Raises `AdmissionRejected` at a ceiling, `DuplicateKey` where `key` is taken.

        Arguments are the flow's, and these options, whose names win over parameters
        of the same name (hand such parameters over by position):

        tags, priority      over those of the flow
        key                 one active run per key; `on_duplicate` says what a second one does:
                            "attach" to the first (it must have the same parameters), "reject",
                            "replace" it, or "skip_if_finished"
        deadline            the run ends *timed_out* then
        queue_timeout       how long each of its tasks may wait at its gates
        dispatch_deadline   how long each may wait for a worker once every other gate is open
        """
        submission = Submission(
            args, kwargs, tags, priority, key, on_duplicate, deadline, queue_timeout, dispatch_deadline
        )  # fmt: skip
        return await self._submit(flow, submission)

    async def _submit(self, flow: object, submission: Submission) -> AsyncRun[Any]:
        raise NotImplementedError
