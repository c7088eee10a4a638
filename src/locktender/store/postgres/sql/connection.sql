-- What only this dialect needs: sessions and transactions, and the parts that link one verb's
-- statements into one. Parts are composed as `WITH a AS (…), b AS (…) …` and see each other by name:
--
--   fence     has a row if the verb may write at all
--   clock     the store's time, once
--   effect    (id, change) of the tasks that were moved
--   told      (run, body, n) of the events to write
--   idle      tasks whose orders are void
--   closing   (name, n) of runs to count as closed

-- name: begin_write
-- A client that freezes inside a transaction loses it after two seconds.
BEGIN; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 10000

-- name: begin_alone
-- The same, alone among those who admit runs or change what they are admitted by. The lock, and what is
-- read behind it, come before the transaction has an id: so ids, and with them events, follow the order in
-- which it is granted, and stand behind every end of a run that made room for them.
BEGIN; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 10000;
SELECT pg_advisory_xact_lock({lock})

-- name: begin_alone_at_once
-- The same for the leader, which must not stand in line with submitters: if the lock is taken, it comes back.
BEGIN; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 1;
SELECT pg_advisory_xact_lock({lock}); SET LOCAL lock_timeout = 10000

-- name: begin_alone_soon
-- The same for a leader that came back several times: in line, but not for long.
BEGIN; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 250;
SELECT pg_advisory_xact_lock({lock}); SET LOCAL lock_timeout = 10000

-- name: commit_alone
-- Make it durable. A client that read before and submits without the lock finds that the number of admissions
-- has risen, and writes nothing. If this transaction wrote nothing, the counter is unchanged.
UPDATE locktender.meta SET value = value % 4611686018427387904 + 1
WHERE name = 'admissions' AND pg_current_xact_id_if_assigned() IS NOT NULL; COMMIT

-- name: begin_read
-- One snapshot for several reads.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 10000

-- name: begin_one
-- One statement, kept on one server connection by the pooler. A client that freezes inside loses the connection.
BEGIN; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 10000

-- name: plan_row_by_row
-- What connections without a pooler are set to: rows that are given by id are found, and locked, in the order of
-- their ids.
SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off; SET LOCAL enable_material = off

-- name: commit_transaction
-- Make it durable.
COMMIT

-- name: rollback_transaction
-- Undo the transaction.
ROLLBACK

-- name: now
-- The store's time.
SELECT locktender.locktender_now() AS now

-- name: freeze_clock
-- Tests set the store's time.
INSERT INTO locktender.frozen_clock (at) VALUES ($1)
ON CONFLICT (one) DO UPDATE SET at = excluded.at WHERE frozen_clock.at <> excluded.at

-- name: server
-- Version, room for connections, and whether the server may be written.
SELECT
    current_setting('server_version_num')::int,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0),
    (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'),
    pg_is_in_recovery(),
    current_setting('transaction_read_only')::boolean

-- name: migration_lock
-- Processes that start together migrate one after another. The change itself waits for others' locks for
-- a moment only: every later transaction waits behind it.
BEGIN; SET LOCAL idle_in_transaction_session_timeout = 10000;
SELECT pg_advisory_xact_lock({lock}); SET LOCAL lock_timeout = 300

-- name: schema_exists
-- Whether there is anything yet.
SELECT to_regnamespace($1::text) IS NOT NULL, to_regclass($1::text || '.migration') IS NOT NULL

-- name: schema_add
-- Where our tables live.
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: schema_tables
-- Tables in the schema, to tell ours from others'.
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v')

-- name: migration_table
-- Where applied migrations are recorded.
CREATE TABLE IF NOT EXISTS locktender.migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at bigint NOT NULL
)

-- name: migration_list
-- What was applied.
SELECT number, checksum FROM locktender.migration

-- name: migration_add
-- Record an applied migration.
INSERT INTO locktender.migration (number, name, checksum, applied_at)
VALUES ($1, $2, $3, locktender.locktender_now())

-- name: ping
-- Whether the connection is alive.
SELECT 1

-- name: open_fence
-- A verb that needs no leave.
SELECT 1

-- name: cycle_fence
-- The leader's commit: the right term in the history it began in, the next cycle, the limits its counters
-- were reckoned by, and no run whose key must be freed (that takes two statements). The update holds the
-- row until the commit.
UPDATE locktender.leader SET
    cycle = $2,
    seq = CASE WHEN $5::int > 0 THEN locktender.event_base() + $5 - 1 ELSE 0 END
WHERE one AND term = $1 AND history = locktender.history_place()
    AND cycle < $2 AND ($3::bigint = 0 OR cycle = $3) AND limits_version = $4
    AND ($6 OR NOT EXISTS (
        SELECT 1 FROM unnest($7::bigint[]) v (run) JOIN locktender.run r ON r.seq = v.run
        WHERE r.key IS NOT NULL
    ))
RETURNING seq

-- name: cycle_fence_carried
-- As `cycle_fence`, and these queued runs are what the notifications of their submissions said.
UPDATE locktender.leader SET
    cycle = $2,
    seq = CASE WHEN $5::int > 0 THEN locktender.event_base() + $5 - 1 ELSE 0 END
