"""The file of views: tables computed from the log, each with its checkpoint; all disposable."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from memoranda.ledger.entries import Event
from memoranda.ledger.errors import CLOSED, RefusedError, StorageFault
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.sqlite_files import (
    CHECKPOINT_BYTES,
    connect,
    take_away,
    transaction,
    truncate_wal,
    watch,
)

VIEWS = "views.db"
SCHEMA_NUMBER = 1
SCHEMA = """
CREATE TABLE checkpoints (
    view     TEXT PRIMARY KEY,
    version  INTEGER NOT NULL,
    space    TEXT NOT NULL,
    position INTEGER NOT NULL,
    chain    BLOB NOT NULL
) WITHOUT ROWID;
"""
LOCK_WAIT_S = 10.0
CLOSE_WAIT_S = 1.5
CACHE_KIB = 24 * 1024

_PASSING = ("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_READONLY")
"""Faults of the moment, which say nothing about what the file holds."""


class Checkpoint(NamedTuple):
    """How far a view is, and on which log."""

    position: int
    chain: bytes


class View(Protocol):
    """A table computed from the log. A new `version` makes every old copy rebuild itself."""

    name: ClassVar[str]
    version: ClassVar[int]
    schema: ClassVar[str]
    tables: ClassVar[tuple[str, ...]]

    def begin(self, connection: sqlite3.Connection, like: sqlite3.Connection | None = None) -> None:
        """Called once when the tables were made, before the first event; `like` is another copy
        that the new one must be comparable with."""
        ...

    def apply(self, connection: sqlite3.Connection, event: Event) -> None:
        """Takes one event into the tables; called once per event, in order."""
        ...


class ViewFile:
    """One space's views. The file may be deleted at any time; it is then computed again."""

    def __init__(self, path: Path, space: str) -> None:
        self._path = path
        self._space = space
        self._wal = path.with_name(path.name + "-wal")
        self._is_closed = False
        self._lock = SpaceLock(path.with_name(path.name + ".lock"), LOCK_WAIT_S)
        with self._lock.held():
            self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except (StorageFault, RefusedError):
            return self._start_again()

    def _start_again(self) -> sqlite3.Connection:
        # Nothing is lost with a view: what cannot be read is thrown away and computed again.
        try:
            take_away(self._path)
        except OSError as error:
            raise StorageFault(f"{self._path.name} is in the way; take it away") from error
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = connect(
            self._path, schema=SCHEMA, schema_number=SCHEMA_NUMBER, is_disposable=True
        )
        # Words fall all over an index; computing it goes faster while more of it stays in memory.
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        self._has_moved = watch(self._path)
        return connection

    def close(self) -> None:
        """Lets no reader begin, and closes; one that does not end keeps the file to its own end."""
        self._is_closed = True
        with suppress(RefusedError), self._lock.held(CLOSE_WAIT_S):
            truncate_wal(self._connection)
            self._connection.close()

    @contextmanager
    def held(self) -> Iterator[sqlite3.Connection]:
        """The file for one reader or writer at a time."""
        with self._lock.held():
            if self._is_closed:
                raise RefusedError(CLOSED)
            if self._has_moved():  # deleted: what is open answers on until its reader has ended
                self._connection = self._open()
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: rows and checkpoint move together."""
        with self._lock.held():
            with transaction(self._connection):
                yield self._connection
            # Somebody may have deleted the files.
            if self._wal.exists() and self._wal.stat().st_size > CHECKPOINT_BYTES:
                truncate_wal(self._connection)

    def truncate(self) -> bool:
        """Empties the write-ahead log; False while a reader holds it."""
        with self._lock.held():
            return truncate_wal(self._connection)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """What turns out damaged while a view answers is thrown away: the next call computes it.

        Raises StorageFault for that one call.
        """
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if getattr(error, "sqlite_errorname", "").startswith(_PASSING):
                raise
            self._connection.close()
            self._connection = self._start_again()
            raise StorageFault("a view was damaged; ask again, it is computed anew") from error

    def checkpoint(self, view: View) -> Checkpoint | None:
        """How far the view is; None when it must be computed from the start."""
        row = self._connection.execute(
            "SELECT position, chain FROM checkpoints WHERE view = ? AND version = ? AND space = ?",
            (view.name, view.version, self._space),
        ).fetchone()
        # A row that damage has changed in kind is no checkpoint: the view is computed again.
        is_whole = row is not None and isinstance(row[0], int) and isinstance(row[1], bytes)
        return Checkpoint(*row) if is_whole else None

    def move(self, view: View, checkpoint: Checkpoint) -> None:
        """Moves the checkpoint, inside the transaction that moved the rows."""
        self._connection.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)",
            (view.name, view.version, self._space, *checkpoint),
        )

    def drop(self, view: View) -> None:
        """Empties a view, inside a transaction."""
        for table in view.tables:
            self._connection.execute(f"DROP TABLE IF EXISTS {table}")
        self._connection.execute("DELETE FROM checkpoints WHERE view = ?", (view.name,))
        for statement in view.schema.split(";"):
            self._connection.execute(statement)
        view.begin(self._connection)
