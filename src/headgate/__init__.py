"""Headgate: durable workflows for Python whose concurrency and cost are predictable.

These are the public names. Each is loaded on first use, so that importing the
package costs nothing until something of it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.base.codec import StepError
    from headgate.base.durations import Duration
    from headgate.base.errors import (
        AdmissionRejected,
        DuplicateKey,
        HeadgateError,
        InvalidFlow,
        InvalidInput,
        InvalidSettings,
        LeaseLost,
        NotFound,
        RunCancelled,
        RunFailed,
        RunTimedOut,
        SchemaTooNew,
        StoreBusy,
        StoreError,
        Unserialisable,
        WaitTimeout,
    )
    from headgate.base.secrets import secret
    from headgate.base.states import RunState, TaskState
    from headgate.client.client import Client
    from headgate.client.client_async import AsyncClient
    from headgate.client.embedding import connect, connect_async, embedded, embedded_async
    from headgate.client.guard import ClientClosed
    from headgate.client.run import Run
    from headgate.client.run_async import AsyncRun
    from headgate.client.slots_async import Held
    from headgate.client.submission import Submission
    from headgate.client.views import (
        EventInfo,
        LimitChangeInfo,
        LimitInfo,
        LogInfo,
        PoolInfo,
        ProgressInfo,
        QueueInfo,
        Requested,
        RunInfo,
        StubbornInfo,
        TaskInfo,
        WorkerInfo,
    )
    from headgate.flows.flows import Flow, flow
    from headgate.flows.handles import as_handle, not_
    from headgate.flows.signals import Fatal, Retry
    from headgate.flows.steps import AsyncStep, Step, step
    from headgate.observe.why import Why
    from headgate.provision.protocol import Capacity, Provisioned, Provisioner
    from headgate.stages.executors.current import Current, current

_HOMES = {
    "base.codec": ("StepError",),
    "base.durations": ("Duration",),
    "base.errors": (
        "AdmissionRejected",
        "DuplicateKey",
        "HeadgateError",
        "InvalidFlow",
        "InvalidInput",
        "InvalidSettings",
        "LeaseLost",
        "NotFound",
        "RunCancelled",
        "RunFailed",
        "RunTimedOut",
        "SchemaTooNew",
        "StoreBusy",
        "StoreError",
        "Unserialisable",
        "WaitTimeout",
    ),
    "base.secrets": ("secret",),
    "base.states": ("RunState", "TaskState"),
    "client.client": ("Client",),
    "client.client_async": ("AsyncClient",),
    "client.embedding": ("connect", "connect_async", "embedded", "embedded_async"),
    "client.guard": ("ClientClosed",),
    "client.run": ("Run",),
    "client.run_async": ("AsyncRun",),
    "client.slots_async": ("Held",),
    "client.submission": ("Submission",),
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
        "StubbornInfo",
        "TaskInfo",
        "WorkerInfo",
    ),
    "flows.flows": ("Flow", "flow"),
    "flows.handles": ("as_handle", "not_"),
    "flows.signals": ("Fatal", "Retry"),
    "flows.steps": ("AsyncStep", "Step", "step"),
    "observe.why": ("Why",),
    "provision.protocol": ("Capacity", "Provisioned", "Provisioner"),
    "stages.executors.current": ("Current", "current"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdmissionRejected",
    "AsyncClient",
    "AsyncRun",
    "AsyncStep",
    "Capacity",
    "Client",
    "ClientClosed",
    "Current",
    "DuplicateKey",
    "Duration",
    "EventInfo",
    "Fatal",
    "Flow",
    "HeadgateError",
    "Held",
    "InvalidFlow",
    "InvalidInput",
    "InvalidSettings",
    "LeaseLost",
    "LimitChangeInfo",
    "LimitInfo",
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
    "SchemaTooNew",
    "Step",
    "StepError",
    "StoreBusy",
    "StoreError",
    "StubbornInfo",
    "Submission",
    "TaskInfo",
    "TaskState",
    "Unserialisable",
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
    "step",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    if home == "flows.flows":
        import_module("headgate.client.runner")  # so that flow.run(...) finds an engine
    value: object = getattr(import_module(f"headgate.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
