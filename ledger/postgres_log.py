"""The recorder on PostgreSQL: one head row a space, taken before anything is read to decide.

Nobody waits but the writers of one space, and only for that row: no table lock, no advisory lock,
no notification. A commit is two journeys: take the head and what decides, append and commit.
"""

import fcntl
import os
import re
import select
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from memoranda.ledger import chain
from memoranda.ledger.entries import Head, Row
from memoranda.ledger.errors import OutcomeUnknown, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.recorder import Asked, Recorder
from memoranda.ledger.sql_log import (
    AT_POSITIONS,
    BODIES,
    SQLSnapshot,
    SQLTransaction,
    copy_log,
    found_under,
    under,
)
from memoranda.ledger.sqlite_files import connect_copy
from memoranda.ledger.sqlite_log import SCHEMA_NUMBER, SQLiteSnapshot, copy_into
from memoranda.ledger.stamps import Stamps

SCHEMA = files("memoranda.ledger").joinpath("postgres.sql").read_text("utf-8")
SCHEMA_NAME = "memoranda schema 1"
"""What the comment of the table of heads says."""

POOL_MAX = 8
"""Connections of one process to one server, over all its spaces."""

WAIT_S = 10.0

_DECIDE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NAME = "SELECT set_config('memoranda.space', ?, true)"
_TAKE = "SELECT 1 FROM heads WHERE space = ? FOR UPDATE"
_MAKE = "INSERT INTO heads VALUES (?, 0, ?, 0, 0) ON CONFLICT (space) DO NOTHING"
DUE_MAX = 500
"""Statements that wait for a journey, before they make one of their own."""

PREPARED_MAX = 100
"""Statements that one connection keeps prepared."""

PREPARED_CHARS_MAX = 4_000
"""Three times a usual boundary; of one of a hundred look-ups the server would keep megabytes."""

BY_KEY = {
    AT_POSITIONS: (
        "p CROSS JOIN LATERAL"
        " (SELECT * FROM events WHERE space = ? AND position = p.position OFFSET 0) e"
        f" {BODIES} WHERE true"
    ),
    BODIES: (
        "LEFT JOIN LATERAL"
        " (SELECT * FROM bodies WHERE space = e.space AND position = e.position OFFSET 0) b ON true"
    ),
}
"""Joins by the primary key: a planner that takes a space for small reads all of it, for ever."""

