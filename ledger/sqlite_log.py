"""The recorder on SQLite: gapless positions under one lock, opaque tags and bytes, append only."""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from memoranda.ledger.entries import UNSEEN, Head
from memoranda.ledger.errors import (
    CLOSED,
    IntegrityFault,
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.recorder import Asked, Recorder
from memoranda.ledger.sql_log import SQLSnapshot, SQLTransaction, copy_log
from memoranda.ledger.sqlite_files import (
    CHECKPOINT_BYTES,
    connect,
    connect_copy,
    connect_reader,
    is_begun,
    refuse_foreign,
    refuse_inner,
    transaction,
    truncate_wal,
    usable,
    watch,
)
from memoranda.ledger.stamps import Stamps

SCHEMA_NUMBER = 1
SCHEMA = """
CREATE TABLE heads (
    space     TEXT PRIMARY KEY,
    position  INTEGER NOT NULL,
    chain     BLOB NOT NULL,
    term      INTEGER NOT NULL,
    key_epoch INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE events (
    space       TEXT NOT NULL,
    position    INTEGER NOT NULL,
    type        TEXT NOT NULL,
    recorded_at INTEGER NOT NULL,
    header      BLOB NOT NULL,
    tags        TEXT NOT NULL,
    commitment  BLOB NOT NULL,
    chain       BLOB NOT NULL,
    PRIMARY KEY (space, position)
) WITHOUT ROWID;
CREATE TABLE tags (
    space    TEXT NOT NULL,
    tag      TEXT NOT NULL,
    type     TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (space, tag, type, position)
) WITHOUT ROWID;
CREATE TABLE bodies (
    space    TEXT NOT NULL,
    position INTEGER NOT NULL,
    key_id   TEXT NOT NULL,
    sealed   BLOB NOT NULL,
    PRIMARY KEY (space, position)
) WITHOUT ROWID;
CREATE TRIGGER events_keep BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER events_fix BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER tags_keep BEFORE DELETE ON tags
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER tags_fix BEFORE UPDATE ON tags
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER bodies_fix BEFORE UPDATE ON bodies
    BEGIN SELECT RAISE(ABORT, 'bodies are only ever removed'); END;
"""


class SQLiteSnapshot(SQLSnapshot):
    """One consistent state of the log in its file."""

    def storage_faults(self) -> list[str]:
        """What SQLite itself finds wrong with the file, for audit."""
        faults = self._connection.execute("PRAGMA integrity_check(20)").fetchall()
        return [fault for (fault,) in faults if fault != "ok"]


class SQLiteFile:
    """An engine: the log of one space in a file of its own."""

    leftover = None
    is_shared = False

    def __init__(self, path: Path, space: str) -> None:
        self._path = path
        self._space = space

    def recorder(self, lock: SpaceLock, stamps: Stamps) -> "SQLiteRecorder":
        """Opens the file; makes it where there is none."""
        return SQLiteRecorder(self._path, self._space, lock, stamps)

    def exists(self) -> bool:
        """Whether there is a log; raises RefusedError for another program's file."""
        refuse_foreign(self._path)
        return self._path.exists() and self._path.stat().st_size > 0

    def put(self, copy: Path) -> Head:
        """Page by page in one transaction: whoever has the file open sees it change, whole."""
        opened = partial(connect, schema=SCHEMA, schema_number=SCHEMA_NUMBER)
        with (
            closing(connect_copy(copy, schema_number=SCHEMA_NUMBER)) as source,
            closing(opened(usable(self._path, SCHEMA, SCHEMA_NUMBER))) as here,
        ):
            replaced = UNSEEN
            with suppress(sqlite3.Error, IntegrityFault):
                replaced = SQLiteSnapshot(here, self._space).head
            try:
                source.backup(here)
            except sqlite3.Error as error:
                raise StorageFault("the log could not be put in its place") from error
            truncate_wal(here)
        return replaced

    def set_aside(self, file: Path) -> None:
        """Renames it."""
        self._path.rename(file)


class SQLiteRecorder(Recorder):
    """The log of one space in one file."""

    def __init__(self, path: Path, space: str, lock: SpaceLock, stamps: Stamps) -> None:
        self._space = space
        self._stamps = stamps
        self._lock = lock
        self._wal = path.with_name(path.name + "-wal")
        with lock.held():
            self._writer = connect(path, schema=SCHEMA, schema_number=SCHEMA_NUMBER)
            self._has_moved = watch(path)
            self.truncate()
        self._reader = connect_reader(path, schema_number=SCHEMA_NUMBER)
        self._reader_lock = threading.RLock()

    def close(self) -> None:
        """Truncates the write-ahead log and closes; safe beside other processes."""
        with self._lock.held(), self._reader_lock:
            self._reader.close()
            self.truncate()
            self._writer.close()

    @contextmanager
    def deciding(self, first: Sequence[Asked] = ()) -> Iterator[SQLTransaction]:  # noqa: ARG002
        """Holds the space's lock from the first read to the durable append.

        An exception inside rolls back. Raises StorageFault when nothing was written, and
        OutcomeUnknown when the fault came at the durable write itself.
        """
        with self._lock.held():
            self._refuse_unsound()
            try:
                with self._transaction() as transaction:
                    yield transaction
            except sqlite3.Error as error:
                raise self._named(error) from error
            # The answer is durable by now; a checkpoint that fails is tried again after the next.
            with suppress(OSError):
                if self._wal.stat().st_size > CHECKPOINT_BYTES:
                    self.truncate()

    def copy_to(self, path: Path) -> None:
        """Writes the log as it is now into a new file, without what removed rows left behind."""
        with self._lock.held():
            self._refuse_unsound()
            try:
                self._writer.execute("VACUUM INTO ?", (str(path),))
            except sqlite3.Error as error:
                raise StorageFault("the copy of the log could not be written") from error

    @contextmanager
    def reading(self) -> Iterator[SQLiteSnapshot]:
        """One snapshot; short, since it holds back the truncation of the write-ahead log."""
        with self._reader_lock:
            self._refuse_unsound()
            try:
                with self._snapshot() as snapshot:
                    yield snapshot
            except sqlite3.Error as error:
                raise StorageFault("the log could not be read") from error

    @contextmanager
    def _snapshot(self) -> Iterator[SQLiteSnapshot]:
        refuse_inner(self._reader)
        try:
            self._reader.execute("BEGIN")
            yield SQLiteSnapshot(self._reader, self._space, self.seen)
        finally:
            if is_begun(self._reader):
                self._reader.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[SQLTransaction]:
        refuse_inner(self._writer)
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            transaction = SQLTransaction(self._writer, self._space, self._stamps, self.seen)
            before = transaction.head
            yield transaction
            if transaction.head == before:
                return
            transaction.write_head()
            self._stamps.step("log:commit")
            try:
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                # After a failed flush nobody knows what the disk holds: stop, reopen, look.
                self.has_failed = True
                raise OutcomeUnknown("the durable write failed; look the operation up") from error
            self._stamps.step("log:committed")
        finally:
            if is_begun(self._writer) and not self.has_failed:
                self._writer.execute("ROLLBACK")

    def truncate(self) -> bool:
        """Empties the write-ahead log, under the space lock; False while a reader holds it."""
        # Never waits for a reader: what cannot be truncated now is truncated after a later commit.
        return truncate_wal(self._writer, wait_ms=0)

    def _refuse_unsound(self) -> None:
        if self.has_failed:
            raise StorageFault("an earlier write failed; close the ledger and open it again")
        if self._has_moved():
            raise RefusedError(CLOSED)  # what is written there, nobody finds again

    def _named(self, error: sqlite3.Error) -> Exception:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_READONLY"):
            return RefusedError(Refused(Refusal.READ_ONLY, field="data"))
        if name.startswith("SQLITE_BUSY"):
            return RefusedError(Refused(Refusal.BUSY))
        if name == "SQLITE_FULL":
            return StorageFault("the disk is full; nothing was written")
        return StorageFault("the log could not be written; nothing was written")


def copy_into(path: Path, snapshot: SQLSnapshot, space: str) -> None:
    """Writes a log into an empty file of its own, at rest: nothing is left beside it."""
    with closing(connect(path, schema=SCHEMA, schema_number=SCHEMA_NUMBER)) as connection:
        with transaction(connection):
            copy_log(snapshot, connection, space)
        truncate_wal(connection)
