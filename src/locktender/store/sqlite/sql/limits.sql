-- name: limits_version
-- Changes with every rule.
SELECT coalesce((SELECT value FROM meta WHERE name = 'limits_version'), 0)

-- name: limits_changed
-- Raise the version, so that every process reads the rules again.
INSERT INTO meta (name, value) VALUES ('limits_version', 1)
ON CONFLICT (name) DO UPDATE SET value = value % 4611686018427387904 + 1

-- name: limit_list
-- All rules.
SELECT kind, name, declared, live FROM limit_rule ORDER BY kind, name

-- name: limit_put
-- What is declared and what an operator set.
INSERT OR REPLACE INTO limit_rule (kind, name, declared, live) VALUES (?, ?, ?, ?)

-- name: limit_remove
-- Neither declared nor set.
DELETE FROM limit_rule WHERE kind = ? AND name = ?

-- name: limit_history_add
-- Who changed what.
INSERT INTO limit_history (at, who, kind, name, before, after, reason) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: limit_history_list
-- The last changes, newest first.
SELECT at, who, kind, name, before, after, reason FROM limit_history ORDER BY seq DESC LIMIT ?

-- name: counter_names
-- Names under which runs are counted.
SELECT name FROM counter WHERE name NOT IN ('', '=waiting')

-- name: counter_put
-- Counters of a new rule, from the active runs it concerns.
INSERT INTO counter (name, admitted, closed) VALUES /*rows*/ (?, ?, 0)

-- name: counter_remove
-- Counters of rules that are gone.
DELETE FROM counter WHERE name IN (SELECT value FROM json_each(?))

-- name: active_tags
-- How many active runs carry each set of tags.
SELECT tags, count(*) FROM run
WHERE state IN ('queued', 'running', 'cancelling', 'held') AND kind <> 'hold' GROUP BY tags
