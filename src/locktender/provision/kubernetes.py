"""Workers as Kubernetes Jobs, one pod each.

A leader keeps a copy of its Jobs: it lists them once and then watches. Whatever breaks the
watch (410, a lost connection, a server that is away) is followed by a new list; until that
succeeds `list()` fails, so that no worker is taken for gone. The name of a Job is the name
that the leader stored, so a repeated request answers 409 and is the same worker.

A released Job is deleted in the foreground: it is there until its pod is gone, and counts
so long. An ended Job is removed by the cluster after `ttl`, and by the leader if the cluster
does not. The Deployment that `owner` names owns the Jobs: they go when it is deleted.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from locktender.base.background import end_tasks
from locktender.base.clock import Clock, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import InvalidSettings
from locktender.provision.kube_api import (
    ApiAccess,
    ApiError,
    ApiUnreachable,
    JsonObject,
    KubeApi,
)
from locktender.provision.kube_jobs import (
    INSTANCE,
    MANAGED_BY,
    WORKER,
    JobMaker,
    KubeJob,
    KubePod,
    Manifest,
    PodOptions,
    provisioned,
)
from locktender.provision.options import WorkerSpec, duration_us, store_hash
from locktender.provision.protocol import (
    Capacity,
    Provisioned,
    WrongAnswer,
    error_text,
    granted_names,
)

log: logging.Logger = logging.getLogger(__name__)
BATCH = "batch/v1"
MAX_REQUESTS = 8
"""At once."""
WATCH_SECONDS = 60
WATCH_MARGIN_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 10.0
"""A watch of at least so long is followed by the next one without a pause."""
PAGE = 500
PODS_SECONDS = 5.0
"""Between two looks at the pods of Jobs that do not run, or that failed."""
SWEEP_SECONDS = 30.0
MAX_SWEPT = 50
ENDED_LISTED = 500
OWNERS = {
    "deployment": ("apps/v1", "Deployment", "deployments"),
    "statefulset": ("apps/v1", "StatefulSet", "statefulsets"),
    "configmap": ("v1", "ConfigMap", "configmaps"),
}


class KubernetesWorkers(PodOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the Kubernetes provisioner: `[provisioner]` with `kind = "kubernetes"`, or in Python."""

    template: str = ""
    """A file with the manifest of a Job (JSON or YAML) that the options are put into."""
    namespace: str = ""
    """Empty: the one that the leader's pod is in."""
    owner: str = ""
    """What owns the Jobs, e.g. `deployment/locktender-server`; empty: nothing."""
    instance: str = ""
    """Tells the workers of one store from others in the namespace; empty: made from the url."""
    api_server: str = ""
    """Empty: as a pod finds it."""
    token_file: str = ""
    ca_file: str = ""

    def __call__(self, settings: Settings) -> KubernetesProvisioner:
        return KubernetesProvisioner(self, settings)