WHERE one AND term = $1 AND history = locktender.history_place()
    AND cycle < $2 AND ($3::bigint = 0 OR cycle = $3) AND limits_version = $4
    AND ($6 OR NOT EXISTS (
        SELECT 1 FROM unnest($7::bigint[]) v (run) JOIN locktender.run r ON r.seq = v.run
        WHERE r.key IS NOT NULL
    ))
    AND cardinality($8::bigint[]) = (
        SELECT count(*) FROM unnest(
            $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bigint[],
            $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bytea[], $20::bytea[], $21::text[]
        ) v (
            seq, id, kind, flow, graph, tags, priority, queued_at, deadline_at, queue_timeout_us,
            dispatch_deadline_us, params, consts, trace
        ) JOIN locktender.run r ON r.seq = v.seq
        WHERE (r.state = 'queued') IS TRUE AND r.generation = 0 AND r.started_at = 0 AND r.key IS NULL
            AND r.waits_for IS NULL AND r.verdict IS NULL
            AND (
                r.id, r.kind, r.flow, r.graph, r.tags, r.priority, r.queued_at, r.deadline_at, r.queue_timeout_us,
                r.dispatch_deadline_us, r.params, r.consts, r.trace
            ) IS NOT DISTINCT FROM (
                v.id, v.kind, v.flow, v.graph, v.tags, v.priority, v.queued_at, v.deadline_at, v.queue_timeout_us,
                v.dispatch_deadline_us, v.params, v.consts, v.trace
            )
    )
RETURNING seq

-- name: term_fence
-- The fence of a leader's other verbs. A successor locks the row FOR UPDATE, so it waits for them.
SELECT term FROM locktender.leader
WHERE one AND term = $1 AND history = locktender.history_place() FOR KEY SHARE

-- name: lease_fence
-- The fence of a worker that is a member. Declaring it lost locks the row FOR UPDATE: before or after.
SELECT w.id FROM locktender.worker w WHERE w.id = $1 AND w.lease_until > 0 FOR KEY SHARE OF w

-- name: commit_answer
-- What a leader's commit comes to; no row: the fence refused it, and no process is notified.
SELECT fence.seq, clock.now, (SELECT count(pg_notify(c, n)) FROM unnest($1::text[], $2::text[]) u(c, n)) FROM fence, clock

-- name: commit_answer_unflushed
-- As `commit_answer`, without waiting for the disk: the next commit that does brings it along.
SELECT fence.seq, clock.now, (SELECT count(pg_notify(c, n)) FROM unnest($1::text[], $2::text[]) u(c, n)),
    set_config('synchronous_commit', 'off', true)
FROM fence, clock

-- name: notify
-- Notifications without a change.
SELECT count(pg_notify(c, n)) FROM unnest($1::text[], $2::text[]) u(c, n)

-- name: wake
-- One notification per commit, where something was written.
SELECT pg_notify($1, $2) FROM fence

-- name: quiet
-- Wake no process.
SELECT 1 WHERE false

-- name: wake_if_moved
-- One notification per commit, where a task was moved.
SELECT pg_notify($1, $2) WHERE EXISTS (SELECT 1 FROM effect)

-- name: events_given
-- Events as they were composed.
SELECT run, body, n FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS v (run, body, n)

-- name: events_moved
-- Events of the tasks that were moved, one per run.
SELECT id >> 20 AS run, convert_to('[' || string_agg(change, ',' ORDER BY id) || ']', 'UTF8') AS body,
    row_number() OVER (ORDER BY id >> 20) AS n
FROM effect GROUP BY id >> 20

-- name: idle_given
-- Tasks whose orders are void.
SELECT unnest($1::bigint[]) AS task

-- name: idle_moved
-- Orders of moved tasks are void.
SELECT id AS task FROM effect

-- name: closing_all
-- All of the runs that end count as closed, but for holds.
SELECT '' AS name, count(*) AS n FROM run_end WHERE kind <> 'hold'

-- name: closing_given
-- Closed runs under the names their tags ask for.
SELECT name, n FROM unnest($1::text[], $2::bigint[]) v (name, n)

-- name: ended_owned
-- As `tasks_owned`, each with how its attempt ended and the change to tell from running and from an
-- offer. In one piece: two parts could only be joined by comparing each row with each.
SELECT t.id, t.token, t.state, t.worker, v.token AS asked, v.state AS ended, v.output, v.error,
    v.change, v.declined
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[], $6::text[], $7::text[])
    AS v (id, token, state, output, error, change, declined)
JOIN locktender.task t ON t.id = v.id
WHERE EXISTS (SELECT 1 FROM fence)
ORDER BY t.id FOR NO KEY UPDATE OF t

-- name: accept_answer
-- Accepted tasks with all it takes to run them, the small ones first, as far as they fit into so many bytes; of the
-- others, only that they were accepted. What tasks of one step of a run share is in the row of one of them. Until the
-- answer has been sent nothing is stored and every row stays locked, and a client that is frozen takes no more than
-- the sockets do.
SELECT
    id, token, node, idx, attempt, CASE WHEN small THEN input END, CASE WHEN small THEN shared END, run_id, graph,
    trace, first, small
