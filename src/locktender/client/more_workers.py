"""More workers for an engine: processes that start when tasks lack only a worker, and end when idle.

They are started by a provisioner: the local one, which runs `locktender worker` on
the same files, or one of the user's own. An engine in a user's program (`embedded()`)
finds the files by the steps it knows; `dev` and `server` name them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.base.settings_values import KEYS
from locktender.flows.definitions import StepDef
from locktender.flows.flows import Flow
from locktender.flows.registry import registry
from locktender.flows.steps import Step
from locktender.provision.controller import ProvisionController
from locktender.provision.local import LocalProvisioner, worker_command
from locktender.provision.options import provisioner_of
from locktender.provision.protocol import Provisioner, error_text

log: logging.Logger = logging.getLogger(__name__)
LIMIT_TABLES = ("pools", "tags", "labels")
"""The engine here declares them; a worker does not need them."""
CLOSE_MARGIN_SECONDS = 3.0
"""After a shortened grace, closing a provisioner times out."""
KILL_MARGIN_SECONDS = 15.0
"""After a whole grace: by then the local provisioner has killed its workers."""
STEPS_NAMED = 3


class Sources(NamedTuple):
    words: tuple[str, ...]
    """As `locktender worker` takes them."""
    roots: tuple[str, ...]
    """Folders of modules that a worker would not find by itself."""
    steps: frozenset[str]
    """The steps that such a worker has."""
    left_out: dict[str, str]
    """Step → why no other process can load it."""


class _Place(NamedTuple):
    words: tuple[str, ...]
    root: str | None = None


def step_sources(steps: Mapping[str, StepDef]) -> Sources:
    """What `locktender worker` needs to load these steps.

    A script is named by its file. A module is named as it is imported, with the folder
    it is imported from: a new process may search other folders than this one.
    """
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
    """Where a step is defined; as text, why another process cannot load it from there."""
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
    # With `python -m shop.flows` steps are named after the file; imported they are named after the module.
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
    """A worker searches its working directory and the packages of the interpreter."""
    if Path(root) == Path.cwd():
        return True
    inside = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    return any(Path(os.path.realpath(root)).is_relative_to(prefix) for prefix in inside)


class MoreWorkers:
    def __init__(self, provisioner: Provisioner, settings: Settings) -> None:
        self._provisioner = provisioner
        self._settings = settings
        self.overflow: ProvisionController = ProvisionController(provisioner, settings)

    async def renew(self) -> None:
        """The code has changed: workers with the old code drain, and new workers are started when needed."""
        for each in await self._provisioner.list():
            # Others may be listed too: of other machines, or of other stores in the same engine.
            if each.state in ("starting", "running") and each.name in self.overflow.started:
                await self._provisioner.release(each.name)

    async def close(self, grace_us: int | None = None) -> None:
        """Lets the workers drain and end. Bounded, and never raises."""
        whole = self._settings.grace_us
        grace = whole if grace_us is None else min(grace_us, whole)
        margin = KILL_MARGIN_SECONDS if grace == whole else CLOSE_MARGIN_SECONDS
        try:
            async with asyncio.timeout(grace / SECOND + margin):
                await self.overflow.close()
        except TimeoutError:
            log.warning("provisioner: close timed out")
        except Exception as error:  # noqa: BLE001 — a provisioner may raise anything
            log.warning("provisioner: %s", error_text(error, "failed to close"))


def more_workers(settings: Settings, provisioner: GivenProvisioner | None) -> MoreWorkers | None:
    """For an engine in a user's own program; None without `max_workers`.

    `max_workers` from a file or variable may be meant for a server: if no worker can be
    started here, that is only logged. Given as an argument, it is an error.
    """
    if provisioner is not None:
        if not settings.max_workers:
            raise no_maximum("a provisioner", "Say max_workers=3")
        return MoreWorkers(made(provisioner, settings), settings)
    if not settings.max_workers:
        return None
    if settings.provisioner and not settings.provision:
        return MoreWorkers(made(provisioner_of, settings), settings)
    try:
        return _beside(settings)
    except InvalidInput as error:
        if given_by_argument(settings, "max_workers"):
            raise
        where = settings.sources.get("max_workers", "max_workers")
        log.warning("%s is ignored, no workers are started: %s", where, error)
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

    sources    as `locktender worker` takes them
    steps      step → signature of the workers, if the same code is loaded here
    roots      the folders of their modules
    """
    check_idle_exit(settings)
    grace = settings.grace_us if grace_us is None else grace_us
    given = {**_given(settings), "grace": f"{grace}us"}
    settings = _with_absolute_paths(settings)
    provisioner = LocalProvisioner(
        worker_command(sources, settings, given),
        settings,
        steps=steps,
        grace_us=grace,
        environment=_path_with(roots),
    )
    return MoreWorkers(provisioner, settings)


def check_idle_exit(settings: Settings) -> None:
    """Refuses an `idle_exit` that the workers started here would not use."""
    if given_by_argument(settings, "idle_exit"):
        raise InvalidInput(
            "idle_exit is for workers started by hand;"
            " workers started on overflow use provisioned_idle_exit.",
            field="idle_exit",
            hint="Set provisioned_idle_exit instead.",
        )


def steps_here() -> dict[str, str]:
    """Step → signature, of all steps loaded in this process."""
    return {name: step.signature for name, step in dict(registry.steps).items()}


def given_by_argument(settings: Settings, key: str) -> bool:
    """Whether a flag or an argument set it, not a file or variable."""
    return settings.sources.get(key, "").startswith("override")


