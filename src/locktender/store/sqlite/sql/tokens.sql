-- name: token_add
-- A token, or a session; nothing where a token that was not revoked has the name.
INSERT INTO token (id, name, parent, hash, body, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: token_get
-- Tokens and sessions by id, and the tokens that sessions were opened with.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by, ?2 FROM token
WHERE id IN (SELECT value FROM json_each(?1))
   OR id IN (SELECT parent FROM token WHERE id IN (SELECT value FROM json_each(?1)))

-- name: token_list
-- All tokens, without sessions.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by, ? FROM token
WHERE parent IS NULL ORDER BY name, created_at, id

-- name: token_revoke
-- A token or session that has no rights from now on.
UPDATE token SET revoked_at = ?, revoked_by = ? WHERE id = ? AND revoked_at IS NULL

-- name: token_use
-- When tokens were last used.
UPDATE token SET used_at = ? WHERE id IN (SELECT value FROM json_each(?))

-- name: token_forget
-- Sessions that expired before an instant.
DELETE FROM token WHERE parent IS NOT NULL AND expires_at < ?

-- name: idempotency_claim
-- The first body of each key.
INSERT INTO idempotency (id, body, at) VALUES /*rows*/ (?, ?, ?) ON CONFLICT DO NOTHING

-- name: idempotency_get
-- The bodies that count.
SELECT id, body FROM idempotency WHERE id IN (SELECT value FROM json_each(?))

-- name: idempotency_forget
-- Keys of requests that were answered long ago.
DELETE FROM idempotency WHERE at < ?
