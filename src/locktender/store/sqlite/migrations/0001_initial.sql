-- The tables, and who writes them.
--
--   run, queue, waiting, active_key, counter, request   submitters write, the leader closes
--   task, node_input, orders                   the leader until acceptance, then the worker
--   leader, worker                             their owners, by lease
--   limit_rule, limit_history                  operators and code
--   event                                      everybody, once per change; seq is commit order
--
-- Instants are integer microseconds of locktender_now(). Tasks are found by id and
-- by the range of their run; no index mentions a task's state, so that a change
-- of state writes one place. Wide values stand last in a row: what is read
-- often lies before them.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO meta (name, value) VALUES ('limits_version', 0), ('workers_version', 0);

-- One row. `cycle` and `seq` are of the last commit, to recognise its repetition.
CREATE TABLE leader (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    term INTEGER NOT NULL,
    owner TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    cycle INTEGER NOT NULL,
    seq INTEGER NOT NULL
);

INSERT INTO leader (one, term, owner, expires_at, cycle, seq) VALUES (1, 0, '', 0, 0, 0);

CREATE TABLE graph (
    hash TEXT PRIMARY KEY,
    body BLOB NOT NULL
);

CREATE TABLE run (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    kind TEXT NOT NULL,
    flow TEXT NOT NULL,
    graph TEXT NOT NULL,
    tags TEXT NOT NULL,
    priority INTEGER NOT NULL,
    key TEXT,
    generation INTEGER NOT NULL,
    verdict TEXT,
    lane INTEGER NOT NULL,
    rank1 INTEGER NOT NULL,
    rank2 INTEGER NOT NULL,
    waits_for INTEGER,
    queued_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    deadline_us INTEGER,
    deadline_at INTEGER,
    queue_timeout_us INTEGER,
    dispatch_deadline_us INTEGER,
    params BLOB NOT NULL,
    consts BLOB NOT NULL,
    output BLOB,
    error BLOB,
    trace TEXT  -- of the submitter (W3C traceparent)
);

CREATE INDEX run_state ON run (state, seq);
-- Those that failed last.
CREATE INDEX run_failed ON run (ended_at) WHERE state IN ('failed', 'timed_out');
CREATE INDEX run_key ON run (key, state) WHERE key IS NOT NULL;
CREATE INDEX run_waits_for ON run (waits_for) WHERE waits_for IS NOT NULL;

CREATE INDEX run_deadline ON run (deadline_at) WHERE state = 'queued' AND deadline_at IS NOT NULL;

CREATE TABLE lane (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    signature TEXT NOT NULL UNIQUE
);

-- Exactly the queued runs, each lane in its order.
CREATE TABLE queue (
    lane INTEGER NOT NULL,
    rank1 INTEGER NOT NULL,
    rank2 INTEGER NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (lane, rank1, rank2, run)
) WITHOUT ROWID;

CREATE INDEX queue_order ON queue (rank1, rank2, run);

CREATE TABLE active_key (
    key TEXT PRIMARY KEY,
    run INTEGER NOT NULL
) WITHOUT ROWID;