FROM (
    SELECT
        t.*, n.input AS shared, r.id AS run_id, r.graph, r.trace,
        sum(size.bytes) OVER (ORDER BY size.bytes, t.id ROWS UNBOUNDED PRECEDING) <= $1::bigint AS small
    FROM (
        SELECT *, row_number() OVER (
            PARTITION BY id >> 20, node ORDER BY octet_length(input) NULLS FIRST, id
        ) = 1 AS first
        FROM effect
    ) t
    LEFT JOIN LATERAL (
        SELECT id, graph, trace FROM locktender.run WHERE t.first AND seq = t.id >> 20
    ) r ON true
    LEFT JOIN LATERAL (
        SELECT input FROM locktender.node_input WHERE t.first AND run = t.id >> 20 AND node = t.node
    ) n ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(octet_length(t.input), 0) + coalesce(octet_length(n.input), 0) AS bytes
    ) size
) answered
WHERE (SELECT count(*) FROM woken) IS NOT NULL

-- name: task_new_alike
-- As `task_new`, for tasks of which only id, index, token and input differ: those of most commits. Where every
-- token, or every index, is its id plus the same number, or all indexes are alike, only that number is sent. $8 and
-- the following are the other columns that a new row has, in the order of `folded_rows.TASK`.
INSERT INTO locktender.task (
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, input, output,
    error, requested_at, scheduled_at, started_at, ended_at, not_before, eligible_at
) SELECT
    v.id, $8::bigint, coalesce(v.idx, v.id + $3::bigint, $4::bigint), $9::text, $10::bigint, 0, 0, $11::bigint,
    coalesce(v.token, v.id + $6::bigint, 0), $12::text, $13::bytea, v.input, NULL, NULL,
    $14::bigint, $15::bigint, $16::bigint, 0, 0, $17::bigint
FROM unnest($1::bigint[], $2::bigint[], $5::bigint[], $7::bytea[]) v (id, idx, token, input)
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (id) DO NOTHING

-- name: task_finish_running
-- Attempts that run end, as most do; of the states one stands for all if it is the only one. The token stays, so
-- that a repetition is recognised. Locked in the order of the array, and found by their ids, as in `task_accept`; tokens
-- as there. The event of a success is made of three texts, the task's number and its token.
UPDATE locktender.task t SET
    state = coalesce(v.state, ($4::text[])[1]), output = v.output, error = v.error, held = NULL,
    ended_at = clock.now
FROM unnest($1::bigint[], $2::bigint[], $4::text[], $5::bytea[], $6::bytea[], $7::text[])
    v (id, token, state, output, error, change), clock
WHERE t.id = v.id AND t.token = coalesce(v.token, v.id + $3::bigint)
    AND t.state = CASE WHEN v.id IS NULL THEN '' ELSE 'running' END
RETURNING t.id, coalesce(v.change, $8::text || t.id || $9::text || t.token || $10::text) AS change

-- name: finish_count
-- How many tasks were moved; and which, if those are not all.
SELECT count(*), (SELECT count(*) FROM woken), CASE WHEN count(*) < $1::bigint THEN array_agg(id) END FROM effect

-- name: finish_answer
-- How many tasks were moved (first row). Mostly all: else as `moved_answer`.
SELECT count(*), (SELECT count(*) FROM woken), '', true FROM effect
UNION ALL
SELECT id, token, state, false FROM tasks_owned WHERE (SELECT count(*) FROM effect) < $1::bigint
UNION ALL
SELECT id, 0, '', true FROM effect WHERE (SELECT count(*) FROM effect) < $1::bigint

-- name: moved_answer
-- Whether the fence was open (first row), whose the tasks were, and which of them were moved.
SELECT 0::bigint, (SELECT count(*) FROM fence), '', (SELECT count(*) FROM woken) > 0
UNION ALL
SELECT id, token, state, false FROM tasks_owned
UNION ALL
SELECT id, 0, '', true FROM effect

-- name: worker_renew
-- Renew, and never join: a renewal may arrive after the worker has left.
UPDATE locktender.worker SET lease_until = clock.now + $2::bigint, lease_us = $2::bigint, body = $3::bytea
FROM clock WHERE id = $1::text AND lease_until > 0
RETURNING lease_until

-- name: life_lock
-- Proof of life: the session keeps this lock until its connection ends, whatever the process does.
SELECT pg_try_advisory_lock(hashtextextended($1::text, 0))

-- name: life_unlock
-- The worker of this session gives its lease up.
SELECT pg_advisory_unlock(hashtextextended($1::text, 0))

-- name: lost_lock
-- Of these workers, those that have not renewed their lease since it was read, in order; their own verbs
-- wait from here on.
SELECT w.id, w.lease_until, w.body
FROM unnest($1::text[], $2::bigint[]) v (id, lease_until) JOIN locktender.worker w ON w.id = v.id
WHERE w.lease_until = v.lease_until ORDER BY w.id FOR UPDATE OF w

-- name: worker_lock
-- A worker that leaves: its own acceptances are over or wait.
SELECT id FROM locktender.worker WHERE id = $1 FOR UPDATE

