-- A store as rows, table by table, in columns that both dialects share: out of one, into another.

-- name: copy_out_graph
-- Graphs.
SELECT hash, body FROM graph ORDER BY hash

-- name: copy_in_graph
-- Graphs.
INSERT INTO graph (hash, body) VALUES /*rows*/ (?, ?)

-- name: copy_count_graph
-- How many there are.
SELECT count(*) FROM graph

-- name: copy_wipe_graph
-- None is left of a copy that was not finished.
DELETE FROM graph

-- name: copy_out_run
-- All runs.
SELECT
    seq, id, state, kind, flow, graph, tags, priority, key, generation, verdict, lane, rank1,
    rank2, waits_for, queued_at, started_at, ended_at, deadline_us, deadline_at,
    queue_timeout_us, dispatch_deadline_us, params, consts, output, error, trace
FROM run ORDER BY seq

-- name: copy_in_run
-- All runs.
INSERT INTO run (
    seq, id, state, kind, flow, graph, tags, priority, key, generation, verdict, lane, rank1,
    rank2, waits_for, queued_at, started_at, ended_at, deadline_us, deadline_at,
    queue_timeout_us, dispatch_deadline_us, params, consts, output, error, trace
) VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_count_run
-- How many there are.
SELECT count(*) FROM run

-- name: copy_wipe_run
-- None is left of a copy that was not finished.
DELETE FROM run

-- name: copy_out_lane
-- Lanes.
SELECT id, signature FROM lane ORDER BY id

-- name: copy_in_lane
-- Lanes.
INSERT INTO lane (id, signature) VALUES /*rows*/ (?, ?)

-- name: copy_count_lane
-- How many there are.
SELECT count(*) FROM lane

-- name: copy_wipe_lane
-- None is left of a copy that was not finished.
DELETE FROM lane

-- name: copy_out_queue
-- Places in the queue.
SELECT lane, rank1, rank2, run FROM queue ORDER BY lane, rank1, rank2, run

-- name: copy_in_queue
-- Places in the queue.
INSERT INTO queue (lane, rank1, rank2, run) VALUES /*rows*/ (?, ?, ?, ?)

-- name: copy_count_queue
-- How many there are.
SELECT count(*) FROM queue

-- name: copy_wipe_queue
-- None is left of a copy that was not finished.
DELETE FROM queue

-- name: copy_out_active_key
-- Keys in use.
SELECT key, run FROM active_key ORDER BY key

-- name: copy_in_active_key
-- Keys in use.
INSERT INTO active_key (key, run) VALUES /*rows*/ (?, ?)

-- name: copy_count_active_key
-- How many there are.
SELECT count(*) FROM active_key

-- name: copy_wipe_active_key
-- None is left of a copy that was not finished.
DELETE FROM active_key

-- name: copy_out_counter
-- Counters.
SELECT name, admitted, closed FROM counter ORDER BY name

-- name: copy_in_counter
-- Counters.
INSERT INTO counter (name, admitted, closed) VALUES /*rows*/ (?, ?, ?)

-- name: copy_count_counter
-- How many there are.
SELECT count(*) FROM counter

-- name: copy_wipe_counter
-- None is left of a copy that was not finished.
DELETE FROM counter

-- name: copy_out_drain
-- Runs closed of late.
SELECT slot, second, closed FROM drain ORDER BY slot

-- name: copy_in_drain
-- Runs closed of late.
INSERT INTO drain (slot, second, closed) VALUES /*rows*/ (?, ?, ?)

-- name: copy_count_drain
-- How many there are.
SELECT count(*) FROM drain

-- name: copy_wipe_drain
-- None is left of a copy that was not finished.
DELETE FROM drain

-- name: copy_out_task
-- All tasks.
SELECT
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at, input, output, error
FROM task ORDER BY id

-- name: copy_in_task
-- All tasks.
INSERT INTO task (
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at, input, output, error
) VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_count_task
-- How many there are.
SELECT count(*) FROM task

-- name: copy_wipe_task
-- None is left of a copy that was not finished.
DELETE FROM task

-- name: copy_out_log
-- What bodies logged.
SELECT task, token, attempt, body FROM log ORDER BY task, token

-- name: copy_in_log
-- What bodies logged.
INSERT INTO log (task, token, attempt, body) VALUES /*rows*/ (?, ?, ?, ?)

-- name: copy_count_log
-- How many there are.
SELECT count(*) FROM log

-- name: copy_wipe_log
-- None is left of a copy that was not finished.
DELETE FROM log

-- name: copy_out_node_input
-- Shared inputs.
SELECT run, node, input FROM node_input ORDER BY run, node

-- name: copy_in_node_input
-- Shared inputs.
INSERT INTO node_input (run, node, input) VALUES /*rows*/ (?, ?, ?)

-- name: copy_count_node_input
-- How many there are.
SELECT count(*) FROM node_input

