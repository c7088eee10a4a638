-- name: worker_get
-- A worker.
SELECT since, lease_until, body FROM worker WHERE id = ?

-- name: worker_lost
-- Whether this id was declared lost.
SELECT 1 FROM lost_worker WHERE id = ?

-- name: worker_save
-- Join, or renew the lease.
INSERT INTO worker (id, since, lease_until, lease_us, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    lease_until = excluded.lease_until, lease_us = excluded.lease_us, body = excluded.body

-- name: worker_remove
-- The worker is gone.
DELETE FROM worker WHERE id = ?

-- name: worker_end_lease
-- It left with work in its hands: the next sweep declares it lost.
UPDATE worker SET lease_until = 0 WHERE id = ?

-- name: workers_changed
-- Tell the leader to look at the workers again.
INSERT INTO meta (name, value) VALUES ('workers_version', 1)
ON CONFLICT (name) DO UPDATE SET value = value % 4611686018427387904 + 1

-- name: lost_add
-- This id may not come back.
INSERT OR REPLACE INTO lost_worker (id, lost_at) VALUES /*rows*/ (?, ?)

-- name: lost_prune
-- Forget ids lost long ago.
DELETE FROM lost_worker WHERE lost_at < ?

-- name: worker_leases
-- Until when each worker is presumed alive, and how long its lease is.
SELECT id, lease_until, lease_us FROM worker

-- name: worker_tasks
-- Tasks offered to or running on these workers. Only executing runs can have any.
SELECT t.id, t.token, t.state, t.worker
FROM run r CROSS JOIN task t
WHERE r.state IN ('running', 'cancelling', 'held')
    AND t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
    AND t.worker IN (SELECT value FROM json_each(?)) AND t.state IN ('scheduled', 'running')
ORDER BY t.id

-- name: task_abandon
-- Running tasks of lost workers.
UPDATE task SET state = 'abandoned', abandons = abandons + 1, held = NULL, ended_at = ?
WHERE id IN (SELECT value FROM json_each(?))

-- name: task_hand_back
-- Hand back running tasks in drain lists of lost workers: no attempt is charged.
UPDATE task SET state = 'handed_back', held = NULL, ended_at = ?, error = ?
WHERE id IN (SELECT value FROM json_each(?))

-- name: task_release
-- Offers to lost workers: ready again, nothing charged.
UPDATE task SET state = 'requested', token = 0, worker = NULL, held = NULL
WHERE id IN (SELECT value FROM json_each(?))

-- name: task_withdraw
-- Offers taken back. The token stays, so that a repetition is recognised.
UPDATE task SET
    state = ?1, worker = NULL, held = NULL,
    ended_at = CASE WHEN ?1 = 'cancelled' THEN ?2 ELSE ended_at END
WHERE id IN (SELECT value FROM json_each(?3))

-- name: tasks_owned
-- Whose these tasks are now.
SELECT t.id, t.token, t.state, t.worker
FROM json_each(?) v CROSS JOIN task t ON t.id = v.value

-- name: task_accept
-- The worker owns them from here, if they are still offered to it under these tokens.
UPDATE task SET state = 'running', attempt = attempt + 1, started_at = ?1
FROM json_each(?3) v
WHERE task.id = CAST(v.key AS INTEGER) AND task.token = v.value AND task.worker = ?2 AND task.state = 'scheduled'
RETURNING task.id, task.token

-- name: tasks_accepted
-- The tasks that a worker runs under these tokens, with all it needs for them.
SELECT t.id, t.token, t.node, t.idx, t.attempt, t.input, n.input, r.id, r.graph, r.trace
FROM json_each(?2) v
CROSS JOIN task t ON t.id = CAST(v.key AS INTEGER) AND t.token = v.value
CROSS JOIN run r ON r.seq = t.id >> 20
LEFT JOIN node_input n ON n.run = r.seq AND n.node = t.node
WHERE t.worker = ?1 AND t.state = 'running'

-- name: task_finish
-- Attempts end. The token stays, so that a repetition is recognised.
WITH v (id, state, output, error) AS (VALUES /*rows*/ (?, ?, ?, ?))
UPDATE task SET state = v.state, output = v.output, error = v.error, held = NULL, ended_at = ?
FROM v WHERE task.id = v.id

-- name: log_add
-- What attempts logged so far; a repetition, and what comes late, changes nothing.
INSERT INTO log (task, token, attempt, body, lines, last_at) VALUES /*rows*/ (?, ?, ?, ?, ?, ?)
ON CONFLICT (task, token) DO UPDATE
SET body = excluded.body, lines = excluded.lines, last_at = excluded.last_at
WHERE excluded.lines > log.lines

-- name: orders_of
-- What a worker is to do.
SELECT worker, task, token, kind, reason FROM orders WHERE worker = ? ORDER BY task, kind
