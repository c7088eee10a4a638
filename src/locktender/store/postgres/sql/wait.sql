-- name: submit_run_waiting
-- Store runs that wait for their time.
INSERT INTO locktender.run (
    seq, id, kind, flow, graph, tags, priority, key, lane, rank1, rank2, waits_for, queued_at,
    deadline_us, deadline_at, queue_timeout_us, dispatch_deadline_us, params, consts, trace, state
) SELECT v.*, 'waiting' FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::bigint[], $16::bigint[], $17::bigint[], $18::bytea[], $19::bytea[], $20::text[]
) v WHERE EXISTS (SELECT 1 FROM fence)

-- name: waiting_add
-- When they are to be woken.
INSERT INTO locktender.waiting (run, wake_at)
SELECT * FROM unnest($1::bigint[], $2::bigint[]) WHERE EXISTS (SELECT 1 FROM fence)

-- name: waiting_remove
-- Runs that wait no more.
DELETE FROM locktender.waiting WHERE run = ANY($1::bigint[])

-- name: waiting_next
-- The first instant that a waiting run is to be woken at; 0 where one cannot be read.
SELECT
    CASE WHEN EXISTS (SELECT 1 FROM locktender.waiting WHERE wake_at > 144115188075855872) THEN 0
    ELSE (SELECT wake_at FROM locktender.waiting ORDER BY wake_at LIMIT 1) END

-- name: waiting_due
-- Waiting runs whose time has come, and those whose time cannot be read.
SELECT
    w.run, w.wake_at, r.state, r.kind, r.tags, r.priority, r.key, r.waits_for, r.queued_at,
    r.started_at, r.generation, r.verdict, r.id, r.flow, u.keeps
FROM (
    (SELECT run, wake_at FROM locktender.waiting WHERE wake_at <= $1::bigint ORDER BY wake_at LIMIT $2)
    UNION ALL
    (SELECT run, wake_at FROM locktender.waiting WHERE wake_at > 144115188075855872 LIMIT $2)
) w LEFT JOIN locktender.run r ON r.seq = w.run
LEFT JOIN locktender.unplaced u ON u.run = w.run AND r.started_at <> 0
ORDER BY w.run

-- name: waiting_times
-- When these runs are to be woken.
SELECT run, wake_at FROM locktender.waiting WHERE run = ANY($1::bigint[])

-- name: tasks_of_runs
-- All tasks of these runs, by id.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM unnest($1::bigint[]) v (run)
JOIN locktender.task t ON t.id >= v.run << 20 AND t.id < (v.run + 1) << 20
ORDER BY t.id

-- name: run_wake
-- Waiting runs are queued.
UPDATE locktender.run r SET state = 'queued', lane = v.lane, rank1 = v.rank1, rank2 = v.rank2
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) v (run, lane, rank1, rank2)
WHERE r.seq = v.run AND (r.state = 'waiting') IS TRUE

-- name: run_wait
-- Executing runs of which nothing is left but waits.
UPDATE locktender.run SET state = 'waiting' WHERE seq = ANY($1::bigint[]) AND (state = 'running') IS TRUE

-- name: runs_tags
-- The kinds and tags of these runs.
SELECT kind, tags FROM locktender.run WHERE seq = ANY($1::bigint[])