-- name: later_events
-- Whether these actors, or that term, have written events that would stand behind ours though they came
-- before: our transaction's id was given before we waited for them.
SELECT EXISTS (
    SELECT 1 FROM locktender.event
    WHERE seq >= locktender.event_base() AND (actor = ANY($1::text[]) OR term = $2)
)

-- name: event_base
-- The seq of this transaction's first event, for COPY.
SELECT locktender.event_base()

-- name: events_found
-- What `events_after` found.
SELECT seq, at, term, cycle, actor, run, body FROM events_after ORDER BY seq

-- name: events_settled
-- The history up to the oldest transaction in progress: no event can be added below it any more.
SELECT seq, at, term, cycle, actor, run, body FROM locktender.event
WHERE seq > $1 AND seq < locktender.event_horizon() ORDER BY seq LIMIT $2

-- name: unsettled_since
-- The time of the first event that is not settled; NULL: all are.
SELECT min(at) FROM (
    SELECT at FROM locktender.event WHERE seq >= locktender.event_horizon() ORDER BY seq LIMIT 1
) e

-- name: blocking_sessions
-- Sessions that delay us: (what they hold, number, application, database, age of the transaction in
-- microseconds). A lock that a connection of ours has waited for longer than a second. The oldest
-- transaction in progress, in whichever database: the settled history ends before it. Transactions in this
-- database older than $1 microseconds: no version of a row that they may see can be removed.
WITH sessions AS (
    SELECT pid, application_name AS name, datname, backend_xid AS xid, backend_xmin AS xmin,
        (extract(epoch FROM clock_timestamp() - xact_start) * 1000000)::bigint AS age
    FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
    UNION ALL
    SELECT 0, gid, database, transaction, transaction,
        (extract(epoch FROM clock_timestamp() - prepared) * 1000000)::bigint
    FROM pg_prepared_xacts
), oldest AS (
    SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint & 4294967295)::text AS xid
), blocked AS (
    SELECT DISTINCT unnest(pg_blocking_pids(pid)) AS pid FROM pg_stat_activity
    WHERE application_name = 'locktender' AND datname = current_database() AND wait_event_type = 'Lock'
        AND query_start < clock_timestamp() - interval '1 second'
)
(
    SELECT 'lock', s.pid, s.name, s.datname, s.age FROM blocked JOIN sessions s USING (pid)
    ORDER BY s.age DESC NULLS LAST LIMIT 3
) UNION ALL (
    SELECT 'history', s.pid, s.name, s.datname, s.age FROM oldest JOIN sessions s ON s.xid::text = oldest.xid
    LIMIT 1
) UNION ALL (
    SELECT 'cleanup', pid, name, datname, age FROM sessions
    WHERE datname = current_database() AND coalesce(xid, xmin) IS NOT NULL AND age > $1::bigint
    ORDER BY age DESC LIMIT 3
)

-- name: leader_lock
-- Taking over, and recounting: waits for the leader's commit in flight, and holds the next one off.
SELECT term, owner, expires_at, locktender.locktender_now(),
    history IS DISTINCT FROM locktender.history_place()
FROM locktender.leader WHERE one FOR UPDATE

-- name: leader_end_backend
-- End the connection of a leader whose lease has passed: it may hang in a transaction. Only one of ours
-- under the same role, and not another that was given the same number since.
SELECT pg_terminate_backend(a.pid, 1000)
FROM locktender.leader l JOIN pg_stat_activity a ON a.pid = l.backend AND a.backend_start = l.backend_since
WHERE l.term = $1 AND l.expires_at > 0 AND a.usename = current_user AND a.pid <> pg_backend_pid()
    AND a.application_name = 'locktender'

