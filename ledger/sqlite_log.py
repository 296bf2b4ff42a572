"""The recorder on SQLite: gapless positions under one lock, opaque tags and bytes, append only."""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from eventsourcing.dcb.api import (
    DCBEvent,
    DCBQuery,
    DCBQueryItem,
)

from memoranda.ledger import chain
from memoranda.ledger.entries import Head, Row
from memoranda.ledger.errors import (
    IntegrityFault,
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.recorder import Recorder, SealedEvent
from memoranda.ledger.sqlite_files import (
    BUSY_TIMEOUT_MS,
    CHECKPOINT_BYTES,
    SpaceLock,
    connect,
    connect_reader,
    truncate_wal,
)
from memoranda.ledger.stamps import Stamps, microseconds

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

CLOCK_MAX_US = 221_845_392_000_000_000
"""The year 9000: a later reading could not be followed by others that time can still write."""

_COLUMNS = """e.position, e.type, e.recorded_at, e.header, e.tags, e.commitment, e.chain,
       b.key_id, b.sealed
  FROM events e LEFT JOIN bodies b ON b.space = e.space AND b.position = e.position"""


@cache
def _latest(types: int) -> str:
    # One look-up for each type: left to IN, SQLite walks every event of the types under the tag.
    newest = " UNION ALL ".join(
        f"SELECT max(position) AS p FROM tags WHERE space = ?1 AND tag = ?2 AND type = ?{3 + n}"
        for n in range(types)
    )
    return f"SELECT {_COLUMNS} WHERE e.space = ?1 AND e.position = (SELECT max(p) FROM ({newest}))"


class SQLiteSnapshot:
    """One consistent state of the log."""

    def __init__(self, connection: sqlite3.Connection, space: str) -> None:
        self._connection = connection
        self._space = space
        self.head = self._head()

    def _head(self) -> Head:
        row = self._connection.execute(
            "SELECT h.position, h.chain, h.term, h.key_epoch, coalesce(e.recorded_at, 0)"
            " FROM heads h LEFT JOIN events e ON e.space = h.space AND e.position = h.position"
            " WHERE h.space = ?",
            (self._space,),
        ).fetchone()
        if row is None:
            return Head(0, chain.origin(self._space), 0, 0, 0)
        position, link, term, key_epoch, recorded_at = row
        if tuple(map(type, row[:4])) != (int, bytes, int, int) or position < 0:
            raise IntegrityFault("the head row is damaged")
        return Head(position, link, term, key_epoch, _time(recorded_at))

    def latest(self, tag: str, event_types: Sequence[str]) -> Row | None:
        """The newest event of some types under a tag; its cost does not grow with the others."""
        row = self._connection.execute(
            _latest(len(event_types)), (self._space, tag, *event_types)
        ).fetchone()
        return _row(row) if row else None

    def read(
        self, query: DCBQuery | None = None, after: int = 0, limit: int | None = None
    ) -> list[Row]:
        """Events behind a position in order; those that match any item, or all without items."""
        limit = -1 if limit is None else limit
        if query is None or not query.items:
            rows = self._connection.execute(
                f"SELECT {_COLUMNS} WHERE e.space = ? AND e.position > ?"
                " ORDER BY e.position LIMIT ?",
                (self._space, after, limit),
            )
            return _in_order([_row(row) for row in rows], after)
        parts = [self._positions(item) for item in query.items]
        positions = " UNION ".join(sql for sql, _ in parts)
        values = [value for _, item_values in parts for value in item_values]
        # The few positions first, then their events: left alone, SQLite walks the whole log.
        rows = self._connection.execute(
            f"SELECT {_COLUMNS.replace('FROM', f'FROM ({positions}) p CROSS JOIN', 1)}"
            " WHERE e.space = ? AND e.position = p.position AND e.position > ?"
            " ORDER BY e.position LIMIT ?",
            (*values, self._space, after, limit),
        )
        return [_row(row) for row in rows]

    def at(self, positions: Sequence[int]) -> list[Row]:
        """The events at some positions."""
        marks = ", ".join("?" * len(positions))
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} WHERE e.space = ? AND e.position IN ({marks})",
            (self._space, *positions),
        )
        return [_row(row) for row in rows]

    def tag_rows(self, after: int, through: int) -> set[tuple[int, str, str]]:
        """The (position, tag, type) rows of the tag table in a stretch of the log, for audit."""
        rows = self._connection.execute(
            "SELECT position, tag, type FROM tags"
            " WHERE space = ? AND position > ? AND position <= ?",
            (self._space, after, through),
        )
        return set(rows.fetchall())

    def stray_rows(self) -> list[tuple[str, int | None]]:
        """Rows that belong to no event: (table, position), for audit."""
        return [
            (table, position)
            for table in ("tags", "bodies")
            for (position,) in self._connection.execute(
                "SELECT DISTINCT CASE typeof(position) WHEN 'integer' THEN position END"
                f" FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM events e"
                " WHERE e.space = t.space AND e.position = t.position)"
            )
        ]

    def storage_faults(self) -> list[str]:
        """What SQLite itself finds wrong with the file, for audit."""
        faults = self._connection.execute("PRAGMA integrity_check(20)").fetchall()
        return [fault for (fault,) in faults if fault != "ok"]

    def _positions(self, item: DCBQueryItem) -> tuple[str, list[str | int]]:
        tags = list(dict.fromkeys(item.tags))
        if not tags:
            sql, values = "SELECT position FROM events t WHERE t.space = ?", [self._space]
        else:
            joins = "".join(
                f" JOIN tags t{n} ON t{n}.space = t.space AND t{n}.tag = ?"
                f" AND t{n}.position = t.position"
                for n in range(1, len(tags))
            )
            sql = f"SELECT t.position FROM tags t{joins} WHERE t.space = ? AND t.tag = ?"
            values = [*tags[1:], self._space, tags[0]]
        if item.types:
            sql += f" AND t.type IN ({', '.join('?' * len(item.types))})"
        return sql, [*values, *item.types]


