-- name: limits_version
-- Changes with every rule.
SELECT limits_version FROM locktender.leader WHERE one

-- name: limits_changed
-- Raise the version, so that every process reads the rules again.
UPDATE locktender.leader SET limits_version = limits_version % 4611686018427387904 + 1

-- name: limit_list
-- All rules.
SELECT kind, name, declared, live FROM locktender.limit_rule ORDER BY kind COLLATE "C", name COLLATE "C"

-- name: limit_put
-- What is declared and what an operator set.
INSERT INTO locktender.limit_rule (kind, name, declared, live) VALUES ($1, $2, $3, $4)
ON CONFLICT (kind, name) DO UPDATE SET declared = excluded.declared, live = excluded.live

-- name: limit_remove
-- Neither declared nor set.
DELETE FROM locktender.limit_rule WHERE kind = $1 AND name = $2

-- name: limit_history_add
-- Who changed what.
INSERT INTO locktender.limit_history (at, who, kind, name, before, after, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: limit_history_list
-- The last changes, newest first.
SELECT at, who, kind, name, before, after, reason
FROM locktender.limit_history ORDER BY seq DESC LIMIT $1

-- name: counter_names
-- Names under which runs are counted.
SELECT name FROM locktender.counter WHERE name NOT IN ('', '=waiting')

-- name: counter_put
-- Counters of a new rule, from the active runs it concerns.
WITH v AS (SELECT name, n FROM unnest($1::text[], $2::bigint[]) v (name, n)), zero AS (
    INSERT INTO locktender.closed (name, closed) SELECT name, 0 FROM v
)
INSERT INTO locktender.counter (name, admitted) SELECT name, n FROM v

-- name: counter_remove
-- Counters of rules that are gone.
WITH gone AS (DELETE FROM locktender.closed WHERE name = ANY($1::text[]))
DELETE FROM locktender.counter WHERE name = ANY($1::text[])

-- name: active_tags
-- How many active runs carry each set of tags.
SELECT tags, count(*) FROM locktender.run
WHERE state IN ('queued', 'running', 'cancelling', 'held') AND kind <> 'hold' GROUP BY tags
