"""A provisioner of the user's own, checked before the engine starts: a mistake is an error, not a log line."""

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