class SQLiteTransaction(SQLiteSnapshot):
    """The deciding transaction: what is read here cannot change before it is appended to."""

    def __init__(self, connection: sqlite3.Connection, space: str, now: int) -> None:
        super().__init__(connection, space)
        self.clock = now
        """The clock's own reading, in microseconds: what is early, expired or in the future."""
        self.now = max(now, self.head.recorded_at + 1)
        """The time of what is appended, in microseconds: the log never runs backwards."""
        if self.now > CLOCK_MAX_US:
            raise StorageFault("the clock reads beyond the year 9000; set it right and try again")

    def append(self, events: Sequence[DCBEvent]) -> list[Row]:
        """Appends at the head; nothing is durable before the transaction ends."""
        return [self._append(event) for event in events]

    def _append(self, event: DCBEvent) -> Row:
        tags = tuple(dict.fromkeys(event.tags))
        sealed = event if isinstance(event, SealedEvent) else SealedEvent(event.type, event.data)
        position, recorded_at = self.head.position + 1, max(self.now, self.head.recorded_at + 1)
        parts = (event.type, event.data, sealed.commitment, tags)
        tip = chain.link(self.head.chain, position, recorded_at, parts)
        row = Row(
            position, event.type, recorded_at, event.data, tags, sealed.commitment, tip,
            sealed.key_id, sealed.sealed if sealed.key_id else None,
        )  # fmt: skip
        execute = self._connection.execute
        execute(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._space, *row[:4], "\n".join(tags), sealed.commitment, tip),
        )
        self._connection.executemany(
            "INSERT INTO tags VALUES (?, ?, ?, ?)",
            [(self._space, tag, event.type, position) for tag in tags],
        )
        if sealed.key_id is not None:
            execute(
                "INSERT INTO bodies VALUES (?, ?, ?, ?)",
                (self._space, position, sealed.key_id, sealed.sealed),
            )
        self.head = self.head._replace(position=position, chain=tip, recorded_at=recorded_at)
        return row

    def erase_bodies(self, positions: Iterable[int]) -> None:
        """Removes bodies; headers, commitments and tags stay, so the chain still verifies."""
        self._connection.executemany(
            "DELETE FROM bodies WHERE space = ? AND position = ?",
            [(self._space, position) for position in positions],
        )

    def erase_every_body(self) -> None:
        """Removes all of them; the chain still verifies."""
        self._connection.execute("DELETE FROM bodies WHERE space = ?", (self._space,))

    def bodies_under(self, key_id: str) -> list[Row]:
        """The events whose bodies lie under a key; for keys that several share."""
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} WHERE b.space = ? AND b.key_id = ? ORDER BY e.position",
            (self._space, key_id),
        )
        return [_row(row) for row in rows]

    def replace_body(self, position: int, key_id: str, sealed: bytes) -> None:
        """Puts the same body under another key."""
        self.erase_bodies([position])
        self._connection.execute(
            "INSERT INTO bodies VALUES (?, ?, ?, ?)", (self._space, position, key_id, sealed)
        )

    def set_key_epoch(self, key_epoch: int) -> None:
        self.head = self.head._replace(key_epoch=key_epoch)

    def set_term(self, term: int) -> None:
        self.head = self.head._replace(term=term)

    def write_head(self) -> None:
        """Puts the head row where the appends have led; once, before the commit."""
        head = self.head
        self._connection.execute(
            "INSERT INTO heads VALUES (?, ?, ?, ?, ?) ON CONFLICT (space) DO UPDATE SET"
            " position = excluded.position, chain = excluded.chain, term = excluded.term,"
            " key_epoch = excluded.key_epoch",
            (self._space, head.position, head.chain, head.term, head.key_epoch),
        )


