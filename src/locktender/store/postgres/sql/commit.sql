-- Parts of the leader's commit. Rows come as one array per column, sorted by id.
-- Runs named by id are found by id: a state is compared IS TRUE, which no index serves. By the index of
-- states, a plan made while few runs were queued would read all that are, for every run it was given.

-- name: run_start
-- Queued runs begin; a waiting one that is to be ended goes on.
UPDATE locktender.run r SET state = 'running', started_at = v.at
FROM unnest($1::bigint[], $2::bigint[]) v (run, at)
WHERE r.seq = v.run AND (r.state IN ('queued', 'waiting')) IS TRUE AND EXISTS (SELECT 1 FROM fence)

-- name: queue_remove
-- Runs that are no longer queued.
DELETE FROM locktender.queue q USING unnest($1::bigint[]) v (run), locktender.run r
WHERE r.seq = v.run AND q.lane = r.lane AND q.rank1 = r.rank1 AND q.rank2 = r.rank2 AND q.run = r.seq
    AND EXISTS (SELECT 1 FROM fence)

-- name: run_mark
-- Runs on their way to an end.
UPDATE locktender.run r SET state = v.state, verdict = v.verdict, error = v.error
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bytea[]) v (run, state, verdict, error)
WHERE r.seq = v.run AND EXISTS (SELECT 1 FROM fence)

-- name: run_unfold
-- Runs submitted by name, whose flow was traced, go on with their graph.
UPDATE locktender.run r SET graph = v.graph, consts = v.consts
FROM unnest($1::bigint[], $2::text[], $3::bytea[]) v (run, graph, consts)
WHERE r.seq = v.run AND EXISTS (SELECT 1 FROM fence)

-- name: runs_open
-- Of these runs, those that have not ended: what closing them changes.
SELECT r.seq, r.state, r.kind, r.tags, r.key, r.waits_for
FROM unnest($1::bigint[]) v (run) JOIN locktender.run r ON r.seq = v.run
WHERE (r.state IN ('queued', 'running', 'cancelling', 'held', 'waiting')) IS TRUE

-- name: run_end
-- Runs end, once.
UPDATE locktender.run r SET state = v.state, output = v.output, error = v.error, ended_at = v.at
FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::bytea[], $5::bigint[])
    v (run, state, output, error, at)
WHERE r.seq = v.run AND (r.state IN ('queued', 'running', 'cancelling', 'held', 'waiting')) IS TRUE
    AND EXISTS (SELECT 1 FROM fence)
RETURNING r.seq, r.kind

-- name: key_pass
-- The key of a replacement that ended in the queue goes back to the run it was to replace.
UPDATE locktender.active_key SET run = $1 WHERE run = $2 AND key = (SELECT key FROM locktender.run WHERE seq = $2)

-- name: key_free
-- Keys of ended runs, unless a later run has taken them over.
DELETE FROM locktender.active_key a USING locktender.run r
WHERE r.seq = ANY($1::bigint[]) AND a.key = r.key AND a.run = r.seq

-- name: runs_awaited
-- Which of these runs are waited for by their replacement.
SELECT DISTINCT waits_for FROM locktender.run WHERE waits_for = ANY($1::bigint[])

-- name: run_waits_on
-- Who waited for an ended run now waits for what that one still waited for, or for nothing.
UPDATE locktender.run SET waits_for = $1 WHERE waits_for = $2

-- name: task_new
-- New tasks. One that exists is left alone, so that advancing a run may be repeated, unless the same
-- commit also saves it or writes it over what an earlier try of its run left. A column without values is zero;
-- of some columns one value stands for all rows: it is sent, and read, once.
INSERT INTO locktender.task (
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, input, output,
    error, requested_at, scheduled_at, started_at, ended_at, not_before, eligible_at
) SELECT
    id, coalesce(node, 0), coalesce(idx, 0), state, coalesce(attempt, 0), coalesce(tries, 0),
    coalesce(abandons, 0), coalesce(offers, 0), coalesce(token, 0), worker, held, input, output,
    error, coalesce(requested_at, 0), coalesce(scheduled_at, 0), coalesce(started_at, 0),
    coalesce(ended_at, 0), coalesce(not_before, 0), coalesce(eligible_at, 0)
