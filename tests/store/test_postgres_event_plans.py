"""What sending and delivering events costs as mailboxes grow: index reads, whatever the number of rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.store.test_postgres_plans import generic, seen

from locktender.base.commits import EventWait, MailTaken, RunEvents
from locktender.base.events import Change
from locktender.base.ids import task_id
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.connection import connect
from locktender.store.protocol import SendEvent, Wake
from locktender.testing.conformance.world import SceneLeader, submitted
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
assert seen  # a fixture
READ = re.compile(r"(Seq|Index|Index Only) Scan.* on (mail|mail_taken|event_wait|waiting|run)\b")
OF_A_TERM = "waiting WHERE run IN ("
"""Once per term all waits are read, and the mail of each is looked up."""
STOCK = """
INSERT INTO locktender.run (seq, id, state, kind, flow, graph, tags, priority, lane, rank1, rank2,
    queued_at, started_at, params, consts)
SELECT n, 'old' || n, 'waiting', 'flow', 'f', 'g', '{{}}', 0, 1, 0, n, 1, 1, '{{}}', '[]'
FROM generate_series(1, 2000) n;
INSERT INTO locktender.waiting SELECT n, 4000000000000000 FROM generate_series(1, 2000) n;
INSERT INTO locktender.event_wait SELECT n << 20, n, 'go', '{{}}', 1, 4000000000000000
FROM generate_series(1, 2000) n;
INSERT INTO locktender.mail (run, name, id, match, at, payload)
SELECT n % 2001, CASE WHEN n % 3 = 0 THEN 'go' ELSE 'other' END, n::text, '{{"of": 1}}', n, '1'
FROM generate_series(1, {rows}) n;
INSERT INTO locktender.mail_taken SELECT run, n, 0 FROM locktender.mail WHERE n % 2 = 0;
UPDATE locktender.meta SET value = 2000 WHERE name = 'last_run';
ANALYZE
"""


async def everything(store: PostgresStore, *, whole_term: bool = True) -> None:
    """Every verb of events once."""
    leader = await SceneLeader.stand(store)
    run = await submitted(store)
    await leader.start(run.seq)
    await store.send(SendEvent(run.id, "go", "a", b"1", "{}"))
    await store.send(SendEvent(run.id, "go", "a", b"1", "{}"))
    await store.send(SendEvent(None, "go", "b", b"1", '{"of":1}'))
    task = task_id(run.seq, 0)
    wait = EventWait(task, run.seq, "go", '{"of":1}', 1, 2**50)
    change = Change("task", task, "new", "requested", 0, {"node": 0, "index": -1})
    await leader.commit(waits_opened=[wait], events=[RunEvents(run.seq, [change])])
    [mail] = await store.mail_ready([run.seq])
    await store.topic_waiters([mail.n])
    await store.event_waits(run.id)
    await store.event_waits(None, 10)
    several: list[list[int] | None] = [[run.seq], [1, 2, 3]]
    for cycle, mailed in enumerate(several + [None] * whole_term, 5):
        await store.wake(Wake(leader.term, cycle, leader.actor, 1, mailed))
    leader.cycle = 10
    await leader.commit(
        waits_over=[task],
        mail_taken=[MailTaken(run.seq, mail.n, task)],
        events=[RunEvents(run.seq, [Change("task", task, "requested", "completed")])],
    )


async def test_plans_of_events_made_on_empty_tables(
    seen: dict[str, tuple[Any, ...]], postgres_url: str
) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    await everything(store)
    conn = await connect(store.options)
    faults: list[str] = []
    found = [text for text in seen if "mail" in text or "event_wait" in text]
    for text in found:
        plan = [row[0] for row in await generic(conn, text)]
        for above, line, below in zip(["", *plan], plan, [*plan[1:], ""], strict=False):
            # By `event_wait_until` they come in their order, until there are enough.
            bounded = "Index Cond" in below or "Limit" in above or "event_wait_until" in line
            of_a_term = OF_A_TERM in text and ("event_wait" in line or "waiting" in line)
            if READ.search(line) and not bounded and not of_a_term:
                faults.append("\n".join([text, *plan]))
    await conn.close()
    await store.close()
    assert len(found) > 10
    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
async def test_a_large_mailbox_is_read_by_index(postgres_url: str, rows: int) -> None:
    async with connected(postgres_url) as conn:
        await conn.execute(STOCK.format(rows=rows))
    before = await touched(postgres_url)
    store = PostgresStore(postgres_url)
    await store.open()
    await everything(store, whole_term=False)
    await store.close()
    after = {name: n - before[name] for name, n in (await touched(postgres_url)).items()}
    # Of one run and of one topic that was sent to: at most what one mailbox holds.
    assert after["seq_tup_read"] == 0
    assert after["idx_tup_read"] < 2_000 + rows // 100, after
    # However many wait: those that are named, and the first by their time.
    assert after["waiting_read"] < 100, after


async def touched(url: str) -> dict[str, int]:
    """Rows of the tables of events that were read, by a scan and by index, since the server counts."""
    async with connected(url) as conn:
        found = await conn.fetchrow(
            "SELECT sum(t.seq_tup_read)::bigint AS seq_tup_read, (SELECT sum(i.idx_tup_read)::bigint"
            " FROM pg_stat_user_indexes i WHERE i.relname IN ('mail', 'mail_taken')) AS idx_tup_read,"
            " (SELECT sum(coalesce(w.seq_tup_read, 0) + coalesce(w.idx_tup_fetch, 0))::bigint"
            " FROM pg_stat_user_tables w WHERE w.relname = 'waiting') AS waiting_read"
            " FROM pg_stat_user_tables t WHERE t.relname IN ('mail', 'mail_taken')"
        )
    assert found is not None
    return dict(found)
