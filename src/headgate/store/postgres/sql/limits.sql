-- name: limits_version
-- Changes with every rule.
SELECT limits_version FROM headgate.leader

-- name: limits_changed
-- Tell everybody to read the rules again.
UPDATE headgate.leader SET limits_version = limits_version + 1

-- name: limit_list
-- All rules.
SELECT kind, name, declared, live FROM headgate.limit_rule ORDER BY kind COLLATE "C", name COLLATE "C"

-- name: limit_get
-- One rule.
SELECT declared, live FROM headgate.limit_rule WHERE kind = $1 AND name = $2

-- name: limit_put
-- What is declared and what an operator set.
INSERT INTO headgate.limit_rule (kind, name, declared, live) VALUES ($1, $2, $3, $4)
ON CONFLICT (kind, name) DO UPDATE SET declared = excluded.declared, live = excluded.live

-- name: limit_remove
-- Neither declared nor set.
DELETE FROM headgate.limit_rule WHERE kind = $1 AND name = $2

-- name: limit_history_add
-- Who changed what.
INSERT INTO headgate.limit_history (at, who, kind, name, before, after, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: limit_history_list
-- The last changes, newest first.
SELECT at, who, kind, name, before, after, reason
FROM headgate.limit_history ORDER BY seq DESC LIMIT $1

-- name: counter_names
-- Names under which runs are counted.
SELECT name FROM headgate.counter WHERE name <> ''

-- name: counter_put
-- Counters of a new rule, from the active runs it concerns.
WITH v AS (SELECT name, n FROM unnest($1::text[], $2::bigint[]) v (name, n)), zero AS (
    INSERT INTO headgate.closed (name, closed) SELECT name, 0 FROM v
)
INSERT INTO headgate.counter (name, admitted) SELECT name, n FROM v

-- name: counter_remove
-- Counters of rules that are gone.
WITH gone AS (DELETE FROM headgate.closed WHERE name = ANY($1::text[]))
DELETE FROM headgate.counter WHERE name = ANY($1::text[])

-- name: active_tags
-- How many active runs carry each set of tags.
SELECT tags, count(*) FROM headgate.run
WHERE state IN ('queued', 'running', 'cancelling') AND kind <> 'hold' GROUP BY tags
