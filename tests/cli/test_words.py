"""Words of the command line: hints name its own options, changes say what is in force behind them."""

from __future__ import annotations

from pathlib import Path

from tests.steps import word_steps as flows
from tests.support.cli_harness import CommandResult, batch

from locktender import Client
from locktender.base.errors import InvalidInput
from locktender.cli.context import speak_options


def test_changes_say_what_is_in_force_and_hints_name_options(
    engine: Client, url: Path, tmp_path: Path
):
    engine.schedules.set("nightly", flows.beside, {"x": 1}, cron="0 3 * * *")
    name = flows.beside.name
    said = _said(
        url,
        tmp_path,
        ["flows", "list"],
        ["flows", "pause", "nosuch"],
        ["flows", "pause", name, "--reason", "why not"],
        ["flows", "list", "--json"],
        ["flows", "resume", name],
        ["schedules", "pause", "nightly"],
        ["schedules", "resume", "nightly"],
        ["schedules", "set", "x", name],
        [
            "schedules",
            "set",
            "x",
            name,
            "--every",
            "1h",
            "--overlap",
            "replace",
            "--max-active",
            "3",
        ],
        ["schedules", "set", "x", name, "--cron", "0 3 * * *", "--tz", "Nowhere"],
        ["schedules", "reset", "nightly"],
        ["runs", "cancel"],
    )
    flows_list, unknown, paused, listed, _, pause, resume, when, both, zone, reset, cancel = said
    assert name in flows_list.out
    assert "open" in flows_list.out
    assert unknown.code == 2
    assert "there is no flow 'nosuch'" in unknown.err
    assert paused.code == 0
    states = {each["name"]: each["state"] for each in listed.data}
    assert states[name] == "paused"
    assert states[flows.two_steps.name] == "open"
    assert pause.out.startswith("schedule nightly: paused")
    assert resume.out.startswith("schedule nightly: scheduled: next tick")
    assert "--cron '0 3 * * 1-5', --every 15m, or --at 2027" in when.err
    assert "--overlap replace" in both.err
    assert "or say --overlap queue" in both.err
    assert '="' not in when.err + both.err + zone.err + cancel.err
    assert "schedule nightly is removed; no code declares it" in reset.out
    assert "--tag tenant=acme" in cancel.err


def test_names_of_pools_are_quoted(url: Path, engine: Client, tmp_path: Path):
    assert engine.pools.list() == []
    is_set, paused, unknown, deleted = _said(
        url,
        tmp_path,
        ["pools", "set", "a b", "4"],
        ["pools", "pause", "a b"],
        ["pools", "pause", "nosuch"],
        ["pools", "delete", "a b"],
    )
    assert is_set.out.startswith("pool 'a b' is set to 4;")
    assert paused.out.startswith("pool 'a b' is paused at 4;")
    assert "hint: Known: 'a b'." in unknown.err
    assert deleted.out == "pool 'a b' is deleted\n"


def test_an_argument_of_the_flow_is_no_option():
    error = InvalidInput("priority=3 is low.", hint="Try: --arg priority=3")
    speak_options(error, {"priority": "--priority"})
    assert (error.message, error.hint) == ("--priority 3 is low.", "Try: --arg priority=3")


def _said(url: Path, folder: Path, *commands: list[str]) -> list[CommandResult]:
    named = {str(n): ["--url", str(url), *each] for n, each in enumerate(commands)}
    return list(batch(named, folder).values())


def test_options_that_a_command_does_not_have_stay_as_they_are():
    error = InvalidInput("a", hint='tags={"tenant": "acme"}, key="…", pool="db", from_step=…')
    speak_options(error, {"tags": "--tag", "key": "--key", "from_step": "--from"})
    assert error.hint == '--tag tenant=acme, --key …, pool="db", --from …'
