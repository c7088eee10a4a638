"""The Kubernetes provisioner against a real API server, with the role of deploy/kubernetes and no other right.

It needs `kube-apiserver` and `etcd`, named by LOCKTENDER_TEST_APISERVER and LOCKTENDER_TEST_ETCD.
No package has the first; Debian's source package `kubernetes` (1.20) builds it, and Debian's
`etcd-server` is the second. There is no kubelet: what becomes of pods is tested with the fake.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from locktender.base.config import Settings
from locktender.provision import kubernetes as subject
from locktender.provision.kube_api import ApiAccess, ApiError, KubeApi
from locktender.provision.kubernetes import KubernetesProvisioner
from locktender.provision.options import read_options
from locktender.testing import eventually

APISERVER = os.environ.get("LOCKTENDER_TEST_APISERVER", "")
ETCD = os.environ.get("LOCKTENDER_TEST_ETCD", "")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (APISERVER and ETCD and shutil.which("kubectl")),
        reason="needs LOCKTENDER_TEST_APISERVER, LOCKTENDER_TEST_ETCD and kubectl",
    ),
]
ROOT = Path(__file__).parents[2]
NAME, OTHER = "worker-0123456789", "worker-abcdefabcd"
NAMESPACE = "flows"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Kubernetes:
    def __init__(self, folder: Path, url: str, etcd: str) -> None:
        self.folder, self.url, self.etcd = folder, url, etcd
        self.ca = str(folder / "certs" / "apiserver.crt")

    def kubectl(self, *words: str, stdin: str = "") -> str:
        access = [
            "--server",
            self.url,
            "--certificate-authority",
            self.ca,
            "--token",
            "admin-token",
        ]
        command = ["kubectl", *access, "--namespace", NAMESPACE, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answers(self) -> bool:
        try:
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        except AssertionError:
            return False

    def provisioner(self, **more: Any) -> KubernetesProvisioner:
        given = {
            "image": "registry.example/app:1",
            "args": ["worker", "flows.py"],
            "secret": "locktender-worker",
            "namespace": NAMESPACE,
            "owner": "deployment/locktender-server",
            "api_server": self.url,
            "ca_file": self.ca,
            "token_file": str(self.folder / "server-token"),
            **more,
        }
        return KubernetesProvisioner(read_options(given, subject.KubernetesWorkers), Settings())

    def admin(self) -> KubeApi:
        return KubeApi(ApiAccess(self.url, NAMESPACE, str(self.folder / "admin-token"), self.ca))


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    folder = tmp_path_factory.mktemp("kubernetes")
    etcd, peers, port = (free_port() for _ in range(3))
    key = folder / "key.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    account = f"system:serviceaccount:{NAMESPACE}:locktender-server"
    (folder / "tokens.csv").write_text(
        f"admin-token,admin,1,system:masters\nserver-token,{account},2\n"
    )
    for name in ("admin-token", "server-token"):
        (folder / name).write_text(name)
    client = f"http://127.0.0.1:{etcd}"
    with ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.kill)

        start(
            "etcd",
            ETCD,
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
        )
        start(
            "apiserver",
            APISERVER,
            f"--etcd-servers={client}",
            f"--secure-port={port}",
            "--insecure-port=0",
            "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'certs'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--feature-gates=TTLAfterFinished=true",
            "--watch-cache=false",  # it would answer from memory what etcd has compacted
        )
        found = Kubernetes(folder, f"https://127.0.0.1:{port}", client)
        eventually(found.answers, "120s", "the API server")
        found.kubectl("create", "namespace", NAMESPACE)
        role = ROOT / "deploy" / "kubernetes" / "overlays" / "jobs" / "server-rbac.yaml"
        found.kubectl("apply", "-f", str(role))
        found.kubectl("create", "deployment", "locktender-server", "--image=registry.example/app:1")
        yield found


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_job_from_its_request_to_its_end(kubernetes: Kubernetes):
    """Create, the same again (409), list, watch, release; with the rights of the role alone."""
    found, admin = kubernetes.provisioner(), kubernetes.admin()
    try:
        assert await found.list() == []
        assert await found.request(2, {}, "for a test", [NAME, OTHER]) == [NAME, OTHER]
        assert await found.request(1, {}, "for a test", [NAME]) == [NAME]
        job = await admin.get(f"{JOBS}/{NAME}")
        owner = await admin.get(
            f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/locktender-server"
        )
        assert job["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
        [container] = job["spec"]["template"]["spec"]["containers"]
        reference = container["env"][0]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": "locktender-worker", "key": "url"}
        assert job["spec"]["ttlSecondsAfterFinished"] == 600

        # As the Job controller does it: this one has ended, which only the watch tells.
        complete = (
            '{"status": {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}}'
        )
        status = f"{JOBS}/{OTHER}/status"
        await asyncio.to_thread(_patch, kubernetes, status, complete)

        async def ended() -> bool:
            return {each.name: each.state for each in await found.list()} == {
                NAME: "starting",
                OTHER: "ended",
            }

        await until(ended)
        await found.release(NAME)
        await found.release("worker-ffffffffff")

        async def released() -> bool:
            # In the foreground: it is there, and counts, until its pod is gone.
            listed = {each.name: each for each in await found.list()}
            return listed[NAME].released and listed[NAME].state == "starting"

        await until(released)
        await asyncio.to_thread(
            _patch, kubernetes, f"{JOBS}/{NAME}", '{"metadata": {"finalizers": null}}'
        )

        async def gone() -> bool:
            return {each.name: each.state for each in await found.list()}[NAME] == "ended"

        await until(gone)
    finally:
        await found.close()


def _patch(kubernetes: Kubernetes, path: str, body: str) -> None:
    """The controllers' part, which no controller plays here."""
    request = urllib.request.Request(
        f"{kubernetes.url}{path}",
        data=body.encode(),
        method="PATCH",
        headers={
            "content-type": "application/merge-patch+json",
            "authorization": "Bearer admin-token",
        },
    )
    context = ssl.create_default_context(cafile=kubernetes.ca)
    urllib.request.urlopen(request, context=context, timeout=30).close()


