-- name: submit_marks
-- The last run and the last event, before this submission.
SELECT
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'run'), 0),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0),
    locktender_now()

-- name: runs_by_id
-- Which of these submissions are already stored.
SELECT id, seq FROM run WHERE id IN (SELECT value FROM json_each(?))

-- name: runs_by_key
-- Active runs that hold one of these keys.
SELECT a.key, r.seq, r.id, r.flow, r.params
FROM active_key a JOIN run r ON r.seq = a.run
WHERE a.key IN (SELECT value FROM json_each(?))

-- name: runs_finished_by_key
-- The last succeeded run of each key.
SELECT key, max(seq), id FROM run
WHERE key IN (SELECT value FROM json_each(?)) AND state = 'succeeded'
GROUP BY key

-- name: queued_by_key
-- Runs of these keys that have not started, by age.
SELECT key, seq, id FROM run
WHERE key IN (SELECT value FROM json_each(?)) AND state IN ('queued', 'waiting') AND started_at = 0 ORDER BY seq

-- name: throttles_by_name
-- The last starts of these throttles.
SELECT name, starts FROM throttle WHERE name IN (SELECT value FROM json_each(?))

-- name: throttle_save
-- Starts that were given out.
INSERT INTO throttle (name, until, starts) VALUES /*rows*/ (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET until = excluded.until, starts = excluded.starts

-- name: throttles_remove
-- Throttles whose starts delay no run any more.
DELETE FROM throttle WHERE until < locktender_now()

-- name: counters_by_name
-- How many runs were admitted and closed under these names.
SELECT name, admitted, closed FROM counter WHERE name IN (SELECT value FROM json_each(?))

-- name: counter_admit
-- Count admitted runs in the transaction that stores them. What cannot be a count begins anew.
INSERT INTO counter (name, admitted, closed) VALUES /*rows*/ (?, ?, 0)
ON CONFLICT (name) DO UPDATE SET
    admitted = excluded.admitted + iif(admitted BETWEEN 0 AND 144115188075855872, admitted, 0)

-- name: counter_close
-- Count closed runs in the transaction that ends them.
WITH v (name, n) AS (VALUES /*rows*/ (?, ?))
UPDATE counter SET closed = v.n + iif(closed BETWEEN 0 AND 144115188075855872, closed, 0) FROM v WHERE counter.name = v.name

-- name: drain_add
-- Runs closed in this second.
INSERT INTO drain (slot, second, closed) VALUES (?, ?, ?)
ON CONFLICT (slot) DO UPDATE SET
    closed = excluded.closed
        + iif(second = excluded.second AND closed BETWEEN 0 AND 144115188075855872, closed, 0),
    second = excluded.second

-- name: drain_recent
-- Runs closed since a second, the first second that counts, and in how many of them any closed.
SELECT coalesce(sum(closed), 0), min(second), count(*) FROM drain
WHERE second > ? AND second <= 144115188075855872 AND closed BETWEEN 0 AND 144115188075855872

-- name: graph_add
-- Graphs are stored once per content.
INSERT OR IGNORE INTO graph (hash, body) VALUES /*rows*/ (?, ?)

-- name: graph_known
-- Which of these graphs are stored.
SELECT hash FROM graph WHERE hash IN (SELECT value FROM json_each(?))

-- name: lanes_by_signature
-- Lanes that exist.
SELECT signature, id FROM lane
WHERE signature IN (SELECT value FROM json_each(?)) AND id BETWEEN 1 AND 144115188075855872

-- name: lane_add
-- New lanes. One whose number there cannot be gets another.
INSERT OR REPLACE INTO lane (signature) VALUES /*rows*/ (?)

-- name: lanes_after
-- Lanes by id, and whether a queued run stands in them.
SELECT l.id, EXISTS (SELECT 1 FROM queue q WHERE q.lane = l.id)
FROM lane l WHERE l.id > ? ORDER BY l.id LIMIT ?

-- name: lanes_remove
-- Of these lanes, those that no queued run stands in.
DELETE FROM lane WHERE id IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.lane = lane.id)

-- name: buckets_remove
-- The state of rates that say nothing any more: their next start may be at any time.
DELETE FROM bucket WHERE tat < locktender_now()

-- name: drain_orders_remove
-- Orders to drain, or not to, of workers that are gone, and those that a newer one replaced.
DELETE FROM orders WHERE task < 0 AND (
    NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = orders.worker)
    OR EXISTS (SELECT 1 FROM orders o WHERE o.worker = orders.worker AND o.task < orders.task)
)

-- name: counters_unused
-- Counters of tags without active runs.
SELECT name FROM counter WHERE name <> '' AND admitted = closed LIMIT ?

-- name: limit_history_remove
-- Changes of limits before an instant; the last one of each limit stays.
DELETE FROM limit_history WHERE at < ? AND EXISTS (
    SELECT 1 FROM limit_history l
    WHERE l.kind = limit_history.kind AND l.name = limit_history.name AND l.seq > limit_history.seq
)

-- name: submit_run
-- Store queued runs.
INSERT INTO run (
    seq, id, state, kind, flow, graph, tags, priority, key, generation, lane, rank1, rank2,
    waits_for, queued_at, started_at, ended_at, deadline_us, deadline_at, queue_timeout_us,
    dispatch_deadline_us, params, consts, trace
) VALUES /*rows*/ (?, ?, 'queued', ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?)

-- name: queue_add
-- Put runs into their lanes.
INSERT INTO queue (lane, rank1, rank2, run) VALUES /*rows*/ (?, ?, ?, ?)

-- name: key_take
-- The run that now holds the key.
INSERT OR REPLACE INTO active_key (key, run) VALUES /*rows*/ (?, ?)

-- name: request_add
-- Ask something of the leader.
INSERT INTO request (at, body) VALUES /*rows*/ (?, ?)

-- name: event_add
-- History: all changes of one run in one commit.
INSERT INTO event (at, term, cycle, actor, run, body) VALUES /*rows*/ (?, ?, ?, ?, ?, ?)

-- name: retry_candidates
-- The runs to be queued again.
SELECT
    seq, id, state, kind, flow, graph, tags, priority, key, generation, deadline_us,
    CASE WHEN state = 'held' THEN (
        SELECT count(*) FROM task t
        WHERE t.id >= run.seq << 20 AND t.id < (run.seq + 1) << 20
            AND t.state IN ('scheduled', 'running')
    ) ELSE 0 END
FROM run WHERE id IN (SELECT value FROM json_each(?))

-- name: retry_run
-- Queue an ended run again: a new generation, nothing left of the last one's end.
UPDATE run SET
    state = 'queued', generation = ?, verdict = NULL, lane = ?, rank1 = ?, rank2 = ?,
    waits_for = NULL, queued_at = ?, started_at = 0, ended_at = 0, deadline_at = ?,
    output = NULL, error = NULL
WHERE seq = ?

-- name: tasks_run_again
-- Ended tasks of a retried run that are to run again although they have a result.
UPDATE task SET error = ?
WHERE id >= ? << 20 AND id < (? + 1) << 20 AND node IN (SELECT value FROM json_each(?))
    AND state IN ('completed', 'failed', 'timed_out')