class SQLiteRecorder(Recorder):
    """The log of one space in one file."""

    def __init__(self, path: Path, space: str, lock: SpaceLock, stamps: Stamps) -> None:
        self._space = space
        self._stamps = stamps
        self._lock = lock
        self._wal = path.with_name(path.name + "-wal")
        with lock.held():
            self._writer = connect(path, schema=SCHEMA, schema_number=SCHEMA_NUMBER)
            truncate_wal(self._writer)
        self._reader = connect_reader(path, schema_number=SCHEMA_NUMBER)
        self._reader_lock = threading.RLock()

    def close(self) -> None:
        """Truncates the write-ahead log and closes; safe beside other processes."""
        with self._lock.held(), self._reader_lock:
            self._reader.close()
            self.truncate()
            self._writer.close()

    @contextmanager
    def deciding(self) -> Iterator[SQLiteTransaction]:
        """Holds the space's lock from the first read to the durable append.

        An exception inside rolls back. Raises StorageFault when nothing was written, and
        OutcomeUnknown when the fault came at the durable write itself.
        """
        with self._lock.held():
            self._refuse_after_a_fault()
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
            self._refuse_after_a_fault()
            try:
                self._writer.execute("VACUUM INTO ?", (str(path),))
            except sqlite3.Error as error:
                raise StorageFault("the copy of the log could not be written") from error

    @contextmanager
    def reading(self) -> Iterator[SQLiteSnapshot]:
        """One snapshot; short, since it holds back the truncation of the write-ahead log."""
        with self._reader_lock:
            self._refuse_after_a_fault()
            try:
                with self._snapshot() as snapshot:
                    yield snapshot
            except sqlite3.Error as error:
                raise StorageFault("the log could not be read") from error

    @contextmanager
    def _snapshot(self) -> Iterator[SQLiteSnapshot]:
        self._reader.execute("BEGIN")
        try:
            yield SQLiteSnapshot(self._reader, self._space)
        finally:
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[SQLiteTransaction]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            now = microseconds(self._stamps.now())
            transaction = SQLiteTransaction(self._writer, self._space, now)
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
            if self._writer.in_transaction and not self.has_failed:
                self._writer.execute("ROLLBACK")

    def truncate(self) -> bool:
        """Empties the write-ahead log, under the space lock; False while a reader holds it."""
        # Never waits for a reader: what cannot be truncated now is truncated after a later commit.
        self._writer.execute("PRAGMA busy_timeout=0")
        try:
            return truncate_wal(self._writer)
        finally:
            self._writer.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")

    def _refuse_after_a_fault(self) -> None:
        if self.has_failed:
            raise StorageFault("an earlier write failed; close the ledger and open it again")

    def _named(self, error: sqlite3.Error) -> Exception:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_READONLY"):
            return RefusedError(Refused(Refusal.READ_ONLY, field="data"))
        if name.startswith("SQLITE_BUSY"):
            return RefusedError(Refused(Refusal.BUSY))
        if name == "SQLITE_FULL":
            return StorageFault("the disk is full; nothing was written")
        return StorageFault("the log could not be written; nothing was written")


_BODY_TYPES = ((str, bytes), (type(None), type(None)))
_ROW_TYPES = frozenset((int, str, int, bytes, str, bytes, bytes, *body) for body in _BODY_TYPES)
_TIME_MAX = 253_402_300_800_000_000
"""The year 10000, which no clock shows and no date can say."""


def _row(columns: tuple[Any, ...]) -> Row:
    if tuple(map(type, columns)) not in _ROW_TYPES or not 0 <= columns[2] < _TIME_MAX:
        columns = _retyped(columns)
    tags = tuple(columns[4].split("\n")) if columns[4] else ()
    return Row._make((*columns[:4], tags, *columns[5:]))


def _retyped(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row whose damage reaches into its types, as values that the chain will not confirm."""
    position, event_type, recorded_at, header, tags, commitment, link, key_id, sealed = columns
    if not isinstance(position, int):
        raise IntegrityFault("a position in the log is no number")
    return (
        position, str(event_type), _time(recorded_at), _bytes(header), str(tags),
        _bytes(commitment), _bytes(link),
        None if key_id is None else str(key_id), None if sealed is None else _bytes(sealed),
    )  # fmt: skip


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _time(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _TIME_MAX else 0


def _in_order(rows: list[Row], after: int) -> list[Row]:
    """The rows, once it is sure that a reader who goes on from the last one gets to the end."""
    for row in rows:
        if row.position <= after:
            raise IntegrityFault(f"position {row.position} follows {after}: the order is damaged")
        after = row.position
    return rows
