-- name: worker_get
-- A worker.
SELECT since, lease_until, body FROM locktender.worker WHERE id = $1

-- name: worker_lost
-- Whether this id was declared lost.
SELECT 1 FROM locktender.lost_worker WHERE id = $1

-- name: worker_save
-- Join, or renew: as long as the row is there, however late, because only the declaration of its loss
-- removes it. A lease of 0 was ended by the worker itself.
INSERT INTO locktender.worker (id, since, lease_until, lease_us, body)
SELECT $1::text, clock.now, clock.now + $2::bigint, $2::bigint, $3::bytea FROM clock
WHERE NOT EXISTS (SELECT 1 FROM locktender.lost_worker l WHERE l.id = $1)
ON CONFLICT (id) DO UPDATE SET
    lease_until = excluded.lease_until, lease_us = excluded.lease_us, body = excluded.body
WHERE worker.lease_until > 0
RETURNING lease_until

-- name: worker_remove
-- The worker is gone.
DELETE FROM locktender.worker WHERE id = $1

-- name: worker_end_lease
-- It left with work in its hands: the next sweep declares it lost.
UPDATE locktender.worker SET lease_until = 0 WHERE id = $1

-- name: workers_changed
-- Tell the leader to look at the workers again.
INSERT INTO locktender.workers_version (value) SELECT 1 WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (one) DO UPDATE SET value = workers_version.value % 4611686018427387904 + 1

-- name: lost_add
-- This id may not come back.
INSERT INTO locktender.lost_worker (id, lost_at)
SELECT id, $2::bigint FROM unnest($1::text[]) v (id) ON CONFLICT (id) DO UPDATE SET lost_at = excluded.lost_at

-- name: lost_prune
-- Forget ids lost long ago.
DELETE FROM locktender.lost_worker WHERE lost_at < $1

-- name: worker_leases
-- Until when each worker is presumed alive, how long its lease is, and whether a session proves its life.
WITH proof AS MATERIALIZED (
    SELECT (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT id, lease_until, lease_us,
    hashtextextended($1::text || id, 0) IN (SELECT key FROM proof)
FROM locktender.worker

-- name: worker_tasks
-- Tasks offered to or running on these workers. Only executing runs can have any; found by their runs, for the reason
-- that `task_accept` gives.
SELECT t.id, t.token, t.state, t.worker
FROM locktender.run r JOIN locktender.task t ON t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
WHERE r.state IN ('running', 'cancelling', 'held')
    AND t.worker = ANY(CASE WHEN r.seq IS NULL THEN '{}' ELSE $1::text[] END)
    AND t.state = ANY(CASE WHEN r.seq IS NULL THEN '{}' ELSE '{scheduled,running}'::text[] END)
ORDER BY t.id FOR NO KEY UPDATE OF t

-- name: task_abandon
-- Running tasks of lost workers.
UPDATE locktender.task SET state = 'abandoned', abandons = abandons + 1, held = NULL, ended_at = $1
WHERE id = ANY($2::bigint[])

-- name: task_hand_back
-- Hand back running tasks in drain lists of lost workers: no attempt is charged.
UPDATE locktender.task SET state = 'handed_back', held = NULL, ended_at = $1, error = $2
WHERE id = ANY($3::bigint[])

-- name: task_release
-- Offers to lost workers: ready again, nothing charged.
UPDATE locktender.task SET state = 'requested', token = 0, worker = NULL, held = NULL
WHERE id = ANY($1::bigint[])

-- name: task_withdraw
-- Offers taken back. The token stays, so that a repetition is recognised.
UPDATE locktender.task t SET
    state = $1::text, worker = NULL, held = NULL,
    ended_at = CASE WHEN $1::text = 'cancelled' THEN clock.now ELSE t.ended_at END
FROM tasks_owned o, clock
WHERE t.id = o.id AND o.token = o.asked AND o.state = 'scheduled'
RETURNING t.id, o.change

-- name: tasks_owned
-- Whose these tasks are now, locked in order: two who meet here never wait for each other.
SELECT t.id, t.token, t.state, t.worker, v.token AS asked, v.change
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) v (id, token, change)
JOIN locktender.task t ON t.id = v.id
WHERE EXISTS (SELECT 1 FROM fence)
ORDER BY t.id FOR NO KEY UPDATE OF t

-- name: task_accept
-- The worker owns them from here, if they are still offered to it under these tokens. Rows are locked in the
-- order of the array, which is sorted: only nested loops are planned. What a row must be is compared with values that
-- depend on `v`: a plan made while the table was small would else find rows by it, and read all of them when it has
-- grown. Where every token is its id plus the same number, only that number ($3) is sent. An event is made of three
-- texts, the task's number and its token.
UPDATE locktender.task t SET state = 'running', attempt = t.attempt + 1, started_at = clock.now
FROM unnest($1::bigint[], $2::bigint[]) v (id, token), clock
WHERE t.id = v.id AND t.token = coalesce(v.token, v.id + $3::bigint)
    AND t.worker = CASE WHEN v.id IS NULL THEN '' ELSE $4 END
    AND t.state = CASE WHEN v.id IS NULL THEN '' ELSE 'scheduled' END AND EXISTS (SELECT 1 FROM fence)
RETURNING t.id, t.token, t.node, t.idx, t.attempt, t.input,
    $5::text || t.id || $6::text || t.token || $7::text AS change

-- name: tasks_accepted
-- The tasks that a worker runs under these tokens, with all it needs for them.
SELECT t.id, t.token, t.node, t.idx, t.attempt, t.input, n.input, r.id, r.graph, r.trace
FROM unnest($2::bigint[], $3::bigint[]) v (id, token)
JOIN locktender.task t ON t.id = v.id AND t.token = v.token
JOIN locktender.run r ON r.seq = t.id >> 20
LEFT JOIN locktender.node_input n ON n.run = r.seq AND n.node = t.node
WHERE t.worker = $1 AND t.state = 'running'

-- name: task_finish
-- Attempts end, or decline what they were offered. The token stays, so that a repetition is recognised.
UPDATE locktender.task t SET
    state = o.ended, output = o.output, error = o.error, held = NULL, ended_at = clock.now
FROM tasks_owned o, clock
WHERE t.id = o.id AND o.token = o.asked
    AND (o.state = 'running' OR (o.state = 'scheduled' AND o.ended = 'handed_back'))
RETURNING t.id, CASE WHEN o.state = 'running' THEN o.change ELSE o.declined END AS change

-- name: log_add
-- What attempts logged so far; a repetition, and what comes late, changes nothing.
INSERT INTO locktender.log (task, token, attempt, body, lines, last_at)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[])
ON CONFLICT (task, token) DO UPDATE
SET body = excluded.body, lines = excluded.lines, last_at = excluded.last_at
WHERE excluded.lines > log.lines

-- name: orders_of
-- What a worker is to do.
SELECT worker, task, token, kind, reason FROM locktender.orders WHERE worker = $1 ORDER BY task, kind