-- Active runs under '' (all of them) and under each tag rule that has a ceiling: admitted - closed.
CREATE TABLE counter (
    name TEXT PRIMARY KEY,
    admitted INTEGER NOT NULL,
    closed INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO counter (name, admitted, closed) VALUES ('', 0, 0);

-- Runs closed in each second of the last minute: a ring of 60 rows, for an honest Retry-After.
CREATE TABLE drain (
    slot INTEGER PRIMARY KEY,
    second INTEGER NOT NULL,
    closed INTEGER NOT NULL
);

CREATE TABLE task (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    abandons INTEGER NOT NULL,
    offers INTEGER NOT NULL,
    token INTEGER NOT NULL,
    worker TEXT,
    held BLOB,
    requested_at INTEGER NOT NULL,
    scheduled_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    eligible_at INTEGER NOT NULL,
    input BLOB,
    output BLOB,
    error BLOB
);

CREATE TABLE node_input (
    run INTEGER NOT NULL,
    node INTEGER NOT NULL,
    input BLOB NOT NULL,
    PRIMARY KEY (run, node)
);

CREATE TABLE orders (
    task INTEGER NOT NULL,
    kind TEXT NOT NULL,
    worker TEXT NOT NULL,
    token INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (task, kind)
) WITHOUT ROWID;

CREATE INDEX orders_worker ON orders (worker);

CREATE TABLE worker (
    id TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    lease_us INTEGER NOT NULL,
    body BLOB NOT NULL
);

-- Ids of workers declared lost: they may not renew. Kept for a day.
CREATE TABLE lost_worker (
    id TEXT PRIMARY KEY,
    lost_at INTEGER NOT NULL
);

CREATE TABLE bucket (
    pool TEXT PRIMARY KEY,
    tat INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE reservation (
    task INTEGER NOT NULL,
    pool TEXT NOT NULL,
    slots INTEGER NOT NULL,
    PRIMARY KEY (task, pool)
) WITHOUT ROWID;

-- Slots of dead workers' attempts, in pools whose own lease has not passed yet.
CREATE TABLE linger (
    task INTEGER NOT NULL,
    token INTEGER NOT NULL,
    pool TEXT NOT NULL,
    slots INTEGER NOT NULL,
    until INTEGER NOT NULL,
    worker TEXT NOT NULL,
    PRIMARY KEY (task, token, pool)
) WITHOUT ROWID;

-- Executing runs that no live worker could go on with: they count neither at the run gate nor in tags' limits.
-- keeps: a JSON list of limits of tags at which such a run, or one that waits or is queued again, counts all the same.
CREATE TABLE unplaced (
    run INTEGER PRIMARY KEY,
    keeps TEXT
);

-- Exactly the waiting runs: when each is to be woken. It stands in no lane and no leader's memory until then.
CREATE TABLE waiting (
    run INTEGER PRIMARY KEY,
    wake_at INTEGER NOT NULL
);

CREATE INDEX waiting_order ON waiting (wake_at, run);

-- Events that were sent: to a run's mailbox, or to a topic (run 0). Rows go with their run, of a topic after a time.
-- `task`: no other wait of the run takes it; 0: the first that waits for it.
CREATE TABLE mail (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    id TEXT,
    match TEXT NOT NULL,
    at INTEGER NOT NULL,
    payload BLOB NOT NULL,
    task INTEGER NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX mail_once ON mail (run, name, id);
CREATE INDEX mail_order ON mail (run, name, n);
CREATE INDEX mail_times ON mail (run, name, at);

-- Events that a run has consumed: delivered to one of its tasks, or refused (task 0).
CREATE TABLE mail_taken (
    run INTEGER NOT NULL,
    n INTEGER NOT NULL,
    task INTEGER NOT NULL,
    PRIMARY KEY (run, n)
) WITHOUT ROWID;

-- Exactly the tasks that wait for an event.
CREATE TABLE event_wait (
    task INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    match TEXT NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL
);

CREATE INDEX event_wait_run ON event_wait (run);
CREATE INDEX event_wait_name ON event_wait (name, run);
CREATE INDEX event_wait_until ON event_wait (until, task);

-- By which tokens of waits are signed; one row, made when the first is asked for.
CREATE TABLE event_key (
    id INTEGER PRIMARY KEY,
    secret BLOB NOT NULL
);

-- Results of steps that are kept for tasks with the same key. Only the leader writes them.
CREATE TABLE cached_result (
    key TEXT PRIMARY KEY,
    step TEXT NOT NULL,
    flow TEXT NOT NULL,
    scope TEXT NOT NULL,
    task INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    output BLOB NOT NULL
);

CREATE INDEX cached_result_end ON cached_result (expires_at);
CREATE INDEX cached_result_age ON cached_result (made_at, size);

-- The last starts under each throttle of submissions, as a JSON array of instants, until they bound nobody.
CREATE TABLE throttle (
    name TEXT PRIMARY KEY,
    until INTEGER NOT NULL,
    starts BLOB NOT NULL
) WITHOUT ROWID;

-- Workers whose lease is kept and that left offers unanswered.
CREATE TABLE silence (
    worker TEXT PRIMARY KEY,
    unanswered INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;

-- What clients ask of the leader; a row is deleted when it is done.
CREATE TABLE request (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,  -- how many leaders began to carry it out
    body BLOB NOT NULL
);

-- What the leader answered to questions of clients. Kept for a minute; no copy has it.
CREATE TABLE answer (
    question TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- Runs that applications submitted inside their own transactions (PostgreSQL), where a store was copied from there.
CREATE TABLE outbox (
    id TEXT PRIMARY KEY,
    n INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    answer BLOB,
    answered_at INTEGER
) WITHOUT ROWID;

CREATE INDEX outbox_open ON outbox (n) WHERE answer IS NULL;
CREATE INDEX outbox_answered ON outbox (answered_at) WHERE answer IS NOT NULL;

-- What workers announced of their flows, for submissions by name. It stays when they are gone.
CREATE TABLE flow (
    name TEXT PRIMARY KEY,
    announced_at INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- Schedules: what code declared, what an operator set (it wins), how far the leader has come.
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    next_at INTEGER,  -- when the leader looks at it next
    declared BLOB,
    live BLOB,
    state BLOB NOT NULL
) WITHOUT ROWID;

CREATE INDEX schedule_next ON schedule (next_at) WHERE next_at IS NOT NULL;

-- What became of the last ticks of each schedule.
CREATE TABLE schedule_tick (
    name TEXT NOT NULL,
    tick INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    run TEXT,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (name, tick)
) WITHOUT ROWID;

CREATE TABLE schedule_history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    name TEXT NOT NULL,
    who TEXT NOT NULL,
    what TEXT NOT NULL,
    before BLOB,
    after BLOB,
    reason TEXT NOT NULL
);

CREATE INDEX schedule_history_name ON schedule_history (name, seq);

-- Tokens of the HTTP API, as hashes; and sessions of browsers, which have the rights of the token `parent`.
-- `made_with` is the token by which a token was made: it is revoked with that one.
CREATE TABLE token (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    parent TEXT,
    hash BLOB NOT NULL,
    body BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    used_at INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT,
    made_with TEXT
) WITHOUT ROWID;

CREATE UNIQUE INDEX token_name ON token (name) WHERE revoked_at IS NULL AND parent IS NULL;

-- Idempotency-Key of requests that are being answered: the first body of a key counts. Later its run is found by id.
CREATE TABLE idempotency (
    id TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX idempotency_at ON idempotency (at);

CREATE TABLE limit_rule (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    declared BLOB,
    live BLOB,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

CREATE TABLE limit_history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    before BLOB,
    after BLOB,
    reason TEXT NOT NULL
);

CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    term INTEGER NOT NULL,
    cycle INTEGER NOT NULL,
    actor TEXT NOT NULL,
    run INTEGER NOT NULL,
    body BLOB NOT NULL
);

CREATE INDEX event_run ON event (run, seq);

-- One row: what the last audit has to know of the history up to a seq. Nothing depends on it but time.
CREATE TABLE audit_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    version TEXT NOT NULL,
    batches INTEGER NOT NULL,
    body BLOB NOT NULL
);

-- How far each named reader of the history has come.
CREATE TABLE event_reader (
    name TEXT PRIMARY KEY,
    cursor TEXT NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;

-- What bodies logged: one row per attempt that logged anything, written by its worker while it runs and before
-- its end. `lines`: how many it has logged in all, also those that were dropped. `last_at`: of its newest line;
-- the newest lines of a run are found by it. The body is last: what stands behind it takes a walk over its pages.
CREATE TABLE log (
    task INTEGER NOT NULL,
    token INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lines INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (task, token)
);
CREATE INDEX log_newest ON log (task >> 20, last_at, task, token);

-- Workers that a leader asked for, from before it asks until they are gone: the next leader counts them too.
CREATE TABLE asked_worker (
    name TEXT PRIMARY KEY,
    asked_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    joined_at INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- One row: what the provisioner of the leader of that term is doing.
CREATE TABLE provisioner (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    term INTEGER NOT NULL,
    status BLOB NOT NULL
);
