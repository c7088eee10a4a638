-- The tables, and who writes them.
--
--   run, queue, waiting, active_key, counter, request   submitters write, the leader closes
--   task, node_input, orders                   the leader until acceptance, then the worker
--   leader, worker                             their owners, by lease
--   limit_rule, limit_history                  operators and code
--   event                                      everybody, once per change; seq follows cause and effect
--
-- Instants are integer microseconds of locktender_now(). Tasks are found by id and
-- by the range of their run; no index mentions a task's state, so that a change of
-- state is a HOT update: it writes the row's page and no index. The fill factors
-- leave room for that.
--
-- The order of events. An event's seq is made of its transaction's id and its place
-- in the transaction. Transactions do not commit in the order of their ids: a reader
-- that has seen 11 may find 10 later. So a follower remembers which transactions it
-- has seen (a snapshot), and not a number; a reader that needs everything up to a
-- number looks only below the oldest transaction in progress. One transaction writes
-- its events in one statement, at most 2^20 of them.

CREATE TABLE locktender.frozen_clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at bigint NOT NULL
);

-- The store's time. Tests put an instant into frozen_clock.
CREATE FUNCTION locktender.locktender_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        (SELECT at FROM locktender.frozen_clock),
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    )
$$;

CREATE TABLE locktender.meta (
    name text PRIMARY KEY,
    value bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO locktender.meta (name, value) VALUES
    ('last_run', 0),
    -- Rises with every submission that runs alone; a submitter that read an older value may not write.
    ('admissions', 0),
    ('xid_offset', 0);

-- Events are numbered by their transaction's id, and another server counts those from the beginning: where
-- a dump was restored, `xid_offset` is raised until new events stand behind the old ones again.
--
-- These functions are STABLE: each is one value per statement, so an index can serve the comparison. The
-- offset is read as of the statement's snapshot.
CREATE FUNCTION locktender.event_number(xid xid8) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (xid::text::bigint + (SELECT value FROM locktender.meta WHERE name = 'xid_offset')) << 20
$$;

-- The seq of this transaction's first event.
CREATE FUNCTION locktender.event_base() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT locktender.event_number(pg_current_xact_id())
$$;

-- No event below this seq can be added any more: the settled history ends here.
CREATE FUNCTION locktender.event_horizon() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT locktender.event_number(pg_snapshot_xmin(pg_current_snapshot()))
$$;

-- One row. `cycle` and `seq` are of the last commit, to recognise its repetition; `backend` is the
-- connection the leader writes by, so that a successor can end one that hangs in a transaction.
-- `limits_version` stands here because whoever waits for this row then sees its newest value. `history` is
-- `history_place()` of the election: where that changes, the term is over.
CREATE TABLE locktender.leader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    term bigint NOT NULL,
    owner text NOT NULL,
    expires_at bigint NOT NULL,
    cycle bigint NOT NULL,
    seq bigint NOT NULL,
    limits_version bigint NOT NULL,
    backend integer NOT NULL,
    backend_since timestamptz,
    history text
) WITH (fillfactor = 10);

INSERT INTO locktender.leader (term, owner, expires_at, cycle, seq, limits_version, backend)
VALUES (0, '', 0, 0, 0, 0, 0);

CREATE TABLE locktender.graph (
    hash text PRIMARY KEY,
    body bytea NOT NULL
);

-- `put_at`: a blob that was just put may not be referred to yet, and must not be taken for an orphan.
CREATE TABLE locktender.blob (
    digest text PRIMARY KEY,
    body bytea NOT NULL,
    put_at bigint DEFAULT locktender.locktender_now()
);

CREATE TABLE locktender.run (
    seq bigint PRIMARY KEY,
    priority bigint NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    lane bigint NOT NULL,
    rank1 bigint NOT NULL,
    rank2 bigint NOT NULL,
    waits_for bigint,
    queued_at bigint NOT NULL,
    started_at bigint NOT NULL DEFAULT 0,
    ended_at bigint NOT NULL DEFAULT 0,
    deadline_us bigint,
    deadline_at bigint,
    queue_timeout_us bigint,
    dispatch_deadline_us bigint,
    id text COLLATE "C" NOT NULL UNIQUE,  -- bytewise: the one index also finds the beginnings of ids
    state text NOT NULL DEFAULT 'queued',
    kind text NOT NULL,
    flow text NOT NULL,
    graph text NOT NULL,
    tags text NOT NULL,
    key text,
    verdict text,
    params bytea NOT NULL,
    consts bytea NOT NULL,
    output bytea,
    error bytea,
    trace text  -- of the submitter (W3C traceparent)
) WITH (fillfactor = 70);

