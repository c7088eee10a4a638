"""What `[provisioner]` of the settings says, and what every worker that is started elsewhere is given.

A worker gets its name, its labels and its settings as variables. So does its url, which
may hold a password: no command line and no manifest has it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from locktender.base.config import PREFIX, Settings
from locktender.base.durations import microseconds
from locktender.base.errors import InvalidInput, InvalidSettings
from locktender.base.names import UNLIMITED, did_you_mean
from locktender.base.settings_values import KEYS
from locktender.provision.protocol import Capacity, Provisioner

KINDS: dict[str, str] = {
    "command": "locktender.provision.command:CommandWorkers",
    "ray": "locktender.provision.ray_workers:RayWorkers",
    "kubernetes": "locktender.provision.kubernetes:KubernetesWorkers",
}
"""`kind` of `[provisioner]` → the class of its options; called with the settings it makes the provisioner."""
RESERVED = ("url", "provision", "idle_exit", "worker_labels", "max_workers", "provisioner")
"""Settings of a worker that its provisioner sets."""
PLAIN_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
"""Values of labels that may stand in a command or manifest: none is an option, or ends a quoted text."""
PLACES = ("schema", "host", "port", "database", "dbname")
"""Parameters of a url that make it another store."""
ANY = "*"
Value = str | int | float | bool
OptionsT = TypeVar("OptionsT", bound="WorkerOptions")


class WorkerOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What all kinds have in common."""

    settings: dict[str, Value] = {}
    """Of the workers, e.g. `{"max_tasks": 1}`: one worker per task."""
    worker_url: str = ""
    """The url of the workers: `env:NAME` or `file:PATH`, read in the leader's process. Empty: the leader's own."""


def provisioner_of(settings: Settings) -> Provisioner:
    """The provisioner that the settings describe."""
    given = dict(settings.provisioner)
    kind = given.pop("kind", "")
    if kind not in KINDS:
        raise InvalidSettings(
            f"there is no provisioner of the kind {kind!r}."
            if kind
            else "provisioner needs a kind.",
            field="provisioner.kind",
            got=kind or None,
            hint=did_you_mean(kind, KINDS) or f"The kinds are {', '.join(KINDS)}.",
        )
    module, _, name = KINDS[kind].partition(":")
    options = getattr(import_module(module), name)
    made = cast("Callable[[Settings], Provisioner]", read_options(given, options))
    return made(settings)


def read_options(given: Mapping[str, Any], kind: type[OptionsT]) -> OptionsT:
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key in given:
        if key not in known:
            raise InvalidSettings(
                f"provisioner.{key} is not known.",
                field=f"provisioner.{key}",
                hint=did_you_mean(key, known),
            )
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"provisioner: {error}.", field="provisioner") from error


class WorkerSpec:
    """What one new worker brings, and the variables that it is started with."""

    def __init__(self, settings: Settings, options: WorkerOptions, labels: Sequence[str]) -> None:
        """`labels` that it can have: `gpu=a100`, or `zone=*`."""
        self._settings = settings
        self._labels = [_label(each) for each in labels]
        values = {key: _setting(key, value) for key, value in options.settings.items()}
        self._worker = msgspec.structs.replace(
            settings, **{KEYS[key].field: value for key, value in values.items()}
        )
        self._variables = {key: str(value) for key, value in options.settings.items()}

    @property
    def grace_us(self) -> int:
        """How long a worker that is asked to end may take."""
        return self._worker.grace_us

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        if not all(self.has(*label) for label in needs.items()):
            return None
        worker = self._worker
        total = worker.total_permits
        if worker.max_tasks is not None:
            # It takes so many tasks in all: the next ones need another worker.
            total = worker.max_tasks if total == UNLIMITED else min(total, worker.max_tasks)
        return Capacity(worker.permits(), total, dict(needs))

    def has(self, label: str, value: str) -> bool:
        return PLAIN_VALUE.fullmatch(value) is not None and any(
            name == label and allowed in (value, ANY) for name, allowed in self._labels
        )

    def variables(self, name: str, needs: Mapping[str, str]) -> dict[str, str]:
        """All but the url."""
        given = {
            **self._variables,
            "idle_exit": f"{self._settings.provisioned_idle_exit_us}us",
            "provision": name,
        }
        if needs:
            given["worker_labels"] = msgspec.json.encode(dict(needs)).decode()
        return {f"{PREFIX}{key.upper()}": value for key, value in given.items()}


def worker_url(given: str, settings: Settings) -> str:
    """The url itself. It is read at each request, so that a password may change."""
    if not given:
        return settings.url if "://" in settings.url else str(Path(settings.url).absolute())
    kind, _, where = given.partition(":")
    try:
        found = os.environ[where] if kind == "env" else Path(where).read_text().strip()
    except (KeyError, OSError) as error:
        raise InvalidSettings(
            f"provisioner.worker_url: failed to read {given}.", field="provisioner.worker_url"
        ) from error
    return found


def store_hash(settings: Settings) -> str:
    """Tells the workers of one store from others: the same for all its leaders, whatever password they use."""
    if "://" not in settings.url:
        text = worker_url("", settings)
    else:
        query = parse_qsl(urlsplit(settings.url).query)
        places = urlencode(sorted(each for each in query if each[0] in PLACES))
        text = settings.shown_url + (f"?{places}" if places else "")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_worker_url(given: str) -> None:
    if given and (not given.startswith(("env:", "file:")) or given.endswith(":")):
        raise InvalidSettings(
            "provisioner.worker_url must name where the url is, so that no file holds a password.",
            field="provisioner.worker_url",
            hint='e.g. "env:WORKER_URL" or "file:/run/secrets/worker-url"',
        )


def duration_us(text: str | float, field: str) -> int:
    try:
        return microseconds(text)
    except InvalidInput as error:
        raise InvalidSettings(
            error.message, field=f"provisioner.{field}", got=text, hint=error.hint
        ) from error


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not (value == ANY or PLAIN_VALUE.fullmatch(value)):
        raise InvalidSettings(
            "a label of the provisioner is written name=value.",
            field="provisioner.labels",
            got=text,
            hint='e.g. "gpu=a100", or "zone=*" for any value',
        )
    return name, value


def _setting(key: str, value: Value) -> object:
    where = f"provisioner.settings.{key}"
    if key not in KEYS or key in RESERVED or KEYS[key].table:
        known = [each for each in KEYS if each not in RESERVED and not KEYS[each].table]
        raise InvalidSettings(
            f"{where} is not a setting of such a worker.",
            field=where,
            hint="Use provisioned_idle_exit of the server."
            if key == "idle_exit"
            else did_you_mean(key, known),
        )
    try:
        return KEYS[key].from_text(value) if isinstance(value, str) else KEYS[key].read(value)
    except InvalidInput as error:
        raise InvalidSettings(error.message, field=where, got=value, hint=error.hint) from error
