-- name: run_start
-- Queued runs begin; a waiting one that is to be ended goes on.
WITH v (run, at) AS (VALUES /*rows*/ (?, ?))
UPDATE run SET state = 'running', started_at = v.at FROM v
WHERE run.seq = v.run AND run.state IN ('queued', 'waiting')

-- name: queue_remove
-- Runs that are no longer queued.
DELETE FROM queue WHERE (lane, rank1, rank2, run) IN (
    SELECT r.lane, r.rank1, r.rank2, r.seq FROM json_each(?) v CROSS JOIN run r ON r.seq = v.value
)

-- name: run_mark
-- Runs on their way to an end.
WITH v (run, state, verdict, error) AS (VALUES /*rows*/ (?, ?, ?, ?))
UPDATE run SET state = v.state, verdict = v.verdict, error = v.error FROM v WHERE run.seq = v.run

-- name: run_unfold
-- Runs submitted by name, whose flow was traced, go on with their graph.
WITH v (run, graph, consts) AS (VALUES /*rows*/ (?, ?, ?))
UPDATE run SET graph = v.graph, consts = v.consts FROM v WHERE run.seq = v.run

-- name: runs_open
-- Of these runs, those that have not ended: what closing them changes.
SELECT r.seq, r.state, r.kind, r.tags, r.key, r.waits_for
FROM json_each(?) v CROSS JOIN run r ON r.seq = v.value
WHERE r.state IN ('queued', 'running', 'cancelling', 'held', 'waiting')

-- name: run_end
-- Runs end.
WITH v (run, state, output, error, at) AS (VALUES /*rows*/ (?, ?, ?, ?, ?))
UPDATE run SET state = v.state, output = v.output, error = v.error, ended_at = v.at FROM v
WHERE run.seq = v.run

-- name: key_pass
-- The key of a replacement that ended in the queue goes back to the run it was to replace.
UPDATE active_key SET run = ?1 WHERE run = ?2 AND key = (SELECT key FROM run WHERE seq = ?2)

-- name: key_free
-- Keys of ended runs, unless a later run has taken them over.
DELETE FROM active_key WHERE (key, run) IN (
    SELECT r.key, r.seq FROM json_each(?) v CROSS JOIN run r ON r.seq = v.value
    WHERE r.key IS NOT NULL
)

-- name: runs_awaited
-- Which of these runs are waited for by their replacement.
SELECT DISTINCT waits_for FROM run WHERE waits_for IN (SELECT value FROM json_each(?))

-- name: run_waits_on
-- Who waited for an ended run now waits for what that one still waited for, or for nothing.
UPDATE run SET waits_for = ? WHERE waits_for = ?

-- name: task_new
-- New tasks; one that exists is left alone, so that advancing a run may be repeated.
INSERT OR IGNORE INTO task (
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, input, output,
    error, requested_at, scheduled_at, started_at, ended_at, not_before, eligible_at
) VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: task_save
-- Tasks the leader owns, as they are now.
WITH v (
    id, state, attempt, tries, abandons, offers, token, worker, held, error, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at
) AS (VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE task SET
    state = v.state, attempt = v.attempt, tries = v.tries, abandons = v.abandons,
    offers = v.offers, token = v.token, worker = v.worker, held = v.held, error = v.error,
    requested_at = v.requested_at, scheduled_at = v.scheduled_at, started_at = v.started_at,
    ended_at = v.ended_at, not_before = v.not_before, eligible_at = v.eligible_at
FROM v WHERE task.id = v.id

-- name: task_end
-- Completed tasks of the leader's own process, by compare-and-set.
WITH v (id, token, output, ended_at) AS (VALUES /*rows*/ (?, ?, ?, ?))
UPDATE task SET state = 'completed', output = v.output, ended_at = v.ended_at, held = NULL
FROM v
WHERE task.id = v.id AND task.token = v.token AND task.state IN ('running', 'scheduled')

-- name: node_input_add
-- Arguments that all items of a mapped step share.
INSERT OR REPLACE INTO node_input (run, node, input) VALUES /*rows*/ (?, ?, ?)

-- name: order_add
-- What workers in other processes are to do.
INSERT OR REPLACE INTO orders (worker, task, token, kind, reason) VALUES /*rows*/ (?, ?, ?, ?, ?)

-- name: order_remove
-- Remove void orders: their tasks must neither start nor stop any more.
DELETE FROM orders WHERE task IN (SELECT value FROM json_each(?))

-- name: offer_remove
-- Offers that were accepted or withdrawn.
DELETE FROM orders WHERE kind = 'offer' AND task IN (SELECT value FROM json_each(?))

-- name: bucket_save
-- The state of rates.
INSERT OR REPLACE INTO bucket (pool, tat) VALUES /*rows*/ (?, ?)

-- name: reservation_clear
-- The whole set is written anew.
DELETE FROM reservation

-- name: reservation_add
-- Slots kept free for waiters.
INSERT OR REPLACE INTO reservation (task, pool, slots) VALUES /*rows*/ (?, ?, ?)

-- name: linger_clear
-- The whole set is written anew.
DELETE FROM linger

-- name: linger_add
-- Slots of dead workers that their pool's lease still holds.
INSERT OR REPLACE INTO linger (task, token, pool, slots, until, worker)
VALUES /*rows*/ (?, ?, ?, ?, ?, ?)

-- name: unplaced_remove
-- Runs that have a place again, or have ended.
DELETE FROM unplaced WHERE run IN (SELECT value FROM json_each(?))

-- name: unplaced_add
-- Runs that give their place back.
INSERT OR IGNORE INTO unplaced (run) SELECT value FROM json_each(?)

-- name: kept_add
-- Runs that give their place back and keep it at some limits of tags.
INSERT OR REPLACE INTO unplaced (run, keeps) VALUES /*rows*/ (?, ?)

-- name: silence_clear
-- The whole set is written anew.
DELETE FROM silence

-- name: silence_add
-- Workers that left offers unanswered.
INSERT OR REPLACE INTO silence (worker, unanswered, until) VALUES /*rows*/ (?, ?, ?)

-- name: request_done
-- Requests that were carried out.
DELETE FROM request WHERE seq IN (SELECT value FROM json_each(?))

-- name: queued_runs_by_seq
-- Queued runs whose place is to change.
SELECT r.seq, r.lane, r.rank1, r.rank2, r.queued_at
FROM json_each(?) v CROSS JOIN run r ON r.seq = v.value WHERE r.state = 'queued'

-- name: run_rank
-- A queued run's new place.
WITH v (run, priority, lane, rank1, rank2) AS (VALUES /*rows*/ (?, ?, ?, ?, ?))
UPDATE run SET priority = v.priority, lane = v.lane, rank1 = v.rank1, rank2 = v.rank2 FROM v
WHERE run.seq = v.run AND run.state = 'queued'

-- name: queued_after
-- Queued runs by age, to be given the lane that the limits ask for.
SELECT
    r.seq, r.kind, r.flow, r.tags, r.priority, r.key, r.waits_for, u.keeps, r.lane, r.rank1, r.rank2, r.queued_at
FROM run r LEFT JOIN unplaced u ON u.run = r.seq AND r.started_at <> 0
WHERE r.state = 'queued' AND r.seq > ? ORDER BY r.seq LIMIT ?
