"""Commands that pages show do what the form beside them does, with what was typed, on this server."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from playwright.sync_api import Browser, Route, expect
from tests.support.cli_harness import environment, locktender, started
from tests.support.run_pages import PageServer, chromium, opened, page_server

from locktender.cli import main as cli
from locktender.server.ui.first_steps import EXAMPLE
from locktender.testing import eventually

pytestmark = pytest.mark.timeout(300)
ODD = """it's "odd" $(x) `y` \\ & ünï"""
"""What a shell would read otherwise, were it not quoted."""
PATIENCE = 60
_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with page_server(tmp_path_factory.mktemp("commands")) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def queued(server: PageServer) -> Iterator[None]:
    """No run starts meanwhile."""
    server.ask("/limits/max_concurrent_runs/pause", method="POST")
    yield
    server.ask("/limits/max_concurrent_runs/resume", method="POST")


class Shown(NamedTuple):
    """What a dialog shows below its form."""

    commands: list[str]
    text: str


def _page(
    server: PageServer, path: str, target: str = "", headers: Mapping[str, str] | None = None
) -> str:
    asked = {"hx-request": "true", "hx-target": target} if target else {}
    request = urllib.request.Request(server.origin + path, headers={**asked, **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{path}: {error.read().decode()[-1200:]}") from error


def shown(server: PageServer, path: str, form: Mapping[str, str] | None = None) -> Shown:
    """The commands of a dialog: as it opens, or as the form stands now."""
    query = "" if form is None else "?" + urllib.parse.urlencode(form)
    text = _page(server, path + query, "dialog" if form is None else "commands")
    copied = [html.unescape(each) for each in re.findall(r'data-copy="([^"]*)"', text)]
    return Shown(copied, html.unescape(text))


def by_form(server: PageServer, path: str, form: Mapping[str, str]) -> None:
    query = urllib.parse.urlencode(form)
    text = _page(server, f"{path}?{query}", "dialog")
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', text)
    post = re.search(r'hx-post="([^"]*)"', text)
    assert post is not None
    sent = {**{name: html.unescape(value) for name, value in fields}, **form}
    request = urllib.request.Request(
        server.origin + html.unescape(post[1]), urllib.parse.urlencode(sent).encode(), method="POST"
    )
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{path}: {error.read().decode()[-1200:]}") from error


def by_cli(line: str, folder: Path, **env: str) -> str:
    """In a folder and a shell that know no store."""
    program, *words = shlex.split(line)
    assert program == "locktender"
    done = locktender(*words, cwd=folder, **env)
    assert done.code == 0, (line, done.err)
    assert not (folder / ".locktender").exists(), line
    return done.out


def by_shell(line: str, folder: Path, **env: str) -> str:
    if line.startswith("curl") and not shutil.which("curl"):
        pytest.skip("there is no curl here")
    line = line.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env={**environment(), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def same(
    server: PageServer,
    folder: Path,
    target: Callable[[], str],
    path: Callable[[str], str],
    form: Mapping[str, str],
    effect: Callable[[str], Any],
    expected: Any,
) -> None:
    """The form, the command and curl, each on a target of its own, have one effect."""
    for way in ("form", "cli", "curl"):
        on = target()
        where = path(on)
        if way == "form":
            by_form(server, where, form)
        else:
            line, other = shown(server, where, form).commands
            by_cli(line, folder) if way == "cli" else by_shell(other, folder)
        try:
            eventually(lambda on=on: effect(on) == expected, timeout=PATIENCE)
        except AssertionError:
            raise AssertionError(f"by {way}: {effect(on)}, not {expected}") from None


def said(answer: Any) -> bool:
    """Whether the odd reason is in it."""
    return json.dumps(ODD)[1:-1] in json.dumps(answer)


def parsed(line: str) -> dict[str, Any]:
    """What the parser of the command line makes of it; its own error if it is no command."""
    program, *words = shlex.split(line)
    assert program == "locktender", line
    cli.register_all()
    at: Any = typer.main.get_command(cli.app)
    context = at.make_context("locktender", words)
    while hasattr(at, "resolve_command"):
        name, at, rest = at.resolve_command(context, [*context._protected_args, *context.args])
        context = at.make_context(name, rest, parent=context)
    return context.params


def lines_of(text: str) -> list[str]:
    """Every command of a page: to copy, or written in its text."""
    copied = re.findall(r'data-copy="([^"]*)"', text) + re.findall(r"<code>([^<]*)</code>", text)
    lines = {html.unescape(each).strip() for each in copied} - {
        "locktender why"
    }  # a name, in prose
    return sorted(each for each in lines if each.startswith(("locktender ", "curl ")))


def submitted(server: PageServer, **options: Any) -> str:
    return server.submit("pages many", {"items": 2}, **options)


def ended(server: PageServer) -> str:
    run = submitted(server)
    server.until(run, "succeeded")
    return run


def test_runs_are_cancelled_paused_and_moved_alike(
    server: PageServer, queued: None, tmp_path: Path
):
    def make() -> str:
        return submitted(server)

    def became(run: str) -> Any:
        return server.state(run), said(server.ask(f"/runs/{run}/events"))

    for path in ("/runs/{}/cancel", "/queue/{}/cancel"):
        same(server, tmp_path, make, path.format, {"reason": ODD}, became, ("cancelled", True))
        [line, other] = shown(server, path.format(make())).commands
        assert "reason" not in line + other

    def paused(run: str) -> Any:
        return said(server.ask(f"/runs/{run}/why"))

    same(server, tmp_path, make, "/runs/{}/pause".format, {"reason": ODD}, paused, True)
    line, other = shown(server, f"/runs/{make()}/pause").commands
    assert "reason" not in line + other

    def priority(run: str) -> int:
        return server.ask(f"/runs/{run}")["priority"]

    same(server, tmp_path, make, "/queue/{}/priority".format, {"priority": "-7"}, priority, -7)
    run = make()
    assert shlex.split(shown(server, f"/queue/{run}/priority").commands[0])[3:5] == [run, "0"]
    assert shown(server, f"/queue/{run}/priority", {"priority": "x"}).commands == []


def test_a_run_is_resumed_and_run_again_alike(server: PageServer, tmp_path: Path):
    def held() -> str:
        server.ask("/limits/max_concurrent_runs/pause", method="POST")
        run = submitted(server)
        server.ask(f"/runs/{run}/pause", method="POST")
        server.ask("/limits/max_concurrent_runs/resume", method="POST")
        return run

    same(server, tmp_path, held, "/runs/{}/resume".format, {}, server.state, "succeeded")

    def again(run: str) -> Any:
        found = server.ask(f"/runs/{run}")
        return found["state"], found["generation"]

    make = lambda: ended(server)  # noqa: E731
    form = {"from_step": "doubled"}
    same(server, tmp_path, make, "/runs/{}/retry".format, form, again, ("succeeded", 1))
    run = ended(server)
    assert shown(server, f"/runs/{run}/retry").commands == []  # no step is chosen unseen


def test_many_runs_are_changed_alike(server: PageServer, queued: None, tmp_path: Path):
    def make() -> str:
        note = f"it's {next(_numbers)}"
        for _ in "ab":
            submitted(server, tags={"note": note})
        return note

    def of(verb: str, form: dict[str, str], effect: Callable[[dict[str, Any]], Any], expected: Any):
        for way in ("form", "cli", "curl"):
            note = make()
            given = {"status": "queued", "flow": "", "tags": f"note={note}", **form}
            if way == "form":
                by_form(server, f"/runs/-/{verb}", given)
            else:
                line, other = shown(server, f"/runs/-/{verb}", given).commands
                by_cli(line, tmp_path) if way == "cli" else by_shell(other, tmp_path)
            where = "/runs?" + urllib.parse.urlencode({"tags": f"note={note}"})
            eventually(
                lambda where=where: (
                    [effect(each) for each in server.ask(where)["runs"]] == [expected] * 2
                ),
                timeout=60,
            )

    of("reprioritise", {"priority": "3"}, lambda run: run["priority"], 3)
    of("cancel", {"reason": ODD}, lambda run: run["state"], "cancelled")


def test_pools_are_set_alike(server: PageServer, tmp_path: Path):
    def name() -> str:
        return f"it's db {next(_numbers)}"

    def pool(made: str) -> Any:
        found = server.ask(f"/pools/{urllib.parse.quote(made)}")
        return [found[each] for each in ("limit", "rate", "burst", "lease", "paused")]

    for way in ("form", "cli", "curl"):
        made = name()
        form = {"name": made, "limit": "7", "reason": ""}
        if way == "form":
            by_form(server, "/pools/-/new", form)
        else:
            line, other = shown(server, "/pools/-/new", form).commands
            by_cli(line, tmp_path) if way == "cli" else by_shell(other, tmp_path)
        assert pool(made)[0] == 7
    for missing in (
        {"name": "", "limit": "4"},
        {"name": "db", "limit": ""},
        {"name": "\t", "limit": "4"},
    ):
        assert shown(server, "/pools/-/new", missing).commands == []
    assert shown(server, "/pools/-/new").commands == []

    def make() -> str:
        made = name()
        given = {"limit": 3, "rate": "60/min", "lease": "30s"}
        server.ask(f"/pools/{urllib.parse.quote(made)}", given, "PUT")
        return made

    def path(verb: str) -> Callable[[str], str]:
        return lambda made: f"/pools/{urllib.parse.quote(made)}/{verb}"

    for form, expected in (
        ({"limit": "-1", "rate": "", "burst": "", "lease": ""}, [None, None, None, None, False]),
        ({"limit": "9", "rate": "5/s", "burst": "2", "lease": "1m"}, [9, "5/s", 2, 60.0, False]),
    ):
        same(server, tmp_path, make, path("set"), form, lambda each: pool(each)[:5], expected)
    same(server, tmp_path, make, path("pause"), {}, lambda made: pool(made)[4], True)

    def paused() -> str:
        made = make()
        server.ask(f"/pools/{urllib.parse.quote(made)}/pause", method="POST")
        return made

    same(server, tmp_path, paused, path("resume"), {}, lambda made: pool(made)[4], False)

    def gone(made: str) -> bool:
        return all(each["name"] != made for each in server.ask("/pools")["pools"])

    same(server, tmp_path, make, path("reset"), {}, gone, True)
    assert "no reason" not in shown(server, path("pause")(make()), {"reason": ""}).text
    assert "keeps a reason" in shown(server, path("pause")(make()), {"reason": "x"}).text


def test_limits_are_set_alike(server: PageServer, tmp_path: Path):
    def limit(name: str) -> Any:
        found = {each["name"]: each for each in server.ask("/limits")["limits"]}
        return found.get(name)

    def path(verb: str) -> Callable[[str], str]:
        return lambda name: f"/limits/{urllib.parse.quote(name, safe='')}/{verb}"

    for name, typed, before, after in (
        ("max_concurrent_runs", "17", 20, "17"),
        ("strict_pools", "true", False, "True"),
        ("age_boost", "5m", "1m", "5m00s"),
        ("topic_retention", "3d", "7d", "3d00h"),
        ("placement", "pack", "spread", "pack"),
    ):

        def make(name: str = name, before: Any = before) -> str:
            server.ask(f"/limits/{name}", {"value": before}, "PUT")
            return name

        same(
            server, tmp_path, make, path("set"), {"value": typed}, lambda name: limit(name)["value"], after
        )  # fmt: skip
        same(
            server, tmp_path, make, path("reset"), {}, lambda name: limit(name)["live"], None
        )  # fmt: skip

    def rule() -> str:
        made = f"note=it's {next(_numbers)}"
        server.ask(f"/limits/tags/{urllib.parse.quote(made, safe='')}", {"limit": 3}, "PUT")
        return made

    same(
        server, tmp_path, rule, path("set"), {"limit": "5", "max_active": "8"},
        lambda made: [each in limit(made)["value"] for each in "58"], [True, True],
    )  # fmt: skip
    assert shown(server, path("set")(rule())).commands == []
    same(server, tmp_path, rule, path("pause"), {}, lambda made: limit(made)["paused"], True)
    same(server, tmp_path, rule, path("reset"), {}, limit, None)
    for way in ("form", "cli", "curl"):
        made = f"note=new {next(_numbers)}"
        form = {"rule": made, "limit": "2", "reason": ""}
        if way == "form":
            by_form(server, "/limits/-/tag", form)
        else:
            line, other = shown(server, "/limits/-/tag", form).commands
            by_cli(line, tmp_path) if way == "cli" else by_shell(other, tmp_path)
        assert "2" in limit(made)["value"]
    assert "It is off now" in shown(server, "/limits/strict_pools/set").text


def test_workers_and_schedules_are_changed_alike(server: PageServer, tmp_path: Path):
    [worker] = [each["id"] for each in server.ask("/workers")["workers"]]

    def draining(name: str) -> bool:
        found = {each["id"]: each for each in server.ask("/workers")["workers"]}
        return found[name]["draining"]

    def set_to(verb: str) -> Callable[[], str]:
        def make() -> str:
            if draining(worker) != (verb == "drain"):
                server.ask(f"/workers/{worker}/{verb}", method="POST")
                eventually(lambda: draining(worker) == (verb == "drain"), timeout=PATIENCE)
            return worker

        return make

    same(server, tmp_path, set_to("undrain"), "/workers/{}/drain".format, {}, draining, True)
    same(server, tmp_path, set_to("drain"), "/workers/{}/undrain".format, {}, draining, False)

    def schedule(paused: bool) -> Callable[[], str]:
        def make() -> str:
            name = f"each night {next(_numbers)}"
            given = {"flow": "pages many", "args": {"items": 1}, "cron": "0 3 * * *"}
            server.ask(f"/schedules/{urllib.parse.quote(name)}", {**given, "paused": paused}, "PUT")
            return name

        return make

    def path(verb: str) -> Callable[[str], str]:
        return lambda name: f"/schedules/{urllib.parse.quote(name)}/{verb}"

    def found(name: str) -> Any:
        return server.ask(f"/schedules/{urllib.parse.quote(name)}")

    same(
        server,
        tmp_path,
        schedule(False),
        path("pause"),
        {},
        lambda name: found(name)["paused"],
        True,
    )
    same(
        server,
        tmp_path,
        schedule(True),
        path("resume"),
        {},
        lambda name: found(name)["paused"],
        False,
    )

    def runs(name: str) -> int:
        where = urllib.parse.urlencode({"tags": f"schedule={name}"})
        return len(server.ask(f"/runs?{where}")["runs"])

    same(server, tmp_path, schedule(False), path("run"), {}, runs, 1)


def test_an_answer_is_sent_alike(server: PageServer, tmp_path: Path):
    def make() -> str:
        run = server.submit("pages review", {})
        server.until(run, "waiting")
        return run

    def path(run: str) -> str:
        found = re.search(rf"/inbox/{run}/\d+", _page(server, "/inbox"))
        assert found is not None
        return found[0]

    def result(run: str) -> Any:
        return server.state(run) == "succeeded" and server.ask(f"/runs/{run}/result")["result"]

    form = {"payload.verdict": '"yes"', "payload.amount": "2.5", "payload.sure": "false"}
    same(
        server, tmp_path, make, path, {**form, "payload.by": ODD}, result, ["yes", 2.5, False, ODD]
    )
    # What is left out has the default of the schema.
    same(server, tmp_path, make, path, {**form, "payload.by": ""}, result, ["yes", 2.5, False, ""])
    run = make()
    opening = shown(server, path(run))
    assert opening.commands == []
    assert opening.text.count("choose …") == 2
    assert 'step="any"' in opening.text
    assert shown(server, path(run), {**form, "payload.verdict": ""}).commands == []


def test_what_is_typed_is_what_is_copied(server: PageServer, browser: Browser):
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    with opened(context, f"{server.origin}/pools") as page:
        page.get_by_role("button", name="Set a pool").click()
        dialog = page.locator("#dialog")
        dialog.locator("summary").click()
        expect(dialog.locator("#commands")).to_contain_text("Name is missing")
        expect(dialog.locator(".command")).to_have_count(0)
        dialog.locator("[name=name]").fill("it's mine")
        dialog.locator("[name=limit]").fill("11")
        expect(dialog.locator(".command code").first).to_contain_text(" 11 --url")
        expect(dialog.locator("#commands")).not_to_have_attribute("inert", "")
        dialog.locator(".command").first.get_by_role("button").click()
        copied = "navigator.clipboard.readText()"
        eventually(lambda: "it" in page.evaluate(copied), timeout=PATIENCE)
        words = shlex.split(page.evaluate(copied))
        assert words == ["locktender", "pools", "set", "it's mine", "11", "--url", server.origin]
        dialog.locator("[name=limit]").fill("")
        expect(dialog.locator("#commands")).to_contain_text("Slots is missing")
        expect(dialog.locator(".command")).to_have_count(0)

        # While the server has not answered, the old commands cannot be copied.
        dialog.locator("[name=limit]").fill("12")
        expect(dialog.locator(".command code").first).to_contain_text(" 12 --url")
        held: list[Route] = []

        def hold(route: Route) -> None:
            held.append(route)

        page.route("**/pools/-/new?*", hold)
        dialog.locator("[name=limit]").fill("13")
        expect(dialog.locator("#commands")).to_have_attribute("inert", "")
        while not held:
            page.wait_for_timeout(10)
        held[0].continue_()
        page.unroute("**/pools/-/new?*")
        dialog.locator("[name=limit]").fill("14")
        expect(dialog.locator(".command code").first).to_contain_text(" 14 --url")
        expect(dialog.locator("#commands")).not_to_have_attribute("inert", "")
    context.close()


def test_a_choice_is_never_made_for_the_reader(server: PageServer, browser: Browser):
    run = server.submit("pages review", {})
    server.until(run, "waiting")
    context = browser.new_context()
    with opened(context, f"{server.origin}/inbox") as page:
        page.locator(f"tr:has(a[href='/runs/{run}'])").get_by_role("button").click()
        dialog = page.locator("#dialog")
        dialog.locator("summary").click()
        expect(dialog.locator("#commands")).to_contain_text("verdict is missing")
        dialog.locator("[name='payload.amount']").fill("2.5")
        dialog.get_by_role(
            "button", name="Send"
        ).click()  # refused by the browser: nothing is chosen
        expect(dialog).to_be_visible()
        dialog.locator("[name='payload.verdict']").select_option("yes")
        dialog.locator("[name='payload.sure']").select_option("no")
        expect(dialog.locator(".command code").first).to_contain_text('"verdict": "yes"')
        dialog.get_by_role("button", name="Send").click()
        expect(dialog).to_be_hidden()
    server.until(run, "succeeded")
    assert server.ask(f"/runs/{run}/result")["result"] == ["yes", 2.5, False, ""]
    context.close()


def test_a_dialog_keeps_its_verb_when_somebody_else_was_quicker(server: PageServer):
    server.ask("/pools/quick", {"limit": 1}, "PUT")
    assert "pools pause quick" in _page(server, "/pools/quick/pause", "dialog")
    server.ask("/pools/quick/pause", {})
    assert "pools pause quick" in _page(server, "/pools/quick/pause?reason=x", "commands")
    assert "pools resume quick" in _page(server, "/pools/quick/pause", "dialog")


def test_every_command_of_every_page_is_one(server: PageServer, tmp_path: Path):
    latch = tmp_path / "latch"
    failed = server.submit("pages broken", {"text": "x", "mended": str(tmp_path / "no")})
    waiting = server.submit("pages review", {})
    running = server.submit("pages chatty", {"first": "x", "latch": str(latch)})
    server.until(failed, "failed")
    server.until(waiting, "waiting")
    server.until(running, "running")
    server.ask(
        "/schedules/often", {"flow": "pages many", "args": {"items": 1}, "every": "1h"}, "PUT"
    )
    server.ask("/pools/seen", {"limit": 2}, "PUT")
    server.ask("/limits/tags/seen%3D%2A", {"limit": 2}, "PUT")
    paths = ["/", "/queue", "/pools", "/pools/seen", "/limits", "/workers", "/schedules", "/inbox"]
    paths += [
        "/runs",
        "/runs?status=failed",
        "/runs?status=running",
        "/runs?status=succeeded&q=none",
    ]
    tabs = ("", "tasks", "values", "logs", "time", "slots")
    runs = (failed, waiting, running, ended(server))
    paths += [f"/runs/{run}?tab={tab}" for run in runs for tab in tabs]
    tasks = server.ask(f"/runs/{failed}/tasks")["tasks"]
    paths += [f"/runs/{failed}/tasks/{tasks[0]['id']}"]
    dialogs: set[str] = set()
    lines: set[str] = set()
    for path in paths:
        text = _page(server, path)
        lines |= set(lines_of(text))
        dialogs |= {
            html.unescape(each)
            for each in re.findall(r'hx-get="([^"]+)" hx-target="#dialog"', text)
        }
    assert len(dialogs) > 15
    for path in dialogs:
        lines |= set(lines_of(_page(server, path, "dialog")))
    assert any("runs logs" in each and "--follow" in each for each in lines)
    for line in lines:
        if line.startswith("locktender worker "):
            assert parsed(line)["url"] != server.origin, line  # it needs the store itself
        elif line.startswith("locktender "):
            assert parsed(line)["url"] == server.origin, line
        else:
            assert f" {server.origin}/api/v1/" in line.replace("'", ""), line
    latch.touch()


def test_with_tokens_commands_send_the_token_of_the_shell(tmp_path: Path):
    served = tmp_path / "served"
    served.mkdir()
    made = locktender("tokens", "create", "ann", "--scope", "operate", "--json", cwd=served)
    token = made.data["token"]
    with page_server(served, "--auth", "tokens", token=token) as server:
        run = ended(server)
        headers = {"authorization": f"Bearer {token}"}
        lines = lines_of(_page(server, f"/runs/{run}", headers=headers))
        asked = [each for each in lines if each.startswith("curl ")]
        assert asked
        for line in asked:
            assert json.loads(by_shell(line, tmp_path, LOCKTENDER_TOKEN=token))["id"] == run
        new = _page(server, "/pools/-/new?name=db&limit=3", "commands", headers)
        [line, other] = [html.unescape(each) for each in re.findall(r'data-copy="([^"]*)"', new)]
        by_cli(line, tmp_path, LOCKTENDER_TOKEN=token)
        assert server.ask("/pools/db")["limit"] == 3
        by_shell(other.replace('"limit": 3', '"limit": 5'), tmp_path, LOCKTENDER_TOKEN=token)
        assert server.ask("/pools/db")["limit"] == 5


def test_an_empty_server_says_what_to_paste(tmp_path: Path):
    served, here = tmp_path / "served", tmp_path / "here"
    served.mkdir()
    here.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = PageServer(port)
    with started("server", "--port", str(port), cwd=served):
        eventually(lambda: _answers(server), timeout=PATIENCE)
        pages = {
            each: _page(server, each)
            for each in ("/", "/runs", "/queue", "/workers", "/schedules", "/pools")
        }
        shown = {
            each: [html.unescape(line) for line in re.findall(r'data-copy="([^"]*)"', text)]
            for each, text in pages.items()
        }
        assert all(shown.values()), shown
        for line in {line for lines in shown.values() for line in lines}:
            assert line.startswith("cat > hello.py") or parsed(line), line
        made, worker, submit = shown["/"]
        assert shown["/runs"] == shown["/queue"] == shown["/"]
        assert shown["/workers"] == [made, worker]
        by_shell(made, here)
        assert (here / "hello.py").read_text() == EXAMPLE
        with started(*shlex.split(worker)[1:], cwd=here):
            eventually(lambda: server.ask("/flows")["flows"], timeout=PATIENCE)
            by_cli(submit, here)
            [run] = server.ask("/runs")["runs"]
            server.until(run["id"], "succeeded")
            by_cli(shown["/schedules"][-1], here)
            assert server.ask("/schedules")["schedules"][0]["name"] == "nightly"
            by_cli(shown["/pools"][0], here)


def _answers(server: PageServer) -> bool:
    try:
        return bool(_page(server, "/ready"))
    except (OSError, AssertionError):
        return False


def test_the_inbox_is_read_page_by_page(server: PageServer):
    many = [{"args": {"item": str(at)}} for at in range(60)]
    answer = server.ask("/runs/batch", {"flow": "pages approval", "runs": many})
    runs = {each["run"]["id"] for each in answer["runs"]}
    other = server.submit("pages review", {})
    for each in (*runs, other):
        server.until(each, "waiting")
    where, found, pages = "/inbox?event=page+approved", list[str](), 0
    while where:
        text = _page(server, where)
        found += re.findall(r'<tr data-row>.*?href="/runs/(\w+)"', text, re.DOTALL)
        following = re.search(r'href="([^"]+)" rel="next"', text)
        where = html.unescape(following[1]) if following else ""
        pages += 1
        assert pages < 10
    assert pages == 2
    assert sorted(found) == sorted(runs)
    server.ask("/runs/cancel", {"flow": "pages approval"})
