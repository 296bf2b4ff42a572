-- The log of many people: one head row a space, everything keyed and indexed by space first.
--
-- Portable SQL: no sequence, trigger, function, table lock, advisory lock, LISTEN or NOTIFY. What a
-- distributed engine that speaks PostgreSQL's protocol must offer, by who asks for it:
--
--   statement                                      feature                              Citus      YugabyteDB  CockroachDB
--   SELECT … FROM heads … FOR UPDATE               row lock, held to the commit         one shard  yes         yes
--   INSERT INTO heads … ON CONFLICT                upsert by primary key                yes        yes         yes
--   INSERT INTO events, tags, bodies               several inserts in one transaction   one shard  yes         yes
--   SELECT … WHERE space = …, joins, UNION, max    joins on the distribution column     co-located yes         yes
--   … CROSS JOIN LATERAL (SELECT … OFFSET 0)       lateral joins                        co-located yes         yes
--   DELETE FROM bodies                             delete by primary key                yes        yes         yes
--   BEGIN; SELECT / INSERT; … COMMIT               several statements in one text       yes        yes         yes
--   PREPARE … AS, EXECUTE                          prepared statements, inside a text   yes        yes         yes
--   SET lock_timeout, plan_cache_mode              an end of waiting; plans kept        yes        yes         24.2
--   BEGIN ISOLATION LEVEL READ COMMITTED           a waiter then sees the newest row    yes        2.18, flag  23.2, setting
--   BEGIN ISOLATION LEVEL REPEATABLE READ          one snapshot over several reads      one shard  yes         as SERIALIZABLE
--   CREATE POLICY … current_setting                row-level security                   11.1       yes         25.2
--
-- Distribution column of every table: space. On Citus, once, after this file:
--   SELECT create_distributed_table(name, 'space') for heads, events, tags and bodies.
-- Serializable engines may end a transaction with SQLSTATE 40001: nothing is written then, and the
-- command is refused as busy, to be sent again under its operation id.

CREATE TABLE IF NOT EXISTS heads (
    space     text COLLATE "C" PRIMARY KEY,
    position  bigint NOT NULL,
    chain     bytea NOT NULL,
    term      bigint NOT NULL,
    key_epoch bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS events (
    space       text COLLATE "C" NOT NULL,
    position    bigint NOT NULL,
    type        text COLLATE "C" NOT NULL,
    recorded_at bigint NOT NULL,
    header      bytea NOT NULL,
    tags        text COLLATE "C" NOT NULL,
    commitment  bytea NOT NULL,
    chain       bytea NOT NULL,
    PRIMARY KEY (space, position)
);

CREATE TABLE IF NOT EXISTS tags (
    space    text COLLATE "C" NOT NULL,
    tag      text COLLATE "C" NOT NULL,
    type     text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (space, tag, type, position)
);

CREATE TABLE IF NOT EXISTS bodies (
    space    text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    key_id   text COLLATE "C" NOT NULL,
    sealed   bytea NOT NULL,
    PRIMARY KEY (space, position)
);

-- A second wall behind every WHERE: a transaction sees the space it has named, and no other. What no
-- policy allows is done to nobody: events are never changed, and removed only with the whole log.

ALTER TABLE heads ENABLE ROW LEVEL SECURITY;
ALTER TABLE heads FORCE ROW LEVEL SECURITY;
ALTER TABLE events ENABLE ROW LEVEL SECURITY;
ALTER TABLE events FORCE ROW LEVEL SECURITY;
ALTER TABLE tags ENABLE ROW LEVEL SECURITY;
ALTER TABLE tags FORCE ROW LEVEL SECURITY;
ALTER TABLE bodies ENABLE ROW LEVEL SECURITY;
ALTER TABLE bodies FORCE ROW LEVEL SECURITY;

CREATE POLICY own_space ON heads
    USING (space = current_setting('memoranda.space', true));
CREATE POLICY own_space ON events FOR SELECT
    USING (space = current_setting('memoranda.space', true));
CREATE POLICY append ON events FOR INSERT
    WITH CHECK (space = current_setting('memoranda.space', true));
CREATE POLICY own_space ON tags FOR SELECT
    USING (space = current_setting('memoranda.space', true));
CREATE POLICY append ON tags FOR INSERT
    WITH CHECK (space = current_setting('memoranda.space', true));
CREATE POLICY own_space ON bodies FOR SELECT
    USING (space = current_setting('memoranda.space', true));
CREATE POLICY append ON bodies FOR INSERT
    WITH CHECK (space = current_setting('memoranda.space', true));
CREATE POLICY erase ON bodies FOR DELETE
    USING (space = current_setting('memoranda.space', true));

-- A restore puts another log in place of one, and a space that was forgotten makes room for a new
-- one: a transaction that says so may remove what it then replaces.

CREATE POLICY replaced ON events FOR DELETE USING (
    space = current_setting('memoranda.space', true)
    AND current_setting('memoranda.replacing', true) = 'on'
);
CREATE POLICY replaced ON tags FOR DELETE USING (
    space = current_setting('memoranda.space', true)
    AND current_setting('memoranda.replacing', true) = 'on'
);