-- name: copy_wipe_node_input
-- None is left of a copy that was not finished.
DELETE FROM node_input

-- name: copy_out_orders
-- Orders.
SELECT task, kind, worker, token, reason FROM orders ORDER BY task, kind

-- name: copy_in_orders
-- Orders.
INSERT INTO orders (task, kind, worker, token, reason) VALUES /*rows*/ (?, ?, ?, ?, ?)

-- name: copy_count_orders
-- How many there are.
SELECT count(*) FROM orders

-- name: copy_wipe_orders
-- None is left of a copy that was not finished.
DELETE FROM orders

-- name: copy_out_worker
-- Workers, with leases that are over: none of them works on a copy.
SELECT id, since, 0, body FROM worker ORDER BY id

-- name: copy_in_worker
-- Workers.
INSERT INTO worker (id, since, lease_until, body) VALUES /*rows*/ (?, ?, ?, ?)

-- name: copy_count_worker
-- How many there are.
SELECT count(*) FROM worker

-- name: copy_wipe_worker
-- None is left of a copy that was not finished.
DELETE FROM worker

-- name: copy_out_lost_worker
-- Lost workers.
SELECT id, lost_at FROM lost_worker ORDER BY id

-- name: copy_in_lost_worker
-- Lost workers.
INSERT INTO lost_worker (id, lost_at) VALUES /*rows*/ (?, ?)

-- name: copy_count_lost_worker
-- How many there are.
SELECT count(*) FROM lost_worker

-- name: copy_wipe_lost_worker
-- None is left of a copy that was not finished.
DELETE FROM lost_worker

-- name: copy_out_bucket
-- Buckets of rates.
SELECT pool, tat FROM bucket ORDER BY pool

-- name: copy_in_bucket
-- Buckets of rates.
INSERT INTO bucket (pool, tat) VALUES /*rows*/ (?, ?)

-- name: copy_count_bucket
-- How many there are.
SELECT count(*) FROM bucket

-- name: copy_wipe_bucket
-- None is left of a copy that was not finished.
DELETE FROM bucket

-- name: copy_out_reservation
-- Reservations.
SELECT task, pool, slots FROM reservation ORDER BY task, pool

-- name: copy_in_reservation
-- Reservations.
INSERT INTO reservation (task, pool, slots) VALUES /*rows*/ (?, ?, ?)

-- name: copy_count_reservation
-- How many there are.
SELECT count(*) FROM reservation

-- name: copy_wipe_reservation
-- None is left of a copy that was not finished.
DELETE FROM reservation

-- name: copy_out_linger
-- Slots of dead workers.
SELECT task, token, pool, slots, until, worker FROM linger ORDER BY task, token, pool

-- name: copy_in_linger
-- Slots of dead workers.
INSERT INTO linger (task, token, pool, slots, until, worker) VALUES /*rows*/ (?, ?, ?, ?, ?, ?)

-- name: copy_count_linger
-- How many there are.
SELECT count(*) FROM linger

-- name: copy_wipe_linger
-- None is left of a copy that was not finished.
DELETE FROM linger

-- name: copy_out_request
-- Requests.
SELECT seq, at, body FROM request ORDER BY seq

-- name: copy_in_request
-- Requests.
INSERT INTO request (seq, at, body) VALUES /*rows*/ (?, ?, ?)

-- name: copy_count_request
-- How many there are.
SELECT count(*) FROM request

-- name: copy_wipe_request
-- None is left of a copy that was not finished.
DELETE FROM request

-- name: copy_out_limit_rule
-- Limits.
SELECT kind, name, declared, live FROM limit_rule ORDER BY kind, name

-- name: copy_in_limit_rule
-- Limits.
INSERT INTO limit_rule (kind, name, declared, live) VALUES /*rows*/ (?, ?, ?, ?)

-- name: copy_count_limit_rule
-- How many there are.
SELECT count(*) FROM limit_rule

-- name: copy_wipe_limit_rule
-- None is left of a copy that was not finished.
DELETE FROM limit_rule

-- name: copy_out_limit_history
-- Changes of limits.
SELECT seq, at, who, kind, name, before, after, reason FROM limit_history ORDER BY seq

-- name: copy_in_limit_history
-- Changes of limits.
INSERT INTO limit_history (seq, at, who, kind, name, before, after, reason)
VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_count_limit_history
-- How many there are.
SELECT count(*) FROM limit_history

-- name: copy_wipe_limit_history
-- None is left of a copy that was not finished.
DELETE FROM limit_history

-- name: copy_out_event
-- The history.
SELECT seq, at, term, cycle, actor, run, body FROM event ORDER BY seq

-- name: copy_in_event
-- The history.
INSERT INTO event (seq, at, term, cycle, actor, run, body) VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?)

-- name: copy_count_event
-- How many there are.
SELECT count(*) FROM event

-- name: copy_wipe_event
-- None is left of a copy that was not finished.
DELETE FROM event
