"""deploy/: manifests are valid and fit each other, the image's entry point is a good PID 1, units verify."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from locktender.base.config import load
from locktender.observe.metrics import Metrics
from locktender.observe.prometheus import Exposition
from locktender.provision.kube_jobs import JobMaker
from locktender.provision.kubernetes import KubernetesWorkers
from locktender.provision.options import provisioner_of, read_options
from locktender.testing import eventually

pytestmark = pytest.mark.timeout(300)
DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
VERSIONS = ("1.30", "1.36")
OWN_KINDS = ("ScaledObject", "ServiceMonitor", "PodMonitor")
"""Of operators: no schema of Kubernetes has them."""
needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
Document = dict[str, Any]


def kustomized(folder: str) -> list[Document]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / folder)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(documents: list[Document], kind: str, name: str) -> Document:
    [found] = [
        each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


@needs_kubectl
@pytest.mark.parametrize("folder", ["base", "overlays/jobs", "overlays/keda"])
def test_manifests_are_valid_by_the_published_schemas(folder: str):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install --group deploy")
    documents = kustomized(folder)
    assert {"Deployment", "Service", "NetworkPolicy"} <= {each["kind"] for each in documents}
    for each in documents:
        if each["kind"] not in OWN_KINDS:
            for version in VERSIONS:
                validate.validate(each, version, strict=True)


@needs_kubectl
@pytest.mark.parametrize("folder", ["base", "overlays/jobs", "overlays/keda"])
def test_manifests_fit_each_other(folder: str):
    documents = kustomized(folder)
    deployments = [each for each in documents if each["kind"] == "Deployment"]
    templates = [each["spec"]["template"] for each in deployments]
    pods = [each["metadata"]["labels"] for each in templates]
    selectors = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        for each in documents
        if each["kind"] in ("Service", "PodDisruptionBudget", "Deployment")
    ]
    for selector in selectors:
        assert any(selector.items() <= labels.items() for labels in pods), selector
    accounts = {each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"}
    for template in templates:
        spec = template["spec"]
        assert spec["serviceAccountName"] in accounts
        assert spec["securityContext"]["runAsNonRoot"] is True
        [container] = spec["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        [url] = container["env"]
        assert url["name"] == "LOCKTENDER_URL"
        assert "secretKeyRef" in url["valueFrom"]
        grace = re.search(r"grace=(\d+)s", " ".join(container["args"]))
        assert spec["terminationGracePeriodSeconds"] > int(grace[1] if grace else 30)
    assert "postgresql://" not in json.dumps(documents)


@needs_kubectl
def test_workers_as_jobs_have_what_they_name():
    documents = kustomized("overlays/jobs")
    names = {(each["kind"], each["metadata"]["name"]) for each in documents}
    assert ("Deployment", "locktender-worker") not in names
    [config] = [each for each in documents if each["kind"] == "ConfigMap"]
    settings = load(KUBERNETES / "overlays" / "jobs")
    assert tomllib.loads(config["data"]["locktender.toml"])["max_workers"] == settings.max_workers
    given = {**settings.provisioner}
    assert given.pop("kind") == "kubernetes"
    options = read_options(given, KubernetesWorkers)
    kind, _, owner = options.owner.partition("/")
    assert (kind.capitalize(), owner) in names
    assert ("ServiceAccount", options.service_account) in names
    role = one(documents, "Role", "locktender-server")
    assert owner in [name for rule in role["rules"] for name in rule.get("resourceNames", ())]
    server = one(documents, "Deployment", "locktender-server")["spec"]["template"]["spec"]
    assert server["automountServiceAccountToken"] is True
    # What it makes of them is a Job by the schemas too.
    validate = pytest.importorskip("kubernetes_validate", reason="pip install --group deploy")
    maker = JobMaker(options, None, instance="i", grace_us=60_000_000, ttl_us=600_000_000)
    job = maker.job("worker-0123456789", {"gpu": "a100"}, "for a test", {"A": "b"}, None)
    for version in VERSIONS:
        validate.validate(job, version, strict=True)


def test_the_settings_of_jobs_make_a_provisioner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    found = provisioner_of(load(KUBERNETES / "overlays" / "jobs"))
    capacity = found.capacity({"gpu": "a100"})
    assert capacity is not None
    assert capacity.permits["process"] == 2


def test_keda_asks_for_metrics_that_exist():
    [scaled] = yaml.safe_load_all(
        (KUBERNETES / "overlays" / "keda" / "scaledobject.yaml").read_text()
    )
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    # A sum over nothing is nothing, and so is what it is added to: KEDA would scale to none.
    assert len(re.findall(r"\(sum\([^()]*\) or vector\(0\)\)", query)) == query.count("sum(") == 2
    metrics = Metrics()
    metrics.demand_by_labels = {"": 3}
    exposition = Exposition(metrics, may_lead=True)
    exposition.refresh()
    source = Path(sys.modules[Exposition.__module__].__file__ or "").read_text()
    for name in re.findall(r"locktender_\w+", query):
        assert name in exposition.text().decode() or f'"{name}"' in source, name
    assert 'locktender_demand_by_labels_tasks{labels=""} 3.0' in exposition.text().decode()


# -- the image ---------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last(word: str) -> str:
    return [rest for name, rest in instructions() if name == word][-1]


def test_the_dockerfile_passes_its_linter_and_ends_as_nobody():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: pip install --group deploy")
    done = subprocess.run(
        [str(hadolint), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert last("USER") == "10001"
    assert "slim" in last("FROM")
    # All that is copied is sent to the builder.
    ignored = (DEPLOY.parent / ".dockerignore").read_text()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        assert f"!{name}" in ignored


FLOWS = """
import os, subprocess, time
from pathlib import Path
from locktender import flow, step


