"""Failures around a server: connections that end, answers that are lost, poolers, refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.postgres_proxy import Proxy

from locktender.base.changes import End, Order, TaskRow
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.commits import NodeInput
from locktender.base.errors import DataRefused, RoleRefused, SchemaTooNew, StoreBusy, StoreError
from locktender.base.ids import task_id
from locktender.base.states import TaskState
from locktender.store.postgres import PostgresStore, faults, opening, worker_verbs
from locktender.store.postgres import store as stores
from locktender.store.postgres.listener import notice_to, notices, sent_and_stored
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import (
    BEGINNING,
    Accept,
    Finish,
    Gather,
    OfferNotice,
    RunFilter,
    RunsEnded,
    Submit,
)
from locktender.testing.conformance.committing import saved
from locktender.testing.conformance.world import (
    DIGEST,
    GRAPH,
    SceneLeader,
    changes_of,
    history,
    join,
    new_run,
    offered,
    submit,
    submitted,
)
from locktender.testing.postgres_server import connected, database, execute, with_options

pytest_plugins = ["locktender.testing.postgres"]
END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        yield store


async def test_an_end_that_was_written_is_not_called_stale(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two is stale; before this is found out, the leader asks for the other task again."""
    leader, run, pairs = await offered(store, tasks=2)
    await store.accept(Accept("w1", pairs))
    [(first, token), (second, _)] = pairs
    judge = worker_verbs._finish_owned

    async def asked_again(tx: PostgresSession, worker: str, ended: list[End]) -> set[End]:
        row = next(task for task in await store.tasks(run) if task.id == first)
        again = row._replace(state="requested", token=0, worker=None)
        await leader.commit(tasks_saved=[saved(again)])
        return await judge(tx, worker, ended)

    monkeypatch.setattr(worker_verbs, "_finish_owned", asked_again)
    failed = End(
        first, token, TaskState.FAILED, None, b'{"type":"X","message":"","retryable":true}'
    )
    stale = End(second, 999, TaskState.COMPLETED, b"1")
    assert await store.finish(Finish("w1", [failed, stale])) == [(second, 999)]


# -- connections that die


async def test_connections_that_were_ended_are_replaced(
    postgres_url: str, store: PostgresStore
) -> None:
    leader, run, pairs = await offered(store, tasks=3)
    listener = store._opened.listener
    async with connected(postgres_url) as conn:
        for n in range(3):
            replaced = listener.replaced
            await conn.execute(END_ALL)
            end = time.monotonic() + 60
            while listener.replaced == replaced:
                assert time.monotonic() < end, "the listener is not replaced"
                await asyncio.sleep(0.01)
            # Every connection is found dead before anything is sent: the verbs know nothing of it.
            assert await store.accept(Accept("w1", [pairs[n]]))
            await leader.commit(events=[])
            assert await store.run("nobody") is None
    assert {row.state for row in await store.tasks(run)} == {"running"}


async def test_a_listener_that_was_replaced_hears(postgres_url: str, store: PostgresStore) -> None:
    listener = store._opened.listener
    async with connected(postgres_url) as conn, opened(postgres_url) as other:
        ended = await conn.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query ~ '^(UN)?LISTEN '"
        )
        assert len(ended) == 2
        end = time.monotonic() + 60
        while not (listener.replaced and other._opened.listener.replaced):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        # Whoever waits is woken once, because something may have been missed.
        mark = await store.wait(0)
        assert mark > 0
        waiting = asyncio.ensure_future(store.wait(30 * SECOND, mark))
        await submitted(other)
        assert await asyncio.wait_for(waiting, 60) > mark


async def test_a_lost_notification_costs_one_poll(postgres_url: str) -> None:
    async with (
        opened(with_options(postgres_url, listen="off")) as store,
        opened(postgres_url) as other,
    ):
        await submitted(other)
        started = time.monotonic()
        await store.wait(50 * MILLISECOND)
        assert time.monotonic() - started >= 0.05
        assert len((await store.gather(Gather(BEGINNING, "me"))).events) == 1


# -- answers that are lost


