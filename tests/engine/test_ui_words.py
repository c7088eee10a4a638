"""What pages say, without a browser."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from locktender.base.model import WorkerRow
from locktender.client.views import WorkerInfo, instant
from locktender.server.state import DemandAnswer, Need
from locktender.server.ui.inbox import arguments_text
from locktender.server.ui.overview import demand_alerts
from locktender.server.ui.pages import templates
from locktender.server.ui.words import clean, who

NOW = 10**15
ROW = WorkerRow("w", "host", 1, "0", {"async": 4}, 4, 4)


def worker(*, draining: bool, **labels: str) -> WorkerInfo:
    row = msgspec.structs.replace(ROW, draining=draining, labels=labels, lease_until=NOW + 1)
    return WorkerInfo.of(row, NOW)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ((), "No worker fits 3 tasks of step load (async, gpu=yes)."),
        ((worker(draining=True),), "No worker fits 3 tasks of step load (async, gpu=yes)."),
        (
            (worker(draining=True, gpu="yes"), worker(draining=False)),
            "3 tasks of step load (async, gpu=yes) wait: 1 worker that fits drains, and there is no other.",
        ),
    ],
)
def test_an_alert_tells_drained_workers_from_none(workers: tuple[WorkerInfo, ...], said: str):
    need = Need("async", {"gpu": "yes"}, "load", "s", 3, 0, instant(NOW))
    demand = DemandAnswer(3, (need,), len(workers), instant(NOW), "l")
    assert [each.text for each in demand_alerts(demand, workers)] == [said]


def test_a_step_that_a_worker_fits_is_no_alert():
    need = Need("async", {}, "load", "s", 3, 1, instant(NOW))
    demand = DemandAnswer(3, (need,), 1, instant(NOW), "l")
    assert list(demand_alerts(demand, [worker(draining=False)])) == []


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (b'{"order":4711,"to":"acme"}', 'order=4711, to="acme"'),
        (b"{}", ""),
        (b"[1]", ""),
        (b"\xff", ""),
        (b'{"text":"' + b"x" * 300 + b'"}', 'text="' + "x" * 154 + " …"),
        (b'{"text":"' + b"x" * 5_000 + b'"}', ""),
    ],
)
def test_arguments_of_a_row_are_short(params: bytes, text: str):
    assert arguments_text(params) == text


@pytest.mark.parametrize(
    ("used", "limit", "colour"),
    [(0, 0, "green"), (599, 1000, "green"), (6, 10, "yellow"), (850, 1000, "yellow"), (851, 1000, "red")],
)  # fmt: skip
def test_a_bar_is_green_yellow_or_red_by_its_use(used: int, limit: int, colour: str):
    macros: Any = templates().get_template("macros.html").module

    assert f'class="{colour}"' in macros.bar(used, limit)


def test_who_has_no_login_is_not_called_http():
    assert (who("http"), who("root@vm")) == ("no login", "root@vm")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tenant é 漢字 <b>", "tenant é 漢字 <b>"),
        ("a\x00b\x1b[31m", "ab"),
        ("pay\u202egnp.exe", "paygnp.exe"),
        ("\u2066a\u2069", "a"),
        ("a\u00a0b\nc", "a\u00a0b\nc"),
        (7, "7"),
    ],
)
def test_text_of_users_has_no_controls_and_no_turned_direction(text: object, shown: str):
    assert clean(text) == shown
