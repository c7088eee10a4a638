"""What waits is explained by the rules at the moment of asking, and not by what was written before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.steps import client_flows as flows
from tests.support.beside import opened
from tests.support.cli_harness import locktender, output_of, started
from tests.support.worlds import graph, run_row, step, worker_row

from locktender import Client, StepError, connect, embedded, flow, sleep, wait_event
from locktender import step as step_of
from locktender.base.changes import TaskRow
from locktender.base.limits import Limits
from locktender.base.model import Failure
from locktender.base.states import TaskState
from locktender.cli.run_view import view_of
from locktender.kernel.reasons import Holder, Reason
from locktender.kernel.scheduler import Scheduler
from locktender.observe.rebuilt import queue_in_order
from locktender.observe.waiting_steps import OfferedStep, WaitingStep
from locktender.observe.why import Why, explain_run
from locktender.observe.why_executing import note_of
from locktender.observe.why_queued import MAX_PLACED, queued_why, queued_whys, whys_of
from locktender.store.protocol import QueueView, RunFilter
from locktender.store.sqlite.store import SqliteStore
from locktender.testing import eventually
from locktender.testing.conformance.world import SceneLeader, submitted


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


@step_of(pools={"db": 1})
def hold(x: int) -> int:
    assert flows.GATE.wait(60)
    return x


@flow
def holds(count: int) -> list[int]:
    return hold.map(list(range(4)))


@flow
def naps() -> int:
    return sleep("1h", 1)


@pytest.mark.parametrize("kind", ["capacity", "queue_timeout", "deadline"])
def test_a_failure_says_its_type_once(kind: str):
    text = f"{kind}: no worker with gpu=yes for 4h"
    assert Failure(kind, text).text() == text
    assert str(StepError.of(kind, text)) == text
    assert Failure("ValueError", "no").text() == "ValueError: no"


def test_each_waiter_has_a_reason_that_follows_the_limit(engine: Client):
    engine.pools.set("db", limit=1)
    run = engine.submit(holds, 4)

    def reasons() -> list[str]:
        return sorted(str(each.wait_reason) for each in run.tasks() if each.state == "requested")

    eventually(lambda: reasons() == ["pool:db"] * 3)
    engine.pools.pause("db")
    # No leader has written a word of it: the pause is a rule, and is asked.
    eventually(lambda: reasons() == ["paused:db"] * 3)
    engine.pools.resume("db")
    engine.pools.set("db", limit=2)
    eventually(lambda: reasons() == ["pool:db"] * 2)
    flows.GATE.set()
    assert run.result("60s") == [0, 1, 2, 3]
    assert {task.wait_reason for task in run.tasks()} == {None}


def test_a_paused_sleeping_run_names_the_pause_too(engine: Client):
    run = engine.submit(naps)
    eventually(lambda: run.status() == "waiting")
    run.pause("the data is wrong")
    eventually(lambda: [each.gate for each in run.why().reasons] == ["pause", "time"])
    assert "the data is wrong" in str(run.why())
    run.cancel()


@flow
def asks() -> int:
    return wait_event("ok", timeout="2d", schema=int)


@pytest.mark.parametrize(
    ("what", "gate", "text"), [(naps, "time", "sleeps until"), (asks, "event", "event `ok`")]
)
def test_a_task_of_a_waiting_run_says_what_it_waits_for(
    engine: Client, url: Path, tmp_path: Path, what: Any, gate: str, text: str
):
    run = engine.submit(what)
    eventually(lambda: run.status() == "waiting")
    [task] = run.tasks()
    why = engine.why(task.id)
    assert [each.gate for each in why.reasons] == [gate]
    assert (why.name, why.note) == (task.name, "")
    assert text in str(why)
    assert text in str(task.wait_reason)
    shown = locktender("runs", "show", run.id, "--url", str(url), cwd=tmp_path).out
    assert f"  {why.reasons[0].text[:10]}" in shown
    assert "waits for waits" not in shown
    assert "waits for sleeps" not in shown
    run.cancel()


def test_a_task_that_has_ended_is_called_by_the_name_of_its_step(engine: Client):
    flows.GATE.set()
    run = engine.submit(holds, 4)
    run.result("60s")
    first = run.tasks()[0]
    assert "(hold) is completed" in str(engine.why(first.id))


def test_why_has_estimates_and_no_wrong_times():
    holder = Holder("r1", 7, "use", 1, NOW - 30_000_000, "w", stalled=True)
    basis = "1st of 1 for pool db, median hold 5s over the last 9"
    full = Reason(
        "pool:db", "pool db: 1 of 1 in use", 1, 1, 1, holders=(holder,), estimate_us=40_000_000
    )
    group = WaitingStep("use", 1, (msgspec.structs.replace(full, basis=basis),))
    why = Why("run", "r", "flow", "running", NOW, NOW, waiting=(group,))
    assert f"    expected wait: ~40s: {basis}." in why.text()
    assert "held by task 7 (use) for 30s on stalled worker w, run r1" in why.text()
    dead = Holder("r1", 7, "", 1, 0, "w", dead=True, until=NOW + 9_000_000)
    group = msgspec.structs.replace(
        group, reasons=(msgspec.structs.replace(full, holders=(dead,)),)
    )
    kept = msgspec.structs.replace(why, waiting=(group,)).text()
    assert "held by task 7, whose worker w is dead, for 9s more, run r1" in kept
    several = msgspec.structs.replace(why, waiting=(msgspec.structs.replace(group, count=3),))
    assert "    expected wait of the first of them: ~40s" in several.text()


NOW = 10**15


def test_an_offered_task_is_not_called_running():
    lead = Scheduler(Limits(), term=1, owner="me")
    lead.graphs = {"flow": graph(step("a"))}
    lead.put_worker(worker_row("w", permits={"async": 1}))
    lead.put_head(run_row(1, graph="flow"))
    lead.cycle(NOW)
    [entry] = lead.ledger.runs[1].tasks.values()
    assert entry.state == "scheduled"
    entry.offers = 3
    note = note_of(lead, entry, NOW + 4_000_000)
    assert note == "It was offered to w 4s ago (3rd offer), and is not accepted yet."
    lead.ledger.workers.by_id["w"].stalled_since = NOW
    note = note_of(lead, entry, NOW + 4_000_000)
    assert note.startswith("It was offered to w 4s ago (3rd offer)")
    assert "Worker w is stalled" in note
    assert "waits for nothing" not in note

    entry.state = TaskState.RUNNING
    lead.ledger.workers.by_id["w"].stalled_since = 0
    assert note_of(lead, entry, NOW) == "Worker w has it: it waits for nothing."
    lead.ledger.workers.by_id["w"].unanswered = 2
    note = note_of(lead, entry, NOW)
    assert note == "Worker w left 2 offers unanswered: its process may be stopped."

    offered = {"a": OfferedStep(1, "w", NOW, 3)}
    why = Why("run", "r", "flow", "running", NOW, NOW + 4_000_000, offered=offered)
    row = TaskRow(id=entry.id, node=0, idx=-1, state="scheduled", worker="w", scheduled_at=NOW)
    view = view_of(run_row(1, state="running"), lead.graphs["flow"], [row], why, NOW)
    [shown] = view.steps
    assert (shown.running, shown.offered, shown.waiting) == (0, 1, 0)
    assert shown.notes == ("offered to w 4s ago (3rd offer)",)


def test_a_dead_holder_of_a_pool_is_shown_as_one(tmp_path: Path):
    url = tmp_path / "locktender.db"
    with embedded(url) as engine:
        engine.pools.set("db", limit=2, lease="1h")
        run = engine.submit(holds, 4)
        eventually(lambda: sum(each.state == "running" for each in run.tasks()) == 2)
        [first, *_] = run.tasks()
        # as a worker's death leaves it: the slots are kept for the pool's own lease
        with opened(url) as file:
            row = (first.id, 7, "db", 1, 4 * 10**15, "gone")
            file.execute("INSERT INTO linger VALUES (?, ?, ?, ?, ?, ?)", row)
        info = locktender("pools", "info", "db", "--url", str(url), "--json", cwd=tmp_path).data
        shown = locktender("pools", "info", "db", "--url", str(url), cwd=tmp_path).out
        flows.GATE.set()
        run.result("60s")
    states = [(each["state"], each["worker"], each["slots"]) for each in info["holders"]]
    assert [each[0] for each in states] == ["dead", "running", "running"]
    assert states[0] == ("dead", "gone", 1)
    assert info["used"] == sum(each[2] for each in states) == 3
    assert "dead" in shown
    assert "WORKER" not in shown  # the column says what is with the holder, not who it is
    # a pool with a lease of its own: until that has passed too the slots stay taken
    assert all(each["lease_until"] > info["holders"][1]["since"] for each in info["holders"][1:])
    assert "in 1h" in shown or "in 59m" in shown


def test_a_list_of_the_queue_says_how_many_there_are(tmp_path: Path):
    url = tmp_path / "locktender.db"
    with embedded(url) as engine:
        engine.limits.set_max_concurrent_runs(1)
        engine.limits.set_tag("tenant", limit=1, per_value=True)
    with connect(url) as client:
        for number in range(60):
            client.submit(flows.waits, number, tags={"tenant": "ab"[number % 2]}, priority=5)
        whole = locktender("queue", "list", "-n", "60", "--url", str(url), "--json", cwd=tmp_path)
        first = locktender("queue", "list", "--url", str(url), cwd=tmp_path)
        last = whole.data[-1]["run"]["id"]
        one = locktender("queue", "why", last, "--url", str(url), cwd=tmp_path).out
    assert "first 20 of 60" in first.err
    assert (len(whole.data), whole.err) == (60, "")
    assert all(each["why"].get("reasons") or each["why"]["note"] for each in whole.data)
    assert "position 60 in the queue, priority 5, tags team=search, tenant=b" in one


def test_rows_beyond_fifty_have_their_reasons(engine: Client, url: Path, tmp_path: Path):
    engine.limits.set_max_concurrent_runs(1)
    engine.limits.set_tag("tenant", limit=1, per_value=True)
    runs = [engine.submit(flows.waits, n, tags={"tenant": "ab"[n % 2]}) for n in range(71)]
    eventually(lambda: runs[0].status() == "running")
    shown = locktender("queue", "list", "-n", "70", "--url", str(url), "--json", cwd=tmp_path).data
    for entry in shown:
        told = {each["gate"]: each for each in entry["why"]["reasons"]}
        alone = {each.gate: each for each in engine.why(entry["run"]["id"]).reasons}
        assert told.keys() == alone.keys()
        assert [each.get("ahead", 0) for each in told.values()] == [
            each.ahead for each in alone.values()
        ]
    assert len(shown) == 70
    engine.runs.cancel([run.id for run in runs])


async def test_a_list_of_the_queue_reads_who_executes_once(tmp_path: Path):
    url = tmp_path / "locktender.db"
    with connect(url) as client:
        for number in range(300):
            client.submit(flows.waits, number)
    reads = [0]

    class Counting(SqliteStore):
        async def beside(self, run: int, most: int) -> Any:
            reads[0] += 1
            return await super().beside(run, most)

    store = Counting(url)
    await store.open()
    whys, total = await queued_whys(store, await queue_in_order(store, 200))
    await store.close()
    assert (len(whys), total, reads[0]) == (200, 300, 1)


@pytest.mark.parametrize("most", [10_000, 5])
async def test_runs_of_a_list_have_the_places_that_each_has_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
):
    """Given runs of two priorities under a tag's limit, in a queue that is short, or too long to be counted."""
    monkeypatch.setattr("locktender.observe.rebuilt.MAX_RUNS_COUNTED", most)
    url = tmp_path / "locktender.db"
    with connect(url) as client:
        client.limits.set_tag("tenant", per_value=True, limit=1)
        for n in range(40):
            client.submit(flows.waits, n, priority=5 * (n % 3 == 0), tags={"tenant": f"t{n % 2}"})
    counted = [0]

    class Counting(SqliteStore):
        async def beside(self, run: int, most: int) -> Any:
            counted[0] += most > 1
            return await super().beside(run, most)

    store = Counting(url)
    await store.open()
    rows = await store.runs(RunFilter(states=["queued"], limit=20))
    listed = await whys_of(store, rows)
    by_list = counted[0]
    alone = {row.seq: await queued_why(store, row) for row in rows[:MAX_PLACED]}
    await store.close()
    assert list(listed) == [row.seq for row in rows]
    for seq, why in alone.items():
        assert listed[seq].position_is == why.position_is
        # Of two bounds the higher one says more.
        bound, alone_bound = listed[seq].position or 0, why.position or 0
        assert bound == alone_bound or (why.position_is == "at least" and bound > alone_bound)
        assert [each.gate for each in listed[seq].reasons] == [each.gate for each in why.reasons]
    assert by_list <= 4


