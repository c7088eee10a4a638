"""A Ray cluster on loopback, in processes of its own: `with RayCluster() as cluster`.

Run as a program it is the process that owns the cluster: Ray ends a process whose cluster
is killed, so that is not the process of the tests. Nothing listens on other
addresses, and nothing is reported to anybody.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

LOOPBACK = "127.0.0.1"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else Ray takes 127.0.0.1 for the address of the machine in its network.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    # No worker process before an actor needs it: there are few cores.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
NODE: dict[str, Any] = {
    "object_store_memory": 80 << 20,
    "node_ip_address": LOOPBACK,
}


class RayCluster:
    def __init__(self) -> None:
        # Sockets have their paths in it: it must be short.
        self.folder = tempfile.mkdtemp(prefix="ltr", dir="/tmp")
        self.address = ""
        self._owner: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._owner = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_cluster", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ray notes the address of the newest cluster there, and does not make the folder.
            env={**os.environ, **ENVIRONMENT, "RAY_TMPDIR": self.folder},
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        try:
            self.begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("vanish")
        self._end()

    def _end(self) -> None:
        """The owner ends with its standard input, and all that it started with it."""
        assert self._owner is not None
        for stream in (self._owner.stdin, self._owner.stdout):
            assert stream is not None
            stream.close()
        self._owner.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, port: int = 0) -> None:
        """A head without room for actors; at the port of one that vanished if it is given."""
        self.address = self._ask("begin", port=port)

    def add(self, variables: dict[str, str], **resources: Any) -> int:
        """The process id of the raylet of a new node, whose actors have these variables."""
        return self._ask("add", variables=variables, **resources)

    def remove(self, raylet: int) -> None:
        """Kills a node as a machine that is switched off."""
        self._ask("remove", raylet=raylet)

    def vanish(self) -> None:
        """Kills every process of the cluster."""
        self._ask("vanish")

    @property
    def owner(self) -> int:
        assert self._owner is not None
        return self._owner.pid

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def _ask(self, verb: str, **values: Any) -> Any:
        assert self._owner is not None
        assert self._owner.stdin is not None
        assert self._owner.stdout is not None
        self._owner.stdin.write(json.dumps([verb, values]) + "\n")
        self._owner.stdin.flush()
        line = self._owner.stdout.readline()
        assert line, f"the owner of the Ray cluster has ended: {self._owner.poll()}"
        return json.loads(line)


class _Owner:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) / "ray"
        self._folder.mkdir()
        self._cluster: Any = None
        self._nodes: dict[int, Any] = {}

    def begin(self, port: int) -> str:
        from ray.cluster_utils import Cluster

        more = {"gcs_server_port": port} if port else {}
        args = {
            **NODE,
            "num_cpus": 0,
            "include_dashboard": False,
            "temp_dir": str(self._folder),
            **more,
        }
        self._cluster = Cluster(initialize_head=True, head_node_args=args)
        return self._cluster.address

    def add(self, variables: dict[str, str], **resources: Any) -> int:
        os.environ.update(variables)
        node = self._cluster.add_node(**{**NODE, **resources})
        raylet = node.all_processes["raylet"][0].process.pid
        self._nodes[raylet] = node
        return raylet

    def remove(self, raylet: int) -> None:
        self._cluster.remove_node(self._nodes.pop(raylet), allow_graceful=False)

    def vanish(self) -> None:
        for node in [*self._nodes.values(), self._cluster.head_node]:
            for processes in node.all_processes.values():
                for each in processes:
                    each.process.kill()
                    each.process.wait()
        self._nodes.clear()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    owner = _Owner(sys.argv[1])
    for line in sys.stdin:
        verb, values = json.loads(line)
        out.write(json.dumps(getattr(owner, verb)(**values)) + "\n")
        out.flush()
    # Not the end of the interpreter: Ray would tidy up a cluster that is gone.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