-- name: stuck_list
-- Connections of ours that wait for their client in the middle of a statement, with something locked or
-- an id: (number, where it stands, for how long in microseconds, what it
-- says). Also under roles that were given to ours (grant-worker does). By the server's own clock, because that is what it notes the beginnings by.
SELECT
    a.pid, concat_ws(' ', a.query_start, c.bytes_processed),
    (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint, left(a.query, 100)
FROM pg_stat_activity a LEFT JOIN pg_stat_progress_copy c ON c.pid = a.pid
WHERE a.datname = current_database() AND pg_has_role(a.usesysid, 'USAGE') AND a.pid <> pg_backend_pid()
    AND a.state = 'active' AND a.wait_event_type = 'Client'
    AND a.xact_start < clock_timestamp() - interval '2 seconds' AND strpos(a.query, $1::text) > 0
    AND (a.backend_xid IS NOT NULL OR EXISTS (
        SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory' AND l.granted
    ))

-- name: stuck_end
-- End them, unless they have moved on.
SELECT a.pid, pg_terminate_backend(a.pid)
FROM unnest($1::int[], $2::text[]) v (pid, place)
JOIN pg_stat_activity a ON a.pid = v.pid LEFT JOIN pg_stat_progress_copy c ON c.pid = a.pid
WHERE a.state = 'active' AND a.wait_event_type = 'Client'
    AND concat_ws(' ', a.query_start, c.bytes_processed) = v.place

-- name: alone_try
-- Acquire the submitters' lock, unless another process holds it.
SELECT pg_try_advisory_xact_lock($1::int, $2::int)

-- name: admissions_rise
-- A submission without the lock that read before this writes nothing.
UPDATE locktender.meta SET value = value % 4611686018427387904 + 1 WHERE name = 'admissions'

-- name: numbers_taken
-- Whether the next transaction would number its events below those that are there.
SELECT coalesce(
    (SELECT max(seq) FROM locktender.event) >= locktender.event_number(pg_snapshot_xmax(pg_current_snapshot())),
    false
)

-- name: event_lock
-- No other transaction writes an event now; those that wait read the offset afterwards.
LOCK TABLE locktender.event IN SHARE ROW EXCLUSIVE MODE

-- name: numbers_raise
-- Every transaction that has not ended numbers its events above those that are there.
UPDATE locktender.meta SET
    value = (SELECT max(seq) >> 20 FROM locktender.event) + 1 - pg_snapshot_xmin(pg_current_snapshot())::text::bigint
WHERE name = 'xid_offset'
RETURNING value

-- name: blob_put
-- A large value, once per content. One that is put again is young again; not every time is written.
INSERT INTO locktender.blob (digest, body, put_at) VALUES ($1, $2, locktender.locktender_now())
ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at
WHERE blob.put_at IS NULL OR blob.put_at < excluded.put_at - 60000000

-- name: store_identity
-- Of this schema on this server: a copy has another one.
SELECT format('postgresql %s %s %s', (SELECT system_identifier FROM pg_control_system()),
    (SELECT oid FROM pg_database WHERE datname = current_database()),
    (SELECT 'locktender.blob'::regclass::oid))

-- name: blobs_put_before
-- The next blobs by name that were last put before an instant.
SELECT digest FROM locktender.blob WHERE (put_at IS NULL OR put_at < $1) AND digest > $2
ORDER BY digest LIMIT $3

-- name: blobs_remove
-- Remove unreferenced blobs, unless they were put again.
DELETE FROM locktender.blob WHERE digest = ANY($1::text[]) AND (put_at IS NULL OR put_at < $2)
RETURNING digest

-- name: blob_get
-- A large value.
SELECT body FROM locktender.blob WHERE digest = $1

-- name: submit_claim
-- Takes the next numbers of runs, if no run was admitted since these values were read and no session holds the
-- lock. Two rows or nothing: each row is read again if another transaction changed it meanwhile. If only the
-- first was as it had been read, its numbers are given to no run: the numbers rise and may have gaps.
UPDATE locktender.meta SET value = CASE name WHEN 'last_run' THEN $3::bigint ELSE value END
WHERE ((name = 'last_run' AND value = $1::bigint) OR (name = 'admissions' AND value = $2::bigint))
    AND pg_try_advisory_xact_lock($4::int, $5::int)
RETURNING name

-- name: submit_fence
-- Both rows were as they had been read.
SELECT 1 FROM claimed HAVING count(*) = 2

-- name: submit_answer
-- Whether it was written. One notification.
SELECT pg_notify($1, $2) FROM fence

-- name: runs_just_queued
-- The first few runs that others have queued, so that an idle leader knows them by one look.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE seq = ANY (ARRAY(
    SELECT run FROM events_after WHERE actor = 'client' ORDER BY seq LIMIT $1
)) AND (state = 'queued') IS TRUE

-- name: last_run_save
-- The last run's number.
UPDATE locktender.meta SET value = $1 WHERE name = 'last_run' AND EXISTS (SELECT 1 FROM fence)

-- name: tasks_known
-- Which of these tasks exist, before they are copied in.
SELECT id FROM locktender.task WHERE id = ANY($1::bigint[])

-- name: fence_answer
-- Whether the verb was let through.
SELECT count(*) FROM fence

-- name: beat_answer
-- The lease; no row: it was lost.
SELECT fence.lease_until, clock.now, (SELECT count(*) FROM woken) FROM fence, clock

-- name: status_estimate
-- As `status_rows`, by the planner's figures: where counting would take long.
SELECT
    greatest(0, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'locktender.task'::regclass)),
    greatest(0, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'locktender.event'::regclass)),
    (SELECT count(*) FROM locktender.graph), (SELECT count(*) FROM locktender.queue),
    (SELECT count(*) FROM locktender.request)

-- name: status_blobs
-- How many large values there are.
SELECT count(*) FROM locktender.blob

-- name: status_bytes
-- What the schema takes on the disk.
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'

-- name: status_connections
-- Connections of locktender to this database.
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'locktender'

-- name: copy_begin
-- One snapshot for a whole store, however long it takes to read.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0

-- name: copy_guard
-- A transaction that reads and writes nothing, however long a copy takes: it has the lock of a copy.
BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0

-- name: copy_lock
-- One copy at a time goes into a schema.
SELECT pg_try_advisory_xact_lock({lock})

