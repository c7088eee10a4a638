-- name: flow_announce
-- What workers say of their flows, where it is news.
INSERT INTO locktender.flow (name, announced_at, body)
SELECT v.name, locktender.locktender_now(), v.body FROM unnest($1::text[], $2::bytea[]) v (name, body)
WHERE NOT EXISTS (SELECT 1 FROM locktender.flow f WHERE f.name = v.name AND f.body = v.body)
ON CONFLICT (name) DO UPDATE SET announced_at = excluded.announced_at, body = excluded.body

-- name: flow_list
-- All announced flows.
SELECT name, body FROM locktender.flow ORDER BY name

-- name: flow_get
-- The announced flows of these names.
SELECT name, body FROM locktender.flow WHERE name = ANY($1::text[]) ORDER BY name

-- name: flow_forget
-- A flow that no worker will know again.
DELETE FROM locktender.flow WHERE name = $1 RETURNING name

-- name: schedule_list
-- All schedules.
SELECT name, version, next_at, declared, live, state FROM locktender.schedule ORDER BY name

-- name: schedule_get
-- The schedules of these names.
SELECT name, version, next_at, declared, live, state FROM locktender.schedule
WHERE name = ANY($1::text[]) ORDER BY name

-- name: schedule_due
-- Schedules that the leader has to look at.
SELECT name, version, next_at, declared, live, state FROM locktender.schedule
WHERE next_at <= (SELECT locktender.locktender_now()) ORDER BY next_at, name LIMIT $1

-- name: schedule_put_off
-- Schedules that cannot be read or decided on: they are looked at later, and others before them.
UPDATE locktender.schedule SET next_at = $2
WHERE name = ANY($1::text[]) AND next_at <= (SELECT locktender.locktender_now())

-- name: schedule_versions
-- Whether schedules have changed since they were read.
SELECT name, version FROM locktender.schedule WHERE name = ANY($1::text[])

-- name: schedule_put
-- A schedule as it was set.
INSERT INTO locktender.schedule (name, version, next_at, declared, live, state)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET
    version = excluded.version, next_at = excluded.next_at, declared = excluded.declared,
    live = excluded.live, state = excluded.state

-- name: schedule_move
-- How far the leader has come.
UPDATE locktender.schedule SET next_at = $1, state = $2, version = version + 1 WHERE name = $3

-- name: schedule_remove
-- A schedule that was deleted.
DELETE FROM locktender.schedule WHERE name = $1

-- name: schedule_ticks_remove
-- Its ticks.
DELETE FROM locktender.schedule_tick WHERE name = $1

-- name: schedule_tick_add
-- What became of ticks.
INSERT INTO locktender.schedule_tick (name, tick, outcome, run, reason, at)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[])
ON CONFLICT (name, tick) DO NOTHING

-- name: schedule_tick_trim
-- The last ticks of a schedule are remembered.
DELETE FROM locktender.schedule_tick WHERE name = $1 AND tick <= (
    SELECT tick FROM locktender.schedule_tick WHERE name = $1 ORDER BY tick DESC LIMIT 1 OFFSET $2
)

-- name: schedule_ticks
-- The last ticks of each of these schedules, the latest first.
SELECT v.name, t.tick, t.outcome, t.run, t.reason, t.at FROM unnest($1::text[]) v (name) CROSS JOIN LATERAL (
    SELECT * FROM locktender.schedule_tick s WHERE s.name = v.name ORDER BY s.tick DESC LIMIT $2
) t ORDER BY v.name, t.tick DESC

-- name: schedule_change_add
-- Who changed a schedule.
INSERT INTO locktender.schedule_history (at, name, who, what, before, after, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: schedule_changes_trim
-- The last changes of a schedule are remembered, and of all of them so many.
DELETE FROM locktender.schedule_history WHERE (name = $1 AND seq <= (
    SELECT seq FROM locktender.schedule_history WHERE name = $1 ORDER BY seq DESC LIMIT 1 OFFSET $2
)) OR seq <= (SELECT max(seq) FROM locktender.schedule_history) - $3::bigint

-- name: schedule_changes
-- The last changes of a schedule.
SELECT at, who, what, before, after, reason FROM locktender.schedule_history
WHERE name = $1 ORDER BY seq DESC LIMIT $2

-- name: schedule_turn
-- One at a time changes a schedule, whether or not it exists.
SELECT pg_advisory_xact_lock(hashtext('locktender.schedule'), hashtext($1))
