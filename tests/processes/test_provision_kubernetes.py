"""Workers as Kubernetes Jobs, against an API server that answers as a real one does, well or badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_kubernetes import FakeCluster

from locktender.base.clock import ManualClock
from locktender.base.config import Settings
from locktender.base.errors import InvalidSettings
from locktender.provision import kubernetes as subject
from locktender.provision.kube_api import ApiError, ApiUnreachable
from locktender.provision.kubernetes import KubernetesProvisioner
from locktender.provision.options import provisioner_of, read_options
from locktender.provision.protocol import Provisioned, WrongAnswer

NAME = "worker-0123456789"
OTHER = "worker-abcdefabcd"
URL = "postgresql://leader:leader-secret@db/locktender"
WORKER_URL = "postgresql://worker:worker-secret@db/locktender"
OPTIONS: dict[str, Any] = {
    "image": "registry.example/app:1.4",
    "args": ["worker", "flows.py"],
    "secret": "locktender-worker",
    "namespace": "flows",
    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "service_account": "locktender-worker",
    "labels": {
        "gpu=a100": {
            "node_selector": {"nvidia.com/gpu.product": "A100"},
            "limits": {"nvidia.com/gpu": "1"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
        "zone=*": {"node_selector": {"topology.kubernetes.io/zone": "${value}"}},
        "fpga=*": {"limits": {"xilinx.com/fpga": "${value}"}},
    },
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    found = FakeCluster(tmp_path)
    found.hold()  # no pod runs unless a test lets it
    yield found
    found.end()
    assert found.unexpected == []


def made(
    cluster: FakeCluster, clock: ManualClock | None = None, **more: Any
) -> KubernetesProvisioner:
    given = {"api_server": cluster.url, "token_file": str(cluster.token_file), **OPTIONS, **more}
    options = read_options(given, subject.KubernetesWorkers)
    return KubernetesProvisioner(options, Settings(url=URL), clock=clock)


@pytest.fixture
async def jobs(cluster: FakeCluster) -> AsyncIterator[KubernetesProvisioner]:
    found = made(cluster)
    yield found
    await found.close()


async def until(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    async with asyncio.timeout(60):
        while not (found := await look()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found


async def states(jobs: KubernetesProvisioner) -> dict[str, str]:
    return {each.name: each.state for each in await jobs.list()}


async def becomes(jobs: KubernetesProvisioner, **wanted: str) -> None:
    expected = {f"worker-{name}": state for name, state in wanted.items()}

    async def look() -> bool:
        return await states(jobs) == expected

    await until(look, f"{expected}")


async def test_the_manifest_of_a_job(cluster: FakeCluster):
    found = made(cluster, owner="deployment/locktender-server", settings={"max_tasks": 1})
    needs = {"gpu": "a100", "zone": "eu-1b", "fpga": "2"}
    assert await found.request(1, needs, "for 2 tasks that lack only a worker", [NAME]) == [NAME]
    [job] = cluster.created
    assert job["metadata"]["name"] == NAME
    assert job["metadata"]["ownerReferences"][0]["uid"] == cluster.owner_uid
    assert (job["spec"]["backoffLimit"], job["spec"]["ttlSecondsAfterFinished"]) == (0, 600)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "nvidia.com/gpu.product": "A100",
        "topology.kubernetes.io/zone": "eu-1b",
    }
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert (pod["restartPolicy"], pod["serviceAccountName"]) == ("Never", "locktender-worker")
    assert (pod["automountServiceAccountToken"], pod["terminationGracePeriodSeconds"]) == (
        False,
        60,
    )
    [container] = pod["containers"]
    assert container["image"] == "registry.example/app:1.4"
    assert container["args"] == ["worker", "flows.py"]
    assert container["resources"]["limits"] == {
        "memory": "1Gi",
        "nvidia.com/gpu": "1",
        "xilinx.com/fpga": "2",
    }
    env = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    assert env["LOCKTENDER_PROVISION"] == NAME
    assert json.loads(env["LOCKTENDER_WORKER_LABELS"]) == needs
    assert env["LOCKTENDER_MAX_TASKS"] == "1"
    # The url is a reference to a Secret, and stands nowhere in what is sent.
    assert env["LOCKTENDER_URL"] == {"secretKeyRef": {"name": "locktender-worker", "key": "url"}}
    assert "secret@" not in json.dumps(job)
    capacity = found.capacity(needs)
    assert capacity is not None
    assert capacity.total == 1
    assert found.capacity({"gpu": "h100"}) is None
    await found.close()


async def test_the_manifest_is_valid_for_real_api_servers(cluster: FakeCluster):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="schemas: pip install --group deploy"
    )
    found = made(cluster, owner="deployment/locktender-server", pull_secrets=["registry"])
    await found.request(1, {"gpu": "a100"}, "for a test", [NAME])
    for version in ("1.30", "1.33", "1.36"):
        validate.validate(cluster.created[0], version, strict=True)
    await found.close()


async def test_a_template_of_ones_own_is_filled(cluster: FakeCluster, tmp_path: Path):
    template = tmp_path / "job.yaml"
    template.write_text(
        """
