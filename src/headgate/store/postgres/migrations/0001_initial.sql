-- The tables, and who writes them.
--
--   run, queue, active_key, counter, request   submitters write, the leader closes
--   task, node_input, orders                   the leader until acceptance, then the worker
--   leader, worker                             their owners, by lease
--   limit_rule, limit_history                  operators and code
--   event                                      everybody, once per change; seq follows commit order
--
-- Instants are integer microseconds of headgate_now(). Tasks are found by id and
-- by the range of their run; no index mentions a task's state, so that a change of
-- state is a HOT update: it writes the row's page and no index. The fill factors
-- leave room for that.
--
-- The order of events. Numbers of a sequence are not in commit order: a reader
-- that has seen 11 may find 10 later. So an event's seq is made of its transaction's
-- id and its place in the transaction, and readers look only below the oldest
-- transaction still in flight: nothing can appear there any more. One transaction
-- writes its events in one statement, at most 2^20 of them.

CREATE TABLE headgate.frozen_clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    at bigint NOT NULL
);

-- The store's time. Tests put an instant into frozen_clock.
CREATE FUNCTION headgate.headgate_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        (SELECT at FROM headgate.frozen_clock),
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    )
$$;

-- The seq of this transaction's first event.
CREATE FUNCTION headgate.event_base() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_current_xact_id()::text::bigint << 20
$$;

-- No event below this seq can be added any more.
CREATE FUNCTION headgate.event_horizon() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 20
$$;

CREATE TABLE headgate.meta (
    name text PRIMARY KEY,
    value bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO headgate.meta (name, value) VALUES ('workers_version', 0), ('last_run', 0);

-- One row. `cycle` and `seq` are of the last commit, to recognise its repetition; `backend` is the
-- connection the leader writes by, so that a successor can end one that hangs in a transaction.
-- `limits_version` stands here because whoever waits for this row then sees its newest value.
CREATE TABLE headgate.leader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    term bigint NOT NULL,
    owner text NOT NULL,
    expires_at bigint NOT NULL,
    cycle bigint NOT NULL,
    seq bigint NOT NULL,
    limits_version bigint NOT NULL,
    backend integer NOT NULL,
    backend_since timestamptz
) WITH (fillfactor = 10);

INSERT INTO headgate.leader (term, owner, expires_at, cycle, seq, limits_version, backend)
VALUES (0, '', 0, 0, 0, 0, 0);

CREATE TABLE headgate.graph (
    hash text PRIMARY KEY,
    body bytea NOT NULL
);

CREATE TABLE headgate.blob (
    digest text PRIMARY KEY,
    body bytea NOT NULL
);

CREATE TABLE headgate.run (
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
    id text NOT NULL UNIQUE,
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
    error bytea
) WITH (fillfactor = 70);

CREATE INDEX run_state ON headgate.run (state, seq);
CREATE INDEX run_key ON headgate.run (key, state) WHERE key IS NOT NULL;
CREATE INDEX run_deadline ON headgate.run (deadline_at) WHERE state = 'queued' AND deadline_at IS NOT NULL;
CREATE INDEX run_prefix ON headgate.run (id COLLATE "C");
CREATE INDEX run_waits_for ON headgate.run (waits_for) WHERE waits_for IS NOT NULL;

-- A signature may be longer than an index entry: its hash is indexed.
CREATE TABLE headgate.lane (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest bytea NOT NULL UNIQUE,
    signature text NOT NULL
);

-- Exactly the queued runs, each lane in its order.
CREATE TABLE headgate.queue (
    lane bigint NOT NULL,
    rank1 bigint NOT NULL,
    rank2 bigint NOT NULL,
    run bigint NOT NULL,
    PRIMARY KEY (lane, rank1, rank2, run)
);

CREATE INDEX queue_order ON headgate.queue (rank1, rank2, run);

CREATE TABLE headgate.active_key (
    key text PRIMARY KEY,
    run bigint NOT NULL
);

-- Active runs under '' (all of them) and under each tag rule that has a ceiling: admitted - closed.
-- Two tables, so that the leader that closes never waits for a submitter that admits.
CREATE TABLE headgate.counter (
    name text PRIMARY KEY,
    admitted bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE headgate.closed (
    name text PRIMARY KEY,
    closed bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO headgate.counter (name, admitted) VALUES ('', 0);
INSERT INTO headgate.closed (name, closed) VALUES ('', 0);

-- Runs closed in each second of the last minute: a ring of 60 rows, for an honest Retry-After.
CREATE TABLE headgate.drain (
    slot bigint PRIMARY KEY,
    second bigint NOT NULL,
    closed bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE headgate.task (
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

CREATE TABLE headgate.node_input (
    run bigint NOT NULL,
    node bigint NOT NULL,
    input bytea NOT NULL,
    PRIMARY KEY (run, node)
);

CREATE TABLE headgate.orders (
    task bigint NOT NULL,
    kind text NOT NULL,
    worker text NOT NULL,
    token bigint NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (task, kind)
);

CREATE INDEX orders_worker ON headgate.orders (worker, task);
CREATE INDEX orders_stop ON headgate.orders (task) WHERE kind = 'stop';

CREATE TABLE headgate.worker (
    id text PRIMARY KEY,
    since bigint NOT NULL,
    lease_until bigint NOT NULL,
    body bytea NOT NULL
) WITH (fillfactor = 50);

-- Ids of workers declared lost: they may not renew. Kept for a day.
CREATE TABLE headgate.lost_worker (
    id text PRIMARY KEY,
    lost_at bigint NOT NULL
);

CREATE TABLE headgate.bucket (
    pool text PRIMARY KEY,
    tat bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE headgate.reservation (
    task bigint NOT NULL,
    pool text NOT NULL,
    slots bigint NOT NULL,
    PRIMARY KEY (task, pool)
);

-- Slots of dead workers' attempts, in pools whose own lease has not passed yet.
CREATE TABLE headgate.linger (
    task bigint NOT NULL,
    token bigint NOT NULL,
    pool text NOT NULL,
    slots bigint NOT NULL,
    until bigint NOT NULL,
    worker text NOT NULL,
    PRIMARY KEY (task, token, pool)
);

-- What clients ask of the leader; a row is deleted when it is done.
CREATE TABLE headgate.request (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    body bytea NOT NULL
);

CREATE TABLE headgate.limit_rule (
    kind text NOT NULL,
    name text NOT NULL,
    declared bytea,
    live bytea,
    PRIMARY KEY (kind, name)
);

CREATE TABLE headgate.limit_history (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    who text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    before bytea,
    after bytea,
    reason text NOT NULL
);

CREATE TABLE headgate.event (
    seq bigint PRIMARY KEY,
    at bigint NOT NULL,
    term bigint NOT NULL,
    cycle bigint NOT NULL,
    run bigint NOT NULL,
    actor text NOT NULL,
    body bytea NOT NULL
);

CREATE INDEX event_run ON headgate.event (run, seq);

-- Small tables whose rows change all the time are vacuumed by count, not by share.
ALTER TABLE headgate.queue SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE headgate.orders SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE headgate.request SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