@step
def leaves_orphans(n: int) -> int:
    for _ in range(n):
        subprocess.run(["sh", "-c", "true & exec true"], check=True)
    return os.getppid()


@step
def zombies() -> int:
    end = time.monotonic() + 60
    while (found := [p for p in Path("/proc").glob("[0-9]*/stat") if state(p) == "Z"]) and time.monotonic() < end:
        time.sleep(0.01)
    return len(found)


def state(path: Path) -> str:
    try:
        return path.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@step(executor="process")
def slow(mark: str, latch: str) -> str:
    Path(mark).touch()
    while not Path(latch).exists():
        time.sleep(0.01)
    return "finished"


@flow
def orphans(n: int):
    return zombies.with_options(after=[leaves_orphans(n)])()


@flow
def draining(mark: str, latch: str):
    return slow(mark, latch)
"""


def entry_point() -> list[str]:
    """As the image has it, with this environment's programs."""
    words = json.loads(last("ENTRYPOINT"))
    assert words == ["dumb-init", "--single-child", "--", "locktender"]
    init = Path(sys.executable).with_name("dumb-init")
    if not init.exists():
        pytest.skip("dumb-init is not installed: pip install --group deploy")
    return [str(init), *words[1:-1], str(Path(sys.executable).with_name("locktender"))]


