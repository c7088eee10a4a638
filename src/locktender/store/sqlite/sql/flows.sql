-- name: flow_announce
-- What workers say of their flows, where it is news.
INSERT INTO flow (name, announced_at, body) VALUES /*rows*/ (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET announced_at = excluded.announced_at, body = excluded.body
WHERE flow.body <> excluded.body

-- name: flow_list
-- All announced flows.
SELECT name, body FROM flow ORDER BY name

-- name: flow_get
-- The announced flows of these names.
SELECT name, body FROM flow WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name

-- name: flow_forget
-- A flow that no worker will know again.
DELETE FROM flow WHERE name = ?

-- name: schedule_list
-- All schedules.
SELECT name, version, next_at, declared, live, state FROM schedule ORDER BY name

-- name: schedule_get
-- The schedules of these names.
SELECT name, version, next_at, declared, live, state FROM schedule
WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name

-- name: schedule_due
-- Schedules that the leader has to look at, and those whose time cannot be read: a text stands behind all numbers.
SELECT name, version, next_at, declared, live, state FROM schedule
WHERE next_at <= locktender_now() OR next_at > 144115188075855872 ORDER BY next_at, name LIMIT ?

-- name: schedule_put_off
-- Schedules that cannot be read or decided on: they are looked at later, and others before them.
UPDATE schedule SET next_at = ?2
WHERE name IN (SELECT value FROM json_each(?1)) AND (next_at <= locktender_now() OR next_at > 144115188075855872)

-- name: schedule_versions
-- Whether schedules have changed since they were read.
SELECT name, version FROM schedule WHERE name IN (SELECT value FROM json_each(?))

-- name: schedule_put
-- A schedule as it was set.
INSERT OR REPLACE INTO schedule (name, version, next_at, declared, live, state) VALUES (?, ?, ?, ?, ?, ?)

-- name: schedule_move
-- How far the leader has come.
UPDATE schedule SET next_at = ?, state = ?, version = version + 1 WHERE name = ?

-- name: schedule_remove
-- A schedule that was deleted.
DELETE FROM schedule WHERE name = ?

-- name: schedule_ticks_remove
-- Its ticks.
DELETE FROM schedule_tick WHERE name = ?

-- name: schedule_tick_add
-- What became of ticks.
INSERT OR IGNORE INTO schedule_tick (name, tick, outcome, run, reason, at) VALUES /*rows*/ (?, ?, ?, ?, ?, ?)

-- name: schedule_tick_trim
-- The last ticks of a schedule are remembered.
DELETE FROM schedule_tick WHERE name = ?1 AND tick <= (
    SELECT tick FROM schedule_tick WHERE name = ?1 ORDER BY tick DESC LIMIT 1 OFFSET ?2
)

-- name: schedule_ticks
-- The last ticks of each of these schedules, the latest first.
SELECT t.name, t.tick, t.outcome, t.run, t.reason, t.at
FROM json_each(?) v CROSS JOIN schedule_tick t ON t.name = v.value
WHERE t.tick IN (SELECT s.tick FROM schedule_tick s WHERE s.name = v.value ORDER BY s.tick DESC LIMIT ?)
ORDER BY t.name, t.tick DESC

-- name: schedule_change_add
-- Who changed a schedule.
INSERT INTO schedule_history (at, name, who, what, before, after, reason) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: schedule_changes_trim
-- The last changes of a schedule are remembered, and of all of them so many.
DELETE FROM schedule_history WHERE (name = ?1 AND seq <= (
    SELECT seq FROM schedule_history WHERE name = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2
)) OR seq <= (SELECT max(seq) FROM schedule_history) - ?3

-- name: schedule_changes
-- The last changes of a schedule.
SELECT at, who, what, before, after, reason FROM schedule_history WHERE name = ? ORDER BY seq DESC LIMIT ?

-- name: schedule_turn
-- One at a time changes a schedule: the write lock of the file sees to it.
SELECT 1