@pytest.fixture
async def proxy(postgres_url: str, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with Proxy(postgres_url, tmp_path).open() as proxy:
        yield proxy


async def lost(proxy: Proxy, *verbs: Any) -> None:
    """The verb's answer is cut off: it says so, and does not try again by itself."""
    proxy.armed = True
    with pytest.raises(StoreError, match="may be repeated"):
        await verbs[0]
    assert not proxy.armed


async def test_a_commit_whose_answer_was_lost_is_repeated(proxy: Proxy) -> None:
    async with opened(with_options(proxy.url, listen="off")) as store:
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await store.load()
        await leader.commit()
        commit = leader.plan(events=[])
        await lost(proxy, store.commit(commit))
        await store.commit(commit)
        await leader.start(run.seq)
        assert len(await changes_of(store, run.seq)) == 2


async def test_verbs_of_workers_whose_answers_were_lost_are_repeated(proxy: Proxy) -> None:
    async with opened(with_options(proxy.url, listen="off")) as store:
        _, run, pairs = await offered(store, tasks=2)
        accept = Accept("w1", pairs)
        await lost(proxy, store.accept(accept))
        assert len(await store.accept(accept)) == 2
        finish = Finish("w1", [End(*pair, "completed", b"1") for pair in pairs])
        await lost(proxy, store.finish(finish))
        assert await store.finish(finish) == []
        assert [after for _, after in await changes_of(store, run)].count("completed") == 2
        assert await store.stale_writes() == 0


async def test_a_submission_cut_off_at_any_point_is_stored_once(proxy: Proxy) -> None:
    """Begin, read, write, commit: before the commit it is repeated unseen, after it by the caller."""
    async with opened(with_options(proxy.url, listen="off")) as store:
        await submitted(store)
        for spared in range(4):
            order = Submit([new_run()], {DIGEST: GRAPH})
            asked = asyncio.ensure_future(store.submit(order))
            for _ in range(spared):
                await asyncio.sleep(0.0005)
            proxy.armed = True
            try:
                [answer] = await asked
            except StoreError:
                [answer] = await store.submit(order)
            proxy.armed = False
            assert answer.outcome == "created"
            assert len(await history(store, answer.seq)) == 1
        assert len(await store.runs(RunFilter())) == 5
        counts = await store.counts()
        assert counts.admitted[""] == counts.active[""] == 5


# -- behind a pooler


async def test_nothing_outlasts_a_transaction_behind_a_pooler(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two transactions the server connection may be another one: here it forgets everything."""
    transaction = PostgresSession.transaction
    forgotten = 0

    @asynccontextmanager
    async def forgetful(self: PostgresSession, how: str = "begin_write") -> AsyncIterator[None]:
        nonlocal forgotten
        nested = self.inside
        async with transaction(self, how):
            yield
        if not nested:
            assert await self.conn.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
            await self.conn.execute("DISCARD ALL")
            forgotten += 1

    monkeypatch.setattr(PostgresSession, "transaction", forgetful)
    async with opened(with_options(postgres_url, pooled="true", listen="off")) as store:
        leader, run, pairs = await offered(store, tasks=5)
        await store.orders("w1")
        await store.accept(Accept("w1", pairs))
        await store.finish(Finish("w1", [End(*pair, "completed", b"1") for pair in pairs]))
        gathered = await store.gather(Gather(BEGINNING, leader.actor))
        assert [row.state for row in gathered.tasks] == ["completed"] * 5
        await leader.end(run)
        assert (await store.load()).runs == []
        await store.leave("w1")
        settings = await store._read(
            lambda tx: tx.conn.fetch("SELECT name FROM pg_settings WHERE source = 'session'")
        )
        assert settings == []
    assert forgotten > 15


async def test_statements_through_a_pooler_are_planned_as_others_are(postgres_url: str) -> None:
    """Row by row, by index: so rows are locked in the order of their ids."""
    async with opened(with_options(postgres_url, pooled="true", listen="off")) as store:
        for name in ("enable_hashjoin", "enable_mergejoin", "enable_seqscan"):
            asked = f"SELECT current_setting('{name}')"
            [[found]] = await store._read(lambda tx, asked=asked: tx.fetch(asked))
            assert found == "off"


async def test_what_a_step_shares_is_read_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first of its tasks has a large argument of its own."""
    named: list[str] = []
    read = PostgresSession.all

    async def noting(self: PostgresSession, name: str, *params: Any) -> list[Any]:
        rows = await read(self, name, *params)
        named.extend([name] * len(rows))
        return rows

    leader, run, pairs = await offered(store, tasks=500)
    await leader.commit(node_inputs=[NodeInput(run, 0, b'"' + b"x" * 5_000 + b'"')])
    async with connected(store.options.dsn) as conn:
        await conn.execute(
            "UPDATE locktender.task SET input = $1 WHERE id = $2", b"1" * 50_000, pairs[0][0]
        )
    monkeypatch.setattr(PostgresSession, "all", noting)
    started = await store.accept(Accept("w1", pairs))
    assert [(each.task, each.token) for each in started] == sorted(pairs)
    assert {len(each.shared or b"") for each in started} == {5_002}
    assert named.count("tasks_accepted") == 1


async def test_nobody_listens_through_a_pooler(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the LISTEN and passes nothing on; who did not say where to listen is told so, once."""
    async with opened(with_options(postgres_url, pooled="true")) as store:
        assert store._opened.listener._task is None
        assert [each.getMessage() for each in caplog.records if "polling" in each.getMessage()]
        caplog.clear()
    async with opened(with_options(postgres_url, pooled="true", listen="off")):
        assert not caplog.records


@pytest.mark.parametrize(
    "said", ["commit w1=x", "commit w1=1", "commit w1=1.2,3.", "commit w1=1.2.3"]
)
async def test_a_notification_that_cannot_be_read_means_that_all_look(
    postgres_url: str, store: PostgresStore, said: str
) -> None:
    """Whoever may connect may notify."""
    await store.wait_for_offers("w1", 0)
    async with connected(postgres_url) as conn:
        channel = store.options.offers_channel
        await conn.execute("SELECT pg_notify($1, $2)", channel, f"somebody {said}")
    heard = await store.wait_for_offers("w1", 60 * SECOND)
    assert heard.look
    assert not heard.offers


@pytest.mark.parametrize("said", ["!", "!*", "!1,x", "!1, w1"])
async def test_ends_that_cannot_be_read_mean_that_waiters_look(
    postgres_url: str, store: PostgresStore, said: str
) -> None:
    await store.wait_for_ends(0)
    async with connected(postgres_url) as conn:
        channel = store.options.ends_channel
        await conn.execute("SELECT pg_notify($1, $2)", channel, f"somebody {said}")
    assert (await store.wait_for_ends(60 * SECOND)).look


async def test_a_commit_names_the_runs_it_ends(postgres_url: str, store: PostgresStore) -> None:
    async with opened(postgres_url) as other:
        leader = await SceneLeader.stand(other)
        runs = [(await submitted(other)).seq for _ in range(3)]
        await leader.start(*runs)
        await _until(lambda: store.listens)
        await store.wait_for_ends(0)
        await submitted(other)  # commits that end nothing wake nobody
        for run in runs[:2]:
            await leader.end(run)
            assert await store.wait_for_ends(60 * SECOND) == RunsEnded([run], look=False)


async def test_who_waits_for_nothing_listens_to_nothing(
    postgres_url: str, store: PostgresStore
) -> None:
    """PostgreSQL wakes all connections that listen, whatever they listen to."""
    async with opened(postgres_url) as other:
        leader = await SceneLeader.stand(other)
        runs = [(await submitted(other)).seq for _ in range(2)]
        await leader.start(*runs)
        await store.wait_for_ends(0)
        await _until(lambda: not store.listens)
        channels, ends = store._opened.listener.channels, {store.options.ends_channel}
        await _until(lambda: channels == ends)

        await store.forget_ends()
        await _until(lambda: not channels)
        await leader.end(runs[0])

        assert (await store.wait_for_ends(60 * SECOND)).look
        await _until(lambda: channels == ends)
        await leader.end(runs[1])
        ended = await store.wait_for_ends(60 * SECOND)
        assert ended.look or ended.runs == [runs[1]]


async def test_a_client_that_waits_for_nothing_listens_to_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        channels = store._opened.listener.channels
        await _until(lambda: store.listens)
        assert await store.forget_ends()
        await _until(lambda: not channels)

        # What it waits for first it is told of at once, not when the connection is looked after next.
        await store.wait(0)
        await _until(lambda: channels == {store.options.channel, store.options.offers_channel})
        assert not await store.forget_ends()


async def test_workers_and_leaders_are_not_told_of_their_own_kind(
    postgres_url: str, store: PostgresStore
) -> None:
    """A worker is told of leaders' commits, a leader of all others; a process that is both, of both."""
    offers, others = store.options.offers_channel, store.options.channel
    channels = store._opened.listener.channels
    await store.wait_for_offers("w1", 0)
    await _until(lambda: channels == {offers})
    async with opened(postgres_url) as leader:
        assert (await leader.wait_for_changes(0)).look
        await _until(lambda: leader._opened.listener.channels == {others})
        await submitted(store)
        told = await leader.wait_for_changes(60 * SECOND)
        assert told.look or told.queued

    await store.wait_for_changes(0)
    await _until(lambda: channels == {offers, others})


async def test_who_waits_for_ends_alone_is_not_told_of_every_commit(
    postgres_url: str, store: PostgresStore
) -> None:
    async with opened(postgres_url) as other, connected(postgres_url) as conn:
        leader = await SceneLeader.stand(other)
        run = (await submitted(other)).seq
        await leader.start(run)
        await _until(lambda: store.listens)
        await store.wait_for_ends(0)
        await _until(lambda: not store.listens)

        heard: list[str] = []
        store._opened.listener._rise = lambda: heard.append("a commit")
        await submitted(other)
        await leader.end(run)
        assert await store.wait_for_ends(60 * SECOND) == RunsEnded([run], look=False)
        assert heard == []

        # From the first who wants to know more on it is told that too, and looks for what it has missed.
        await store.wait_for_offers("w1", 0)
        await _until(lambda: store.listens)
        assert (await store.wait_for_offers("w1", 60 * SECOND)).look
        await conn.execute(
            "SELECT pg_notify($1, 'somebody commit w1=1.2')", store.options.offers_channel
        )
        assert (await store.wait_for_offers("w1", 60 * SECOND)).offers == [(1, 2)]
        assert heard


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 — the listener has no event for it
            await asyncio.sleep(0.005)


def test_too_many_ends_are_not_named() -> None:
    offer = Order("w1", 5, 6, "offer", "")
    assert notices(range(2_001), [offer], ()) == ["commit w1=5.6", "!*"]
    assert notices(range(2), [offer], ()) == ["commit w1=5.6", "!0,1"]
    most = [2**43 + number for number in range(2_000)]
    _, *ends = notices(most, [offer], ())
    assert max(map(len, ends)) < 7_900
    assert [int(run) for end in ends for run in end[1:].split(",")] == most
    assert notices((), (), [offer]) == ["commit w1"]


def test_as_many_notifications_as_the_offers_take() -> None:
    offers = [Order(f"w{n % 3}", n << 20, 10**15 + n, "offer", "") for n in range(2_000)]
    stop = Order("w1", 5, 6, "stop", "")
    readers = [Order(f"reads{n}", 5, 6, "stop", "") for n in range(60)]

    sent, stored = sent_and_stored([*offers, stop, *readers], {"w0", "w1", "w2"})
    assert (sent, stored) == (offers, [stop, *readers])
    told = notices((), sent, stored)

    assert len(told) > 1
    assert max(map(len, told)) < 7_900  # a server takes less than 8,000 bytes, the origin included
    words = [word for each in told for word in each.split()[1:]]
    heard = notice_to("w1", words)
    assert heard.look
    assert heard.offers == [(each.task, each.token) for each in offers if each.worker == "w1"]
    assert notice_to("w4", words).look  # too many to name: all read
    for forged in ("w1=5.x", "w1=9999999999999999999999.1", "w1=0.1", "w1=5.-1"):
        assert notice_to("w1", [forged]) == OfferNotice([], look=True)
    assert not notice_to("w1", ["w11=5.6", "w2"]).look


# -- opening


async def test_two_schemas_in_one_database_are_two_stores(postgres_url: str) -> None:
    async with (
        opened(postgres_url) as one,
        opened(with_options(postgres_url, schema="other")) as two,
    ):
        await submitted(one)
        waiting = asyncio.ensure_future(one.wait(100 * MILLISECOND))
        await join(two)
        assert await waiting == 0
        assert (await one.counts()).queued == 1
        assert (await two.counts()).queued == 0
        assert [worker.id for worker in await two.workers()] == ["w1"]


async def test_processes_that_open_a_new_schema_together(postgres_url: str) -> None:
    made = [PostgresStore(with_options(postgres_url, schema="fresh")) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in made))
    await submitted(made[0])
    assert (await made[3].counts()).queued == 1
    for store in made:
        await store.close()


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    await execute(postgres_url, "INSERT INTO locktender.migration VALUES (99, 'later', 'x', 0)")
    with pytest.raises(SchemaTooNew):
        await PostgresStore(postgres_url).open()


async def test_a_schema_of_another_program_is_refused(postgres_url: str) -> None:
    await execute(postgres_url, "CREATE TABLE public.theirs (n int)")
    with pytest.raises(StoreError, match="another program"):
        await PostgresStore(with_options(postgres_url, schema="public")).open()


async def test_refusals_say_what_to_do_next(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="createdb"):
        await PostgresStore(database(postgres_url, "nowhere")).open()
    with pytest.raises(StoreError, match="no PostgreSQL answers") as refused:
        await PostgresStore(f"postgresql://ann:s3cret@/x?host={tmp_path}").open()
    assert "s3cret" not in str(refused.value.as_dict())
    with monkeypatch.context() as patch:
        patch.setattr(stores, "CONNECTIONS", 100_000)
        with pytest.raises(StoreBusy, match="connections left"):
            await PostgresStore(postgres_url).open()
    with monkeypatch.context() as patch:
        patch.setattr(opening, "_OLDEST_SERVER", 10**9)
        with pytest.raises(StoreError, match="14 or newer"):
            await PostgresStore(postgres_url).open()
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    await execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreError, match="read-only"):
        await PostgresStore(postgres_url).open()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (asyncpg.InvalidPasswordError("no"), StoreError, "user and password"),
        (asyncpg.TooManyConnectionsError("no"), StoreBusy, "max_connections"),
        (asyncpg.DiskFullError("no"), StoreError, "Free some space"),
        (asyncpg.QueryCanceledError("statement timeout"), StoreBusy, "timed out"),
        (asyncpg.DeadlockDetectedError("no"), StoreBusy, "repeat"),
        (asyncpg.ReadOnlySQLTransactionError("no"), StoreError, "primary"),
        (asyncpg.InsufficientPrivilegeError("no"), RoleRefused, "right"),
        (TimeoutError(), StoreBusy, "in time"),
        (asyncpg.DataError("odd"), DataRefused, "odd"),
        (asyncpg.CardinalityViolationError("a second time"), DataRefused, "a second time"),
    ],
)
def test_faults_have_hints(error: BaseException, kind: type[StoreError], words: str) -> None:
    told = faults.translate(error, "postgresql://ann@db/jobs")
    assert type(told) is kind
    assert words in str(told)


