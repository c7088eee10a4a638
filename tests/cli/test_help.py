"""Every command shows an example; words are completed; answers are repeated with --watch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.test_json_times import all_commands
from tests.steps import word_steps as flows
from tests.support.cli_harness import executable, interrupt, output_of, started, until

from locktender import Client


def test_every_command_has_an_example():
    for path, command in all_commands():
        text = f"{command.help or ''}\n{command.epilog or ''}"
        assert f"locktender {path}" in text, f"add an example of {path} to cli/examples.py"


def test_no_bracket_of_a_help_text_is_lost():
    """Rich would read `[acme]` as markup, and show nothing."""
    for path, command in all_commands():
        texts = [
            command.help,
            command.epilog,
            *(getattr(each, "help", "") for each in command.params),
        ]
        for text in texts:
            assert not re.search(r"(?<!\\)\[[a-z#/@]", text or ""), f"{path}: {text}"


def test_exit_codes_are_said(tmp_path: Path):
    said = executable("--help", cwd=tmp_path).out
    assert "Exit codes: 0 done; 1 the run failed" in said


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ru"], ["run", "runs"]),
        (["queue", ""], ["list", "why", "cancel", "reprioritise"]),
        (["pools", "set", "--le"], ["--lease"]),
    ],
    ids=" ".join,
)
def test_words_are_completed(words: list[str], found: list[str], tmp_path: Path):
    said = executable(
        cwd=tmp_path,
        _LOCKTENDER_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(["locktender", *words]),
        COMP_CWORD=str(len(words)),
    )
    assert said.out.split() == found


def test_the_script_of_a_shell_is_printed(tmp_path: Path):
    said = executable("completion", "zsh", cwd=tmp_path)
    assert "_LOCKTENDER_COMPLETE" in said.out
    wrong = executable("completion", "zhs", "--json", cwd=tmp_path)
    assert wrong.code == 2
    assert json.loads(wrong.err)["hint"] == "Did you mean 'zsh'?"


def test_an_answer_is_repeated_until_an_interrupt(engine: Client, url: Path, tmp_path: Path):
    engine.submit(flows.beside, 1).result("90s")
    with started("runs", "list", "--watch", "--json", "--url", str(url), cwd=tmp_path) as command:
        until(lambda: output_of(command).count("\n") >= 1, "the first answer")
        run = engine.submit(flows.beside, 2)
        until(lambda: run.id in output_of(command), "an answer with the second run")
        interrupt(command)
        assert command.wait(60) == 130