apiVersion: batch/v1
kind: Job
metadata: {name: ignored, namespace: elsewhere, labels: {team: search}}
spec:
  ttlSecondsAfterFinished: 30
  template:
    spec:
      containers:
        - name: proxy
          image: proxy:1
        - name: worker
          image: app:2
          env: [{name: LOCKTENDER_URL, value: "never this"}, {name: REGION, value: eu}]
"""
    )
    found = made(cluster, image="", template=str(template))
    await found.request(1, {}, "", [NAME])
    [job] = cluster.created
    assert job["metadata"]["labels"]["team"] == "search"
    assert (job["metadata"]["name"], "namespace" in job["metadata"]) == (NAME, False)
    assert job["spec"]["ttlSecondsAfterFinished"] == 30
    proxy, worker = job["spec"]["template"]["spec"]["containers"]
    assert "env" not in proxy
    env = {each["name"]: each.get("value", "secret") for each in worker["env"]}
    assert (worker["image"], env["REGION"], env["LOCKTENDER_URL"]) == ("app:2", "eu", "secret")
    await found.close()


async def test_a_repeated_request_is_the_same_worker(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    """The answer of the first was lost: it may come, and asking again finds it (409)."""
    cluster.lose_answers = 1
    with pytest.raises(WrongAnswer, match="may still come"):
        await jobs.request(1, {}, "", [NAME])
    assert await jobs.request(1, {}, "", [NAME]) == [NAME]
    assert len(cluster.jobs) == 1
    assert await states(jobs) == {NAME: "starting"}


async def test_jobs_of_other_stores_are_not_ours(cluster: FakeCluster, jobs: KubernetesProvisioner):
    other = made(cluster, instance="another")
    await other.request(1, {}, "", [OTHER])
    await jobs.request(1, {}, "", [NAME])
    await becomes(jobs, **{"0123456789": "starting"})
    await other.close()


async def test_a_watch_follows_and_410_lists_anew(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    assert await jobs.list() == []
    successor = made(cluster)
    await successor.request(2, {}, "", [NAME, OTHER])
    await becomes(jobs, **{"0123456789": "starting", "abcdefabcd": "starting"})
    lists = sum(
        path.endswith("/jobs") and not query.get("watch") for _, path, query in cluster.requests
    )
    # The history of changes is gone: what is deleted meanwhile is known by the next list alone.
    with cluster.lock:
        cluster.compact()
        cluster._remove(NAME)
        cluster.compact()
    await becomes(jobs, **{"0123456789": "ended", "abcdefabcd": "starting"})
    again = sum(
        path.endswith("/jobs") and not query.get("watch") for _, path, query in cluster.requests
    )
    assert again > lists
    await successor.close()


async def test_a_watch_that_ends_at_once_is_repeated_with_pauses(
    cluster: FakeCluster, jobs: KubernetesProvisioner, monkeypatch: pytest.MonkeyPatch
):
    """Ended well or by 410: the API server is not asked without a pause, and longer pauses follow."""
    cluster.watches_end = True
    pauses, go_on, sleep = list[float](), asyncio.Semaphore(0), asyncio.sleep

    async def pause(seconds: float) -> None:
        task = asyncio.current_task()
        if task is None or task.get_name() != "locktender-kubernetes-jobs":
            return await sleep(seconds)
        pauses.append(seconds)
        await go_on.acquire()
        return None

    async def paused() -> bool:
        return bool(pauses[rounds:])

    monkeypatch.setattr(asyncio, "sleep", pause)
    for rounds in range(4):
        assert await jobs.list() == []
        await until(paused, "a pause")
        watches = [query for _, _, query in cluster.requests if query.get("watch")]
        assert len(watches) == rounds + 1
        cluster.compact()  # the next watch is told 410, and the Jobs are listed anew
        go_on.release()
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]


async def test_a_token_that_cannot_be_read_is_told(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    cluster.token_file.unlink()
    with pytest.raises(ApiUnreachable, match=r"failed to read the token .*No such file"):
        await jobs.list()
    with pytest.raises(ApiUnreachable, match="failed to read the token"):
        await jobs.request(1, {}, "", [NAME])


async def test_a_long_list_comes_in_pages(
    cluster: FakeCluster, jobs: KubernetesProvisioner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subject, "PAGE", 2)
    names = [f"worker-{n:010x}" for n in range(5)]
    maker = made(cluster)
    assert await maker.request(5, {}, "", names) == names
    assert sorted(await states(jobs)) == names
    await maker.close()


async def test_429_is_repeated_after_the_time_it_says(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    slow_down = (429, {"Retry-After": "0"}, "too many requests, please try again later")
    cluster.answers += [slow_down, slow_down]
    assert await jobs.request(1, {}, "", [NAME]) == [NAME]
    cluster.answers += [(429, {"Retry-After": "3600"}, "come tomorrow")]
    with pytest.raises(ApiError, match="429: come tomorrow"):
        await jobs.request(1, {}, "", [OTHER])
    cluster.answers += [slow_down] * 4
    with pytest.raises(ApiError, match="429"):
        await jobs.request(1, {}, "", [OTHER])
    assert list(cluster.jobs) == [NAME]


async def test_a_rotated_token_is_used_at_once(cluster: FakeCluster, jobs: KubernetesProvisioner):
    await jobs.request(1, {}, "", [NAME])
    cluster.rotate_token()
    assert await jobs.request(1, {}, "", [OTHER]) == [OTHER]
    # It was rotated between reading and sending.
    cluster.answers += [(401, {}, "Unauthorized")]
    await jobs.release(OTHER)
    await becomes(jobs, **{"0123456789": "starting", "abcdefabcd": "ended"})


async def test_quota_and_server_errors_are_told_apart(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    cluster.answers += [(403, {}, 'jobs.batch "x" is forbidden: exceeded quota: pods=10')]
    with pytest.raises(ApiError, match="exceeded quota"):
        await jobs.request(1, {}, "", [NAME])
    cluster.answers += [(500, {}, "etcdserver: request timed out")]
    with pytest.raises(WrongAnswer, match="may still come"):
        await jobs.request(1, {}, "", [NAME])


async def test_a_server_that_is_away_forgets_no_worker(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    await jobs.request(1, {}, "", [NAME])
    assert await states(jobs) == {NAME: "starting"}
    cluster.vanish()

    async def fails() -> bool:
        try:
            await jobs.list()
        except ApiUnreachable:
            return True
        return False

    await until(fails, "the list to fail")
    with pytest.raises((ApiUnreachable, WrongAnswer)):
        await jobs.request(1, {}, "", [OTHER])
    cluster.come_back()

    async def lists() -> bool:
        try:
            return await states(jobs) == {NAME: "starting"}
        except ApiUnreachable:
            return False

    await until(lists, "the list to come back")


async def test_why_a_pod_does_not_run_is_shown(
    cluster: FakeCluster, jobs: KubernetesProvisioner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subject, "PODS_SECONDS", 0.0)
    cluster.secrets = {"locktender-worker": {"url": "no-such-scheme://x"}}
    await jobs.request(1, {}, "", [NAME])

    async def detail(text: str) -> Provisioned | None:
        [each] = await jobs.list()
        return each if text in each.detail else None

    await until(lambda: detail("Unschedulable: 0/3 nodes"), "its reason")
    cluster.let_go()
    found = await until(lambda: detail("exit code 2"), "its end")
    assert found.state == "failed"
    assert "BackoffLimitExceeded exit code 2" in found.detail


async def test_ended_jobs_are_swept(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "SWEEP_SECONDS", 0.0)
    clock = ManualClock()
    found = made(cluster, clock, ttl="10m")
    cluster.secrets = {"locktender-worker": {"url": "no-such-scheme://x"}}
    await found.request(1, {}, "", [NAME])
    cluster.let_go()
    await becomes(found, **{"0123456789": "failed"})
    await found.list()
    assert list(cluster.jobs) == [NAME]
    clock.advance(21 * 60 * 1_000_000)
    await found.list()
    assert cluster.jobs == {}
    await becomes(found, **{"0123456789": "failed"})
    await found.close()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"secret": None}, "secret"),
        ({"image": ""}, "image is not set"),
        ({"api_server": "ftp://x"}, "api_server is not a url"),
        ({"api_server": ""}, "runs in no pod"),
        ({"owner": "pod/x"}, "owner names a kind"),
        ({"template": "no-such-file.json"}, "failed to read"),
        ({"worker_url": "env:X"}, "the url is in a Secret"),
        ({"imgae": "x"}, "imgae is not known"),
        ({"labels": {"gpu": {}}}, "name=value"),
    ],
)
def test_wrong_options_are_refused_at_the_start(more: dict[str, Any], message: str):
    given = {"api_server": "http://127.0.0.1:1", **OPTIONS, **more}
    given = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(InvalidSettings, match=message):
        provisioner_of(Settings(provisioner={"kind": "kubernetes", **given}))