def no_maximum(who: str, say: str) -> InvalidInput:
    return InvalidInput(
        f"{who} needs max_workers: how many workers may run at once.",
        field="max_workers",
        hint=f"{say}, or max_workers = 3 in locktender.toml (LOCKTENDER_MAX_WORKERS=3).",
    )


def _beside(settings: Settings) -> MoreWorkers:
    if settings.provision:
        # A script that starts its engine while it is imported would start workers without end.
        raise InvalidInput(
            f"this process is itself a worker that was started on overflow ({settings.provision});"
            " it cannot start others.",
            field="max_workers",
            got=settings.max_workers,
            hint='Put the code that starts the engine behind: if __name__ == "__main__":',
        )
    sources = step_sources(dict(registry.steps))
    if not sources.words:
        raise _no_sources(settings, sources)
    if sources.left_out:
        log.warning("only this process can run these steps: %s", _left_out(sources))

    def steps() -> dict[str, str]:
        return {name: each for name, each in steps_here().items() if name in sources.steps}

    return local_workers(settings, sources.words, steps=steps, roots=sources.roots)


def _no_sources(settings: Settings, sources: Sources) -> InvalidInput:
    if not sources.left_out:
        message = "no step is defined yet, so another worker would have none."
        hint = "Define or import the steps before the engine is started."
    else:
        message = f"no other process can run these steps: {_left_out(sources)}."
        hint = "Put them into a file and import it, or leave max_workers out."
    return InvalidInput(message, field="max_workers", got=settings.max_workers, hint=hint)


def _left_out(sources: Sources) -> str:
    named = [f"{name} ({why})" for name, why in sources.left_out.items()]
    more = len(named) - STEPS_NAMED
    return ", ".join(named[:STEPS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _given(settings: Settings) -> dict[str, str]:
    """Settings that flags or arguments set, as text; a worker reads files and variables itself."""
    by_argument = {
        source.partition(".")[0]
        for source in settings.sources
        if given_by_argument(settings, source)
    }
    return {
        name: _text(key.field, getattr(settings, key.field))
        for name, key in KEYS.items()
        if name in by_argument and not key.limit and name not in LIMIT_TABLES
    }


def _text(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return f"{value}us" if field.endswith("_us") else str(value)


def _with_absolute_paths(settings: Settings) -> Settings:
    """Paths that stay right when this program changes its working directory."""
    url = settings.url if "://" in settings.url else str(Path(settings.url).absolute())
    work_dir = str(Path(settings.work_dir).absolute())
    return msgspec.structs.replace(settings, url=url, work_dir=work_dir)


def _path_with(roots: Sequence[str]) -> dict[str, str]:
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join([*roots, *before])} if roots else {}


GivenProvisioner = Provisioner | Callable[[Settings], Provisioner]
"""A provisioner, or a class or function that makes one from the settings."""
ASYNC_VERBS = ("request", "list", "release", "close")
SYNC_VERBS = ("capacity",)
_HINT = "See locktender.Provisioner, and docs/provisioning.md for an example."


def made(given: GivenProvisioner, settings: Settings) -> Provisioner:
    """The provisioner that was given, or that a class or function makes when called with the settings."""
    found: Any = given
    if isinstance(given, Flow | Step):  # both are callable
        raise _refused(cast("object", given), "it does not start workers")
    if isinstance(given, type) or not _has_verbs(given):
        if not callable(given):
            raise _refused(given, f"it has no {', '.join(_missing(given))}")
        if not _takes_settings(given, settings):
            raise _refused(given, "it must take the settings as its only argument")
        found = cast("Callable[[Settings], object]", given)(settings)
        if inspect.iscoroutine(found):
            found.close()
            raise _refused(given, "it must be made without async")
    if missing := _missing(found):
        raise _refused(found, f"it has no {', '.join(missing)}")
    if not_async := [verb for verb in ASYNC_VERBS if not _is_async(getattr(found, verb))]:
        raise _refused(found, f"{', '.join(not_async)} must be async")
    if wrongly_async := [verb for verb in SYNC_VERBS if _is_async(getattr(found, verb))]:
        raise _refused(found, f"{', '.join(wrongly_async)} must not be async")
    return cast("Provisioner", found)


def _takes_settings(given: Callable[..., Any], settings: Settings) -> bool:
    try:
        inspect.signature(given).bind(settings)
    except TypeError:
        return False
    except ValueError:  # some builtins have no signature
        return True
    return True


def _has_verbs(given: object) -> bool:
    return any(callable(getattr(given, verb, None)) for verb in (*SYNC_VERBS, *ASYNC_VERBS))


def _missing(given: object) -> list[str]:
    return [
        verb for verb in (*SYNC_VERBS, *ASYNC_VERBS) if not callable(getattr(given, verb, None))
    ]


def _is_async(verb: Callable[..., Any]) -> bool:
    # A decorator may be a plain function around an async one.
    return inspect.iscoroutinefunction(inspect.unwrap(verb))


def _refused(given: object, why: str) -> InvalidInput:
    kind = given.__name__ if isinstance(given, type) else type(given).__name__
    if inspect.isfunction(given):
        kind = given.__name__
    elif isinstance(given, Flow | Step):
        named = cast("Flow[..., Any] | Step[..., Any]", given)
        kind = f"{'flow' if isinstance(given, Flow) else 'step'} {named.name}"
    return InvalidInput(f"{kind} is not a provisioner: {why}.", field="provisioner", hint=_HINT)
