-- name: token_add
-- A token, or a session; nothing where a token that was not revoked has the name.
INSERT INTO locktender.token (id, name, parent, hash, body, created_at, expires_at)
SELECT $1, $2, $3, $4, $5, t.now, t.now + $6::bigint FROM (SELECT locktender.locktender_now() AS now) t
ON CONFLICT DO NOTHING

-- name: token_get
-- Tokens and sessions by id, and the tokens that sessions were opened with.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by,
    (SELECT locktender.locktender_now())
FROM locktender.token
WHERE id = ANY($1::text[]) OR id IN (SELECT parent FROM locktender.token WHERE id = ANY($1::text[]))

-- name: token_list
-- All tokens, without sessions.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by,
    (SELECT locktender.locktender_now())
FROM locktender.token WHERE parent IS NULL ORDER BY name COLLATE "C", created_at, id

-- name: token_revoke
-- A token or session that has no rights from now on.
UPDATE locktender.token SET revoked_at = locktender.locktender_now(), revoked_by = $2
WHERE id = $1 AND revoked_at IS NULL RETURNING id

-- name: token_use
-- When tokens were last used.
UPDATE locktender.token SET used_at = locktender.locktender_now() WHERE id = ANY($1::text[])

-- name: token_forget
-- Sessions that expired so long ago.
DELETE FROM locktender.token
WHERE parent IS NOT NULL AND expires_at < (SELECT locktender.locktender_now()) - $1::bigint

-- name: idempotency_claim
-- The first body of each key.
INSERT INTO locktender.idempotency (id, body, at)
SELECT v.id, v.body, (SELECT locktender.locktender_now()) FROM unnest($1::text[], $2::bytea[]) v (id, body)
ORDER BY v.id
ON CONFLICT DO NOTHING

-- name: idempotency_get
-- The bodies that count.
SELECT id, body FROM locktender.idempotency WHERE id = ANY($1::text[])

-- name: idempotency_forget
-- Keys of requests that were answered long ago; what another process forgets is left to it.
DELETE FROM locktender.idempotency WHERE id IN (
    SELECT id FROM locktender.idempotency WHERE at < (SELECT locktender.locktender_now()) - $1::bigint
    ORDER BY at LIMIT 1000 FOR UPDATE SKIP LOCKED
)
