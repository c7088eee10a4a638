-- name: asked_add
-- Names of workers that are about to be asked for; a repetition changes nothing.
INSERT INTO asked_worker (name, asked_at, expires_at, joined_at, body) VALUES /*rows*/ (?, ?, ?, 0, ?)
ON CONFLICT (name) DO NOTHING

-- name: asked_joined
-- The worker of this name is there.
UPDATE asked_worker SET joined_at = ? WHERE name = ? AND joined_at = 0

-- name: asked_remove
-- Remove workers that ended, or that are no longer waited for.
DELETE FROM asked_worker WHERE name IN (SELECT value FROM json_each(?))

-- name: asked_list
-- Every worker that was asked for and is not known to be gone.
SELECT name, asked_at, expires_at, joined_at, body FROM asked_worker ORDER BY name

-- name: provisioner_set_status
-- What the leader's provisioner is doing.
INSERT INTO provisioner (one, term, status) VALUES (1, ?, ?)
ON CONFLICT (one) DO UPDATE SET term = excluded.term, status = excluded.status

-- name: provisioner_status
-- What it is doing, if it is still the leader's.
SELECT p.status FROM provisioner p JOIN leader l ON l.term = p.term