-- name: copy_marks
-- The numbers that were given last, and whose term it is.
SELECT
    (SELECT value FROM locktender.meta WHERE name = 'last_run'),
    coalesce((SELECT max(seq) FROM locktender.event), 0), coalesce((SELECT max(id) FROM locktender.lane), 0),
    coalesce((SELECT max(seq) FROM locktender.request), 0),
    coalesce((SELECT max(seq) FROM locktender.limit_history), 0), term, owner, limits_version
FROM locktender.leader

-- name: copy_leader
-- The copy has no leader; its next term is higher.
UPDATE locktender.leader SET
    term = $1, owner = $2, limits_version = $3, expires_at = 0, cycle = -1, seq = 0, backend = 0,
    backend_since = NULL

-- name: copy_last_run
-- The next run has a higher number.
UPDATE locktender.meta SET value = $1 WHERE name = 'last_run'

-- name: copy_sequences
-- So have the next lane, request and change of a limit.
SELECT
    setval(pg_get_serial_sequence('locktender.lane', 'id'), greatest($1::bigint, 1), $1::bigint > 0),
    setval(pg_get_serial_sequence('locktender.request', 'seq'), greatest($2::bigint, 1), $2::bigint > 0),
    setval(pg_get_serial_sequence('locktender.limit_history', 'seq'), greatest($3::bigint, 1), $3::bigint > 0),
    setval(
        pg_get_serial_sequence('locktender.schedule_history', 'seq'),
        (SELECT coalesce(max(seq), 0) + 1 FROM locktender.schedule_history), false
    ),
    setval(
        pg_get_serial_sequence('locktender.mail', 'n'),
        (SELECT coalesce(max(n), 0) + 1 FROM locktender.mail), false
    )

-- name: copy_horizon
-- Events from this number on will be given here.
SELECT locktender.event_horizon()

-- name: copy_mark
-- Mark the store as an unfinished copy.
INSERT INTO locktender.migration (number, name, checksum, applied_at)
VALUES ($1, 'copying', '', locktender.locktender_now()) ON CONFLICT (number) DO NOTHING

-- name: copy_unmark
-- Mark the copy as finished.
DELETE FROM locktender.migration WHERE number = $1

-- name: copy_blobs
-- Large values.
SELECT digest, body FROM locktender.blob ORDER BY digest

-- name: copy_wipe_blobs
-- None is left of a copy that was not finished.
TRUNCATE locktender.blob

-- name: copy_out
-- Template: all rows of one table, in the order of its key.
SELECT {columns} FROM locktender.{table} ORDER BY {key}

-- name: copy_out_counter
-- Counters, which are two tables here.
SELECT c.name, c.admitted, coalesce(d.closed, 0)
FROM locktender.counter c LEFT JOIN locktender.closed d ON d.name = c.name ORDER BY c.name

-- name: copy_count
-- Template: how many rows one table has.
SELECT count(*) FROM locktender.{table}

-- name: copy_wipe
-- Template: empty one table, which may hold rows of an unfinished copy.
TRUNCATE locktender.{table}

-- name: copy_wipe_counter
-- Empty both tables of counters.
TRUNCATE locktender.counter, locktender.closed

-- name: quick_marks
-- The last run and the admissions, if these runs may be admitted as they are: one row, or none.
SELECT l.value AS last, a.value AS admissions
FROM clock, locktender.meta l, locktender.meta a, locktender.counter c, locktender.closed d
WHERE l.name = 'last_run' AND l.value BETWEEN 0 AND $8::bigint AND a.name = 'admissions'
    AND clock.now - $9::bigint BETWEEN 0 AND 1000000
    -- Runs start by age: a submitter whose time lags must not make its runs older than one that is stored.
    AND coalesce((SELECT r.queued_at FROM locktender.run r WHERE r.seq = l.value) - $9, 0) NOT BETWEEN 1 AND 1000000
    AND (SELECT limits_version FROM locktender.leader WHERE one) = $1::bigint
    AND NOT EXISTS (SELECT 1 FROM locktender.run WHERE id = ANY($2::text[]))
    AND c.name = '' AND d.name = ''
    AND c.admitted BETWEEN 0 AND 144115188075855872 AND d.closed BETWEEN 0 AND 144115188075855872
    AND ($3::bigint < 0 OR c.admitted - d.closed + $4::bigint <= $3)
    AND NOT EXISTS (
        SELECT 1 FROM unnest($5::bigint[], $6::text[]) v (lane, signature)
        WHERE NOT EXISTS (
            SELECT 1 FROM locktender.lane n WHERE n.id = v.lane AND n.signature = v.signature
        )
    )
    AND NOT EXISTS (
        SELECT 1 FROM unnest($7::text[]) v (hash)
        WHERE NOT EXISTS (SELECT 1 FROM locktender.graph g WHERE g.hash = v.hash)
    )

-- name: quick_claim
-- As `submit_claim`: two rows, or nothing is written. Where only the first was as it had been read, its number
-- is given to no run: numbers rise, and nothing asks that they have no gaps.
UPDATE locktender.meta m SET value = CASE m.name WHEN 'last_run' THEN m.value + $1::bigint ELSE m.value END
FROM marks
WHERE ((m.name = 'last_run' AND m.value = marks.last) OR (m.name = 'admissions' AND m.value = marks.admissions))
    AND pg_try_advisory_xact_lock($2::int, $3::int)
