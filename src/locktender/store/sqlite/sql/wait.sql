-- name: submit_run_waiting
-- Store runs that wait for their time.
INSERT INTO run (
    seq, id, state, kind, flow, graph, tags, priority, key, generation, lane, rank1, rank2,
    waits_for, queued_at, started_at, ended_at, deadline_us, deadline_at, queue_timeout_us,
    dispatch_deadline_us, params, consts, trace
) VALUES /*rows*/ (?, ?, 'waiting', ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?, ?, ?)

-- name: waiting_add
-- When they are to be woken.
INSERT INTO waiting (run, wake_at) VALUES /*rows*/ (?, ?)

-- name: waiting_remove
-- Runs that wait no more.
DELETE FROM waiting WHERE run IN (SELECT value FROM json_each(?))

-- name: waiting_next
-- The first instant that a waiting run is to be woken at; 0 where one cannot be read.
SELECT
    CASE WHEN EXISTS (SELECT 1 FROM waiting WHERE wake_at > 144115188075855872) THEN 0
    ELSE (SELECT wake_at FROM waiting ORDER BY wake_at LIMIT 1) END

-- name: waiting_due
-- Waiting runs whose time has come, and those whose time cannot be read: a text stands behind all numbers.
SELECT
    w.run, w.wake_at, r.state, r.kind, r.tags, r.priority, r.key, r.waits_for, r.queued_at,
    r.started_at, r.generation, r.verdict, r.id, r.flow, u.keeps
FROM (
    SELECT run, wake_at FROM (SELECT run, wake_at FROM waiting WHERE wake_at <= ?1 ORDER BY wake_at LIMIT ?2)
    UNION ALL
    SELECT run, wake_at FROM (
        SELECT run, wake_at FROM waiting WHERE wake_at > 144115188075855872 LIMIT ?2
    )
) w LEFT JOIN run r ON r.seq = w.run LEFT JOIN unplaced u ON u.run = w.run AND r.started_at <> 0
ORDER BY w.run

-- name: waiting_times
-- When these runs are to be woken.
SELECT run, wake_at FROM waiting WHERE run IN (SELECT value FROM json_each(?))

-- name: tasks_of_runs
-- All tasks of these runs, by id.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM json_each(?) v CROSS JOIN task t ON t.id >= v.value << 20 AND t.id < (v.value + 1) << 20
ORDER BY t.id

-- name: run_wake
-- Waiting runs are queued.
WITH v (run, lane, rank1, rank2) AS (VALUES /*rows*/ (?, ?, ?, ?))
UPDATE run SET state = 'queued', lane = v.lane, rank1 = v.rank1, rank2 = v.rank2 FROM v
WHERE run.seq = v.run AND run.state = 'waiting'

-- name: run_wait
-- Executing runs of which nothing is left but waits.
UPDATE run SET state = 'waiting' WHERE state = 'running' AND seq IN (SELECT value FROM json_each(?))

-- name: runs_tags
-- The kinds and tags of these runs.
SELECT r.kind, r.tags FROM json_each(?) v CROSS JOIN run r ON r.seq = v.value