@contextmanager
def as_pid_1(*words: str, cwd: Path) -> Iterator[int]:
    """Runs the entry point as PID 1 of a namespace of its own; gives its pid as seen from here."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    allowed = shutil.which("unshare") and not subprocess.run([*unshare, "true"]).returncode
    if not allowed:
        pytest.skip("PID namespaces are not allowed here")
    with (cwd / "log").open("w") as log:
        outer = subprocess.Popen(
            [*unshare, *entry_point(), *words], cwd=cwd, stdout=log, stderr=log, env=environment()
        )
    try:
        eventually(lambda: psutil.Process(outer.pid).children(), "60s")
        [inner] = psutil.Process(outer.pid).children()
        yield inner.pid
        # unshare ends with the code of PID 1.
        assert outer.wait(90) == 0, (cwd / "log").read_text()
    finally:
        for process in (
            [*psutil.Process(outer.pid).children(recursive=True)] if outer.poll() is None else ()
        ):
            process.kill()
        outer.kill()
        outer.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "LOCKTENDER_URL": "store.db", "LOCKTENDER_LOG_LEVEL": "debug"}


def test_pid_1_drains_on_sigterm_and_reaps_orphans(tmp_path: Path):
    """A body in a child process is not signalled: it finishes, and its result is stored."""
    from locktender import connect

    (tmp_path / "flows.py").write_text(FLOWS)
    mark, latch = tmp_path / "mark", tmp_path / "latch"
    with as_pid_1("worker", "flows.py", "--lead", "--set", "grace=60s", cwd=tmp_path) as pid:
        eventually((tmp_path / "store.db").exists, "60s")
        with connect(tmp_path / "store.db") as client:
            announced = {"flows:orphans", "flows:draining"}
            eventually(lambda: announced <= {each.name for each in client.flows.list()}, "60s")
            assert client.submit("flows:orphans", {"n": 5}).result("90s") == 0
            run = client.submit("flows:draining", {"mark": str(mark), "latch": str(latch)})
            eventually(mark.exists, "90s", "the body")
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: client.workers.list()[0].draining, "60s", "the worker to drain")
            latch.touch()
            eventually(lambda: not client.workers.list(), "60s", "the worker to leave")
            [task] = [each for each in run.tasks() if each.step.endswith("slow")]
            assert str(task.state) == "completed"


def test_the_health_check_asks_the_server(tmp_path: Path):
    """The exact command of HEALTHCHECK, beside the exact CMD on a port that is free."""
    command = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    words = json.loads(last("CMD"))
    assert words == ["server", "--host", "0.0.0.0", "--no-api"]
    words = [*words[:2], "127.0.0.1", *words[3:], "--port", "0", "--json"]
    process = subprocess.Popen(
        [*entry_point(), *words], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        check = [sys.executable, *command[1:]]
        where = {"HEALTH_URL": f"{said['url']}/health"}
        assert command[0] == "python"
        assert subprocess.run(check, env=where, timeout=60).returncode == 0
    finally:
        process.terminate()
        code = process.wait(90)
        if process.stdout is not None:
            process.stdout.close()
    assert code == 0
    assert subprocess.run(check, env=where, timeout=60, capture_output=True).returncode != 0


# -- compose and systemd -----------------------------------------------------------------------------


def test_compose_starts_what_the_image_has():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"postgres", "server", "worker"}
    for name in ("server", "worker"):
        service = services[name]
        assert service["depends_on"] == {"postgres": {"condition": "service_healthy"}}
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        # No password is in the file.
        assert "${POSTGRES_PASSWORD:?" in service["environment"]["LOCKTENDER_URL"]
        done = subprocess.run(
            [sys.executable, "-m", "locktender", service["command"][0], "--help"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        for word in service["command"]:
            if word.startswith("--"):
                assert word in done.stdout
    grace = re.search(r"grace=(\d+)s", " ".join(services["worker"]["command"]))
    assert grace is not None
    assert int(services["worker"]["stop_grace_period"].removesuffix("s")) > int(grace[1])
    # What HEALTHCHECK asks is where the worker serves.
    assert "8470" in services["worker"]["command"]


def test_docker_compose_reads_the_file():
    probe = ["docker", "compose", "version"]
    if not shutil.which("docker") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"],
        env={**os.environ, "POSTGRES_PASSWORD": "x"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["locktender-server.service", "locktender-worker@.service"])
def test_units_verify(name: str, tmp_path: Path):
    text = (DEPLOY / "systemd" / name).read_text()
    [command] = re.findall(r"ExecStart=(.*)", text)
    program, *words = shlex.split(command)
    assert Path(program).name == "locktender"
    assert "KillMode=mixed" in text
    [stop] = re.findall(r"TimeoutStopSec=(\d+)", text)
    grace = re.search(r"grace=(\d+)s", command)
    assert int(stop) > int(grace[1] if grace else 30)
    done = subprocess.run(
        [sys.executable, "-m", "locktender", words[0], "--help"], capture_output=True, text=True
    )
    assert all(word in done.stdout for word in words if word.startswith("--"))
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / name
    unit.write_text(text.replace(program, str(Path(sys.executable).with_name("locktender"))))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (verified.returncode, verified.stderr) == (0, "")
