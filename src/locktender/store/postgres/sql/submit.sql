-- name: submit_marks
-- The last run and the last event, before this submission; and whether a commit in flight may still
-- come to stand before that event.
SELECT
    (SELECT value FROM locktender.meta WHERE name = 'last_run'),
    (SELECT value FROM locktender.meta WHERE name = 'admissions'),
    coalesce((SELECT max(seq) FROM locktender.event), 0),
    locktender.locktender_now(),
    coalesce((SELECT max(seq) FROM locktender.event) >= locktender.event_horizon(), false)

-- name: runs_by_id
-- Which of these submissions are already stored.
SELECT id, seq FROM locktender.run WHERE id = ANY($1::text[])

-- name: runs_by_key
-- Active runs that hold one of these keys.
SELECT a.key, r.seq, r.id, r.flow, r.params
FROM locktender.active_key a JOIN locktender.run r ON r.seq = a.run WHERE a.key = ANY($1::text[])

-- name: runs_finished_by_key
-- The last succeeded run of each key.
SELECT DISTINCT ON (key) key, seq, id FROM locktender.run
WHERE key = ANY($1::text[]) AND state = 'succeeded' ORDER BY key, seq DESC

-- name: queued_by_key
-- Runs of these keys that have not started, by age.
SELECT key, seq, id FROM locktender.run
WHERE key = ANY($1::text[]) AND state IN ('queued', 'waiting') AND started_at = 0 ORDER BY seq

-- name: throttles_by_name
-- The last starts of these throttles.
SELECT name, starts FROM locktender.throttle WHERE name = ANY($1::text[])

-- name: throttle_save
-- Starts that were given out.
INSERT INTO locktender.throttle (name, until, starts)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[]) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (name) DO UPDATE SET until = excluded.until, starts = excluded.starts

-- name: throttles_remove
-- Throttles whose starts delay no run any more.
DELETE FROM locktender.throttle WHERE until < locktender.locktender_now()

-- name: counters_by_name
-- How many runs were admitted and closed under these names.
SELECT c.name, c.admitted, coalesce(d.closed, 0)
FROM locktender.counter c LEFT JOIN locktender.closed d ON d.name = c.name WHERE c.name = ANY($1::text[])

-- name: counter_admit
-- Count admitted runs in the transaction that stores them. What cannot be a count begins anew.
INSERT INTO locktender.counter (name, admitted) SELECT name, n FROM unnest($1::text[], $2::bigint[]) v (name, n)
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (name) DO UPDATE SET admitted = excluded.admitted
    + CASE WHEN counter.admitted BETWEEN 0 AND 144115188075855872 THEN counter.admitted ELSE 0 END

-- name: counter_close
-- Count closed runs in the transaction that ends them.
INSERT INTO locktender.closed (name, closed)
SELECT v.name, v.n FROM closing v
WHERE v.n > 0 AND (v.name = '' OR EXISTS (SELECT 1 FROM locktender.counter c WHERE c.name = v.name))
ORDER BY v.name
ON CONFLICT (name) DO UPDATE SET closed = excluded.closed
    + CASE WHEN closed.closed BETWEEN 0 AND 144115188075855872 THEN closed.closed ELSE 0 END

-- name: drain_add
-- Runs closed in this second.
INSERT INTO locktender.drain (slot, second, closed)
SELECT (clock.now / 1000000) % $1::bigint, clock.now / 1000000, v.n FROM closing v, clock
WHERE v.name = '' AND v.n > 0
ON CONFLICT (slot) DO UPDATE SET
    closed = excluded.closed + CASE
        WHEN drain.second = excluded.second AND drain.closed BETWEEN 0 AND 144115188075855872 THEN drain.closed ELSE 0
    END,
    second = excluded.second

-- name: drain_recent
-- Runs closed since a second, the first second that counts, and in how many of them any closed.
SELECT coalesce(sum(closed), 0)::bigint, min(second), count(*) FROM locktender.drain
WHERE second > locktender.locktender_now() / 1000000 - $1 AND second <= 144115188075855872 AND closed BETWEEN 0 AND 144115188075855872

-- name: graph_add
-- Graphs are stored once per content.
INSERT INTO locktender.graph (hash, body) SELECT hash, body FROM unnest($1::text[], $2::bytea[]) v (hash, body)
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (hash) DO NOTHING

-- name: graph_known
-- Which of these graphs are stored.
SELECT hash FROM locktender.graph WHERE hash = ANY($1::text[])

-- name: lanes_by_signature
-- Lanes that exist.
SELECT signature, id FROM locktender.lane WHERE digest = ANY (ARRAY(
    SELECT sha256(convert_to(v.signature, 'UTF8')) FROM unnest($1::text[]) v (signature)
))

-- name: lane_add
-- New lanes. One whose signature is not that of its digest any more is mended.
INSERT INTO locktender.lane (digest, signature)
SELECT sha256(convert_to(v.signature, 'UTF8')), v.signature FROM unnest($1::text[]) v (signature)
ON CONFLICT (digest) DO UPDATE SET signature = excluded.signature WHERE lane.signature <> excluded.signature

