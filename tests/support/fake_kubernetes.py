"""An API server with exactly the endpoints that are used, whose Jobs are real processes.

Shapes are those of a real one: `Status` objects, resource versions, watch events with
bookmarks, 409, 410 (compacted), 429 with Retry-After, 401 for an old token, 403 for what
the role does not allow. A pod runs `python -m locktender` with the args and variables of its
container, a Secret included, and with nothing else of this process but what tests record.
Nothing of Locktender is imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOK_SECONDS = 0.02
ENTRY_POINT = (sys.executable, "-m", "locktender")
PASSED_ON = ("PATH", "PYTHONPATH", "HOME", "PYTHONDONTWRITEBYTECODE")
UID = "00000000-0000-4000-8000-%012d"


@dataclass
class Pod:
    job: str
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    code: int | None = None


@dataclass
class FakeCluster:
    folder: Path
    namespace: str = "flows"
    secrets: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    allowed: set[tuple[str, str, str]] | None = None
    """(group, resource, verb) of the role; None: everything."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 100
        self.oldest = 0
        """Versions up to this one are compacted: a watch from there is 410."""
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, Pod] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.unexpected: list[str] = []
        self.created: list[dict[str, Any]] = []
        """Manifests as they were sent."""
        self.answers: list[tuple[int, dict[str, str], str]] = []
        """(status, headers, message) for the next requests, before anything is done."""
        self.lose_answers = 0
        """So many requests are carried out, and their connection closed without an answer."""
        self.creates: list[str] = []
        """What the next creations do: made | lost (made, no answer) | dropped (neither) | late (made when
        `late` is set) | told-late (made; the answer waits for `late`) | refused | made-503."""
        self.reads: list[int] = []
        """Statuses of the next reads of one Job."""
        self.late = threading.Event()
        self.waiting_calls = 0
        """Creations and lists that wait for `late`."""
        self.lists_late = False
        """The next list of Jobs is as it is now, and answered when `late` is set."""
        self.watches_end = False
        """Each watch ends at once, and well, as behind a proxy that cuts long answers."""
        self.down = self.held = self.hangs = False
        self.hung = 0
        """Requests that hung."""
        self.token = "token-1"
        self.token_file = self.folder / "token"
        self.token_file.write_text(self.token)
        self.owner_uid = UID % 7
        self.over = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.controller = threading.Thread(target=self._control, daemon=True)
        self.controller.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    # -- what a test does --------------------------------------------------------------------------

    def vanish(self) -> None:
        with self.lock:
            self.down = True
            self.changed.notify_all()

    def come_back(self) -> None:
        with self.lock:
            self.down = self.hangs = False
            self.changed.notify_all()

    def hang(self) -> None:
        self.hangs = True

    def hold(self) -> None:
        self.held = True

    def let_go(self) -> None:
        self.held = False

    def waiting(self) -> int:
        with self.lock:
            return sum(pod.process is None and pod.code is None for pod in self.pods.values())

    def compact(self) -> None:
        """Nothing of before is remembered, and those who watch are told so."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.events.clear()
            self.changed.notify_all()

    def rotate_token(self) -> None:
        with self.lock:
            self.token = f"token-{self.version}-next"
            self.token_file.write_text(self.token)

    def end(self) -> None:
        self.over.set()
        with self.lock:
            self.down = True
            self.changed.notify_all()
        self.controller.join(10)
        for pod in self.pods.values():
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()
        self.server.shutdown()
        self.server.server_close()

    # -- objects -----------------------------------------------------------------------------------

    def _write(self, kind: str, job: dict[str, Any]) -> None:
        self.version += 1
        job["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, json.loads(json.dumps(job))))
        self.changed.notify_all()

    def create(self, job: dict[str, Any]) -> dict[str, Any]:
        name = job["metadata"]["name"]
        self.created.append(json.loads(json.dumps(job)))
        job["metadata"] |= {
            "uid": UID % self.version,
            "namespace": self.namespace,
            "creationTimestamp": "2030-01-01T00:00:00Z",
            "generation": 1,
        }
        job["status"] = {}
        self.jobs[name] = job
        self.pods[name] = Pod(name)
        self._write("ADDED", job)
        return job

    def delete(self, name: str, propagation: str) -> dict[str, Any]:
        job, pod = self.jobs[name], self.pods[name]
        if propagation == "Foreground" and (pod.code is None):
            job["metadata"]["deletionTimestamp"] = "2030-01-01T00:01:00Z"
            job["metadata"]["finalizers"] = ["foregroundDeletion"]
            self._write("MODIFIED", job)
        else:
            self._remove(name)
        if pod.process is not None and pod.process.poll() is None:
            with suppress(ProcessLookupError):
                pod.process.send_signal(signal.SIGTERM)
        elif pod.process is None:
            pod.code = 0  # its pod never ran
        return job

    def _remove(self, name: str) -> None:
        self._write("DELETED", self.jobs.pop(name))

    def pod_objects(self) -> list[dict[str, Any]]:
        return [self._pod_object(pod) for name, pod in self.pods.items() if name in self.jobs]

    def _pod_object(self, pod: Pod) -> dict[str, Any]:
        job = self.jobs[pod.job]
        status: dict[str, Any] = {"phase": "Pending", "conditions": [], "containerStatuses": None}
        if self.held and pod.process is None:
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient cpu.",
                }
            ]
        elif pod.code is not None:
            text = "" if pod.log is None else pod.log.read_text(errors="replace")[-2_000:]
            ended = {
                "exitCode": pod.code,
                "reason": "Error" if pod.code else "Completed",
                "message": text if pod.code else None,
            }
            status["containerStatuses"] = [{"name": "worker", "state": {"terminated": ended}}]
        labels = job["spec"]["template"]["metadata"]["labels"]
        return {"metadata": {"name": f"{pod.job}-x7k2p", "labels": labels}, "status": status}

    # -- the Job controller and the kubelet ----------------------------------------------------------

    def _control(self) -> None:
        while not self.over.wait(LOOK_SECONDS):
            with self.lock:
                for name, job in list(self.jobs.items()):
                    self._control_one(job, self.pods[name])

    def _control_one(self, job: dict[str, Any], pod: Pod) -> None:
        name, deleting = job["metadata"]["name"], "deletionTimestamp" in job["metadata"]
        if pod.process is None and pod.code is None:
            if not self.held and not deleting:
                self._start(job, pod)
                job["status"] = {"active": 1, "ready": 1, "startTime": "2030-01-01T00:00:01Z"}
                self._write("MODIFIED", job)
            elif not job["status"]:
                job["status"] = {"active": 1, "ready": 0}
                self._write("MODIFIED", job)
        elif pod.code is None and pod.process is not None and pod.process.poll() is not None:
            pod.code = pod.process.returncode
            if not deleting:
                well = pod.code == 0
                ended = {"type": "Complete", "status": "True"}
                failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
                job["status"] = {
                    "active": 0,
                    "ready": 0,
                    ("succeeded" if well else "failed"): 1,
                    "conditions": [ended if well else failed],
                }
                self._write("MODIFIED", job)
        if deleting and pod.code is not None:
            self._remove(name)

    def _start(self, job: dict[str, Any], pod: Pod) -> None:
        [container] = job["spec"]["template"]["spec"]["containers"]
        variables = {
            name: value
            for name, value in os.environ.items()
            if name in PASSED_ON or name.startswith("LOCKTENDER_TEST_")
        }
        for each in container["env"]:
            if "valueFrom" in each:
                reference = each["valueFrom"]["secretKeyRef"]
                variables[each["name"]] = self.secrets[reference["name"]][reference["key"]]
            else:
                variables[each["name"]] = each["value"]
        variables["LOCKTENDER_WORK_DIR"] = str(self.folder / f"{pod.job}-tmp")  # its /tmp
        pod.log = self.folder / f"{pod.job}.log"
        with pod.log.open("w") as out:
            pod.process = subprocess.Popen(
                [*ENTRY_POINT, *container["args"]],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    # -- HTTP --------------------------------------------------------------------------------------

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

            def do_GET(self) -> None:
                self._handle()

            do_POST = do_DELETE = do_PATCH = do_PUT = do_GET  # noqa: N815

            def _handle(self) -> None:
                with suppress(BrokenPipeError, ConnectionResetError):
                    _Call(cluster, self).answer()

        return Handler


class _Call:
    """One request."""

    def __init__(self, cluster: FakeCluster, handler: BaseHTTPRequestHandler) -> None:
        self.cluster, self.handler = cluster, handler
        parts = urlsplit(handler.path)
        self.path = parts.path
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.body = handler.rfile.read(int(handler.headers.get("content-length") or 0))

    def answer(self) -> None:
        cluster = self.cluster
        if cluster.down:
            self._drop()
            return
        cluster.hung += cluster.hangs
        while cluster.hangs and not cluster.over.is_set():
            time.sleep(LOOK_SECONDS)
        cluster.requests.append((self.handler.command, self.path, self.query))
        if self.handler.headers.get("authorization") != f"Bearer {cluster.token}":
            self._status(401, "Unauthorized", "Unauthorized")
            return
        if cluster.answers:
            code, headers, message = cluster.answers.pop(0)
            self._status(code, "", message, headers)
            return
        if self.handler.command == "GET" and self.query.get("watch"):
            self._watch()
            return
        with cluster.lock:
            self._route()

    def _route(self) -> None:
        cluster, method = self.cluster, self.handler.command
        jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
        pods = f"/api/v1/namespaces/{cluster.namespace}/pods"
        deployments = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments/"
        name = self.path.removeprefix(f"{jobs}/")
        match method:
            case "POST" if self.path == jobs:
                self._allowed("batch", "jobs", "create") and self._create()
            case "GET" if self.path == jobs:
                if self._allowed("batch", "jobs", "list"):
                    self._list("JobList", "batch/v1", self._selected(cluster.jobs.values()))
            case "GET" if self.path == pods:
                if self._allowed("", "pods", "list"):
                    self._list("PodList", "v1", self._selected(cluster.pod_objects()))
            case "GET" if self.path.startswith(f"{jobs}/"):
                if self.cluster.reads:
                    self._status(self.cluster.reads.pop(0), "", "etcdserver: request timed out")
                elif self._allowed("batch", "jobs", "get"):
                    self._send(200, cluster.jobs[name]) if name in cluster.jobs else self._missing()
            case "DELETE" if self.path.startswith(f"{jobs}/"):
                if self._allowed("batch", "jobs", "delete"):
                    self._delete(name)
            case "GET" if self.path.startswith(deployments):
                if self._allowed("apps", "deployments", "get"):
                    name = self.path.removeprefix(deployments)
                    self._send(200, {"metadata": {"name": name, "uid": cluster.owner_uid}})
            case _:
                cluster.unexpected.append(f"{method} {self.path}")
                self._status(404, "NotFound", "the server could not find the requested resource")

    def _create(self) -> None:
        cluster, job = self.cluster, json.loads(self.body)
        name = job["metadata"]["name"]
        if name in cluster.jobs:
            self._status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
            return
        fault = cluster.creates.pop(0) if cluster.creates else "made"
        if fault == "dropped":
            self._drop()
            return
        if fault == "refused":
            self._status(403, "Forbidden", f'jobs.batch "{name}" is forbidden: exceeded quota')
            return
        if fault == "late":
            self._wait()
        made = cluster.create(job)
        if fault == "made-503":
            self._status(503, "ServiceUnavailable", "etcd leader changed", {"Retry-After": "0"})
            return
        if fault == "lost":
            self._drop()
            return
        if fault == "told-late":
            made = json.loads(json.dumps(made))
            self._wait()
        if cluster.lose_answers:
            cluster.lose_answers -= 1
            self._drop()
            return
        self._send(201, made)

    def _wait(self) -> None:
        """Until `late` is set; others are answered meanwhile."""
        cluster = self.cluster
        cluster.waiting_calls += 1
        cluster.lock.release()
        try:
            while not cluster.late.wait(LOOK_SECONDS) and not cluster.over.is_set():
                pass
        finally:
            cluster.lock.acquire()

    def _delete(self, name: str) -> None:
        if name not in self.cluster.jobs:
            self._missing()
            return
        options = json.loads(self.body)
        self._send(200, self.cluster.delete(name, options["propagationPolicy"]))

    def _selected(self, objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = dict(
            part.split("=") for part in self.query.get("labelSelector", "").split(",") if part
        )
        return [
            each
            for each in objects
            if wanted.items() <= (each["metadata"].get("labels") or {}).items()
        ]

    def _list(self, kind: str, version: str, items: list[dict[str, Any]]) -> None:
        begin = int(self.query.get("continue") or 0)
        limit = int(self.query.get("limit") or len(items) or 1)
        meta: dict[str, Any] = {"resourceVersion": str(self.cluster.version)}
        if begin + limit < len(items):
            meta["continue"] = str(begin + limit)
        page = items[begin : begin + limit]
        if kind == "JobList" and self.cluster.lists_late:
            self.cluster.lists_late = False
            self._wait()
        self._send(200, {"kind": kind, "apiVersion": version, "metadata": meta, "items": page})

    def _watch(self) -> None:
        if not self._allowed("batch", "jobs", "watch"):
            return
        cluster, version = self.cluster, int(self.query["resourceVersion"])
        seconds = 0.0 if cluster.watches_end else float(self.query["timeoutSeconds"])
        end = time.monotonic() + seconds
        handler = self.handler
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        while time.monotonic() < end:
            with cluster.lock:
                if cluster.down or cluster.over.is_set():
                    self._drop()
                    return
                if version < cluster.oldest:
                    gone = _status_object(410, "Expired", f"too old resource version: {version}")
                    self._event("ERROR", gone)
                    break
                news = [each for each in cluster.events if each[0] > version]
                if not news:
                    cluster.changed.wait(0.2)
                    continue
            for number, kind, job in news:
                if self._selected([job]):
                    self._event(kind, job)
                version = number
            bookmark = {"kind": "Job", "apiVersion": "batch/v1", "spec": {}, "status": {}}
            self._event("BOOKMARK", bookmark | {"metadata": {"resourceVersion": str(version)}})
        handler.wfile.write(b"0\r\n\r\n")

    def _event(self, kind: str, found: dict[str, Any]) -> None:
        data = json.dumps({"type": kind, "object": found}).encode() + b"\n"
        # In two pieces: a line need not arrive as one chunk.
        for part in (data[:40], data[40:]):
            self.handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.handler.wfile.flush()

    def _allowed(self, group: str, resource: str, verb: str) -> bool:
        allowed = self.cluster.allowed
        if allowed is None or (group, resource, verb) in allowed:
            return True
        what = f'{resource} is forbidden: User "system:serviceaccount" cannot {verb} it'
        self._status(403, "Forbidden", what)
        return False

    def _missing(self) -> None:
        self._status(404, "NotFound", f'jobs.batch "{self.path.rpartition("/")[2]}" not found')

    def _drop(self) -> None:
        self.handler.close_connection = True
        with suppress(OSError):
            self.handler.connection.shutdown(2)

    def _status(
        self, code: int, reason: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        self._send(code, _status_object(code, reason, message), headers)

    def _send(
        self, code: int, found: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        data = json.dumps(found).encode()
        handler = self.handler
        handler.send_response(code)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def _status_object(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