class KubernetesProvisioner:
    def __init__(
        self, options: KubernetesWorkers, settings: Settings, *, clock: Clock | None = None
    ) -> None:
        if options.worker_url:
            raise InvalidSettings(
                "provisioner.worker_url is not used with Kubernetes: the url is in a Secret.",
                field="provisioner.worker_url",
                hint="Name the Secret: secret = 'locktender-worker', secret_key = 'url'.",
            )
        self._clock = clock or SystemClock()
        self._owner = _owner(options.owner)
        self._api = KubeApi(
            ApiAccess.found(
                server=options.api_server,
                namespace=options.namespace,
                token_file=options.token_file,
                ca_file=options.ca_file,
            )
        )
        self._spec = WorkerSpec(settings, options, builtins.list(options.labels))
        self._ttl_us = duration_us(options.ttl, "ttl")
        instance = options.instance or store_hash(settings)
        self._jobs = JobMaker(
            options,
            _template(options.template),
            instance=instance,
            grace_us=self._spec.grace_us,
            ttl_us=self._ttl_us,
        )
        self._selector = f"{MANAGED_BY}=locktender,{INSTANCE}={instance}"
        self._copy = _JobCopy(self._api, self._api.path(BATCH, "jobs"), self._selector)
        self._pods: dict[str, KubePod] = {}
        self._pods_at = self._swept_at = -1e9
        self._finished_at: dict[str, int] = {}
        self._requests = asyncio.Semaphore(MAX_REQUESTS)

    # -- the protocol ------------------------------------------------------------------------------

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return self._spec.capacity(needs)

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> builtins.list[str]:
        owner = await self._owner_reference()
        answers = await asyncio.gather(
            *(self._create(name, needs, reason, owner) for name in names[:n]),
            return_exceptions=True,
        )
        return granted_names(names, answers, "failed to create a Job")

    async def list(self) -> builtins.list[Provisioned]:
        jobs = await self._copy.jobs()
        now = asyncio.get_running_loop().time()
        if now - self._pods_at >= PODS_SECONDS and any(job.asks_for_pod for job in jobs):
            self._pods_at = now
            await self._read_pods()
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            await self._sweep(jobs)
        found = [provisioned(job, self._pods.get(job.name)) for job in jobs]
        known = {each.name for each in found}
        return found + [each for each in self._copy.ended if each.name not in known]

    async def release(self, name: str) -> None:
        await self._delete(name, "Foreground")

    async def close(self) -> None:
        """Workers in the cluster run until they are idle, or until another leader releases them."""
        await self._copy.close()

    # -- requests ----------------------------------------------------------------------------------

    async def _create(
        self, name: str, needs: Mapping[str, str], reason: str, owner: Manifest | None
    ) -> None:
        job = self._jobs.job(name, needs, reason, self._spec.variables(name, needs), owner)
        async with self._requests:
            try:
                self._copy.put(_job(await self._api.post(self._api.path(BATCH, "jobs"), job)))
            except ApiUnreachable as error:
                if error.sent:
                    raise WrongAnswer(f"{error}; the worker may still come") from error
                raise
            except ApiError as error:
                if error.status != 409:
                    if error.unsure:
                        raise WrongAnswer(f"{error}; the worker may still come") from error
                    raise
                # An earlier try of this request was carried out, and its answer was lost.
                found = await self._existing(name)
                if (found.metadata.labels or {}).get(WORKER) != name:
                    raise
                self._copy.put(found)

    async def _existing(self, name: str) -> KubeJob:
        try:
            return _job(await self._api.get(self._api.path(BATCH, "jobs", name)))
        except (ApiError, ApiUnreachable) as error:
            if isinstance(error, ApiError) and error.status == 404:
                raise
            what = "a Job of this name exists and cannot be read"
            raise WrongAnswer(f"{what}: {error}; the worker may still come") from error

    async def _delete(self, name: str, propagation: str) -> None:
        try:
            await self._api.delete(self._api.path(BATCH, "jobs", name), propagation)
        except ApiError as error:
            if error.status != 404:
                raise
            self._copy.forget(name)

    async def _owner_reference(self) -> Manifest | None:
        """Read at each request: one that was made anew has another uid; Jobs with the old one would be removed."""
        if self._owner is None:
            return None
        version, kind, plural, name = self._owner
        found = await self._api.get(self._api.path(version, plural, name))
        return {
            "apiVersion": version,
            "kind": kind,
            "name": name,
            "uid": _job(found).metadata.uid,
            "controller": False,
            "blockOwnerDeletion": False,
        }

    async def _read_pods(self) -> None:
        """Only to say why: what fails here fails nothing else."""
        query = {"labelSelector": self._selector, "limit": str(PAGE)}
        try:
            found = await self._api.get(self._api.path("v1", "pods"), query)
        except (ApiError, ApiUnreachable) as error:
            log.debug("failed to read pods: %s", error)
            return
        pods = [_read(pod, KubePod) for pod in _items(found)]
        self._pods = {(pod.metadata.labels or {}).get(WORKER, ""): pod for pod in pods}

    async def _sweep(self, jobs: Sequence[KubeJob]) -> None:
        """Deletes Jobs that ended long ago: not every cluster does so by itself."""
        now = self._clock.monotonic()
        finished = {job.name for job in jobs if job.finished is not None}
        self._finished_at = {name: self._finished_at.get(name, now) for name in finished}
        old = [name for name, at in self._finished_at.items() if now - at > 2 * self._ttl_us]
        for name in old[:MAX_SWEPT]:
            try:
                await self._delete(name, "Background")
            except (ApiError, ApiUnreachable) as error:
                log.warning("provisioner: %s", error_text(error, f"failed to delete Job {name}"))
                return


