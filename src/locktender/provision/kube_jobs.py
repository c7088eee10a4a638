"""A worker as a Kubernetes Job: its manifest, and what its status says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from locktender.base.clock import SECOND
from locktender.base.config import PREFIX
from locktender.base.errors import InvalidSettings
from locktender.provision.local import error_in
from locktender.provision.options import WorkerOptions
from locktender.provision.protocol import Provisioned, ProvisionedState

MANAGED_BY = "app.kubernetes.io/managed-by"
INSTANCE = "locktender.dev/instance"
WORKER = "locktender.dev/worker"
REASON = "locktender.dev/reason"
CONTAINER = "worker"
GRACE_MARGIN_SECONDS = 30
MAX_REASON_LENGTH = 200
MAX_TEXT_LENGTH = 500
WORK_DIR = "/tmp/locktender"  # noqa: S108 — in the pod, on a volume of its own
Manifest = dict[str, Any]


class LabelledNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a pod gets for a label that a step needs. `${value}` is the label's value."""

    node_selector: dict[str, str] = {}
    limits: dict[str, str] = {}
    tolerations: tuple[dict[str, str], ...] = ()


class PodResources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class PodOptions(WorkerOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What the Job of a worker is made of."""

    image: str = ""
    args: tuple[str, ...] = ()
    """Of the image's entry point, e.g. `["worker", "flows.py"]`."""
    secret: str
    """The Secret with the url of the store for workers; a pod gets it as LOCKTENDER_URL."""
    secret_key: str = "url"  # noqa: S105 — a name, no secret
    resources: PodResources = PodResources()
    labels: dict[str, LabelledNodes] = msgspec.field(default_factory=dict[str, LabelledNodes])
    """Labels that pods can have: `gpu=a100`, or `zone=*`."""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    ttl: str = "10m"
    """How long an ended Job stays, to be looked at."""


class JobMaker:
    def __init__(
        self,
        options: PodOptions,
        template: Manifest | None,
        *,
        instance: str,
        grace_us: int,
        ttl_us: int,
    ) -> None:
        self._options = options
        self._template = msgspec.json.encode(template or {})
        self._instance = instance
        self._grace = grace_us // SECOND + GRACE_MARGIN_SECONDS
        self._ttl = ttl_us // SECOND
        self.job("worker-check", {}, "", {}, None)  # a template that cannot be used is refused now

    def job(
        self,
        name: str,
        needs: Mapping[str, str],
        reason: str,
        variables: Mapping[str, str],
        owner: Manifest | None,
    ) -> Manifest:
        job = cast("Manifest", msgspec.json.decode(self._template))
        job |= {"apiVersion": "batch/v1", "kind": "Job"}
        marks = {MANAGED_BY: "locktender", INSTANCE: self._instance, WORKER: name}
        meta = _table(job, "metadata")
        for key in ("namespace", "generateName"):
            meta.pop(key, None)
        meta["name"] = name
        _table(meta, "labels").update(marks)
        if reason:
            _table(meta, "annotations")[REASON] = reason[:MAX_REASON_LENGTH]
        if owner is not None:
            meta["ownerReferences"] = [owner]
        spec = _table(job, "spec")
        # Its leader requests another worker in its place: a Job that repeats itself would be one too many.
        spec |= {"backoffLimit": 0, "parallelism": 1, "completions": 1}
        spec.setdefault("ttlSecondsAfterFinished", self._ttl)
        spec.setdefault("podFailurePolicy", _IGNORED)
        pod = _table(spec, "template")
        _table(_table(pod, "metadata"), "labels").update(marks)
        self._fill_pod(_table(pod, "spec"), needs, variables)
        return job

    def _fill_pod(
        self, pod: Manifest, needs: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        options = self._options
        pod["restartPolicy"] = "Never"
        pod.setdefault("terminationGracePeriodSeconds", self._grace)
        # A worker asks the API server for nothing.
        pod.setdefault("automountServiceAccountToken", False)
        pod.setdefault("securityContext", _POD_SECURITY)
        if options.service_account:
            pod["serviceAccountName"] = options.service_account
        if options.pull_secrets:
            pod["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
        container = _worker_container(pod)
        if options.image:
            container["image"] = options.image
        if not container.get("image"):
            raise InvalidSettings("provisioner.image is not set.", field="provisioner.image")
        if options.args:
            container["args"] = list(options.args)
        container.setdefault("securityContext", _CONTAINER_SECURITY)
        # The last lines of its log are in the status of the pod: `why` shows them.
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
        resources = _table(container, "resources")
        _table(resources, "requests").update(options.resources.requests)
        limits = _table(resources, "limits")
        limits.update(options.resources.limits)
        for nodes, value in self._nodes(needs):
            selector = _table(pod, "nodeSelector")
            selector.update(
                {key: _valued(text, value) for key, text in nodes.node_selector.items()}
            )
            limits.update({key: _valued(text, value) for key, text in nodes.limits.items()})
            more = [
                {key: _valued(text, value) for key, text in each.items()}
                for each in nodes.tolerations
            ]
            pod["tolerations"] = [*pod.get("tolerations", []), *more]
        _mount_tmp(pod, container)
        _set_variables(container, self._variables(variables))

    def _variables(self, variables: Mapping[str, str]) -> list[Manifest]:
        reference = {"name": self._options.secret, "key": self._options.secret_key}
        plain = {f"{PREFIX}WORK_DIR": WORK_DIR, **variables}
        return [
            {"name": f"{PREFIX}URL", "valueFrom": {"secretKeyRef": reference}},
            *({"name": name, "value": value} for name, value in plain.items()),
        ]

    def _nodes(self, needs: Mapping[str, str]) -> list[tuple[LabelledNodes, str]]:
        known = self._options.labels
        found: list[tuple[LabelledNodes, str]] = []
        for label, value in needs.items():
            nodes = known.get(f"{label}={value}") or known.get(f"{label}=*")
            if nodes is not None:
                found.append((nodes, value))
        return found


_IGNORED: Manifest = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
}
"""A pod that its node loses (drain, preemption) is not a failure of the worker: the Job starts it again."""
_POD_SECURITY: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _valued(text: str, value: str) -> str:
    return text.replace("${value}", value)


def _table(parent: Manifest, key: str) -> Manifest:
    found = parent.setdefault(key, {})
    if not isinstance(found, dict):
        raise InvalidSettings(
            f"the template's {key} is not a table.", field="provisioner.template", got=found
        )
    return cast("Manifest", found)


def _worker_container(pod: Manifest) -> Manifest:
    """The container called `worker`, else the first; made where the template has none."""
    found = cast("list[Manifest]", pod.setdefault("containers", []))
    if not found:
        found.append({"name": CONTAINER})
    return next((each for each in found if each.get("name") == CONTAINER), found[0])


def _mount_tmp(pod: Manifest, container: Manifest) -> None:
    mounts = cast("list[Manifest]", container.setdefault("volumeMounts", []))
    if any(each.get("mountPath") == "/tmp" for each in mounts):  # noqa: S108 — in the pod
        return
    mounts.append({"name": "locktender-tmp", "mountPath": "/tmp"})  # noqa: S108 — in the pod
    cast("list[Manifest]", pod.setdefault("volumes", [])).append(
        {"name": "locktender-tmp", "emptyDir": {}}
    )


def _set_variables(container: Manifest, given: Sequence[Manifest]) -> None:
    names = {each["name"] for each in given}
    before = cast("list[Manifest]", container.get("env") or [])
    container["env"] = [each for each in before if each.get("name") not in names] + list(given)


# -- what the API server says ----------------------------------------------------------------------


class _Sent(msgspec.Struct, frozen=True, rename="camel"):
    """Fields that the API server has beyond these are ignored."""


class ObjectMeta(_Sent, frozen=True, rename="camel"):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    resource_version: str = ""
    deletion_timestamp: str | None = None


class KubeCondition(_Sent, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class JobStatus(_Sent, frozen=True, rename="camel"):
    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    conditions: list[KubeCondition] | None = None


class KubeJob(_Sent, frozen=True, rename="camel"):
    """A Job, as far as it matters here."""

    metadata: ObjectMeta = ObjectMeta()
    status: JobStatus = JobStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def finished(self) -> KubeCondition | None:
        for each in self.status.conditions or ():
            if each.type in ("Complete", "Failed") and each.status == "True":
                return each
        return None

    @property
    def asks_for_pod(self) -> bool:
        """Its pod says more: why it does not run, or how it ended."""
        return not self.status.ready and not self.status.succeeded


class ContainerEnd(_Sent, frozen=True, rename="camel"):
    exit_code: int = 0
    reason: str | None = None
    message: str | None = None


class ContainerState(_Sent, frozen=True, rename="camel"):
    waiting: KubeCondition | None = None
    terminated: ContainerEnd | None = None


class ContainerStatus(_Sent, frozen=True, rename="camel"):
    state: ContainerState = ContainerState()


class PodStatus(_Sent, frozen=True, rename="camel"):
    container_statuses: list[ContainerStatus] | None = None
    conditions: list[KubeCondition] | None = None


class KubePod(_Sent, frozen=True, rename="camel"):
    metadata: ObjectMeta = ObjectMeta()
    status: PodStatus = PodStatus()


def provisioned(job: KubeJob, pod: KubePod | None) -> Provisioned:
    """A Job that is being deleted counts until it is gone: its pod may still run."""
    released = job.metadata.deletion_timestamp is not None
    finished = job.finished
    state: ProvisionedState = "starting"
    if finished is not None and not released:
        state = "ended" if finished.type == "Complete" else "failed"
    elif job.status.ready or (released and job.status.active):
        state = "running"
    failed = finished is not None and finished.type == "Failed"
    why = (finished.reason or "Failed") if failed and finished is not None else ""
    detail = " ".join(filter(None, (why, "" if pod is None else pod_text(pod))))
    return Provisioned(job.name, state, 0, detail or "Job", released)


def pod_text(pod: KubePod) -> str:
    """Why a pod does not run, or how it ended."""
    for each in pod.status.container_statuses or ():
        if each.state.terminated is not None:
            return _end_text(each.state.terminated)
        waiting = each.state.waiting
        if waiting is not None and waiting.reason != "ContainerCreating":
            return _condition_text(waiting)
    for each in pod.status.conditions or ():
        if (each.type, each.status) == ("PodScheduled", "False"):
            return _condition_text(each)
    return ""


def _end_text(end: ContainerEnd) -> str:
    named = f" ({end.reason})" if end.reason not in (None, "Error", "Completed") else ""
    said = error_in(end.message or "")[:MAX_TEXT_LENGTH]
    return f"exit code {end.exit_code}{named}" + (f": {said}" if said else "")


def _condition_text(found: KubeCondition) -> str:
    return f"{found.reason or 'waiting'}: {(found.message or '')[:MAX_TEXT_LENGTH]}".rstrip(": ")