CREATE INDEX run_state ON locktender.run (state, seq);
-- Those that failed last.
CREATE INDEX run_failed ON locktender.run (ended_at) WHERE state IN ('failed', 'timed_out');
CREATE INDEX run_key ON locktender.run (key, state) WHERE key IS NOT NULL;
CREATE INDEX run_deadline ON locktender.run (deadline_at) WHERE state = 'queued' AND deadline_at IS NOT NULL;
CREATE INDEX run_waits_for ON locktender.run (waits_for) WHERE waits_for IS NOT NULL;

-- A signature may be longer than an index entry: its hash is indexed.
CREATE TABLE locktender.lane (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest bytea NOT NULL UNIQUE,
    signature text NOT NULL
);

-- Exactly the queued runs, each lane in its order.
CREATE TABLE locktender.queue (
    lane bigint NOT NULL,
    rank1 bigint NOT NULL,
    rank2 bigint NOT NULL,
    run bigint NOT NULL,
    PRIMARY KEY (lane, rank1, rank2, run)
);

CREATE INDEX queue_order ON locktender.queue (rank1, rank2, run);

CREATE TABLE locktender.active_key (
    key text PRIMARY KEY,
    run bigint NOT NULL
);

-- Active runs under '' (all of them) and under each tag rule that has a ceiling: admitted - closed.
-- Two tables, so that the leader that closes never waits for a submitter that admits.
CREATE TABLE locktender.counter (
    name text PRIMARY KEY,
    admitted bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE locktender.closed (
    name text PRIMARY KEY,
    closed bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO locktender.counter (name, admitted) VALUES ('', 0);
INSERT INTO locktender.closed (name, closed) VALUES ('', 0);

-- Runs closed in each second of the last minute: a ring of 60 rows, for an honest Retry-After.
CREATE TABLE locktender.drain (
    slot bigint PRIMARY KEY,
    second bigint NOT NULL,
    closed bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE locktender.task (
    id bigint PRIMARY KEY,
    node bigint NOT NULL,
    idx bigint NOT NULL,
    attempt bigint NOT NULL,
    tries bigint NOT NULL,
    abandons bigint NOT NULL,
    offers bigint NOT NULL,
    token bigint NOT NULL,
    requested_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    not_before bigint NOT NULL,
    eligible_at bigint NOT NULL,
    state text NOT NULL,
    worker text,
    held bytea,
    input bytea,
    output bytea,
    error bytea
) WITH (fillfactor = 50);

CREATE TABLE locktender.node_input (
    run bigint NOT NULL,
    node bigint NOT NULL,
    input bytea NOT NULL,
    PRIMARY KEY (run, node)
);

CREATE TABLE locktender.orders (
    task bigint NOT NULL,
    kind text NOT NULL,
    worker text NOT NULL,
    token bigint NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (task, kind)
);

CREATE INDEX orders_worker ON locktender.orders (worker, task);
CREATE INDEX orders_stop ON locktender.orders (task) WHERE kind = 'stop';

CREATE TABLE locktender.worker (
    id text PRIMARY KEY,
    since bigint NOT NULL,
    lease_until bigint NOT NULL,
    lease_us bigint NOT NULL,
    body bytea NOT NULL
) WITH (fillfactor = 50);

-- One row, which changes with every worker's. Apart from `meta`: a worker may write nothing there.
CREATE TABLE locktender.workers_version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    value bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO locktender.workers_version (value) VALUES (0);

-- Ids of workers declared lost: they may not renew. Kept for a day.
CREATE TABLE locktender.lost_worker (
    id text PRIMARY KEY,
    lost_at bigint NOT NULL
);

CREATE TABLE locktender.bucket (
    pool text PRIMARY KEY,
    tat bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE locktender.reservation (
    task bigint NOT NULL,
    pool text NOT NULL,
    slots bigint NOT NULL,
    PRIMARY KEY (task, pool)
);

-- Slots of dead workers' attempts, in pools whose own lease has not passed yet.
CREATE TABLE locktender.linger (
    task bigint NOT NULL,
    token bigint NOT NULL,
    pool text NOT NULL,
    slots bigint NOT NULL,
    until bigint NOT NULL,
    worker text NOT NULL,
    PRIMARY KEY (task, token, pool)
);

-- Executing runs that no live worker could go on with: they count neither at the run gate nor in tags' limits.
-- keeps: a JSON list of limits of tags at which such a run, or one that waits or is queued again, counts all the same.
CREATE TABLE locktender.unplaced (
    run bigint PRIMARY KEY,
    keeps text
);

-- Exactly the waiting runs: when each is to be woken. It stands in no lane and no leader's memory until then.
CREATE TABLE locktender.waiting (
    run bigint PRIMARY KEY,
    wake_at bigint NOT NULL
);

CREATE INDEX waiting_order ON locktender.waiting (wake_at, run);

-- Events that were sent: to a run's mailbox, or to a topic (run 0). Rows go with their run, of a topic after a time.
-- `task`: no other wait of the run takes it; 0: the first that waits for it.
CREATE TABLE locktender.mail (
    n bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    run bigint NOT NULL,
    name text NOT NULL,
    id text,
    match jsonb NOT NULL,
    at bigint NOT NULL,
    payload bytea NOT NULL,
    task bigint NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX mail_once ON locktender.mail (run, name, id);
CREATE INDEX mail_order ON locktender.mail (run, name, n);
CREATE INDEX mail_times ON locktender.mail (run, name, at);

-- Events that a run has consumed: delivered to one of its tasks, or refused (task 0).
CREATE TABLE locktender.mail_taken (
    run bigint NOT NULL,
    n bigint NOT NULL,
    task bigint NOT NULL,
    PRIMARY KEY (run, n)
);

-- Exactly the tasks that wait for an event.
CREATE TABLE locktender.event_wait (
    task bigint PRIMARY KEY,
    run bigint NOT NULL,
    name text NOT NULL,
    match jsonb NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL
);

CREATE INDEX event_wait_run ON locktender.event_wait (run);
CREATE INDEX event_wait_name ON locktender.event_wait (name, run);
CREATE INDEX event_wait_until ON locktender.event_wait (until, task);

-- By which tokens of waits are signed; one row, made when the first is asked for.
CREATE TABLE locktender.event_key (
    id bigint PRIMARY KEY,
    secret bytea NOT NULL
);

-- Results of steps that are kept for tasks with the same key. Only the leader writes them.
CREATE TABLE locktender.cached_result (
    key text PRIMARY KEY,
    step text NOT NULL,
    flow text NOT NULL,
    scope text NOT NULL,
    task bigint NOT NULL,
    made_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    size bigint NOT NULL,
    output bytea NOT NULL
);

CREATE INDEX cached_result_end ON locktender.cached_result (expires_at);
CREATE INDEX cached_result_age ON locktender.cached_result (made_at, size);

-- The last starts under each throttle of submissions, as a JSON array of instants, until they bound nobody.
CREATE TABLE locktender.throttle (
    name text PRIMARY KEY,
    until bigint NOT NULL,
    starts bytea NOT NULL
);

-- Workers whose lease is kept and that left offers unanswered.
CREATE TABLE locktender.silence (
    worker text PRIMARY KEY,
    unanswered bigint NOT NULL,
    until bigint NOT NULL
);

-- What clients ask of the leader; a row is deleted when it is done.
CREATE TABLE locktender.request (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    taken bigint NOT NULL DEFAULT 0,  -- how many leaders began to carry it out
    body bytea NOT NULL
);

-- What the leader answered to questions of clients. Kept for a minute; no copy has it.
CREATE TABLE locktender.answer (
    question text PRIMARY KEY,
    at bigint NOT NULL,
    body bytea NOT NULL
);

-- Runs that applications submit inside their own transactions. The leader moves each into `run`, or keeps the
-- answer that says why not. Nothing else of ours is touched by their transaction: no other caller waits for it.
CREATE TABLE locktender.outbox (
    id text PRIMARY KEY,
    n bigint GENERATED BY DEFAULT AS IDENTITY,
    at bigint NOT NULL DEFAULT locktender.locktender_now(),
    body bytea NOT NULL,
    answer bytea,
    answered_at bigint
);

CREATE INDEX outbox_open ON locktender.outbox (n) WHERE answer IS NULL;
CREATE INDEX outbox_answered ON locktender.outbox (answered_at) WHERE answer IS NOT NULL;

-- The one way into the outbox. It runs with the rights of the schema's owner: who may call it needs no other.
-- pg_temp is named, last: else PostgreSQL looks there first, and a temporary view `pg_class` of the caller would
-- run the caller's code with the owner's rights.
CREATE FUNCTION locktender.submit_run(run_id text, run_body bytea, tell boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF run_id !~ '^[0-9a-z]{26}$' THEN
        RAISE EXCEPTION 'locktender: % is no id of a run', left(quote_literal(run_id), 60) USING ERRCODE = '22023';
    END IF;
    IF octet_length(run_body) > 8388608 THEN
        RAISE EXCEPTION 'locktender: a run of % bytes; at most 8388608 are allowed', octet_length(run_body)
            USING ERRCODE = '22023';
    END IF;
    INSERT INTO locktender.outbox (id, body) VALUES (run_id, run_body) ON CONFLICT (id) DO NOTHING;
    IF tell THEN
        PERFORM pg_notify('locktender:' || nspname, 'application outbox')
        FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE pg_class.oid = 'locktender.outbox'::regclass;
    END IF;
END
$$;

-- What workers announced of their flows, for submissions by name. It stays when they are gone.
CREATE TABLE locktender.flow (
    name text PRIMARY KEY,
    announced_at bigint NOT NULL,
    body bytea NOT NULL
);

-- Schedules: what code declared, what an operator set (it wins), how far the leader has come.
CREATE TABLE locktender.schedule (
    name text PRIMARY KEY,
    version bigint NOT NULL,
    next_at bigint,  -- when the leader looks at it next
    declared bytea,
    live bytea,
    state bytea NOT NULL
);

CREATE INDEX schedule_next ON locktender.schedule (next_at) WHERE next_at IS NOT NULL;

-- What became of the last ticks of each schedule.
CREATE TABLE locktender.schedule_tick (
    name text NOT NULL,
    tick bigint NOT NULL,
    outcome text NOT NULL,
    run text,
    reason text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (name, tick)
);

CREATE TABLE locktender.schedule_history (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    name text NOT NULL,
    who text NOT NULL,
    what text NOT NULL,
    before bytea,
    after bytea,
    reason text NOT NULL
);

CREATE INDEX schedule_history_name ON locktender.schedule_history (name, seq);

-- Tokens of the HTTP API, as hashes; and sessions of browsers, which have the rights of the token `parent`.
-- `made_with` is the token by which a token was made: it is revoked with that one.
CREATE TABLE locktender.token (
    id text PRIMARY KEY,
    name text NOT NULL,
    parent text,
    hash bytea NOT NULL,
    body bytea NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    used_at bigint,
    revoked_at bigint,
    revoked_by text,
    made_with text
);

CREATE UNIQUE INDEX token_name ON locktender.token (name) WHERE revoked_at IS NULL AND parent IS NULL;

-- Idempotency-Key of requests that are being answered: the first body of a key counts. Later its run is found by id.
CREATE TABLE locktender.idempotency (
    id text PRIMARY KEY,
    body bytea NOT NULL,
    at bigint NOT NULL
);

CREATE INDEX idempotency_at ON locktender.idempotency (at);

-- What a worker's code declares of one schedule; `spec` NULL: nothing any more. An operator's setting stays as it
-- is, and each change is in the history. A worker may call it, and may not write these tables.
CREATE FUNCTION locktender.declare_schedule(
    given text, new_version bigint, due bigint, spec bytea, new_state bytea, changed_at bigint, was bytea, becomes bytea,
    why text
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF new_state IS NULL THEN
        DELETE FROM locktender.schedule s WHERE s.name = given AND s.live IS NULL;
        DELETE FROM locktender.schedule_tick t
        WHERE t.name = given AND NOT EXISTS (SELECT 1 FROM locktender.schedule s WHERE s.name = given);
    ELSE
        INSERT INTO locktender.schedule AS s (name, version, next_at, declared, state)
        VALUES (given, new_version, due, spec, new_state)
        ON CONFLICT (name) DO UPDATE SET
            version = excluded.version, next_at = excluded.next_at, declared = excluded.declared,
            state = excluded.state;
    END IF;
    INSERT INTO locktender.schedule_history (at, name, who, what, before, after, reason)
    VALUES (changed_at, given, 'code', 'declared', was, becomes, why);
    DELETE FROM locktender.schedule_history h WHERE (h.name = given AND h.seq <= (
        SELECT o.seq FROM locktender.schedule_history o WHERE o.name = given ORDER BY o.seq DESC LIMIT 1 OFFSET 100
    )) OR h.seq <= (SELECT max(o.seq) FROM locktender.schedule_history o) - 100000;
END
$$;

CREATE TABLE locktender.limit_rule (
    kind text NOT NULL,
    name text NOT NULL,
    declared bytea,
    live bytea,
    PRIMARY KEY (kind, name)
);

CREATE TABLE locktender.limit_history (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    who text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    before bytea,
    after bytea,
    reason text NOT NULL
);

CREATE TABLE locktender.event (
    seq bigint PRIMARY KEY,
    at bigint NOT NULL,
    term bigint NOT NULL,
    cycle bigint NOT NULL,
    run bigint NOT NULL,
    actor text NOT NULL,
    body bytea NOT NULL
);

CREATE INDEX event_run ON locktender.event (run, seq);

-- One row: what the last audit has to know of the history up to a seq. Nothing depends on it but time.
CREATE TABLE locktender.audit_state (
    one integer PRIMARY KEY CHECK (one = 1),
    seq bigint NOT NULL,
    at bigint NOT NULL,
    version text NOT NULL,
    batches bigint NOT NULL,
    body bytea NOT NULL
);

-- How far each named reader of the history has come.
CREATE TABLE locktender.event_reader (
    name text PRIMARY KEY,
    cursor text NOT NULL,
    at bigint NOT NULL
);

-- Waits in the line of those who admit runs, and reads behind it whether these may be admitted: the limits and
-- lanes are those that they were reckoned by, no id is stored, graphs exist, and they fit under the ceiling. In a
-- function, so that this is read after the lock was granted, and no client is waited for while it is held.
CREATE FUNCTION locktender.may_admit(
    lock_class integer, lock_number integer, version bigint, ids text[], ceiling bigint, wanted bigint,
    lanes bigint[], signatures text[], graphs text[], most bigint, at bigint
) RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = '10s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(lock_class, lock_number);
    RETURN EXISTS (
        SELECT 1 FROM locktender.meta l, locktender.counter c, locktender.closed d
        WHERE l.name = 'last_run' AND l.value BETWEEN 0 AND most
            AND locktender.locktender_now() - at BETWEEN 0 AND 1000000
            AND (SELECT limits_version FROM locktender.leader WHERE one) = version
            AND NOT EXISTS (SELECT 1 FROM locktender.run r WHERE r.id = ANY(ids))
            AND c.name = '' AND d.name = ''
            AND c.admitted BETWEEN 0 AND 144115188075855872 AND d.closed BETWEEN 0 AND 144115188075855872
            AND (ceiling < 0 OR c.admitted - d.closed + wanted <= ceiling)
            AND NOT EXISTS (
                SELECT 1 FROM unnest(lanes, signatures) v (lane, signature)
                WHERE NOT EXISTS (
                    SELECT 1 FROM locktender.lane n WHERE n.id = v.lane AND n.signature = v.signature
                )
            )
            AND NOT EXISTS (
                SELECT 1 FROM unnest(graphs) v (hash)
                WHERE NOT EXISTS (SELECT 1 FROM locktender.graph g WHERE g.hash = v.hash)
            )
    );
END $$;

-- Which server has the history, and in which file. A server that takes over was started at another time; a
-- database or a table that was restored is another file.
CREATE FUNCTION locktender.history_place() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws(
        ' ', extract(epoch FROM pg_postmaster_start_time()), pg_relation_filepath('locktender.event')
    )
$$;

-- What bodies logged: one row per attempt that logged anything, written by its worker while it runs and before
-- its end. `lines`: how many it has logged in all, also those that were dropped. `last_at`: of its newest line;
-- the newest lines of a run are found by it.
CREATE TABLE locktender.log (
    task bigint NOT NULL,
    token bigint NOT NULL,
    attempt bigint NOT NULL,
    lines bigint NOT NULL,
    last_at bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (task, token)
);
CREATE INDEX log_newest ON locktender.log ((task >> 20), last_at, task, token);

-- Workers that a leader asked for, from before it asks until they are gone: the next leader counts them too.
CREATE TABLE locktender.asked_worker (
    name text PRIMARY KEY,
    asked_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    joined_at bigint NOT NULL,
    body bytea NOT NULL
);

-- One row: what the provisioner of the leader of that term is doing.
CREATE TABLE locktender.provisioner (
    one integer PRIMARY KEY CHECK (one = 1),
    term bigint NOT NULL,
    status bytea NOT NULL
);

-- Small tables whose rows change all the time are vacuumed by count, not by share.
ALTER TABLE locktender.queue SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE locktender.orders SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE locktender.request SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Who may call what is granted by name: locktender db grant-worker, grant-submit.
REVOKE ALL ON FUNCTION
    locktender.locktender_now(), locktender.event_number(xid8), locktender.event_base(), locktender.event_horizon(),
    locktender.history_place(), locktender.submit_run(text, bytea, boolean),
    locktender.declare_schedule(text, bigint, bigint, bytea, bytea, bigint, bytea, bytea, text),
    locktender.may_admit(
        integer, integer, bigint, text[], bigint, bigint, bigint[], text[], text[], bigint, bigint
    )
FROM PUBLIC;
