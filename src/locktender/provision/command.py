"""Workers that an operator's command starts: `sbatch …`, `aws ecs run-task …`, `ssh …`.

    start      run once per worker; the worker gets its name in LOCKTENDER_PROVISION
    list       prints the workers that live or ended lately, one per line: NAME STATE [ID]
    release    lets one worker drain and end

A command is a list of words. Each `${…}` in a word is replaced by itself: nothing is read
by a shell. The names that the leader chose are the names in the engine, so any leader
can list and release workers that another one started.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import PREFIX, Settings
from locktender.base.errors import InvalidSettings
from locktender.base.names import did_you_mean
from locktender.provision.local import error_in
from locktender.provision.options import (
    WorkerOptions,
    WorkerSpec,
    check_worker_url,
    duration_us,
    worker_url,
)
from locktender.provision.protocol import (
    Capacity,
    Provisioned,
    ProvisionedState,
    WrongAnswer,
    granted_names,
)
from locktender.provision.subprocesses import CommandFailed, CommandOutput, run_command

log: logging.Logger = logging.getLogger(__name__)
MAX_STARTS = 4
"""Commands at once."""
IDS_KEPT = 10_000
MAX_ERROR_LENGTH = 500
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
NAME = re.compile(r"worker-[0-9a-f]{10}")
"""What the leader calls workers; other jobs of the engine are not listed."""
WORDS: dict[str, tuple[str, ...]] = {
    "start": ("name", "labels", "reason", "idle_exit", "variables"),
    "list": (),
    "release": ("name", "id"),
}
STATES: dict[ProvisionedState, tuple[str, ...]] = {
    "starting": ("starting", "pending", "configuring", "provisioning", "activating", "requeued"),
    "running": ("running", "completing", "suspended", "deactivating", "stopping"),
    "ended": ("ended", "completed", "cancelled", "stopped", "deprovisioning", "deleted"),
    "failed": (
        "failed", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline", "preempted",
    ),
}  # fmt: skip
"""Words of engines (Slurm, ECS) for the states of a worker. An unknown one counts as running."""


class JsonList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the output of `list` has what, as paths such as `tasks.0.taskArn`."""

    items: str = ""
    """The array of workers; empty: the whole output."""
    name: str = "name"
    state: str = "state"
    id: str = ""