FROM unnest(
    $1::bigint[],
    CASE cardinality($2::bigint[]) WHEN 1
        THEN array_fill(($2::bigint[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $2::bigint[] END,
    $3::bigint[],
    CASE cardinality($4::text[]) WHEN 1
        THEN array_fill(($4::text[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $4::text[] END,
    $5::bigint[], $6::bigint[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::text[], $11::bytea[], $12::bytea[], $13::bytea[], $14::bytea[],
    CASE cardinality($15::bigint[]) WHEN 1
        THEN array_fill(($15::bigint[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $15::bigint[] END,
    $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[]
) v (
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, input, output,
    error, requested_at, scheduled_at, started_at, ended_at, not_before, eligible_at
) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, attempt = excluded.attempt, tries = excluded.tries,
    abandons = excluded.abandons, offers = excluded.offers, token = excluded.token,
    worker = excluded.worker, held = excluded.held, input = excluded.input,
    output = excluded.output, error = excluded.error,
    requested_at = excluded.requested_at, scheduled_at = excluded.scheduled_at,
    started_at = excluded.started_at, ended_at = excluded.ended_at,
    not_before = excluded.not_before, eligible_at = excluded.eligible_at
WHERE task.id = ANY($21::bigint[])

-- name: task_save
-- Tasks the leader owns, as they are now. A column without values is zero; of some columns one value stands
-- for all rows.
UPDATE locktender.task t SET
    state = v.state, attempt = coalesce(v.attempt, 0), tries = coalesce(v.tries, 0),
    abandons = coalesce(v.abandons, 0), offers = coalesce(v.offers, 0), token = coalesce(v.token, 0),
    worker = v.worker, held = v.held, error = v.error, requested_at = coalesce(v.requested_at, 0),
    scheduled_at = coalesce(v.scheduled_at, 0), started_at = coalesce(v.started_at, 0),
    ended_at = coalesce(v.ended_at, 0), not_before = coalesce(v.not_before, 0),
    eligible_at = coalesce(v.eligible_at, 0)
FROM unnest(
    $1::bigint[],
    CASE cardinality($2::text[]) WHEN 1
        THEN array_fill(($2::text[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $2::text[] END,
    $3::bigint[], $4::bigint[], $5::bigint[],
    CASE cardinality($6::bigint[]) WHEN 1
        THEN array_fill(($6::bigint[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $6::bigint[] END,
    $7::bigint[],
    CASE cardinality($8::text[]) WHEN 1
        THEN array_fill(($8::text[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $8::text[] END,
    CASE cardinality($9::bytea[]) WHEN 1
        THEN array_fill(($9::bytea[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $9::bytea[] END,
    $10::bytea[],
    CASE cardinality($11::bigint[]) WHEN 1
        THEN array_fill(($11::bigint[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $11::bigint[] END,
    CASE cardinality($12::bigint[]) WHEN 1
        THEN array_fill(($12::bigint[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $12::bigint[] END,
    $13::bigint[], $14::bigint[], $15::bigint[],
    CASE cardinality($16::bigint[]) WHEN 1
        THEN array_fill(($16::bigint[])[1], ARRAY[cardinality($1::bigint[])]) ELSE $16::bigint[] END
) v (
    id, state, attempt, tries, abandons, offers, token, worker, held, error, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at
)
WHERE t.id = v.id AND EXISTS (SELECT 1 FROM fence)

-- name: task_end
-- Completed tasks of the leader's own process, by compare-and-set. Found by their ids, as in `task_accept`.
UPDATE locktender.task t SET state = 'completed', output = v.output, ended_at = v.ended_at, held = NULL
FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[]) v (id, token, output, ended_at)
WHERE t.id = v.id AND t.token = v.token
    AND t.state = ANY(CASE WHEN v.id IS NULL THEN '{}' ELSE '{running,scheduled}'::text[] END)
    AND EXISTS (SELECT 1 FROM fence)

-- name: node_input_add
-- Arguments that all items of a mapped step share.
INSERT INTO locktender.node_input (run, node, input)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (run, node) DO UPDATE SET input = excluded.input

-- name: order_add
-- What workers in other processes are to do.
INSERT INTO locktender.orders (worker, task, token, kind, reason)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (task, kind) DO UPDATE SET
    worker = excluded.worker, token = excluded.token, reason = excluded.reason

-- name: order_remove
-- Remove void orders: their tasks must neither start nor stop any more. Mostly there are none at all: that is
-- asked once, and not for each task.
DELETE FROM locktender.orders o USING idle
WHERE o.task = idle.task AND EXISTS (SELECT 1 FROM fence)
    AND (SELECT task FROM locktender.orders ORDER BY task LIMIT 1) IS NOT NULL

-- name: offer_remove
-- Stored offers that were accepted.
DELETE FROM locktender.orders o USING effect e
WHERE o.task = e.id AND o.kind = 'offer'
    AND (SELECT task FROM locktender.orders ORDER BY task LIMIT 1) IS NOT NULL

-- name: bucket_save
-- The state of rates.
INSERT INTO locktender.bucket (pool, tat)
SELECT * FROM unnest($1::text[], $2::bigint[]) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (pool) DO UPDATE SET tat = excluded.tat

-- name: reservation_clear
-- Those that are not in the new set.
DELETE FROM locktender.reservation r
WHERE NOT EXISTS (
    SELECT 1 FROM unnest($1::bigint[], $2::text[]) v (task, pool)
    WHERE v.task = r.task AND v.pool = r.pool
) AND EXISTS (SELECT 1 FROM fence)

-- name: reservation_add
-- Slots kept free for waiters.
INSERT INTO locktender.reservation (task, pool, slots)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (task, pool) DO UPDATE SET slots = excluded.slots

-- name: linger_clear
-- Those that are not in the new set.
DELETE FROM locktender.linger l
WHERE NOT EXISTS (
    SELECT 1 FROM unnest($1::bigint[], $2::bigint[], $3::text[]) v (task, token, pool)
    WHERE v.task = l.task AND v.token = l.token AND v.pool = l.pool
) AND EXISTS (SELECT 1 FROM fence)

-- name: linger_add
-- Slots of dead workers that their pool's lease still holds.
INSERT INTO locktender.linger (task, token, pool, slots, until, worker)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::text[])
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (task, token, pool) DO UPDATE SET
    slots = excluded.slots, until = excluded.until, worker = excluded.worker

-- name: unplaced_remove
-- Runs that have a place again, or have ended.
DELETE FROM locktender.unplaced WHERE run = ANY($1::bigint[]) AND EXISTS (SELECT 1 FROM fence)

-- name: unplaced_add
-- Runs that give their place back.
INSERT INTO locktender.unplaced (run)
SELECT * FROM unnest($1::bigint[]) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (run) DO NOTHING

-- name: kept_add
-- Runs that give their place back and keep it at some limits of tags.
INSERT INTO locktender.unplaced (run, keeps)
SELECT * FROM unnest($1::bigint[], $2::text[]) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (run) DO UPDATE SET keeps = excluded.keeps

-- name: silence_clear
-- Those that are not in the new set.
DELETE FROM locktender.silence
WHERE NOT worker = ANY($1::text[]) AND EXISTS (SELECT 1 FROM fence)

-- name: silence_add
-- Workers that left offers unanswered.
INSERT INTO locktender.silence (worker, unanswered, until)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (worker) DO UPDATE SET unanswered = excluded.unanswered, until = excluded.until

-- name: request_done
-- Requests that were carried out.
DELETE FROM locktender.request WHERE seq = ANY($1::bigint[]) AND EXISTS (SELECT 1 FROM fence)

-- name: queued_runs_by_seq
-- Queued runs whose place is to change.
SELECT r.seq, r.lane, r.rank1, r.rank2, r.queued_at
FROM unnest($1::bigint[]) v (run) JOIN locktender.run r ON r.seq = v.run
WHERE (r.state = 'queued') IS TRUE

-- name: run_rank
-- A queued run's new place.
UPDATE locktender.run r SET priority = v.priority, lane = v.lane, rank1 = v.rank1, rank2 = v.rank2
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
    v (run, priority, lane, rank1, rank2)
WHERE r.seq = v.run AND (r.state = 'queued') IS TRUE

-- name: queued_after
-- Queued runs by age, to be given the lane that the limits ask for.
SELECT
    r.seq, r.kind, r.flow, r.tags, r.priority, r.key, r.waits_for, u.keeps, r.lane, r.rank1, r.rank2, r.queued_at
FROM locktender.run r LEFT JOIN locktender.unplaced u ON u.run = r.seq AND r.started_at <> 0
WHERE r.state = 'queued' AND r.seq > $1 ORDER BY r.seq LIMIT $2