Statement = tuple[str, Sequence[object]]
Cursor = psycopg.Cursor[tuple[Any, ...]]


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that runs several statements as one text, and prepares what it meets again.

    One text costs both sides less than a pipeline (0.5 against 0.7 ms of CPU a commit), and to plan
    a boundary costs the server five times as much as to run it.
    """

    def __init__(self, *known: Any, **named: Any) -> None:
        super().__init__(*known, **named)
        self._met: set[str] = set()
        self._names: dict[str, str] = {}

    def sent(self, statements: Sequence[Statement]) -> Cursor:
        """Runs them in one journey; a cursor at the first answer."""
        known = len(self._names)
        text = "; ".join(self._text(sql, len(values)) for sql, values in statements)
        every = [value for _, values in statements for value in values]
        try:
            return self.execute(psycopg.ClientCursor(self).mogrify(text, every), prepare=False)
        except BaseException:
            if len(self._names) > known:
                self.close()  # nobody knows which of them are prepared
            raise

    def _text(self, sql: str, count: int) -> str:
        if name := self._names.get(sql):
            return f"EXECUTE {name}({', '.join(['%s'] * count)})"
        spelled = _spelled(sql)
        if sql not in self._met or not count:
            if len(self._met) < PREPARED_MAX and len(sql) < PREPARED_CHARS_MAX:
                self._met.add(sql)
            return spelled.replace("?", "%s")
        self._names[sql] = f"memoranda_{len(self._names)}"
        numbers = iter(range(1, count + 1))
        numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", spelled)
        return f"PREPARE {self._names[sql]} AS {numbered}; {self._text(sql, count)}"


def _spelled(sql: str) -> str:
    """The shared SQL as this engine is to read it."""
    for shared, own in BY_KEY.items():
        sql = sql.replace(shared, own)
    return sql


class Session:
    """A connection as the shared SQL wants it: values stand as `?`.

    What nobody waits for an answer of is due, and travels with the next statement that is asked.
    """

    def __init__(self, raw: Connection, space: str, begin: str) -> None:
        self._raw = raw
        self._due: list[Statement] = [(begin, ()), (_NAME, (space,))]

    def execute(self, sql: str, values: Sequence[object] = (), /) -> Cursor:
        """Runs what is due and then one statement, whose answer this is."""
        self._due.append((sql, values))
        cursor = self._sent()
        while cursor.nextset():
            pass
        return cursor

    def executemany(self, sql: str, values: Iterable[Sequence[object]], /) -> None:
        """Lets one statement for each of some values be due."""
        for each in values:
            self._due.append((sql, each))
            if len(self._due) > DUE_MAX:
                self._sent()

    def rows(self, asked: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
        """Runs what is due and then some statements, in one journey; the rows of each."""
        self._due += asked
        cursor, found = self._sent(), []
        while True:
            if cursor.pgresult and cursor.pgresult.nfields:
                found.append(cursor.fetchall())
            if not cursor.nextset():
                return found[-len(asked) :]

    def _sent(self) -> Cursor:
        due, self._due = self._due, []
        return self._raw.sent(due)


class PostgresTransaction(SQLTransaction):
    """The deciding transaction: its head is taken before anything else is read."""

    def __init__(
        self, session: Session, space: str, stamps: Stamps, seen: Head, first: Sequence[Asked]
    ) -> None:
        self._session = session
        self._first = list(first)
        super().__init__(session, space, stamps, seen)

    def _head_row(self) -> tuple[Any, ...]:
        # What stands behind the lock in one text sees what was there when the lock was had.
        look: list[Statement] = [(_TAKE, (self._space,)), self._head_asked()]
        if self._first:
            look.append(under(self._space, self._first))
        taken, head, *found = self._session.rows(look)
        if not taken:
            # A select that found no row has locked nothing: make the row, and lock that.
            made = (self._space, chain.origin(self._space))
            self._session.executemany(_MAKE, [made])
            taken, head, *found = self._session.rows(look)
        self._found = [found_under(self._first, rows) for rows in found]
        return head[0]

    def under(self, asked: Sequence[Asked]) -> list[list[Row]]:
        """The events under each of some tags; what was to be asked first came with the head."""
        if self._found and asked == self._first:
            return self._found.pop()
        return super().under(asked)


class PostgresSpace:
    """An engine: the log of one space on a server, beside those of other spaces."""

    is_shared = True
    leftover = (
        "the PostgreSQL server: its tables until they are vacuumed, its write-ahead log, replicas"
        " and archives hold the sealed bodies, which no key opens once they are erased"
    )

    def __init__(self, url: str, space: str) -> None:
        self._url = url
        self._space = space

    def recorder(self, lock: SpaceLock, stamps: Stamps) -> "PostgresRecorder":
        """Connects; makes the tables where there are none."""
        return PostgresRecorder(self._url, self._space, lock, stamps)

    def exists(self) -> bool:
        """Whether the server has a log of this space."""
        _make_tables(self._url)
        with self._session() as session:
            found = session.execute("SELECT position FROM heads WHERE space = ?", (self._space,))
            row = found.fetchone()
        return row is not None and row[0] != 0

    def put(self, copy: Path) -> Head:
        """In one transaction; only in such a one do the tables let a log be removed."""
        with (
            closing(connect_copy(copy, schema_number=SCHEMA_NUMBER)) as source,
            self._session() as session,
        ):
            session.execute(_TAKE, (self._space,))
            replaced = SQLSnapshot(session, self._space).head
            self._remove(session)
            copy_log(SQLiteSnapshot(source, self._space), session, self._space)
        return replaced

    def set_aside(self, file: Path) -> None:
        """Copies the log into the file, and removes it."""
        with self._session() as session:
            session.execute(_TAKE, (self._space,))
            copy_into(file, SQLSnapshot(session, self._space), self._space)
            self._remove(session)

    def _remove(self, session: "Session") -> None:
        session.execute("SELECT set_config('memoranda.replacing', 'on', true)")
        for table in ("bodies", "tags", "events", "heads"):
            session.executemany(f"DELETE FROM {table} WHERE space = ?", [(self._space,)])

    @contextmanager
    def _session(self) -> Iterator["Session"]:
        try:
            with Connection.connect(self._url, autocommit=True) as raw:
                session = Session(raw, self._space, _DECIDE)
                yield session
                session.execute("COMMIT")
        except psycopg.Error as error:
            raise _named(error) from error


class PostgresRecorder(Recorder):
    """The log of one space on a server; its writers share `lock`, and queue for the head row."""

    def __init__(self, url: str, space: str, lock: SpaceLock, stamps: Stamps) -> None:
        self._space = space
        self._lock = lock
        self._stamps = stamps
        _make_tables(url)
        self._pool = _Pools.take(url)
        self._url = url

    def close(self) -> None:
        """Gives the connections back; the last recorder of a process closes them."""
        _Pools.give_back(self._url)

    @contextmanager
    def deciding(self, first: Sequence[Asked] = ()) -> Iterator[SQLTransaction]:
        """Holds the space's head row from the first read to the durable append.

        An exception inside rolls back. Raises StorageFault when nothing was written, and
        OutcomeUnknown when the connection was lost at the durable write itself.
        """
        ending: list[bool] = []
        with (
            self._lock.held(kind=fcntl.LOCK_SH),
            _faults_named(ending),
            self._pool.connection(WAIT_S) as raw,
        ):
            session = Session(raw, self._space, _DECIDE)
            transaction = PostgresTransaction(session, self._space, self._stamps, self.seen, first)
            before = transaction.head
            yield transaction
            if transaction.head == before:
                session.execute("ROLLBACK")
                return
            transaction.write_head()
            self._stamps.step("log:commit")
            ending.append(True)
            session.execute("COMMIT")
        self._stamps.step("log:committed")

    @contextmanager
    def reading(self) -> Iterator[SQLSnapshot]:
        """One snapshot; short, since the server keeps what is removed meanwhile."""
        try:
            with self._pool.connection(WAIT_S) as raw:
                session = Session(raw, self._space, _READ)
                yield SQLSnapshot(session, self._space, self.seen)
                session.execute("ROLLBACK")
        except (psycopg.Error, PoolTimeout) as error:
            raise StorageFault("the log could not be read from the server") from error

    def copy_to(self, path: Path) -> None:
        """Writes the log as it is now into an empty SQLite file."""
        with self.reading() as snapshot:
            copy_into(path, snapshot, self._space)

    def truncate(self) -> bool:
        """Nothing to do: what the server still holds of removed rows lies under removed keys."""
        return True


class _Pools:
    """The pools of this process, by server; shared by all its spaces."""

    _guard = threading.Lock()
    _open: dict[tuple[int, str], tuple[ConnectionPool[Connection], int]] = {}  # noqa: RUF012

    @classmethod
    def take(cls, url: str) -> ConnectionPool[Connection]:
        # A fork inherits the dictionary, and must not touch its parent's connections.
        key = (os.getpid(), url)
        with cls._guard:
            pool, users = cls._open.get(key) or (_pool(url), 0)
            cls._open[key] = pool, users + 1
        return pool

    @classmethod
    def give_back(cls, url: str) -> None:
        key = (os.getpid(), url)
        with cls._guard:
            pool, users = cls._open.pop(key)
            if users > 1:
                cls._open[key] = pool, users - 1
                return
        pool.close()


def _pool(url: str) -> ConnectionPool[Connection]:
    return ConnectionPool(
        url,
        connection_class=Connection,
        min_size=1,
        max_size=POOL_MAX,
        open=True,
        kwargs={"autocommit": True},
        configure=_configure,
        check=_check,
    )


def _configure(raw: Connection) -> None:
    """Plans are made once, for whatever size the tables come to: each look-up goes by its key."""
    raw.execute(
        f"SET lock_timeout = '{WAIT_S * 1000:.0f}ms';"
        " SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off"
    )


def _check(raw: Connection) -> None:
    """Raises psycopg.Error for a connection that has ended; asks the server only if it spoke."""
    waiting = select.poll()
    waiting.register(raw.fileno(), select.POLLIN)
    if waiting.poll(0):
        ConnectionPool.check_connection(raw)


def _make_tables(url: str) -> None:
    """Makes the tables of a new server; raises RefusedError for a server that will not do."""
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=int(WAIT_S)) as raw:
            _refuse_forgetful(raw)
            if _schema(raw) is None:
                _create(raw)
            if (found := _schema(raw)) != SCHEMA_NAME:
                raise RefusedError(_not_ours(found))
    except psycopg.Error as error:
        message = "the server cannot be reached, or does not let this user in"
        raise RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, "engine", message)) from error


def _create(raw: psycopg.Connection[Any]) -> None:
    try:
        with raw.transaction():
            raw.execute(SCHEMA)
            raw.execute(f"COMMENT ON TABLE heads IS '{SCHEMA_NAME}'")
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject):
        pass  # another process was first


def _schema(raw: psycopg.Connection[Any]) -> str | None:
    """What the table of heads says of itself; None when there is none."""
    row = raw.execute(
        "SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class"
        " WHERE oid = to_regclass('heads')"
    ).fetchone()
    return str(row[0]) if row else None


def _refuse_forgetful(raw: psycopg.Connection[Any]) -> None:
    for setting in ("fsync", "synchronous_commit"):
        (value,) = raw.execute(f"SHOW {setting}").fetchone() or ("off",)
        if value == "off":
            message = f"the server has {setting} off: what it acknowledges may be lost"
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "engine", message))


def _not_ours(found: str | None) -> Refused:
    if found and found.startswith("memoranda schema "):
        return Refused(Refusal.SCHEMA_NEWER, "engine")
    return Refused(Refusal.SPACE_UNKNOWN, "engine", "the server has other tables of these names")


@contextmanager
def _faults_named(ending: list[bool]) -> Iterator[None]:
    """What a failing server means for a decision, before and after it has begun to commit."""
    try:
        yield
    except PoolTimeout as error:
        raise RefusedError(Refused(Refusal.BUSY)) from error
    except psycopg.Error as error:
        if ending and not _is_answer(error):
            message = "the connection was lost at the durable write; look the operation up"
            raise OutcomeUnknown(message) from error
        raise _named(error) from error


def _is_answer(error: psycopg.Error) -> bool:
    """Whether the server itself says that it did not commit, and goes on."""
    state = error.sqlstate or ""
    # 08: the connection; 57: somebody ends the session; XX: the server no longer knows itself.
    return bool(state) and state[:2] not in ("08", "57", "XX")


def _named(error: psycopg.Error) -> Exception:
    match (error.sqlstate or "")[:2]:
        case "40" | "55":
            return RefusedError(Refused(Refusal.BUSY))
        case "53":
            return StorageFault("the server is out of room; nothing was written")
        case "25" | "42":
            return RefusedError(Refused(Refusal.READ_ONLY, field="engine"))
        case _:
            return StorageFault("the log could not be written to the server; nothing was written")
