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
