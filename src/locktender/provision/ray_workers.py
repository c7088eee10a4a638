"""Workers on a Ray cluster: one detached actor each, which owns a worker process.

Ray is not imported here: a process of its own talks to the cluster (`ray_bridge.py`), is
started when it is needed, and is killed when a call takes too long or is cancelled. A
cluster that is away makes calls fail; the leader goes on, and asks again after a cool-down.

Labels become resources of the actor (`actor_options`). Whether a node has them is known
from the last list.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, cast

import msgspec

from locktender.base.clock import SECOND
from locktender.base.config import PREFIX, Settings
from locktender.base.errors import InvalidSettings, LocktenderError
from locktender.provision.local import error_in
from locktender.provision.options import (
    WorkerOptions,
    WorkerSpec,
    check_worker_url,
    duration_us,
    store_hash,
    worker_url,
)
from locktender.provision.protocol import Capacity, Provisioned, ProvisionedState, WrongAnswer

log: logging.Logger = logging.getLogger(__name__)
BRIDGE = (sys.executable, "-m", "locktender.provision.ray_bridge")
KILL_MARGIN_SECONDS = 10.0
"""After its grace, a released worker is killed."""
PRESENT = 0.001
"""How much of a custom resource a worker takes whose label has a value that is not a number."""
TAIL_BYTES = 16 << 10
REAP_SECONDS = 5.0
MAX_ERROR_LENGTH = 200
RESERVED_OPTIONS = (
    "name",
    "lifetime",
    "get_if_exists",
    "max_restarts",
    "max_concurrency",
    "namespace",
)


class RayFailed(LocktenderError):
    code = "ray_failed"


class RayWorkers(WorkerOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the Ray provisioner: `[provisioner]` with `kind = "ray"`, or in Python."""

    sources: tuple[str, ...]
    """What a worker loads, as `locktender worker` takes it on the nodes: `("--app", "shop.flows")`."""
    address: str = "auto"
    """Of the cluster, as for `ray.init`: `host:6379`, `ray://host:10001`, or `auto` on one of its nodes."""
    namespace: str = ""
    """Of the actors; empty: one per store. All leaders of a store need the same."""
    cpus: float = 1
    """Of one worker, unless its step needs another number with the label `cpu`."""
    actor: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """More options of the actors: `runtime_env`, `memory`, `scheduling_strategy`, …"""
    autoscales: bool = False
    """The cluster adds nodes for actors that wait: then labels that no node has are requested too."""
    timeout: str = "30s"
    """Of one call to the cluster."""

    def __call__(self, settings: Settings) -> RayProvisioner:
        return RayProvisioner(self, settings)


class RayProvisioner:
    def __init__(self, options: RayWorkers, settings: Settings) -> None:
        check_worker_url(options.worker_url)
        check_options(options)
        WorkerSpec(settings, options, ())  # refuses wrong settings now
        self._options = options
        self._settings = settings
        grace = options.settings.get("grace")
        self._grace_us = (
            settings.grace_us if grace is None else duration_us(grace, "settings.grace")
        )
        hello = {
            "address": options.address,
            "namespace": options.namespace or f"locktender-{store_hash(settings)}",
            "start_seconds": settings.start_timeout_us / SECOND,
        }
        self._bridge = _Bridge(hello, duration_us(options.timeout, "timeout") / SECOND)
        self._nodes: builtins.list[dict[str, float]] | None = None
        """What each node of the cluster has; None: not known yet."""

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        options = actor_options(self._options, needs)
        if options is None:
            return None
        if self._nodes is not None and not self._options.autoscales:
            wanted = demand_of(options)
            if not any(_fits(wanted, node) for node in self._nodes):
                return None
        return self._spec(needs).capacity(needs)

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> builtins.list[str]:
        options = actor_options(self._options, needs)
        if options is None:
            raise RayFailed("no actor can have these labels.", field="needs", got=dict(needs))
        log.info("requesting %d actors %s", n, reason)
        spec = self._spec(needs)
        try:
            return await self._bridge.call(
                "request",
                workers={name: spec.variables(name, needs) for name in names[:n]},
                words=builtins.list(self._options.sources),
                options=options,
                secrets=self._secrets(),
                start_seconds=self._settings.start_timeout_us / SECOND,
                grace_seconds=self._grace_us / SECOND + KILL_MARGIN_SECONDS,
            )
        except ConnectionError as error:
            raise WrongAnswer(str(error)) from error  # the actors may have been made

    async def list(self) -> builtins.list[Provisioned]:
        answer = await self._bridge.call("list", secrets=self._secrets())
        self._nodes = answer["nodes"]
        return [
            Provisioned(each["name"], _state(each), 0, each["detail"], each.get("released", False))
            for each in answer["workers"]
        ]

    async def release(self, name: str) -> None:
        await self._bridge.call("release", name=name)

    async def close(self) -> None:
        """The workers stay: another leader counts them, and without work they end themselves."""
        await self._bridge.end()

    def _spec(self, needs: Mapping[str, str]) -> WorkerSpec:
        return WorkerSpec(self._settings, self._options, [f"{label}=*" for label in needs])

    def _secrets(self) -> dict[str, str]:
        return {f"{PREFIX}URL": worker_url(self._options.worker_url, self._settings)}


