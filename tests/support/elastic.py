"""Engines that workers are got from, each with what can go wrong with it, for one suite over all of them.

local      processes of the server's own machine
command    a batch system with real processes (`fake_slurm.py`)
kubernetes an API server whose Jobs are real processes (`fake_kubernetes.py`)
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import yaml
from tests.support.fake_kubernetes import FakeCluster

ROLE = (
    Path(__file__).parents[2] / "deploy" / "kubernetes" / "overlays" / "jobs" / "server-rbac.yaml"
)
SLURM = Path(__file__).with_name("fake_slurm.py")


class ElasticEngine(Protocol):
    """`flags` of a server that gets its workers there; the rest makes it fail, and mends it."""

    ends_with_server: bool

    def flags(self, steps: Path) -> dict[str, Any]: ...

    def vanish(self) -> None: ...

    def come_back(self) -> None: ...

    def hold(self) -> None:
        """Workers that are requested from now on do not start."""

    def let_go(self) -> None: ...

    def waiting(self) -> int:
        """How many were requested and are held."""
        ...

    def end(self) -> None: ...


class LocalEngine:
    ends_with_server = True

    def flags(self, steps: Path) -> dict[str, Any]:
        return {"spawn": steps}

    def end(self) -> None:
        pass


class SlurmEngine:
    ends_with_server = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm"
        self.folder.mkdir()

    def flags(self, steps: Path) -> dict[str, Any]:
        program = [sys.executable, str(SLURM), str(self.folder)]
        worker = [sys.executable, "-m", "locktender", "worker", str(steps)]
        options = {
            "kind": "command",
            "start": [*program, "sbatch", "--parsable", "--job-name=${name}", "--", *worker],
            "list": [*program, "squeue"],
            "release": [*program, "scancel", "${id}"],
            "list_interval": "100ms",
            "settings": {"total_permits": 1, "async_permits": 1, "grace": "5s"},
        }
        return {"elastic": json.dumps(options)}

    def vanish(self) -> None:
        (self.folder / "down").touch()

    def come_back(self) -> None:
        for trouble in ("down", "hang"):
            (self.folder / trouble).unlink(missing_ok=True)

    def hang(self) -> None:
        (self.folder / "hang").touch()

    @property
    def hung(self) -> int:
        return len(self.hanging())

    def hanging(self) -> list[int]:
        """The processes of commands that hang."""
        path = self.folder / "hanging"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    def waiting(self) -> int:
        jobs = list(self.folder.glob("job-*"))
        return sum(not (each / "pid").exists() for each in jobs)

    def end(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)
        for job in self.folder.glob("job-*"):
            (job / "cancelled").touch()
            if (job / "pid").exists() and not (job / "code").exists():
                with suppress(ProcessLookupError):
                    os.kill(int((job / "pid").read_text()), signal.SIGKILL)


class KubeEngine:
    ends_with_server = False

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "cluster").mkdir()
        self.cluster = FakeCluster(folder / "cluster", allowed=role_rules())
        self.cluster.secrets = {"locktender-worker": {"url": url}}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)

    def flags(self, steps: Path) -> dict[str, Any]:
        options = {
            "kind": "kubernetes",
            "image": "registry.example/app:1",
            "args": ["worker", str(steps)],
            "secret": "locktender-worker",
            "namespace": self.cluster.namespace,
            "owner": "deployment/locktender-server",
            "api_server": self.cluster.url,
            "token_file": str(self.cluster.token_file),
            "settings": {"total_permits": 1, "async_permits": 1, "grace": "5s"},
        }
        return {"elastic": json.dumps(options)}


def role_rules() -> set[tuple[str, str, str]]:
    """What the role of the server in deploy/kubernetes allows: the API server refuses all else."""
    documents = yaml.safe_load_all(ROLE.read_text())
    [role] = [each for each in documents if each["kind"] == "Role"]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@contextmanager
def elastic_engine(kind: str, folder: Path, url: str) -> Iterator[Any]:
    """`url` of the store, for the workers."""
    match kind:
        case "local":
            engine: Any = LocalEngine()
        case "command":
            engine = SlurmEngine(folder)
        case _:
            engine = KubeEngine(folder, url)
    try:
        yield engine
    finally:
        engine.end()
