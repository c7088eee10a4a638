"""`help()` and editors show every public option: docstrings everywhere, no `**given` in a signature."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import locktender
from locktender import testing
from locktender.base.config import Settings
from locktender.base.durations import microseconds
from locktender.base.settings_values import KEYS
from locktender.client import limits_async, namespaces, pools_async, runs_async, slots, workers
from locktender.client.open import Opening

NAMESPACES: list[type[Any]] = [
    namespaces.SyncLimits,
    namespaces.SyncPools,
    limits_async.AsyncLimits,
    pools_async.AsyncPools,
    namespaces.SyncQueue,
    namespaces.SyncRuns,
    namespaces.SyncWorkers,
    runs_async.AsyncQueue,
    runs_async.AsyncRuns,
    workers.AsyncWorkers,
    slots.AsyncSlots,
    slots.Slots,
    Opening,
]
NOT_DOCUMENTED = {"Duration"}
"""An alias of types: it has no docstring of its own."""
CATCH_ALL = {"shared", "kwargs", "unknown"}
"""Arguments of the user's own function: `.map(**shared)`, `submit(**kwargs)`; what is refused with a hint."""


def public() -> list[tuple[str, Any]]:
    named = [(name, getattr(locktender, name)) for name in locktender.__all__]
    named += [(name, getattr(testing, name)) for name in testing.__all__]
    named += [(each.__name__, each) for each in NAMESPACES]
    found = [(name, value) for name, value in named if name not in NOT_DOCUMENTED]
    for name, value in list(found):
        if inspect.isclass(value):
            found += [
                (f"{name}.{method}", function)
                for method, function in inspect.getmembers(value, _is_verb)
                if not method.startswith("_") and _is_ours(function)
            ]
    return found


def _is_verb(member: object) -> bool:
    return inspect.isfunction(member) or inspect.ismethod(member) or isinstance(member, property)


def _is_ours(member: Any) -> bool:
    function = member.fget if isinstance(member, property) else member
    return str(getattr(function, "__module__", "")).startswith("locktender")


PUBLIC = public()


@pytest.mark.parametrize(("name", "value"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_every_public_name_has_a_docstring(name: str, value: Any):
    doc = value.__doc__ or ""
    assert len(doc.strip()) > 10
    # A dataclass without one gets its own signature as its docstring.
    assert not doc.startswith(f"{name}(")


@pytest.mark.parametrize(("name", "value"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_no_public_signature_hides_its_options(name: str, value: Any):
    if not inspect.isfunction(value):
        return
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            assert parameter.name in CATCH_ALL or name.startswith("Engines"), name


@pytest.mark.parametrize("verb", [locktender.embedded, locktender.embedded_async])
def test_opening_an_engine_shows_every_setting(verb: Any):
    shown = set(inspect.signature(verb).parameters)
    assert shown == set(KEYS) - {"provision"}  # which a provisioner gives its workers


def test_the_defaults_of_settings_are_documented_as_they_are():
    text = locktender.embedded.__doc__ or ""
    for name, key in KEYS.items():
        default = getattr(Settings(), key.field)
        said = re.search(rf"\b{name} +(\S+)", text)
        if said is None or not isinstance(default, int) or isinstance(default, bool):
            continue
        word = said[1].rstrip(",")
        if key.field.endswith("_us"):
            assert microseconds(0 if word == "0" else word, minimum=0) == default, name
        elif key.field.endswith("_bytes"):
            assert key.read(word) == default, name
        elif word != "cores":
            assert int(word) == default, name


def test_a_step_shows_the_options_it_takes_with_their_defaults():
    @locktender.step(name="signature probe")
    def probe(x: int) -> int:
        return x

    defaults = {
        name: each.default for name, each in inspect.signature(locktender.step).parameters.items()
    }
    options = probe.definition.options
    assert defaults["retries"] == options.retry.retries
    assert microseconds(defaults["retry_delay"]) == options.retry.delay_us
    assert microseconds(defaults["max_retry_delay"]) == options.retry.max_delay_us
    assert defaults["backoff"] == options.retry.backoff
    assert defaults["jitter"] == options.retry.jitter
    assert defaults["max_abandons"] == options.max_abandons
    assert "retries: int = ..." in str(inspect.signature(probe.with_options))


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(locktender.InvalidFlow, match=r"no option 'retry'.*mean 'retries'"):
        locktender.step(retry=3)  # type: ignore[call-overload]
    with pytest.raises(locktender.InvalidFlow, match=r"no option 'max_paralel'.*'max_parallel'"):
        locktender.flow(max_paralel=3)  # type: ignore[call-overload]
    with pytest.raises(locktender.InvalidSettings, match=r"max_activ .*Did you mean 'max_active'"):
        locktender.embedded(max_activ=3)  # type: ignore[call-arg]