# -- large inserts


async def test_many_runs_are_copied_in(store: PostgresStore) -> None:
    runs = [new_run(key=f"k{n}" if n % 5 == 0 else None) for n in range(1_500)]
    results = await submit(store, *runs)
    assert [result.seq for result in results] == list(range(1, 1_501))
    assert [entry.run.id for entry in await store.queue(2_000)] == [run.id for run in runs]
    assert len(await history(store)) == 1_500
    assert await submit(store, *runs) == results


async def test_many_tasks_are_copied_in_once(store: PostgresStore) -> None:
    leader = await SceneLeader.stand(store)
    run = (await submitted(store)).seq
    await leader.start(run)
    tasks = [TaskRow(task_id(run, n), 0, n, "requested", input=b"[]") for n in range(1_200)]
    await leader.commit(tasks_new=tasks)
    await leader.commit(tasks_saved=[saved(tasks[0], state="cancelled", ended_at=1)])
    # A new leader advances the run again: what is there stays as it is.
    await leader.commit(tasks_new=tasks)
    rows = await store.tasks(run)
    assert [row.id for row in rows] == [task.id for task in tasks]
    assert [row.state for row in rows[:2]] == ["cancelled", "requested"]


async def test_commits_are_taken_in_their_order_only(store: PostgresStore) -> None:
    """One that failed and is tried again is not overtaken by the next."""
    leader = await SceneLeader.stand(store)
    first, second = leader.plan(), leader.plan(previous=1)
    with pytest.raises(StoreError, match="not written yet"):
        await store.commit(second)
    await store.commit(first)
    await store.commit(second)
    await store.commit(second)


async def test_answers_are_on_disk_whatever_the_servers_default(
    postgres_url: str,
) -> None:
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    await execute(postgres_url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with opened(postgres_url) as store:
        shown = await store._opened.write.call(
            lambda tx: tx.conn.fetchval("SHOW synchronous_commit"), read=True
        )
    assert shown == "on"
