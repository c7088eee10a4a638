-- name: token_add
-- A token, or a session; nothing where a token that was not revoked has the name. One that is made with another
-- expires with that one at the latest; nothing where that one has no rights any more.
INSERT INTO token (id, name, parent, hash, body, created_at, expires_at, made_with)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, coalesce(min(?7, m.expires_at), ?7, m.expires_at), ?8
FROM (SELECT 1) LEFT JOIN token m ON m.id = ?8
WHERE ?8 IS NULL OR (m.revoked_at IS NULL AND coalesce(m.expires_at > ?6, m.id IS NOT NULL))
ON CONFLICT DO NOTHING

-- name: token_get
-- Tokens and sessions by id, and the tokens that sessions were opened with.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by, made_with, ?2 FROM token
WHERE id IN (SELECT value FROM json_each(?1))
   OR id IN (SELECT parent FROM token WHERE id IN (SELECT value FROM json_each(?1)))

-- name: token_list
-- All tokens, without sessions.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by, made_with, ? FROM token
WHERE parent IS NULL ORDER BY name, created_at, id

-- name: token_revoke
-- A token or session that has no rights from now on, with the tokens that were made with it, and with those.
UPDATE token SET revoked_at = ?1, revoked_by = ?2
WHERE revoked_at IS NULL AND id IN (
    WITH RECURSIVE made (id) AS (SELECT ?3 UNION SELECT t.id FROM token t JOIN made m ON t.made_with = m.id)
    SELECT id FROM made
)

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
