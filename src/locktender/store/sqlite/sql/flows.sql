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
