-- name: connect
-- Waits for a foreign writer, then gives up: the net below the write lock.
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
SELECT locktender_now()

-- name: table_names
-- Tables in the file, to tell ours from others'.
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'

-- name: integrity
-- What is wrong with the pages and indexes of the file; one row `ok` if nothing is.
PRAGMA integrity_check(5)

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
INSERT INTO migration (number, name, checksum, applied_at) VALUES (?, ?, ?, locktender_now())

-- name: copy_marks
-- The numbers that were given last, and whose term it is.
SELECT
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'run'), 0),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'lane'), 0),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'request'), 0),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'limit_history'), 0),
    term, owner, (SELECT value FROM meta WHERE name = 'limits_version')
FROM leader

-- name: copy_leader
-- The copy has no leader; its next term is higher.
UPDATE leader SET term = ?, owner = ?, expires_at = 0, cycle = -1, seq = 0

-- name: copy_limits_version
-- Every process reads the rules again.
UPDATE meta SET value = ? WHERE name = 'limits_version'

-- name: copy_sequence_clear
-- The number that was given last in one table ...
DELETE FROM sqlite_sequence WHERE name = ?

-- name: copy_sequence
-- ... so that the next is higher.
INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)

-- name: copy_mark
-- Mark the store as an unfinished copy.
INSERT OR IGNORE INTO migration (number, name, checksum, applied_at)
VALUES (?, 'copying', '', locktender_now())

-- name: copy_unmark
-- Mark the copy as finished.
DELETE FROM migration WHERE number = ?

-- name: task_again
-- Rows of a retried run, over what an earlier try left in them.
INSERT OR REPLACE INTO task (
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, input, output,
    error, requested_at, scheduled_at, started_at, ended_at, not_before, eligible_at
) VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_out
-- Template: all rows of one table, in the order of its key.
SELECT {columns} FROM {table} ORDER BY {key}

-- name: copy_in
-- Template: add rows to one table of a copy.
INSERT INTO {table} ({columns}) VALUES /*rows*/ ({marks})

-- name: copy_count
-- Template: how many rows one table has.
SELECT count(*) FROM {table}

-- name: copy_wipe
-- Template: empty one table, which may hold rows of an unfinished copy.
DELETE FROM {table}
