-- A store as rows, table by table, in columns that both dialects share: out of one, into another.

-- name: copy_out_graph
-- Graphs.
SELECT hash, body FROM locktender.graph ORDER BY hash

-- name: copy_in_graph
-- Graphs.
INSERT INTO locktender.graph (hash, body)
SELECT * FROM unnest($1::text[], $2::bytea[])

-- name: copy_count_graph
-- How many there are.
SELECT count(*) FROM locktender.graph

-- name: copy_wipe_graph
-- None is left of a copy that was not finished.
TRUNCATE locktender.graph

-- name: copy_out_run
-- All runs.
SELECT
    seq, id, state, kind, flow, graph, tags, priority, key, generation, verdict, lane, rank1,
    rank2, waits_for, queued_at, started_at, ended_at, deadline_us, deadline_at,
    queue_timeout_us, dispatch_deadline_us, params, consts, output, error, trace
FROM locktender.run ORDER BY seq

-- name: copy_in_run
-- All runs.
INSERT INTO locktender.run (
    seq, id, state, kind, flow, graph, tags, priority, key, generation, verdict, lane, rank1,
    rank2, waits_for, queued_at, started_at, ended_at, deadline_us, deadline_at,
    queue_timeout_us, dispatch_deadline_us, params, consts, output, error, trace
) SELECT * FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::bigint[], $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[],
    $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[],
    $20::bigint[], $21::bigint[], $22::bigint[], $23::bytea[], $24::bytea[], $25::bytea[],
    $26::bytea[], $27::text[]
)

-- name: copy_count_run
-- How many there are.
SELECT count(*) FROM locktender.run

-- name: copy_wipe_run
-- None is left of a copy that was not finished.
TRUNCATE locktender.run

-- name: copy_out_lane
-- Lanes.
SELECT id, signature FROM locktender.lane ORDER BY id

-- name: copy_in_lane
-- Lanes.
INSERT INTO locktender.lane (id, digest, signature) OVERRIDING SYSTEM VALUE
SELECT id, sha256(convert_to(signature, 'UTF8')), signature
FROM unnest($1::bigint[], $2::text[]) v (id, signature)

-- name: copy_count_lane
-- How many there are.
SELECT count(*) FROM locktender.lane

-- name: copy_wipe_lane
-- None is left of a copy that was not finished.
TRUNCATE locktender.lane

-- name: copy_out_queue
-- Places in the queue.
SELECT lane, rank1, rank2, run FROM locktender.queue ORDER BY lane, rank1, rank2, run

-- name: copy_in_queue
-- Places in the queue.
INSERT INTO locktender.queue (lane, rank1, rank2, run)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])

-- name: copy_count_queue
-- How many there are.
SELECT count(*) FROM locktender.queue

-- name: copy_wipe_queue
-- None is left of a copy that was not finished.
TRUNCATE locktender.queue

-- name: copy_out_active_key
-- Keys in use.
SELECT key, run FROM locktender.active_key ORDER BY key

-- name: copy_in_active_key
-- Keys in use.
INSERT INTO locktender.active_key (key, run)
SELECT * FROM unnest($1::text[], $2::bigint[])

-- name: copy_count_active_key
-- How many there are.
SELECT count(*) FROM locktender.active_key

-- name: copy_wipe_active_key
-- None is left of a copy that was not finished.
TRUNCATE locktender.active_key

-- name: copy_out_counter
-- Counters.
SELECT c.name, c.admitted, coalesce(d.closed, 0)
FROM locktender.counter c LEFT JOIN locktender.closed d ON d.name = c.name ORDER BY c.name

-- name: copy_in_counter
-- Counters.
WITH v AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) v (name, admitted, closed)
), done AS (INSERT INTO locktender.closed (name, closed) SELECT name, closed FROM v)
INSERT INTO locktender.counter (name, admitted) SELECT name, admitted FROM v

-- name: copy_count_counter
-- How many there are.
SELECT count(*) FROM locktender.counter

-- name: copy_wipe_counter
-- None is left of a copy that was not finished.
TRUNCATE locktender.counter, locktender.closed

-- name: copy_out_drain
-- Runs closed of late.
SELECT slot, second, closed FROM locktender.drain ORDER BY slot

-- name: copy_in_drain
-- Runs closed of late.
INSERT INTO locktender.drain (slot, second, closed)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])

-- name: copy_count_drain
-- How many there are.
SELECT count(*) FROM locktender.drain

-- name: copy_wipe_drain
-- None is left of a copy that was not finished.
TRUNCATE locktender.drain

-- name: copy_out_task
-- All tasks.
SELECT
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at, input, output, error
FROM locktender.task ORDER BY id

-- name: copy_in_task
-- All tasks.
INSERT INTO locktender.task (
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at, input, output, error
) SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::bytea[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bytea[],
    $19::bytea[], $20::bytea[]
)

-- name: copy_count_task
-- How many there are.
SELECT count(*) FROM locktender.task

-- name: copy_wipe_task
-- None is left of a copy that was not finished.
TRUNCATE locktender.task

-- name: copy_out_log
-- What bodies logged.
SELECT task, token, attempt, body FROM locktender.log ORDER BY task, token

-- name: copy_in_log
-- What bodies logged.
INSERT INTO locktender.log (task, token, attempt, body)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[])

-- name: copy_count_log
-- How many there are.
SELECT count(*) FROM locktender.log

-- name: copy_wipe_log
-- None is left of a copy that was not finished.
TRUNCATE locktender.log

