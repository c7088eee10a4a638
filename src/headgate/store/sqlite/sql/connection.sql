-- name: connect
-- Waits for a foreign writer, then gives up: the net below the turnstile.
PRAGMA busy_timeout = {milliseconds}

-- name: wal
-- Readers never wait for the writer.
PRAGMA journal_mode = WAL

-- name: durable
-- Every commit is on the disk before its answer leaves.
PRAGMA synchronous = FULL

-- name: keep_deleted
-- Freed space is not overwritten with zeros.
PRAGMA secure_delete = OFF

-- name: cache
-- Pages this connection may keep.
PRAGMA cache_size = -{kibibytes}

-- name: wal_bound
-- After a checkpoint the log is cut back to 64 MB.
PRAGMA journal_size_limit = 67108864

-- name: read_only
-- A reader's connection cannot write.
PRAGMA query_only = ON

-- name: data_version
-- Changes when another connection has committed.
PRAGMA data_version

-- name: begin_write
-- Take the write lock at once: a later upgrade could fail half-way.
BEGIN IMMEDIATE

-- name: begin_read
-- One snapshot for several reads.
BEGIN

-- name: commit_transaction
-- Make it durable.
COMMIT

-- name: rollback_transaction
-- Undo the transaction.
ROLLBACK

-- name: savepoint
-- One verb of a group.
SAVEPOINT verb

-- name: savepoint_keep
-- The verb succeeded.
RELEASE verb

-- name: savepoint_undo
-- The verb failed, alone.
ROLLBACK TO verb

-- name: now
-- The store's time.
SELECT headgate_now()

-- name: table_names
-- Tables in the file, to tell ours from others'.
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'

-- name: migration_table
-- Where applied migrations are recorded.
CREATE TABLE IF NOT EXISTS migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL,
    applied_at INTEGER NOT NULL
)

-- name: migration_list
-- What was applied.
SELECT number, checksum FROM migration

-- name: migration_add
-- Record an applied migration.
INSERT INTO migration (number, name, checksum, applied_at) VALUES (?, ?, ?, headgate_now())