-- name: lanes_after
-- Lanes by id, and whether a queued run stands in them.
SELECT l.id, (SELECT 1 FROM locktender.queue q WHERE q.lane = l.id LIMIT 1) IS NOT NULL
FROM locktender.lane l WHERE l.id > $1 ORDER BY l.id LIMIT $2

-- name: lanes_remove
-- Of these lanes, those that no queued run stands in.
DELETE FROM locktender.lane l
WHERE l.id = ANY($1::bigint[]) AND NOT EXISTS (SELECT 1 FROM locktender.queue q WHERE q.lane = l.id)

-- name: buckets_remove
-- The state of rates that say nothing any more: their next start may be at any time.
DELETE FROM locktender.bucket WHERE tat < locktender.locktender_now()

-- name: drain_orders_remove
-- Orders to drain, or not to, of workers that are gone, and those that a newer one replaced.
DELETE FROM locktender.orders o WHERE o.task < 0 AND (
    NOT EXISTS (SELECT 1 FROM locktender.worker w WHERE w.id = o.worker)
    OR EXISTS (SELECT 1 FROM locktender.orders n WHERE n.worker = o.worker AND n.task < o.task)
)

-- name: counters_unused
-- Counters of tags without active runs.
SELECT c.name FROM locktender.counter c JOIN locktender.closed d ON d.name = c.name
WHERE c.name <> '' AND c.admitted = d.closed LIMIT $1

-- name: limit_history_remove
-- Changes of limits before an instant; the last one of each limit stays.
DELETE FROM locktender.limit_history l WHERE l.at < $1 AND EXISTS (
    SELECT 1 FROM locktender.limit_history n
    WHERE n.kind = l.kind AND n.name = l.name AND n.seq > l.seq
)

-- name: submit_run
-- Store queued runs.
INSERT INTO locktender.run (
    seq, id, kind, flow, graph, tags, priority, key, lane, rank1, rank2, waits_for, queued_at,
    deadline_us, deadline_at, queue_timeout_us, dispatch_deadline_us, params, consts, trace
) SELECT * FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
    $15::bigint[], $16::bigint[], $17::bigint[], $18::bytea[], $19::bytea[], $20::text[]
) WHERE EXISTS (SELECT 1 FROM fence)

-- name: queue_add
-- Put runs into their lanes.
INSERT INTO locktender.queue (lane, rank1, rank2, run)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
WHERE EXISTS (SELECT 1 FROM fence)

-- name: key_take
-- The run that now holds the key.
INSERT INTO locktender.active_key (key, run) SELECT key, run FROM unnest($1::text[], $2::bigint[]) v (key, run)
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (key) DO UPDATE SET run = excluded.run

-- name: request_add
-- Ask something of the leader. As text: of arrays of bytes asyncpg asks the server first, 10 ms on a new connection.
INSERT INTO locktender.request (at, body) SELECT clock.now, convert_to(v.body, 'UTF8')
FROM clock, unnest($1::text[]) WITH ORDINALITY v (body, n)
WHERE EXISTS (SELECT 1 FROM fence) ORDER BY v.n

-- name: event_add
-- History: all changes of one run in one commit.
INSERT INTO locktender.event (seq, at, term, cycle, actor, run, body)
SELECT base.seq + t.n - 1, coalesce($1::bigint, clock.now), $2::bigint, $3::bigint, $4::text, t.run, t.body
FROM told t, clock, (SELECT locktender.event_base() AS seq OFFSET 0) base
WHERE EXISTS (SELECT 1 FROM fence)

-- name: retry_candidates
-- The runs to be queued again.
SELECT
    seq, id, state, kind, flow, graph, tags, priority, key, generation, deadline_us,
    CASE WHEN state = 'held' THEN (
        SELECT count(*) FROM locktender.task t
        WHERE t.id >= run.seq << 20 AND t.id < (run.seq + 1) << 20
            AND t.state IN ('scheduled', 'running')
    ) ELSE 0 END
FROM locktender.run WHERE id = ANY($1::text[])

-- name: retry_run
-- Queue an ended run again: a new generation, nothing left of the last one's end.
UPDATE locktender.run SET
    state = 'queued', generation = $1, verdict = NULL, lane = $2, rank1 = $3, rank2 = $4,
    waits_for = NULL, queued_at = $5, started_at = 0, ended_at = 0, deadline_at = $6,
    output = NULL, error = NULL
WHERE seq = $7

-- name: tasks_run_again
-- Ended tasks of a retried run that are to run again although they have a result.
UPDATE locktender.task SET error = $1::bytea
WHERE id >= $2::bigint << 20 AND id < ($2::bigint + 1) << 20 AND node = ANY($3::bigint[])
    AND state IN ('completed', 'failed', 'timed_out')
