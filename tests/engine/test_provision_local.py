"""What a local worker is started with, and what is told of one that died."""

from __future__ import annotations

import pytest

from locktender.base.config import Settings
from locktender.provision.local import error_in, worker_command

SECRET = "postgresql://me:hunter2@db/x"


def test_a_url_given_by_a_flag_is_not_on_a_workers_command_line():
    """Everybody on the machine may read that; it goes by a variable."""
    settings = Settings(url=SECRET, work_dir="elsewhere", provisioned_idle_exit_us=3_000_000)
    given = {
        " url": SECRET,
        "url": SECRET,
        "work_dir": "elsewhere",
        "max_workers": "3",
        "grace": "2s",
    }
    command = worker_command(["flows.py"], settings, given, program=["locktender"])
    assert command[:4] == ["locktender", "worker", "flows.py", "--with-parent"]
    assert command[4:] == ["--set", "grace=2s", "--set", "idle_exit=3000000us"]


IMPORT = """\
Traceback (most recent call last):
  File "broken.py", line 1, in <module>
    import nobody
    ^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'nobody'
"""
TOLD = """\
error: broken.py does not import: ModuleNotFoundError: No module named 'nobody'
hint: Fix the error above; nothing was started.
"""
ENDED = """\
Traceback (most recent call last):
  File "broken.py", line 1, in <module>
    raise SystemExit("no licence")
    ~~~~~^^^^^^^^
SystemExit: no licence
error: broken.py ended the program while it was imported.
hint: Put what runs it behind a guard.
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("  ^^^^\n", ""),
        ("joined\nout of memory\n\n", "out of memory"),
        (IMPORT, "ModuleNotFoundError: No module named 'nobody'"),
        (
            IMPORT + TOLD,
            "broken.py does not import: ModuleNotFoundError: No module named 'nobody'",
        ),
        (ENDED, "SystemExit: no licence; broken.py ended the program while it was imported."),
        ("error: there is no file x.py.\nhint: Known: b.py.\n", "there is no file x.py."),
        ("  deep\nKeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_a_dead_workers_error_is_told_without_traceback(text: str, said: str):
    assert error_in(text) == said