class Led(SqliteStore):
    """A leader has the lease, and decides nothing."""

    async def leader(self) -> str | None:
        return "frozen"


async def test_what_no_gate_blocks_names_the_engine(tmp_path: Path):
    url = tmp_path / "locktender.db"
    with connect(url) as client:
        run = client.submit(flows.waits, 1)
        why = str(run.why())
    assert "no process leads" in why
    assert "Nothing blocks it" not in why
    store = Led(url)
    await store.open()
    why = str(await explain_run(store, run.id))
    await store.close()
    assert "The engine is in the way: leader frozen has written no decision" in why
    assert "next cycle" not in why


class Starting(SqliteStore):
    """The run leaves the queue after its row was read."""

    before_beside: Callable[[], Awaitable[None]]

    async def beside(self, run: int, most: int) -> QueueView | None:
        await self.before_beside()
        return await super().beside(run, most)


async def test_a_run_that_leaves_the_queue_meanwhile_is_asked_again(tmp_path: Path):
    store = Starting(tmp_path / "locktender.db")
    await store.open()
    leader, run = await SceneLeader.stand(store), await submitted(store)

    async def end() -> None:
        await leader.end(run.seq, "cancelled", before="queued")

    store.before_beside = end
    why = await explain_run(store, run.id)
    await store.close()
    assert (why.state, why.note) == ("cancelled", "")
    assert why.ended_at


@step_of(needs={"gpu": "yes"})
def draw() -> int:
    return 1


@flow
def draws() -> int:
    return draw()


def test_that_no_process_leads_is_said_once(tmp_path: Path):
    url = tmp_path / "locktender.db"
    with embedded(url) as engine:
        run = engine.submit(draws)
        eventually(lambda: [each.state for each in run.tasks()] == ["requested"])
    with connect(url) as client:
        assert str(client.why(run.id)).count("No process leads") == 1


def test_why_is_watched_until_it_has_ended(engine: Client, url: Path, tmp_path: Path):
    engine.limits.set_max_concurrent_runs(1)
    first, second = (engine.submit(flows.waits, number) for number in range(2))
    eventually(lambda: first.status() == "running")
    shell = ("why", second.id, "--watch", "--url", str(url))
    with started(*shell, cwd=tmp_path) as watching:
        eventually(lambda: "1 of 1 runs execute" in output_of(watching))
        flows.GATE.set()
        assert watching.wait(60) == 0
        said = output_of(watching)
    assert "max_concurrent_runs 1 → 2, or run" in said
    assert "It waits for nothing." in said.splitlines()[-1]
