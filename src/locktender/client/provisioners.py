"""A provisioner of the user's own, checked before anything is started: later it could only fail in the log."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from locktender.base.config import Settings
from locktender.base.errors import InvalidInput
from locktender.flows.flows import Flow
from locktender.flows.steps import Step
from locktender.provision.protocol import Provisioner

GivenProvisioner = Provisioner | Callable[[Settings], Provisioner]
"""One that is ready, or who makes one from the settings."""
ASKED = ("request", "list", "release", "close")
"""What is awaited."""
AT_ONCE = ("capacity",)
_HINT = "See locktender.Provisioner, and docs/provisioning.md for an example."


def made(given: GivenProvisioner, settings: Settings) -> Provisioner:
    """The provisioner that was given, or that a class or function makes when called with the settings."""
    found: Any = given
    if isinstance(given, Flow | Step):  # both can be called, and neither is meant to be here
        raise _refused(cast("object", given), "it is work, not who starts workers for it")
    if isinstance(given, type) or not _has_verbs(given):
        if not callable(given):
            raise _refused(given, f"it has no {', '.join(_missing(given))}")
        if not _takes_settings(given, settings):
            raise _refused(given, "it is called with the settings, and does not take them")
        found = cast("Callable[[Settings], object]", given)(settings)
        if inspect.iscoroutine(found):
            found.close()
            raise _refused(given, "making it must not be async")
    if missing := _missing(found):
        raise _refused(found, f"it has no {', '.join(missing)}")
    if plain := [verb for verb in ASKED if not _is_async(getattr(found, verb))]:
        raise _refused(found, f"{', '.join(plain)} must be async")
    if waits := [verb for verb in AT_ONCE if _is_async(getattr(found, verb))]:
        raise _refused(found, f"{', '.join(waits)} must answer at once, not be async")
    return cast("Provisioner", found)


def _takes_settings(given: Callable[..., Any], settings: Settings) -> bool:
    try:
        inspect.signature(given).bind(settings)
    except TypeError:
        return False
    except ValueError:  # of some builtins nobody knows
        return True
    return True


def _has_verbs(given: object) -> bool:
    return any(callable(getattr(given, verb, None)) for verb in (*AT_ONCE, *ASKED))


def _missing(given: object) -> list[str]:
    return [verb for verb in (*AT_ONCE, *ASKED) if not callable(getattr(given, verb, None))]


def _is_async(verb: Callable[..., Any]) -> bool:
    # A decorator that keeps what it wraps may be plain itself.
    return inspect.iscoroutinefunction(inspect.unwrap(verb))


def _refused(given: object, why: str) -> InvalidInput:
    kind = given.__name__ if isinstance(given, type) else type(given).__name__
    if inspect.isfunction(given):
        kind = given.__name__
    elif isinstance(given, Flow | Step):
        named = cast("Flow[..., Any] | Step[..., Any]", given)
        kind = f"{'flow' if isinstance(given, Flow) else 'step'} {named.name}"
    return InvalidInput(f"{kind} is no provisioner: {why}.", field="provisioner", hint=_HINT)
