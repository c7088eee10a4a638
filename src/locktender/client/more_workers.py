"""Where another process finds the steps of this one: what `locktender worker` must be told.

A script is named by its file, as it would be on a command line, and knows its
steps by the same names there. A module is named as it is imported, and where it
lies comes along: the path of this process may not be a new one's.

More workers for an engine: processes that come when nobody can take what waits, and go by themselves.

Who starts them is a provisioner: this machine's, which runs `locktender worker`
on the same files, or one of the user's own. An engine in a user's program
(`embedded()`) finds its files by the steps it knows; `dev` and `server` name them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.base.settings_values import KEYS
from locktender.client.provisioners import GivenProvisioner, made
from locktender.flows.definitions import StepDef
from locktender.flows.registry import registry
from locktender.provision.controller import ProvisionController
from locktender.provision.local import LocalProvisioner, worker_command
from locktender.provision.protocol import Provisioner


class Sources(NamedTuple):
    words: tuple[str, ...]
    """As `locktender worker` takes them."""
    roots: tuple[str, ...]
    """Where modules are looked for, beside where Python looks anyway."""
    steps: frozenset[str]
    """What a worker with these words knows."""
    left_out: dict[str, str]
    """Step → why no other process can know it."""


class _Place(NamedTuple):
    words: tuple[str, ...]
    root: str | None = None


def step_sources(steps: Mapping[str, StepDef]) -> Sources:
    """Where these steps can be loaded from."""
    files: dict[str, None] = {}
    modules: dict[tuple[str, ...], None] = {}
    roots: dict[str, None] = {}
    known: set[str] = set()
    left_out: dict[str, str] = {}
    for name, step in steps.items():
        place = _place(step)
        if isinstance(place, str):
            left_out[name] = place
            continue
        known.add(name)
        if len(place.words) == 1:
            files[place.words[0]] = None
        else:
            modules[place.words] = None
        if place.root is not None and not _found_anyway(place.root):
            roots[place.root] = None
    words = (*files, *(word for several in modules for word in several))
    return Sources(words, tuple(roots), frozenset(known), left_out)


def _place(step: StepDef) -> _Place | str:
    """Where a step is defined; as text, why it cannot be had from there."""
    if step.file.startswith("<"):
        return "it was typed at a prompt and is in no file"
    if step.is_local:
        return "it is defined inside a function, so that importing its file does not define it"
    if step.module == "__main__":
        return _script(step)
    file: str | None = getattr(sys.modules.get(step.module), "__file__", None)
    if file is None:
        return f"its module {step.module} is in no file"
    root = _root(step.module, Path(file).absolute())
    if root is None:
        return f"its module {step.module} is not where its name says, but in {file}"
    return _Place(("--app", step.module), str(root))


def _script(step: StepDef) -> _Place | str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return _Place((str(Path(step.file).absolute()),))
    # `python -m shop.flows`: here its steps are named after its file, where it is imported after all of it.
    if step.name in {f"{spec.name}:{step.qualname}", step.short}:
        root = _root(spec.name, Path(step.file).absolute())
        return _Place(("--app", spec.name), None if root is None else str(root))
    return (
        f"it was run by python -m {spec.name}, and a worker would know it as"
        f" {spec.name}:{step.qualname}; run the file itself, or import the module"
    )


def _root(module: str, path: Path) -> Path | None:
    """The folder from which `module` is imported; None where the file is elsewhere."""
    parts = module.split(".")
    if path.name == "__init__.py":
        path = path.parent
    elif path.name.partition(".")[0] != parts[-1]:
        return None
    parents = [path.name.partition(".")[0], *(parent.name for parent in path.parents)]
    if parents[: len(parts)] != parts[::-1]:
        return None
    return path.parents[len(parts) - 1]


def _found_anyway(root: str) -> bool:
    """A worker looks in its working directory, and in what was installed with the interpreter."""
    if Path(root) == Path.cwd():
        return True
    inside = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    return any(Path(os.path.realpath(root)).is_relative_to(prefix) for prefix in inside)


log: logging.Logger = logging.getLogger(__name__)
BY_THEMSELVES = ("pools", "tags", "labels")
"""Tables of limits: the engine here declares them, and a worker needs none."""
LEAVE_SECONDS = 3.0
"""Beyond the grace: then a provisioner is not waited for any longer."""
KILL_SECONDS = 15.0
"""Beyond a whole grace: by then the local one has killed whoever has not ended."""
MOST_NAMED = 3


class MoreWorkers:
    def __init__(self, provisioner: Provisioner, settings: Settings) -> None:
        self._provisioner = provisioner
        self._settings = settings
        self.overflow: ProvisionController = ProvisionController(provisioner, settings)

    async def renew(self) -> None:
        """The code has changed: whoever runs the old one drains, and what still waits is done by new ones."""
        for each in await self._provisioner.list():
            if each.state in ("starting", "running"):
                await self._provisioner.release(each.name)

    async def close(self, grace_us: int | None = None) -> None:
        """Lets them drain and end; whoever has not a while after the grace is ended with the provisioner."""
        whole = self._settings.grace_us
        grace = whole if grace_us is None else min(grace_us, whole)
        margin = KILL_SECONDS if grace == whole else LEAVE_SECONDS
        try:
            async with asyncio.timeout(grace / SECOND + margin):
                await self.overflow.close()
        except TimeoutError:
            log.warning("provisioner: it did not close in time")
        except Exception as error:  # noqa: BLE001 — a provisioner is foreign code: it may raise anything
            log.warning("provisioner: cannot close: %s", error or type(error).__name__)


def more_workers(settings: Settings, provisioner: GivenProvisioner | None) -> MoreWorkers | None:
    """For an engine in a user's own program; None where no workers are asked for.

    A maximum in a settings file may be meant for others, a server say: where it cannot be had
    here that is only told. Who gives one as an argument means this engine.
    """
    if provisioner is not None:
        if not settings.max_workers:
            raise no_maximum("a provisioner", "Say max_workers=3")
        return MoreWorkers(made(provisioner, settings), settings)
    if not settings.max_workers:
        return None
    try:
        return _beside(settings)
    except InvalidInput as error:
        if given_by_argument(settings, "max_workers"):
            raise
        where = settings.sources.get("max_workers", "max_workers")
        log.warning("no more workers are started here, although %s says so: %s", where, error)
        return None


def local_workers(
    settings: Settings,
    sources: Sequence[str],
    *,
    grace_us: int | None = None,
    steps: Callable[[], Mapping[str, str]] | None = None,
    roots: Sequence[str] = (),
) -> MoreWorkers:
    """Worker processes on this machine.

    `sources` as `locktender worker` takes them; `roots`: where their modules are; `steps`: step →
    signature as they will have them, where the same code is loaded here.
    """
    check_idle_exit(settings)
    grace = settings.grace_us if grace_us is None else grace_us
    given = {**_given(settings), "grace": f"{grace}us"}
    settings = _from_anywhere(settings)
    provisioner = LocalProvisioner(
        worker_command(sources, settings, given),
        settings,
        steps=steps,
        grace_us=grace,
        environment=_path_with(roots),
    )
    return MoreWorkers(provisioner, settings)


def check_idle_exit(settings: Settings) -> None:
    """Refuses an `idle_exit` that would not be the one of the workers that are started here."""
    if given_by_argument(settings, "idle_exit"):
        raise InvalidInput(
            "idle_exit is for workers that somebody starts by hand;"
            " those that are started on overflow have provisioned_idle_exit.",
            field="idle_exit",
            hint="Set provisioned_idle_exit instead.",
        )


def steps_here() -> dict[str, str]:
    """Step → signature, of all that are loaded in this process."""
    return {name: step.signature for name, step in dict(registry.steps).items()}


def given_by_argument(settings: Settings, key: str) -> bool:
    """Whether a flag or an argument set it, and no file or variable."""
    return settings.sources.get(key, "").startswith("override")


def no_maximum(who: str, say: str) -> InvalidInput:
    return InvalidInput(
        f"{who} needs to know how many workers there may be at once.",
        field="max_workers",
        hint=f"{say}, or max_workers = 3 in locktender.toml (LOCKTENDER_MAX_WORKERS=3).",
    )


def _beside(settings: Settings) -> MoreWorkers:
    if settings.provision:
        # Without this, a script that starts its engine while it is imported would start workers for ever.
        raise InvalidInput(
            f"this process is itself a worker that was started on overflow ({settings.provision}),"
            " and starts no others.",
            field="max_workers",
            got=settings.max_workers,
            hint='Put what runs the engine behind: if __name__ == "__main__":',
        )
    sources = step_sources(dict(registry.steps))
    if not sources.words:
        raise _no_sources(settings, sources)
    if sources.left_out:
        log.warning("more workers do not know, and only this process runs: %s", _left_out(sources))

    def steps() -> dict[str, str]:
        return {name: each for name, each in steps_here().items() if name in sources.steps}

    return local_workers(settings, sources.words, steps=steps, roots=sources.roots)


def _no_sources(settings: Settings, sources: Sources) -> InvalidInput:
    if not sources.left_out:
        message = "no step is defined yet, so that another worker would know none."
        hint = "Define or import the steps before the engine is started."
    else:
        message = f"no other process can run these steps: {_left_out(sources)}."
        hint = "Put them into a file and import it, or leave max_workers out."
    return InvalidInput(message, field="max_workers", got=settings.max_workers, hint=hint)


def _left_out(sources: Sources) -> str:
    named = [f"{name} ({why})" for name, why in sources.left_out.items()]
    more = len(named) - MOST_NAMED
    return ", ".join(named[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _given(settings: Settings) -> dict[str, str]:
    """What flags or arguments set, as text: what files and variables say a worker reads itself."""
    by_argument = {
        source.partition(".")[0]
        for source in settings.sources
        if given_by_argument(settings, source)
    }
    return {
        name: _text(key.field, getattr(settings, key.field))
        for name, key in KEYS.items()
        if name in by_argument and not key.limit and name not in BY_THEMSELVES
    }


def _text(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return f"{value}us" if field.endswith("_us") else str(value)


def _from_anywhere(settings: Settings) -> Settings:
    """Paths that hold after this program has changed its working directory."""
    url = settings.url if "://" in settings.url else str(Path(settings.url).absolute())
    work_dir = str(Path(settings.work_dir).absolute())
    return msgspec.structs.replace(settings, url=url, work_dir=work_dir)


def _path_with(roots: Sequence[str]) -> dict[str, str]:
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join([*roots, *before])} if roots else {}
