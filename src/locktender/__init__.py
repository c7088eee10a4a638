"""Locktender: durable workflows for Python whose concurrency and cost are predictable.

These are the public names. Each is loaded on first use, so that importing the
package costs nothing until something of it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from locktender.base.codec import StepError
    from locktender.base.durations import Duration
    from locktender.base.errors import (
        AccessRefused,
        AdmissionRejected,
        DuplicateKey,
        InvalidFlow,
        InvalidInput,
        InvalidSettings,
        LeaseLost,
        LimitChanged,
        LocktenderError,
        NotFound,
        RunCancelled,
        RunFailed,
        RunTimedOut,
        SchemaTooNew,
        StoreBusy,
        StoreError,
        StoreUnreachable,
        Unserialisable,
        WaitTimeout,
    )
    from locktender.base.secrets import secret
    from locktender.base.states import RunState, TaskState
    from locktender.client.client import Client
    from locktender.client.client_async import AsyncClient
    from locktender.client.guard import ClientClosed
    from locktender.client.history import EventReaderInfo, EventsPruned, HistoryEvent
    from locktender.client.mailing import EventWaitInfo
    from locktender.client.open import connect, connect_async, embedded, embedded_async
    from locktender.client.result_cache import CachedInfo
    from locktender.client.run import AsyncRun, Run
    from locktender.client.schedules import ScheduleChangeInfo, ScheduleInfo, TickInfo
    from locktender.client.slots import HeldSlots
    from locktender.client.submission import Submission
    from locktender.client.submit_in import submit_in, submit_in_async
    from locktender.client.views import (
        EventInfo,
        LimitChangeInfo,
        LimitInfo,
        LogInfo,
        PoolInfo,
        ProgressInfo,
        QueueInfo,
        Requested,
        RunInfo,
        TaskInfo,
        UnstoppedInfo,
        WorkerInfo,
    )
    from locktender.flows.flows import Flow, flow
    from locktender.flows.handles import as_handle, not_
    from locktender.flows.steps import AsyncStep, Fatal, Retry, Step, step
    from locktender.flows.waits import sleep, sleep_until, wait_event
    from locktender.observe.answer import Why
    from locktender.provision.protocol import Capacity, Provisioned, Provisioner
    from locktender.store.stored_files import StoredFile
    from locktender.worker.executors.current import Current, current

_HOMES = {
    "base.codec": ("StepError",),
    "base.durations": ("Duration",),
    "base.errors": (
        "AccessRefused",
        "AccessRefused",
        "AdmissionRejected",
        "DuplicateKey",
        "LocktenderError",
        "InvalidFlow",
        "InvalidInput",
        "InvalidSettings",
        "LeaseLost",
        "LimitChanged",
        "NotFound",
        "RunCancelled",
        "RunFailed",
        "RunTimedOut",
        "SchemaTooNew",
        "StoreBusy",
        "StoreUnreachable",
        "StoreError",
        "Unserialisable",
        "WaitTimeout",
    ),
    "base.secrets": ("secret",),
    "base.states": ("RunState", "TaskState"),
    "client.client": ("Client",),
    "client.client_async": ("AsyncClient",),
    "client.open": ("connect", "connect_async", "embedded", "embedded_async"),
    "client.guard": ("ClientClosed",),
    "client.run": ("AsyncRun", "Run"),
    "client.slots": ("HeldSlots",),
    "client.submission": ("Submission",),
    "client.submit_in": ("submit_in", "submit_in_async"),
    "client.views": (
        "EventInfo",
        "LimitChangeInfo",
        "LimitInfo",
        "LogInfo",
        "PoolInfo",
        "ProgressInfo",
        "QueueInfo",
        "Requested",
        "RunInfo",
        "UnstoppedInfo",
        "TaskInfo",
        "WorkerInfo",
    ),
    "client.history": ("EventReaderInfo", "EventsPruned", "HistoryEvent"),
    "client.mailing": ("EventWaitInfo",),
    "client.result_cache": ("CachedInfo",),
    "client.schedules": ("ScheduleChangeInfo", "ScheduleInfo", "TickInfo"),
    "flows.flows": ("Flow", "flow"),
    "flows.handles": ("as_handle", "not_"),
    "flows.waits": ("sleep", "sleep_until", "wait_event"),
    "flows.steps": ("AsyncStep", "Fatal", "Retry", "Step", "step"),
    "observe.why": ("Why",),
    "provision.protocol": ("Capacity", "Provisioned", "Provisioner"),
    "store.stored_files": ("StoredFile",),
    "worker.executors.current": ("Current", "current"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AccessRefused",
    "AdmissionRejected",
    "AsyncClient",
    "AsyncRun",
    "AsyncStep",
    "CachedInfo",
    "Capacity",
    "Client",
    "ClientClosed",
    "Current",
    "DuplicateKey",
    "Duration",
    "EventInfo",
    "EventReaderInfo",
    "EventWaitInfo",
    "EventsPruned",
    "Fatal",
    "Flow",
    "HeldSlots",
    "HistoryEvent",
    "InvalidFlow",
    "InvalidInput",
    "InvalidSettings",
    "LeaseLost",
    "LimitChangeInfo",
    "LimitChanged",
    "LimitInfo",
    "LocktenderError",
    "LogInfo",
    "NotFound",
    "PoolInfo",
    "ProgressInfo",
    "Provisioned",
    "Provisioner",
    "QueueInfo",
    "Requested",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunInfo",
    "RunState",
    "RunTimedOut",
    "ScheduleChangeInfo",
    "ScheduleInfo",
    "SchemaTooNew",
    "Step",
    "StepError",
    "StoreBusy",
    "StoreError",
    "StoreUnreachable",
    "StoredFile",
    "Submission",
    "TaskInfo",
    "TaskState",
    "TickInfo",
    "Unserialisable",
    "UnstoppedInfo",
    "WaitTimeout",
    "Why",
    "WorkerInfo",
    "as_handle",
    "connect",
    "connect_async",
    "current",
    "embedded",
    "embedded_async",
    "flow",
    "not_",
    "secret",
    "sleep",
    "sleep_until",
    "step",
    "submit_in",
    "submit_in_async",
    "wait_event",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'locktender' has no attribute {name!r}")
    if home == "flows.flows":
        import_module("locktender.client.runner")  # so that flow.run(...) finds an engine
    value: object = getattr(import_module(f"locktender.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