class _JobCopy:
    """A copy of the Jobs of one store, kept by list and watch."""

    def __init__(self, api: KubeApi, path: str, selector: str) -> None:
        self._api = api
        self._path = path
        self._selector = selector
        self._found: dict[str, KubeJob] = {}
        self._created: dict[str, KubeJob] = {}
        """Since the last list began: that one may not have them."""
        self._error: Exception | None = None
        self._synced = asyncio.Event()
        """There is an answer: the copy, or why there is none."""
        self._task: asyncio.Task[None] | None = None
        self.ended: deque[Provisioned] = deque(maxlen=ENDED_LISTED)
        """Jobs that are gone."""

    async def jobs(self) -> builtins.list[KubeJob]:
        """Raises while the copy is not kept up."""
        if self._task is None or self._task.done():
            self._synced.clear()
            self._task = asyncio.create_task(self._follow(), name="locktender-kubernetes-jobs")
        await self._synced.wait()
        if self._error is not None:
            raise self._error
        return builtins.list(self._found.values())

    def put(self, job: KubeJob) -> None:
        """One that was just created; the watch may have told of it, and of its end, already."""
        if all(each.name != job.name for each in self.ended):
            self._found.setdefault(job.name, job)
            self._created[job.name] = job

    def forget(self, name: str) -> None:
        """There is no such Job. If one is created later, the watch says so."""
        self._gone(name)

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        pause, version = FIRST_PAUSE_SECONDS, ""
        while True:
            began = loop.time()
            try:
                version = version or await self._list()
                self._error = None
                self._synced.set()
                version = await self._watch(version)
            except (ApiError, ApiUnreachable) as error:
                self._error, version = error, ""
            except Exception as error:  # the copy must not end: the leader would wait for it
                log.exception("failed to follow Jobs: internal error")
                self._error, version = error, ""
            self._synced.set()
            if loop.time() - began >= STEADY_SECONDS:
                pause = FIRST_PAUSE_SECONDS
                if self._error is None:
                    continue
            # Also after a watch that ended well: a proxy may end each one at once.
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _list(self) -> str:
        """Reads all Jobs anew; returns the version that a watch begins at."""
        query = {"labelSelector": self._selector, "limit": str(PAGE)}
        found: dict[str, KubeJob] = {}
        self._created.clear()
        while True:
            page = await self._api.get(self._path, query)
            found |= {job.name: job for job in map(_job, _items(page))}
            meta = cast("JsonObject", page.get("metadata") or {})
            if not meta.get("continue"):
                break
            query["continue"] = str(meta["continue"])
        # What ended meanwhile is told by the watch, which begins at the version of this list.
        found = self._created | found
        for name in self._found.keys() - found.keys():
            self._gone(name)
        self._found = found
        return str(meta.get("resourceVersion", ""))

    async def _watch(self, version: str) -> str:
        """Follows changes; returns where to go on, or nothing where the Jobs must be listed anew."""
        query = {
            "labelSelector": self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        events = self._api.watch(self._path, query, WATCH_SECONDS + WATCH_MARGIN_SECONDS)
        try:
            async for event in events:
                kind, found = event.get("type"), cast("JsonObject", event.get("object") or {})
                if kind == "ERROR":
                    if found.get("code") == 410:
                        return ""
                    raise ApiError(int(found.get("code") or 500), str(found.get("message")))
                job = _job(found)
                version = job.metadata.resource_version or version
                if kind in ("ADDED", "MODIFIED", "DELETED"):
                    self._found[job.name] = job
                if kind == "DELETED":
                    self._gone(job.name)
        except ApiError as error:
            if error.status != 410:
                raise
            return ""
        finally:
            with suppress(RuntimeError):
                await events.aclose()
        return version

    def _gone(self, name: str) -> None:
        self._created.pop(name, None)
        job = self._found.pop(name, None)
        if job is not None:
            last = provisioned(job, None)
            state = "failed" if last.state == "failed" else "ended"
            self.ended.append(msgspec.structs.replace(last, state=state, released=True))


T = TypeVar("T", KubeJob, KubePod)


def _read(found: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ApiUnreachable(f"the answer is not as expected: {error}", sent=True) from error


def _job(found: object) -> KubeJob:
    return _read(found, KubeJob)


def _items(page: JsonObject) -> builtins.list[object]:
    return cast("builtins.list[object]", page.get("items") or [])


def _owner(text: str) -> tuple[str, str, str, str] | None:
    if not text:
        return None
    kind, slash, name = text.partition("/")
    if not slash or not name or kind.lower() not in OWNERS:
        raise InvalidSettings(
            "provisioner.owner names a kind and an object.",
            field="provisioner.owner",
            got=text,
            hint=f"e.g. deployment/locktender-server; kinds: {', '.join(OWNERS)}",
        )
    return (*OWNERS[kind.lower()], name)


def _template(path: str) -> Manifest | None:
    if not path:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidSettings(
            f"provisioner.template: failed to read {path}: {error.strerror}.",
            field="provisioner.template",
        ) from error
    try:
        found: object = (
            _yaml(text) if path.endswith((".yaml", ".yml")) else msgspec.json.decode(text)
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidSettings(
            f"provisioner.template: {path} cannot be read: {error}.", field="provisioner.template"
        ) from error
    if not isinstance(found, dict) or cast("Manifest", found).get("kind", "Job") != "Job":
        raise InvalidSettings(
            f"provisioner.template: {path} is not the manifest of a Job.",
            field="provisioner.template",
        )
    return cast("Manifest", found)


def _yaml(text: bytes) -> object:
    try:
        return msgspec.yaml.decode(text)
    except ImportError as error:
        raise InvalidSettings(
            "a template in YAML needs what is not installed.",
            field="provisioner.template",
            hint="Try: pip install 'locktender[kubernetes]', or write it as JSON.",
        ) from error