class CommandWorkers(WorkerOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the command provisioner: `[provisioner]` with `kind = "command"`, or in Python."""

    start: tuple[str, ...]
    list: tuple[str, ...] = ()
    """Empty: a worker counts until its row is gone, or until `start_timeout` if it never joined."""
    release: tuple[str, ...] = ()
    """Empty: a worker ends when it is idle."""
    id: str = ""
    """Where the output of `start` has the engine's id: a path in JSON; empty: its first line."""
    list_json: JsonList | None = None
    """None: `list` prints lines."""
    states: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """More words of the engine: `{"BUSY": "running"}`."""
    labels: tuple[str, ...] = ()
    """Labels that `start` can provide: `gpu=a100`, or `zone=*`."""
    timeout: str = "30s"
    """Of one command; then it is killed."""
    list_interval: str = "10s"
    """The shortest time between two calls of `list`."""

    def __call__(self, settings: Settings) -> CommandProvisioner:
        return CommandProvisioner(self, settings)


class CommandProvisioner:
    def __init__(
        self, options: CommandWorkers, settings: Settings, *, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._settings = settings
        self._clock = clock or SystemClock()
        self._timeout = duration_us(options.timeout, "timeout") / SECOND
        self._list_interval_us = duration_us(options.list_interval, "list_interval")
        check_worker_url(options.worker_url)
        for verb in WORDS:
            _check_words(verb, getattr(options, verb))
        self._states = _states(options.states)
        self._spec = WorkerSpec(settings, options, options.labels)
        self._running = asyncio.Semaphore(MAX_STARTS)
        self._ids: dict[str, str] = {}
        """Worker → the engine's id, newest last."""
        self._listed: builtins.list[Provisioned] = []
        self._listed_at: int | None = None
        self._list_error: Exception | None = None
        self._since: deque[tuple[str, int]] = deque(maxlen=IDS_KEPT)
        """(worker, when it was requested) since the last list began."""
        self._released: set[str] = set()

    # -- the protocol ------------------------------------------------------------------------------

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return self._spec.capacity(needs)

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> builtins.list[str]:
        answers = await asyncio.gather(
            *(self._start(name, needs, reason) for name in names[:n]), return_exceptions=True
        )
        # After a timeout, or without a readable id, the worker may still come: its name counts.
        return granted_names(names, answers, "failed to start a worker")

    async def list(self) -> builtins.list[Provisioned]:
        if not self._options.list:
            return []
        now = self._clock.monotonic()
        if self._listed_at is None or now - self._listed_at >= self._list_interval_us:
            self._listed_at = now
            await self._list_anew()
        if self._list_error is not None:
            raise self._list_error
        known = {each.name for each in self._listed}
        coming = [
            Provisioned(name, "starting", since, "requested")
            for name, since in self._since
            if name not in known
        ]
        return self._listed + coming

    async def _list_anew(self) -> None:
        before = set(self._since)
        self._list_error = TimeoutError()  # what stays if this call is cancelled
        try:
            self._listed = self._read_list(await self._run("list", self._options.list, os.environ))
        except Exception as error:
            self._list_error = error
            raise
        self._list_error = None
        # A worker that was requested before the call began is in the list, or does not exist.
        self._since = deque((each for each in self._since if each not in before), IDS_KEPT)

    async def release(self, name: str) -> None:
        if not self._options.release:
            return
        values = {"name": name, "id": self._ids.get(name, "")}
        words = _filled(self._options.release, values)
        if any("${id}" in word for word in self._options.release) and not values["id"]:
            raise CommandFailed(f"the engine's id of {name} is not known.", field="release")
        self._released.add(name)
        await self._run("release", words, os.environ)

    async def close(self) -> None:
        """Workers elsewhere run until they are idle; commands end with their calls."""

    # -- commands ----------------------------------------------------------------------------------

    async def _start(self, name: str, needs: Mapping[str, str], reason: str) -> None:
        variables = self._spec.variables(name, needs)
        pairs = [{"name": key, "value": value} for key, value in variables.items()]
        values = {
            "name": name,
            "labels": ",".join(f"{label}={value}" for label, value in needs.items()),
            "variables": msgspec.json.encode(pairs).decode(),
            "reason": reason,
            "idle_exit": f"{self._settings.provisioned_idle_exit_us}us",
            **{f"label:{label}": value for label, value in needs.items()},
        }
        variables[f"{PREFIX}URL"] = worker_url(self._options.worker_url, self._settings)
        async with self._running:
            self._since.append((name, self._clock.now()))
            words = _filled(self._options.start, values)
            output = await self._run("start", words, {**os.environ, **variables})
        self._keep_id(name, self._read_id(output))

    async def _run(
        self, verb: str, words: Sequence[str], environment: Mapping[str, str]
    ) -> CommandOutput:
        try:
            output = await run_command(words, environment, self._timeout)
        except TimeoutError:
            log.warning("provisioner: %s: killed after %g s", verb, self._timeout)
            raise
        except OSError as error:
            raise CommandFailed(
                f"{verb}: {words[0]} did not start: {error.strerror or error}", field=verb
            ) from error
        if output.code:
            said = error_in(output.error.decode(errors="replace"))[:MAX_ERROR_LENGTH]
            how = f"exit code {output.code}" if output.code > 0 else f"signal {-output.code}"
            raise CommandFailed(f"{verb}: {words[0]}: {how}: {said or 'no output'}", field=verb)
        return output

    # -- what they print ---------------------------------------------------------------------------

    def _read_id(self, output: CommandOutput) -> str:
        if self._options.id:
            found = _at(_json(output, "start"), self._options.id)
            if not isinstance(found, str | int):
                raise WrongAnswer(f"start: its output has no {self._options.id}")
            return str(found)
        return next(iter(output.out.decode(errors="replace").split("\n", 1))).strip()

    def _keep_id(self, name: str, found: str) -> None:
        self._ids.pop(name, None)
        self._ids[name] = found
        while len(self._ids) > IDS_KEPT:
            del self._ids[next(iter(self._ids))]

    def _read_list(self, output: CommandOutput) -> builtins.list[Provisioned]:
        if output.cut:
            raise WrongAnswer("list: its output is too long")
        rows = self._rows_of_json(output) if self._options.list_json else _rows_of_lines(output)
        found: dict[str, Provisioned] = {}
        for name, word, engine_id in rows:
            if NAME.fullmatch(name) is None:
                continue
            if engine_id:
                self._keep_id(name, engine_id)
            # Slurm writes "CANCELLED by 0", and "CANCELLED+" where a column is too narrow.
            state = self._states.get(word.rstrip("+").lower(), "running")
            detail = f"{word} {engine_id}".strip()
            found[name] = Provisioned(name, state, 0, detail, name in self._released)
        self._released &= found.keys()
        return builtins.list(found.values())

    def _rows_of_json(self, output: CommandOutput) -> Iterable[tuple[str, str, str]]:
        paths = self._options.list_json or JsonList()
        items = _at(_json(output, "list"), paths.items)
        if not isinstance(items, builtins.list):
            raise WrongAnswer(f"list: {paths.items or 'its output'} is not an array")
        for item in cast("builtins.list[Any]", items):
            engine_id = _at(item, paths.id) if paths.id else ""
            yield str(_at(item, paths.name)), str(_at(item, paths.state)), str(engine_id or "")


def _rows_of_lines(output: CommandOutput) -> Iterable[tuple[str, str, str]]:
    for line in output.out.decode(errors="replace").splitlines():
        name, state, engine_id, *_ = [*line.split(), "", "", ""]
        if name and not state:
            raise WrongAnswer(f"list: a line is NAME STATE [ID], not {line.strip()[:80]!r}")
        yield name, state, engine_id


def _filled(words: Sequence[str], values: Mapping[str, str]) -> builtins.list[str]:
    """Each word by itself: a value never becomes two words."""
    return [PLACEHOLDER.sub(lambda found: values.get(found[1], ""), word) for word in words]


def _check_words(verb: str, words: Sequence[str]) -> None:
    if verb == "start" and not words:
        raise InvalidSettings("provisioner.start is empty.", field="provisioner.start")
    for word in words:
        if "\0" in word:
            raise InvalidSettings(
                f"provisioner.{verb} has a word with a NUL.", field=f"provisioner.{verb}", got=word
            )
        for name in PLACEHOLDER.findall(word):
            if name not in WORDS[verb] and not (verb == "start" and name.startswith("label:")):
                raise InvalidSettings(
                    f"provisioner.{verb}: ${{{name}}} is not known.",
                    field=f"provisioner.{verb}",
                    got=word,
                    hint=did_you_mean(name, WORDS[verb]),
                )


def _states(more: Mapping[str, str]) -> dict[str, ProvisionedState]:
    found: dict[str, ProvisionedState] = {
        word: state for state, words in STATES.items() for word in words
    }
    for word, state in more.items():
        if state not in STATES:
            raise InvalidSettings(
                f"provisioner.states: {state} is not a state.",
                field="provisioner.states",
                hint=f"The states are {', '.join(STATES)}.",
            )
        found[word.lower()] = state
    return found


def _json(output: CommandOutput, verb: str) -> object:
    try:
        return msgspec.json.decode(output.out)
    except msgspec.DecodeError as error:
        raise WrongAnswer(f"{verb}: its output is not JSON: {error}") from error


def _at(value: object, path: str) -> object:
    """What stands at a path such as `tasks.0.taskArn`; None: nothing does."""
    for part in filter(None, path.replace("[", ".").replace("]", "").removeprefix("$").split(".")):
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get(part)
        elif isinstance(value, builtins.list) and part.isdecimal():
            items = cast("builtins.list[object]", value)
            value = items[int(part)] if int(part) < len(items) else None
        else:
            return None
    return value