def _compact(kubernetes: Kubernetes, version: int) -> None:
    data = json.dumps({"revision": version, "physical": True}).encode()
    urllib.request.urlopen(f"{kubernetes.etcd}/v3/kv/compaction", data=data, timeout=30).close()


async def test_a_watch_from_too_old_a_version_is_410(kubernetes: Kubernetes):
    """The shape of it is what makes the provisioner list anew."""
    admin = kubernetes.admin()
    found = kubernetes.provisioner(instance="compacted")
    await found.request(1, {}, "for a test", ["worker-00000000aa"])
    version = (await admin.get(JOBS))["metadata"]["resourceVersion"]
    await asyncio.to_thread(_compact, kubernetes, int(version))
    query = {"watch": "1", "resourceVersion": "1", "timeoutSeconds": "5"}
    try:
        events = [event async for event in admin.watch(JOBS, query, 30)]
        codes = [event["object"].get("code") for event in events if event["type"] == "ERROR"]
    except ApiError as error:
        codes = [error.status]
    assert codes == [410]
    assert int(version) > 1
    await found.close()


async def test_the_role_allows_nothing_else(kubernetes: Kubernetes):
    server = KubeApi(
        ApiAccess(kubernetes.url, NAMESPACE, str(kubernetes.folder / "server-token"), kubernetes.ca)
    )
    for path in (
        server.path("v1", "secrets"),
        server.path("v1", "configmaps"),
        server.path("apps/v1", "deployments"),
        server.path("apps/v1", "deployments", "another"),
        "/api/v1/namespaces/default/pods",
        "/api/v1/nodes",
    ):
        with pytest.raises(ApiError, match="403"):
            await server.get(path)


async def test_a_wrong_token_is_refused_and_named(kubernetes: Kubernetes, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("old-token")
    found = kubernetes.provisioner(token_file=str(token))
    with pytest.raises(ApiError, match="401: Unauthorized"):
        await found.list()
    token.write_text("server-token")
    assert await found.request(1, {}, "for a test", ["worker-00000000bb"]) == ["worker-00000000bb"]
    await found.close()
