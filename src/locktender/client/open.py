"""Where clients come from: embedded() runs an engine in this process, connect() only asks one."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

from locktender.base.config import Settings
from locktender.base.durations import Duration
from locktender.base.errors import InvalidInput
from locktender.base.tracebacks import public
from locktender.client.client import Client
from locktender.client.client_async import AsyncClient, ServerAccess, opened
from locktender.client.more_workers import GivenProvisioner, MoreWorkers, more_workers
from locktender.flows.options import readable
from locktender.flows.registry import refuse_while_importing
from locktender.store.open import Url, settings_for
from locktender.worker.executors.sources import refuse_too_deep

P = ParamSpec("P")
T = TypeVar("T")
Prepared = tuple[Settings, MoreWorkers | None]
Table = Mapping[str, Any]


def _settings(
    url: Url | None = None,
    *,
    provisioner: GivenProvisioner | None = None,
    max_concurrent_runs: int | None = None,
    max_active: int | None = None,
    max_waiting: int | None = None,
    pools: Table | None = None,
    tags: Table | None = None,
    fair: str | Table | None = None,
    async_permits: int | None = None,
    thread_permits: int | None = None,
    process_permits: int | None = None,
    total_permits: int | None = None,
    max_workers: int | None = None,
    worker_labels: Mapping[str, str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
    queue_timeout: Duration | None = None,
    dispatch_deadline: Duration | None = None,
    grace: Duration | None = None,
    retention: Duration | None = None,
    continuous_audit: bool | None = None,
    work_dir: Url | None = None,
    log_level: Literal["debug", "info", "warning", "error", "critical"] | None = None,
    max_value: int | str | None = None,
    blob_over: int | str | None = None,
    blob_url: str | None = None,
    strict_pools: bool | None = None,
    placement: Literal["spread", "pack"] | None = None,
    age_boost: Duration | None = None,
    topic_retention: Duration | None = None,
    max_bypass: int | None = None,
    max_starts_per_cycle: int | None = None,
    claim_batch: int | None = None,
    memory_high: float | None = None,
    latency_threshold: Duration | None = None,
    loop_lag: Duration | None = None,
    idle_exit: Duration | None = None,
    max_lifetime: Duration | None = None,
    max_tasks: int | None = None,
    exit_when_stuck: bool | None = None,
    worker_lease: Duration | None = None,
    heartbeat: Duration | None = None,
    leader_lease: Duration | None = None,
    leader_renew: Duration | None = None,
    stall_grace: Duration | None = None,
    offer_ttl: Duration | None = None,
    poll: Duration | None = None,
    provision_interval: Duration | None = None,
    provision_cooldown: Duration | None = None,
    start_timeout: Duration | None = None,
    provisioned_idle_exit: Duration | None = None,
) -> None: ...


def _shows(shown: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Gives a function the signature of `shown`; an unknown setting is refused where settings are read."""
    wanted = readable(inspect.signature(shown))

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        returns = readable(inspect.signature(function)).return_annotation
        function.__signature__ = wanted.replace(return_annotation=returns)  # type: ignore[attr-defined]
        return function

    return decorate


@_shows(_settings)
@public
def embedded(
    url: Url | None = None, *, provisioner: GivenProvisioner | None = None, **overrides: Any
) -> Client:
    """An engine in this process, leader and worker, and a client for it. Close it, or use `with`.

    url   a SQLite file (default `.locktender/locktender.db`) or `postgresql://...`

    Every other option is a setting. None (the default) takes it from `LOCKTENDER_*` variables, the
    settings file, or else the default named here; the text "none" unsets one.

    max_concurrent_runs  10     runs executing at once; -1 is unlimited
    max_active           10000  queued and running runs; beyond it `submit` is refused
    max_waiting          1000000  runs that wait for their time; beyond it `submit` is refused
    pools                none   `{"db": 4, "api[*]": {"limit": 2, "rate": "60/min", "lease": "30s"}}`
    tags                 none   `{"tenant=*": 1, "kind=bulk": {"limit": 2, "max_active": 50}}`
    fair                 none   the tag whose values take turns: `"tenant"`, or `{"key": ..., "weights": ...}`
    async_permits        1000   async tasks at once in one worker; -1 or 0 is unlimited
    thread_permits       8      tasks at once in its threads
    process_permits      cores  tasks at once in its child processes
    total_permits        -1     tasks at once of all kinds; -1 is unlimited
    max_workers          0      more worker processes to start while tasks lack only that
    provisioner          none   starts them elsewhere: a `Provisioner`, or a function of the settings
    worker_labels        none   labels of this worker, for `@step(needs=...)`
    labels               none   the labels that exist, with their values; others are refused
    queue_timeout        none   how long a task may wait at its limits
    dispatch_deadline    4h     how long a task may wait for a worker once every limit has room
    grace                30s    how long running tasks may go on when the client is closed
    retention            none   runs that ended longer ago are removed
    continuous_audit     True   check the history beside the work, with a fiftieth of one core at most
    work_dir             .locktender/work  where bodies have their work directories (or beside the file)
    log_level            info   what `locktender worker` prints: debug, info, warning, error, critical
    max_value            2MB    a larger argument or result is refused
    blob_over            256kB  a larger value is stored apart from its row
    blob_url             none   where: a url such as "s3://bucket/folder"; none: in the store
    strict_pools         False  refuse steps that need a pool that was never set
    placement            spread  "spread" over workers, or "pack" onto few
    age_boost            0      a run gains one priority per this much waiting; 0 is off
    topic_retention      7d     how long an event of a topic is kept for runs that begin to wait later
    max_bypass           16     tasks that may pass a large one before slots are kept for it
    max_starts_per_cycle 1000   tasks the leader starts in one commit
    claim_batch          500    a batch of offers; two may be on their way to a worker
    memory_high          0.8    share of memory above which a worker takes less
    latency_threshold    none   99th percentile above which a worker takes less
    loop_lag             100ms  a step that blocks the loop for longer is named in the log
    idle_exit            none   a worker ends itself after so long without work
    max_lifetime         none   a worker ends itself at this age
    max_tasks            none   a worker ends itself when it has begun so many tasks
    exit_when_stuck      False  end the process if a thread outlives the worker's lease
    stall_grace          5m     how long a worker that lives and does not renew its lease keeps its tasks
    worker_lease         10s    how long a worker is taken to be alive; more than twice `heartbeat`
    heartbeat            2s     how often a worker renews its lease
    leader_lease         5s     how long a leader leads without renewing; more than twice `leader_renew`
    leader_renew         1s     how often the leader renews its lease
    offer_ttl            2s     an offer that has no answer after so long goes to another worker
    poll                 1s     how often rows are read where no notification came
    provision_interval   5s     the time between two requests for workers
    provision_cooldown   10s    the pause after a failed request; doubled by each that follows, up to 5 min
    start_timeout        60s    how long a requested worker may take to join
    provisioned_idle_exit  60s  how long a requested worker stays without work

        with embedded(max_concurrent_runs=4, pools={"db": 4}) as engine:
            print(engine.submit(build, ["a", "b"]).result("10m"))
    """
    settings, more = _prepared(url, provisioner, overrides)
    return Client(settings, engine=True, more=more)