-- name: copy_out_node_input
-- Shared inputs.
SELECT run, node, input FROM locktender.node_input ORDER BY run, node

-- name: copy_in_node_input
-- Shared inputs.
INSERT INTO locktender.node_input (run, node, input)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])

-- name: copy_count_node_input
-- How many there are.
SELECT count(*) FROM locktender.node_input

-- name: copy_wipe_node_input
-- None is left of a copy that was not finished.
TRUNCATE locktender.node_input

-- name: copy_out_orders
-- Orders.
SELECT task, kind, worker, token, reason FROM locktender.orders ORDER BY task, kind

-- name: copy_in_orders
-- Orders.
INSERT INTO locktender.orders (task, kind, worker, token, reason)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[])

-- name: copy_count_orders
-- How many there are.
SELECT count(*) FROM locktender.orders

-- name: copy_wipe_orders
-- None is left of a copy that was not finished.
TRUNCATE locktender.orders

-- name: copy_out_worker
-- Workers, with leases that are over: none of them works on a copy.
SELECT id, since, 0, body FROM locktender.worker ORDER BY id

-- name: copy_in_worker
-- Workers.
INSERT INTO locktender.worker (id, since, lease_until, body)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[])

-- name: copy_count_worker
-- How many there are.
SELECT count(*) FROM locktender.worker

-- name: copy_wipe_worker
-- None is left of a copy that was not finished.
TRUNCATE locktender.worker

-- name: copy_out_lost_worker
-- Lost workers.
SELECT id, lost_at FROM locktender.lost_worker ORDER BY id

-- name: copy_in_lost_worker
-- Lost workers.
INSERT INTO locktender.lost_worker (id, lost_at)
SELECT * FROM unnest($1::text[], $2::bigint[])

-- name: copy_count_lost_worker
-- How many there are.
SELECT count(*) FROM locktender.lost_worker

-- name: copy_wipe_lost_worker
-- None is left of a copy that was not finished.
TRUNCATE locktender.lost_worker

-- name: copy_out_bucket
-- Buckets of rates.
SELECT pool, tat FROM locktender.bucket ORDER BY pool

-- name: copy_in_bucket
-- Buckets of rates.
INSERT INTO locktender.bucket (pool, tat)
SELECT * FROM unnest($1::text[], $2::bigint[])

-- name: copy_count_bucket
-- How many there are.
SELECT count(*) FROM locktender.bucket

-- name: copy_wipe_bucket
-- None is left of a copy that was not finished.
TRUNCATE locktender.bucket

-- name: copy_out_reservation
-- Reservations.
SELECT task, pool, slots FROM locktender.reservation ORDER BY task, pool

-- name: copy_in_reservation
-- Reservations.
INSERT INTO locktender.reservation (task, pool, slots)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[])

-- name: copy_count_reservation
-- How many there are.
SELECT count(*) FROM locktender.reservation

-- name: copy_wipe_reservation
-- None is left of a copy that was not finished.
TRUNCATE locktender.reservation

-- name: copy_out_linger
-- Slots of dead workers.
SELECT task, token, pool, slots, until, worker FROM locktender.linger ORDER BY task, token, pool

-- name: copy_in_linger
-- Slots of dead workers.
INSERT INTO locktender.linger (task, token, pool, slots, until, worker)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::text[])

-- name: copy_count_linger
-- How many there are.
SELECT count(*) FROM locktender.linger

-- name: copy_wipe_linger
-- None is left of a copy that was not finished.
TRUNCATE locktender.linger

-- name: copy_out_request
-- Requests.
SELECT seq, at, body FROM locktender.request ORDER BY seq

-- name: copy_in_request
-- Requests.
INSERT INTO locktender.request (seq, at, body) OVERRIDING SYSTEM VALUE
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])

-- name: copy_count_request
-- How many there are.
SELECT count(*) FROM locktender.request

-- name: copy_wipe_request
-- None is left of a copy that was not finished.
TRUNCATE locktender.request

-- name: copy_out_limit_rule
-- Limits.
SELECT kind, name, declared, live FROM locktender.limit_rule ORDER BY kind, name

-- name: copy_in_limit_rule
-- Limits.
INSERT INTO locktender.limit_rule (kind, name, declared, live)
SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[])

-- name: copy_count_limit_rule
-- How many there are.
SELECT count(*) FROM locktender.limit_rule

-- name: copy_wipe_limit_rule
-- None is left of a copy that was not finished.
TRUNCATE locktender.limit_rule

-- name: copy_out_limit_history
-- Changes of limits.
SELECT seq, at, who, kind, name, before, after, reason FROM locktender.limit_history ORDER BY seq

-- name: copy_in_limit_history
-- Changes of limits.
INSERT INTO locktender.limit_history (
    seq, at, who, kind, name, before, after, reason
) OVERRIDING SYSTEM VALUE
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bytea[],
    $8::text[]
)

-- name: copy_count_limit_history
-- How many there are.
SELECT count(*) FROM locktender.limit_history

-- name: copy_wipe_limit_history
-- None is left of a copy that was not finished.
TRUNCATE locktender.limit_history

-- name: copy_out_event
-- The history.
SELECT seq, at, term, cycle, actor, run, body FROM locktender.event ORDER BY seq

-- name: copy_in_event
-- The history.
INSERT INTO locktender.event (seq, at, term, cycle, actor, run, body)
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[],
    $7::bytea[]
)

-- name: copy_count_event
-- How many there are.
SELECT count(*) FROM locktender.event

-- name: copy_wipe_event
-- None is left of a copy that was not finished.
TRUNCATE locktender.event
