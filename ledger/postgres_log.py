"""The recorder on PostgreSQL: one head row a space, taken before anything is read to decide.

Nobody waits but the writers of one space, and only for that row: no table lock, no advisory lock,
no notification. A commit is three journeys: take the head, read what decides, append and commit.
"""

import os
import select
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from memoranda.ledger import chain
from memoranda.ledger.errors import (
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.recorder import Recorder
from memoranda.ledger.sql_log import HEAD, SQLSnapshot, SQLTransaction, copy_log
from memoranda.ledger.sqlite_files import SpaceLock, connect_copy
from memoranda.ledger.sqlite_log import SCHEMA_NUMBER, SQLiteSnapshot, copy_into
from memoranda.ledger.stamps import Stamps

Raw = psycopg.Connection[tuple[object, ...]]
SCHEMA = files("memoranda.ledger").joinpath("postgres.sql").read_text("utf-8")
SCHEMA_NAME = "memoranda schema 1"
"""What the comment of the table of heads says."""

POOL_MAX = 8
"""Connections of one process to one server, over all its spaces."""

WAIT_S = 10.0

_DECIDE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NAME = "SET LOCAL memoranda.space = ?"
_TAKE = f"{HEAD} FOR UPDATE"
_MAKE = "INSERT INTO heads VALUES (?, 0, ?, 0, 0) ON CONFLICT (space) DO NOTHING"
DUE_MAX = 500
"""Statements that wait for a journey, before they make one of their own."""


class Session:
    """A connection as the shared SQL wants it: values stand as `?`.

    What nobody waits for an answer of is due, and travels with the next statement that is asked:
    as one text, which costs both sides less than a pipeline (0.5 against 0.7 ms of CPU a commit).
    Statements that travel alone are prepared.
    """

    def __init__(self, raw: Raw, space: str, begin: str) -> None:
        self._raw = raw
        self._due: list[tuple[str, Sequence[object]]] = [(begin, ()), (_NAME, (space,))]

    def execute(
        self, sql: str, values: Sequence[object] = (), /
    ) -> psycopg.Cursor[tuple[object, ...]]:
        """Runs what is due and then one statement, whose answer this is."""
        if not self._due:
            return self._raw.execute(_marked(sql), values)
        self._due.append((sql, values))
        return self._sent()

    def executemany(self, sql: str, values: Iterable[Sequence[object]], /) -> None:
        """Lets one statement for each of some values be due."""
        for each in values:
            self._due.append((sql, each))
            if len(self._due) > DUE_MAX:
                self._sent()

    def _sent(self) -> psycopg.Cursor[tuple[object, ...]]:
        text = "; ".join(_marked(sql) for sql, _ in self._due)
        values = [value for _, each in self._due for value in each]
        self._due.clear()
        whole = psycopg.ClientCursor(self._raw).mogrify(text, values)
        cursor = self._raw.execute(whole, prepare=False)
        while cursor.nextset():
            pass
        return cursor


class PostgresTransaction(SQLTransaction):
    """The deciding transaction: its head is taken before anything else is read."""

    def _head_row(self) -> tuple[object, ...] | None:
        row = self._connection.execute(_TAKE, (self._space,)).fetchone()
        if row is None:
            # A select that found no row has locked nothing: make the row, and lock that.
            made = (self._space, chain.origin(self._space))
            self._connection.executemany(_MAKE, [made])
            row = self._connection.execute(_TAKE, (self._space,)).fetchone()
        if row is not None and row[-1] is None:
            # Whoever waited got the head as it is now, beside events as they were before.
            row = super()._head_row()
        return row


class PostgresSpace:
    """An engine: the log of one space on a server, beside those of other spaces."""

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

    def put(self, copy: Path) -> None:
        """In one transaction; only in such a one do the tables let a log be removed."""
        with (
            closing(connect_copy(copy, schema_number=SCHEMA_NUMBER)) as source,
            self._session() as session,
        ):
            self._remove(session)
            copy_log(SQLiteSnapshot(source, self._space), session, self._space)

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
            with psycopg.connect(self._url, autocommit=True) as raw:
                session = Session(raw, self._space, _DECIDE)
                yield session
                session.execute("COMMIT")
        except psycopg.Error as error:
            raise _named(error) from error


class PostgresRecorder(Recorder):
    """The log of one space on a server; `lock` queues the writers of this host before it."""

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
    def deciding(self) -> Iterator[SQLTransaction]:
        """Holds the space's head row from the first read to the durable append.

        An exception inside rolls back. Raises StorageFault when nothing was written, and
        OutcomeUnknown when the connection was lost at the durable write itself.
        """
        ending: list[bool] = []
        with (
            self._lock.held(),
            _faults_named(ending),
            self._pool.connection(WAIT_S) as raw,
        ):
            session = Session(raw, self._space, _DECIDE)
            transaction = PostgresTransaction(session, self._space, self._stamps)
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
                yield SQLSnapshot(session, self._space)
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
    _open: dict[tuple[int, str], tuple[ConnectionPool[Raw], int]] = {}  # noqa: RUF012

    @classmethod
    def take(cls, url: str) -> ConnectionPool[Raw]:
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


def _pool(url: str) -> ConnectionPool[Raw]:
    return ConnectionPool(
        url,
        min_size=1,
        max_size=POOL_MAX,
        open=True,
        kwargs={"autocommit": True},
        check=_check,
    )


def _check(raw: Raw) -> None:
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


def _create(raw: Raw) -> None:
    try:
        with raw.transaction():
            raw.execute(SCHEMA)
            raw.execute(f"COMMENT ON TABLE heads IS '{SCHEMA_NAME}'")
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateObject):
        pass  # another process was first


def _schema(raw: Raw) -> str | None:
    """What the table of heads says of itself; None when there is none."""
    row = raw.execute(
        "SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class"
        " WHERE oid = to_regclass('heads')"
    ).fetchone()
    return str(row[0]) if row else None


def _refuse_forgetful(raw: Raw) -> None:
    for setting in ("fsync", "synchronous_commit"):
        (value,) = raw.execute(f"SHOW {setting}").fetchone() or ("off",)
        if value == "off":
            message = f"the server has {setting} off: what it acknowledges may be lost"
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "engine", message))


def _not_ours(found: str | None) -> Refused:
    if found and found.startswith("memoranda schema "):
        return Refused(Refusal.SCHEMA_NEWER, "engine")
    return Refused(Refusal.SPACE_UNKNOWN, "engine", "the server has other tables of these names")


@cache
def _marked(sql: str) -> str:
    return sql.replace("?", "%s")


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