RETURNING m.name

-- name: quick_fence
-- Both rows were as in the statement's snapshot. Runs are numbered behind `last`.
SELECT marks.last FROM marks WHERE (SELECT count(*) FROM claimed) = 2

-- name: quick_marks_in_line
-- Whether these runs may be admitted as they are, read behind the submitters' lock: one row, or none.
SELECT 1 FROM locktender.may_admit($1::int, $2::int, $3, $4, $5, $6, $7, $8, $9, $10, $11) ok WHERE ok

-- name: quick_claim_in_line
-- Takes the next numbers. The row is changed as it is now, though the statement began before the lock was granted.
UPDATE locktender.meta m SET value = m.value + $1::bigint FROM marks WHERE m.name = 'last_run'
RETURNING m.value - $1::bigint AS last

-- name: quick_fence_in_line
-- Runs are numbered behind `last`.
SELECT last FROM claimed

-- name: quick_run
-- Store queued runs.
INSERT INTO locktender.run (
    seq, id, kind, flow, graph, tags, priority, key, lane, rank1, rank2, waits_for, queued_at,
    deadline_us, deadline_at, queue_timeout_us, dispatch_deadline_us, params, consts, trace
) SELECT
    fence.last + v.n, v.id, v.kind, v.flow, v.graph, v.tags, v.priority, v.key, v.lane, v.rank1, v.rank2,
    v.waits_for, v.queued_at, v.deadline_us, v.deadline_at, v.queue_timeout_us, v.dispatch_deadline_us,
    v.params, v.consts, v.trace
FROM fence, unnest(
    $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::bigint[], $16::bigint[], $17::bigint[], $18::bytea[], $19::bytea[], $20::text[]
) v (
    n, id, kind, flow, graph, tags, priority, key, lane, rank1, rank2, waits_for, queued_at,
    deadline_us, deadline_at, queue_timeout_us, dispatch_deadline_us, params, consts, trace
)

-- name: quick_queue
-- Put them into their lanes.
INSERT INTO locktender.queue (lane, rank1, rank2, run)
SELECT v.lane, v.rank1, v.rank2, fence.last + v.n
FROM fence, unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) v (lane, rank1, rank2, n)

-- name: quick_told
-- Their events.
SELECT fence.last + v.n AS run, v.body, v.n
FROM fence, unnest($1::bigint[], $2::bytea[]) v (n, body)

-- name: quick_answer
-- Behind which number they were counted, and the time. The notification names them, and carries small rows.
SELECT fence.last, clock.now,
    pg_notify($1, concat_ws(' ', $2::text, fence.last + 1, fence.last + $3::bigint, $4::text))
FROM fence, clock

-- name: mail_turn
-- One at a time sends to a run or to a topic: numbers follow the order of commits, and the mailbox is bounded.
SELECT pg_advisory_xact_lock(hashtext('locktender.mail'), hashtext($1))

-- name: quick_mail_target
-- The run that an event is sent to, if it can take it and nobody else sends to it now. Who finds its mailbox
-- half full counts behind the lock: what is read here may be older than that.
SELECT r.seq FROM locktender.run r
WHERE r.id = $1 AND (r.state NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out')) IS TRUE
    AND NOT EXISTS (SELECT 1 FROM locktender.mail m WHERE m.run = r.seq AND m.name = $2 AND m.id = $3)
    AND (SELECT count(*) FROM locktender.mail m WHERE m.run = r.seq
        AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = r.seq AND t.n = m.n)) < $4::bigint
    AND ($5::bigint = 0 OR EXISTS (
        SELECT 1 FROM locktender.event_wait w WHERE w.task = $5 AND w.run = r.seq AND w.since = $6::bigint
    ))
    AND pg_try_advisory_xact_lock(hashtext('locktender.mail'), hashtext($1))

-- name: quick_mail_add
-- Store the event, numbered behind the lock: numbers follow the order of commits.
INSERT INTO locktender.mail (run, name, id, match, at, payload, task)
SELECT target.seq, $1, $2, '{}'::jsonb, clock.now, $3, $4::bigint FROM target, clock
ON CONFLICT (run, name, id) DO NOTHING RETURNING run, n

-- name: quick_mail_fence
-- It was stored.
SELECT 1 FROM added

-- name: quick_mail_told
-- What the history says of it, around its number.
SELECT added.run, convert_to($1::text || added.n || $2::text, 'UTF8') AS body, 1 AS n FROM added

-- name: quick_mail_answer
-- The notification names the run and the event.
SELECT added.n, pg_notify($1, concat_ws(' ', $2::text, added.run, added.n)) FROM added

-- name: wake_found
-- Waiting runs to be woken: their time has come, or an event that a task of them can take. Those whose time
-- cannot be read are among them.
(SELECT run, wake_at FROM locktender.waiting WHERE wake_at <= (SELECT locktender.locktender_now()) ORDER BY wake_at LIMIT $2)
UNION
(SELECT run, wake_at FROM locktender.waiting WHERE wake_at > 144115188075855872 LIMIT $2)
UNION
(SELECT run, wake_at FROM locktender.waiting WHERE run = ANY($1::bigint[]) AND EXISTS (
    SELECT 1 FROM locktender.event_wait w JOIN locktender.mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM locktender.mail d WHERE d.run = w.run AND d.name = w.name
                AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM locktender.mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM locktender.run r WHERE r.seq = w.run)
                AND w.match @> d.match
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
    WHERE w.run = waiting.run
) LIMIT $2)