def check_options(options: RayWorkers) -> None:
    if find_spec("ray") is None:
        raise InvalidSettings(
            "workers on Ray need the package ray, which is not installed.",
            field="provisioner.kind",
            got="ray",
            hint="Try: pip install 'locktender[ray]'",
        )
    if not options.sources:
        raise InvalidSettings(
            "provisioner.sources is empty: a worker would have no step.",
            field="provisioner.sources",
            hint='e.g. sources = ["--app", "shop.flows"]',
        )
    for key in options.actor:
        if key in RESERVED_OPTIONS:
            raise InvalidSettings(
                f"provisioner.actor.{key} is set by the provisioner.",
                field=f"provisioner.actor.{key}",
                hint="Leave it out.",
            )


def actor_options(options: RayWorkers, needs: Mapping[str, str]) -> dict[str, Any] | None:
    """Options of an actor whose worker has these labels; None: there is no such actor.

    gpu=2       two GPUs             gpu=A100     one GPU of that type
    cpu=4       four CPUs            spot=1       one of the custom resource `spot`
    zone=eu     a node that has any of the custom resource `zone:eu`
    """
    found: dict[str, Any] = {"num_cpus": options.cpus, **options.actor}
    resources: dict[str, float] = dict(found.get("resources", {}))
    for label, value in needs.items():
        number = _number(value)
        if number is not None and not 0 < number < math.inf:
            return None
        if label == "gpu":
            found["num_gpus"] = 1 if number is None else number
            if number is None:
                found["accelerator_type"] = value
        elif label == "cpu":
            if number is None:
                return None
            found["num_cpus"] = number
        elif number is None:
            resources[f"{label}:{value}"] = PRESENT
        else:
            resources[label] = number
    return found | ({"resources": resources} if resources else {})


def demand_of(options: Mapping[str, Any]) -> dict[str, float]:
    """The options as Ray counts the resources of a node."""
    found: dict[str, float] = {
        "CPU": options.get("num_cpus", 0),
        "GPU": options.get("num_gpus", 0),
        "memory": options.get("memory", 0),
        **options.get("resources", {}),
    }
    if "accelerator_type" in options:
        found[f"accelerator_type:{options['accelerator_type']}"] = PRESENT
    return found


def _fits(wanted: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in wanted.items())


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value.is_integer() else value


def _state(each: Mapping[str, Any]) -> ProvisionedState:
    return each["state"]


class _Bridge:
    """One process at a time, one call at a time."""

    def __init__(self, hello: Mapping[str, Any], timeout_seconds: float) -> None:
        self._hello = dict(hello)
        self._timeout = timeout_seconds
        self._process: _BridgeProcess | None = None
        self._killed: list[_BridgeProcess] = []
        """Those that may not have ended yet."""
        self._lock = asyncio.Lock()

    async def call(self, verb: str, **order: Any) -> Any:
        async with self._lock:
            process = await self._connected()
            try:
                async with asyncio.timeout(self._timeout):
                    return await process.ask({"verb": verb, **order})
            except _Refused as error:
                raise RayFailed(f"{verb}: {error}", field="address") from None
            except BaseException:
                # Timed out, cancelled, or the process has ended: its state is not known.
                self._kill()
                raise

    async def end(self) -> None:
        async with self._lock:
            self._kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(REAP_SECONDS):
                    for process in self._killed:
                        await process.exited.wait()

    async def _connected(self) -> _BridgeProcess:
        if self._process is not None and not self._process.ended:
            return self._process
        self._kill()
        where = f"the Ray cluster at {self._hello['address']}"
        try:
            async with asyncio.timeout(self._timeout):
                loop = asyncio.get_running_loop()
                _, self._process = await loop.subprocess_exec(
                    _BridgeProcess, *BRIDGE, start_new_session=True
                )
                await self._process.ask(self._hello)
        except (_Refused, ConnectionError, OSError) as error:
            self._kill()
            said = "it does not answer" if isinstance(error, TimeoutError) else str(error)
            raise RayFailed(f"failed to connect to {where}: {said}", field="address") from error
        except BaseException:
            self._kill()
            raise
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        self._killed = [each for each in self._killed if not each.exited.is_set()]
        if process is not None:
            process.close()
            self._killed.append(process)


class _BridgeProcess(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self.ended = False
        self.exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._line = bytearray()
        self._errors = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    async def ask(self, order: Mapping[str, Any]) -> Any:
        pipe = None if self._transport is None else self._transport.get_pipe_transport(0)
        if self.ended or pipe is None:
            raise self._gone()
        self._answer = asyncio.get_running_loop().create_future()
        cast("asyncio.WriteTransport", pipe).write(msgspec.json.encode(order) + b"\n")
        answer: dict[str, Any] = msgspec.json.decode(await self._answer)
        if "error" in answer:
            raise _Refused(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Kills it if it lives; asyncio reaps it."""
        self.ended = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._errors += data
            del self._errors[:-TAIL_BYTES]
            return
        self._line += data
        if data.endswith(b"\n") and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(self._line))
            self._line.clear()

    def process_exited(self) -> None:
        self.ended = True
        self.exited.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._gone())

    def _gone(self) -> ConnectionError:
        said = error_in(bytes(self._errors).decode(errors="replace"))[:MAX_ERROR_LENGTH]
        return ConnectionError(f"the bridge to Ray has ended: {said or 'without output'}")


class _Refused(Exception):
    """The bridge lives, and says why the call failed."""
