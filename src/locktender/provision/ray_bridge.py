"""The process that talks to a Ray cluster for a leader: `python -m locktender.provision.ray_bridge`.

Ray ends a process that loses its cluster, and its calls may hang. So no leader imports
Ray: it starts this process, writes one JSON object per line to its standard input and
reads one answer per line. The process ends with the leader, or when it is told to.

Any bridge of the same namespace finds the actors that another one made: they are
detached and have the names that the leader stored before it asked for them.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO, cast

import msgspec

from locktender.base.clock import SECOND, SystemClock
from locktender.provision.ray_actor import WorkerActor

STATUS_SECONDS = 2.0
"""How long a list waits for the answers of all actors."""
UNMET_US = 10 * SECOND
"""How long after its release an actor that has never answered is killed."""
REACH_SECONDS = 5.0
ENDED_LISTED = 100
NAME = "worker-"
CALLS_AT_ONCE = 4
"""Of one actor: `status` is answered while `drain` waits."""
_DEAD = ("ActorDiedError", "RayActorError", "ActorUnschedulableError", "OutOfMemoryError")


class RayBridge:
    def __init__(self, hello: dict[str, Any]) -> None:
        self._ray: Any = import_module("ray")
        self._patience_us = int(hello["start_seconds"] * SECOND)
        self._secrets: dict[str, str] = {}
        self._clock = SystemClock()
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        """The question that an actor has not answered yet: one that waits for a node gets no second one."""
        self._since: dict[str, int] = {}
        self._met: set[str] = set()
        """Actors that have answered."""
        self._unmet: dict[str, int] = {}
        """Released before they had answered → when: they are killed if they do not."""
        self._ended: deque[dict[str, Any]] = deque(maxlen=ENDED_LISTED)
        _reach(hello["address"])
        self._ray.init(
            address=hello["address"],
            namespace=hello["namespace"],
            log_to_driver=False,
            logging_level="ERROR",
        )

    def request(self, order: dict[str, Any]) -> list[str]:
        """Makes the actors; they start when the cluster has room for them. Returns those that were made."""
        self._secrets = order["secrets"]
        for name, variables in order["workers"].items():
            try:
                self._make(name, variables, order)
            except Exception:
                if not self._actors.keys() & order["workers"].keys():
                    raise
                break
        return [name for name in order["workers"] if name in self._actors]

    def _make(self, name: str, variables: dict[str, str], order: dict[str, Any]) -> None:
        if name not in self._actors:
            kind = self._ray.remote(WorkerActor)
            actor = kind.options(
                **order["options"],
                name=name,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=0,
                max_concurrency=CALLS_AT_ONCE,
            ).remote(order["words"], variables, order["start_seconds"], order["grace_seconds"])
            actor.start.remote(self._secrets)
            self._add(name, actor)

    def list(self, order: dict[str, Any]) -> dict[str, Any]:
        self._secrets = order["secrets"]
        for name in self._ray.util.list_named_actors():
            if name.startswith(NAME) and name not in self._actors:
                try:
                    self._add(name, self._ray.get_actor(name))
                except ValueError:  # it has ended meanwhile
                    continue
        for name, actor in self._actors.items():
            if name not in self._asked:
                self._asked[name] = actor.status.remote()
        refs = list(self._asked.values())
        done: set[Any] = set()
        if refs:
            done.update(self._ray.wait(refs, num_returns=len(refs), timeout=STATUS_SECONDS)[0])
        found = [self._seen(name, self._asked[name] in done) for name in list(self._actors)]
        return {"workers": [*filter(None, found), *self._ended], "nodes": self._nodes()}

    def release(self, order: dict[str, Any]) -> None:
        name = order["name"]
        actor = self._actors.get(name)
        if actor is None:
            try:
                actor = self._ray.get_actor(name)
            except ValueError:
                return
        actor.drain.remote()
        if name not in self._met:
            # It waits for a node, or is slow to answer: then its worker would be cut off.
            self._unmet[name] = self._clock.monotonic()

    def _add(self, name: str, actor: Any) -> None:
        self._actors[name] = actor
        self._since[name] = self._clock.monotonic()

    def _seen(self, name: str, answered: bool) -> dict[str, Any] | None:
        """What is known of one actor; None: it has ended, and is among those that ended."""
        if not answered:
            return self._silent(name)
        try:
            status = self._ray.get(self._asked.pop(name))
        except Exception as error:  # noqa: BLE001 — an actor may end in any way
            if type(error).__name__ not in _DEAD:
                return {"name": name, "state": "running", "detail": _first_line(error)}
            self._end(name, "failed", _cause(error), released=False)
            return None
        self._met.add(name)
        self._unmet.pop(name, None)
        if status["state"] == "waiting":
            # The leader that made it ended before it had sent the url.
            self._actors[name].start.remote(self._secrets)
            status["state"] = "starting"
        if status["state"] in ("ended", "failed"):
            self._ray.kill(self._actors[name])
            self._end(name, **status)
            return None
        return {"name": name, **status}

    def _silent(self, name: str) -> dict[str, Any]:
        if name in self._met:
            return {"name": name, "state": "running", "detail": "its actor does not answer"}
        now = self._clock.monotonic()
        released = now - self._unmet.get(name, now) > UNMET_US
        if released or now - self._since[name] > 2 * self._patience_us:
            # The leader does not count it any more: it must not wait in the cluster for ever.
            self._ray.kill(self._actors[name])
        return {"name": name, "state": "starting", "detail": "waits for room in the cluster"}

    def _end(self, name: str, state: str, detail: str, released: bool) -> None:
        self._ended.append({"name": name, "state": state, "detail": detail, "released": released})
        for memory in (self._actors, self._since, self._asked, self._unmet):
            memory.pop(name, None)
        self._met.discard(name)

    def _nodes(self) -> list[dict[str, float]]:
        """What each node that lives has in all."""
        return [dict(node["Resources"]) for node in self._ray.nodes() if node["Alive"]]


def serve(lines: BinaryIO, answer: Callable[[bytes], object]) -> None:
    bridge: RayBridge | None = None
    for line in lines:
        order = cast("dict[str, Any]", msgspec.json.decode(line))
        try:
            if bridge is None:
                bridge = RayBridge(order)
                result: Any = True
            else:
                result = getattr(bridge, order["verb"])(order)
            said = {"result": result}
        except Exception as error:  # noqa: BLE001 — the leader is told
            said = {"error": f"{type(error).__name__}: {_first_line(error)}"}
        answer(msgspec.json.encode(said) + b"\n")


def _reach(address: str) -> None:
    """Refuses at once where nothing listens; Ray would try for a quarter of a minute."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "//" not in host:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:500]


def _cause(error: BaseException) -> str:
    """Ray's own words, without the table of ids in them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [
        line
        for line in lines[1:]
        if not line.startswith(("class_name", "actor_id", "pid", "namespace", "ip", "name"))
    ]
    return " ".join(said or lines)[:500] or type(error).__name__


def main() -> None:
    out = os.dup(1)
    # What Ray prints must not come between the answers.
    os.dup2(2, 1)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    serve(sys.stdin.buffer, lambda data: os.write(out, data))
    # Not the end of the interpreter: Ray would wait for a cluster that may be gone.
    os._exit(0)


if __name__ == "__main__":
    main()