-- name: wake_found_due
-- They, with what their place in the queue depends on.
SELECT
    w.run, w.wake_at, r.state, r.kind, r.tags, r.priority, r.key, r.waits_for, r.queued_at,
    r.started_at, r.generation, r.verdict, r.id, r.flow, u.keeps
FROM wake_found w LEFT JOIN locktender.run r ON r.seq = w.run
LEFT JOIN locktender.unplaced u ON u.run = w.run AND r.started_at <> 0
ORDER BY w.run

-- name: wake_found_runs
-- Their rows.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE seq = ANY (ARRAY(SELECT run FROM wake_found)) ORDER BY seq

-- name: wake_found_tasks
-- Their tasks, by id.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM unnest(ARRAY(SELECT run FROM wake_found)) v (run)
JOIN locktender.task t ON t.id >= v.run << 20 AND t.id < (v.run + 1) << 20
ORDER BY t.id

-- name: wake_found_mail
-- As `mail_ready`, of them.
SELECT w.run, w.task, m.n, m.name, m.payload
FROM locktender.event_wait w
JOIN locktender.mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM locktender.mail d WHERE d.run = w.run AND d.name = w.name
                AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM locktender.mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM locktender.run r WHERE r.seq = w.run)
                AND w.match @> d.match
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
WHERE w.run = ANY (ARRAY(SELECT run FROM wake_found))
ORDER BY m.n, w.task

-- name: wake_first
-- The first waiting runs by their time.
SELECT run, wake_at FROM locktender.waiting ORDER BY wake_at LIMIT $1

-- name: quick_wake_marks
-- The last run and the admissions, if the limits and the lanes are those that were reckoned with.
SELECT l.value AS last, a.value AS admissions
FROM locktender.meta l, locktender.meta a
WHERE l.name = 'last_run' AND a.name = 'admissions'
    AND (SELECT limits_version FROM locktender.leader WHERE one) = $1::bigint
    AND NOT EXISTS (
        SELECT 1 FROM unnest($2::bigint[], $3::text[]) v (lane, signature)
        WHERE NOT EXISTS (
            SELECT 1 FROM locktender.lane n WHERE n.id = v.lane AND n.signature = v.signature
        )
    )

-- name: quick_wake_claim
-- As `quick_claim`. The number of admissions rises as in `commit_alone`: a submitter that looked before this
-- writes nothing.
UPDATE locktender.meta m SET value = CASE m.name WHEN 'admissions' THEN m.value % 4611686018427387904 + 1 ELSE m.value END
FROM marks
WHERE ((m.name = 'last_run' AND m.value = marks.last) OR (m.name = 'admissions' AND m.value = marks.admissions))
    AND pg_try_advisory_xact_lock($1::int, $2::int)
RETURNING m.name

-- name: quick_wake_fence
-- Both rows were as in the statement's snapshot, and the term goes on.
SELECT 1 FROM termed WHERE (SELECT count(*) FROM claimed) = 2

-- name: quick_wake_remove
-- They wait no more.
DELETE FROM locktender.waiting WHERE run = ANY($1::bigint[]) AND EXISTS (SELECT 1 FROM fence)

-- name: quick_wake_run
-- As `run_wake`.
UPDATE locktender.run r SET state = 'queued', lane = v.lane, rank1 = v.rank1, rank2 = v.rank2
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) v (run, lane, rank1, rank2)
WHERE r.seq = v.run AND (r.state = 'waiting') IS TRUE AND EXISTS (SELECT 1 FROM fence)

-- name: quick_wake_closing
-- So many runs wait no more.
SELECT $1::text AS name, $2::bigint AS n WHERE EXISTS (SELECT 1 FROM fence)

-- name: quick_wake_answer
-- Whether it was written. Nothing begins or ends with it, so the commit does not wait for the disk.
SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true) FROM fence

-- name: schedule_declare
-- What code declares of a schedule; a state of NULL: it is gone.
SELECT locktender.declare_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: role_facts
-- Of a role: whether it is a superuser, whether it has the rights of the schema's owner, and who that is.
SELECT r.rolsuper, pg_has_role(r.oid, n.nspowner, 'MEMBER'), pg_get_userbyid(n.nspowner)
FROM pg_roles r, pg_namespace n WHERE r.rolname = $1::text AND n.nspname = $2::text

-- name: role_rights
-- Which of these rights on tables of a schema a role has, for all columns or for some.
SELECT v.name, v.what FROM unnest($3::text[], $4::text[]) v (name, what)
WHERE CASE
    WHEN v.what = 'DELETE' THEN has_table_privilege($1::text, format('%I.%I', $2::text, v.name), v.what)
    ELSE has_any_column_privilege($1::text, format('%I.%I', $2::text, v.name), v.what)
END