@public
def connect(url: Url | None = None, *, token: str | None = None, ca: Url | None = None) -> Client:
    """A client without an engine: it submits and asks; engines in other processes do the work.

    url    a SQLite file, `postgresql://...`, or a server: `https://...` (on this machine `http://...`);
           default the setting `url`, which is `.locktender/locktender.db`
    token  of a server; default the variable `LOCKTENDER_TOKEN`
    ca     of a server: a file of certificates to trust in place of the system's

    A store that does not exist yet is made, so that submitting may come before the first engine. A server
    knows the flows that its workers have announced, and `slots()` needs the database itself.

        with connect("postgresql://app@db/flows") as client:
            run = client.submit(build, ["a"])
    """
    return Client(_connected(url), engine=False, access=_access(token, ca))


def _connected(url: Url | None) -> Settings:
    """Settings of a client without an engine. In a step's body that names no store it has to be the engine's."""
    settings = settings_for(url, {})
    # Looked for only: a process without an engine has no use for these modules.
    running = sys.modules.get("locktender.engine")
    bodies = sys.modules.get("locktender.worker.executors.current")
    if url is not None or "url" in settings.sources or running is None or bodies is None:
        return settings
    if bodies.current() is None:
        return settings
    engines = list(running.ENGINES)
    if engines and all("url" in each.settings.sources for each in engines):
        raise InvalidInput(
            f"connect() in a step names no store, and would use {settings.shown_url}: the engine that runs"
            " this step has another one.",
            field="url",
            hint="Give it the engine's url, connect(url), or set LOCKTENDER_URL for both.",
        )
    return settings


def _access(token: str | None, ca: Url | None) -> ServerAccess:
    return ServerAccess(token, None if ca is None else os.fspath(ca))


@public
class Opening:
    """An async client that is not open yet: `await` it, or use it in `async with`."""

    def __init__(
        self,
        prepared: Callable[[], Prepared],
        *,
        engine: bool,
        access: ServerAccess | None = None,
    ) -> None:
        self._prepared = prepared
        self._engine = engine
        self._access = access
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    @public
    async def _open(self) -> AsyncClient:
        settings, more = self._prepared()
        client, _ = await opened(settings, engine=self._engine, more=more, access=self._access)
        return client

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._open()
        return await self._client.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.__aexit__(kind, error, trace)


@_shows(_settings)
def embedded_async(
    url: Url | None = None, *, provisioner: GivenProvisioner | None = None, **overrides: Any
) -> Opening:
    """`embedded()` on the caller's event loop, with the same options: `await` it, or use `async with`.

    async with embedded_async(max_concurrent_runs=4) as engine:
        run = await engine.submit(build, ["a", "b"])
        print(await run.result("10m"))
    """
    return Opening(lambda: _prepared(url, provisioner, overrides), engine=True)


def connect_async(
    url: Url | None = None, *, token: str | None = None, ca: Url | None = None
) -> Opening:
    """`connect()` on the caller's event loop, with the same options: `await` it, or use `async with`."""
    access = _access(token, ca)
    return Opening(lambda: (_connected(url), None), engine=False, access=access)


def _prepared(
    url: Url | None, provisioner: GivenProvisioner | None, overrides: dict[str, Any]
) -> Prepared:
    refuse_while_importing("starts an engine")
    refuse_too_deep()
    settings = settings_for(url, overrides)
    return settings, more_workers(settings, provisioner)
