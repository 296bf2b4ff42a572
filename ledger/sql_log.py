"""One space's log in SQL that every engine takes: what is asked of tables, and appended to them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from eventsourcing.dcb.api import DCBEvent, DCBQuery, DCBQueryItem

from memoranda.ledger import chain
from memoranda.ledger.entries import UNSEEN, Head, Row
from memoranda.ledger.errors import IntegrityFault, StorageFault
from memoranda.ledger.recorder import Asked, SealedEvent
from memoranda.ledger.stamps import Stamps, microseconds

PAGE = 1000
LOOKUPS_MAX = 400
"""SQLite takes no more than 500 parts in one statement."""

CLOCK_MAX_US = 221_845_392_000_000_000
"""The year 9000: a later reading could not be followed by others that time can still write."""

HEAD = """SELECT position, chain, term, key_epoch,
       (SELECT recorded_at FROM events e WHERE e.space = h.space AND e.position = h.position),
       (SELECT type FROM events e WHERE e.space = h.space AND e.position = h.position),
       (SELECT chain FROM events e WHERE e.space = h.space AND e.position = ?)
  FROM heads h WHERE space = ?"""
"""The head row, with time and type of the event that it names, and the link at a position."""

BODIES = "LEFT JOIN bodies b ON b.space = e.space AND b.position = e.position"
"""Beside events `e`: the bodies that are left of them."""

AT_POSITIONS = f"p CROSS JOIN events e {BODIES} WHERE e.space = ? AND e.position = p.position"
"""Behind a few positions: their events. Left alone, SQLite walks the whole log first."""

_COLUMNS = """e.position, e.type, e.recorded_at, e.header, e.tags, e.commitment, e.chain,
       b.key_id, b.sealed"""
_EVENTS = f"SELECT {_COLUMNS} FROM events e {BODIES}"


class Cursor(Protocol):
    """What a statement gave back."""

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        ...


class Connection(Protocol):
    """A connection to an engine, inside a transaction; values stand as `?`."""

    def execute(self, sql: str, values: Sequence[object] = (), /) -> Cursor:
        """Runs one statement whose answer is waited for."""
        ...

    def executemany(self, sql: str, values: Iterable[Sequence[object]], /) -> object:
        """Runs one statement for each of some values, before any other is answered."""
        ...


class SQLSnapshot:
    """One consistent state of the log."""

    def __init__(self, connection: Connection, space: str, seen: Head = UNSEEN) -> None:
        self._connection = connection
        self._space = space
        self._seen = seen
        self.goes_on = False
        self.head = self._head()

    def _head(self) -> Head:
        row = self._head_row()
        if row is None:
            return Head(0, chain.origin(self._space), 0, 0, 0)
        position, link, term, key_epoch, recorded_at, event_type, link_seen = row
        if tuple(map(type, row[:4])) != (int, bytes, int, int) or position < 0:
            raise IntegrityFault("the head row is damaged")
        self.goes_on = link_seen == self._seen.chain
        return Head(position, link, term, key_epoch, _time(recorded_at), str(event_type or ""))

    def _head_row(self) -> tuple[Any, ...] | None:
        return self._connection.execute(*self._head_asked()).fetchone()

    def _head_asked(self) -> tuple[str, tuple[object, ...]]:
        return HEAD, (self._seen.position, self._space)

    def under(self, asked: Sequence[Asked]) -> list[list[Row]]:
        """The events under each of some tags, in order; where only the newest, no other costs."""
        found = []
        for page in _pages(asked):
            columns = self._connection.execute(*under(self._space, page)).fetchall()
            found += found_under(page, columns)
        return found

    def read(
        self, query: DCBQuery | None = None, after: int = 0, limit: int | None = None
    ) -> list[Row]:
        """Events behind a position in order; those that match any item, or all without items."""
        limit = _ALL if limit is None else limit
        if query is None or not query.items:
            rows = self._connection.execute(
                f"{_EVENTS} WHERE e.space = ? AND e.position > ? ORDER BY e.position LIMIT ?",
                (self._space, after, limit),
            )
            return _in_order([_row(row) for row in rows.fetchall()], after)
        parts = [self._positions(item) for item in query.items]
        positions = " UNION ".join(sql for sql, _ in parts)
        values = [value for _, item_values in parts for value in item_values]
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM ({positions}) {AT_POSITIONS}"
            " AND e.position > ? ORDER BY e.position LIMIT ?",
            (*values, self._space, after, limit),
        )
        return [_row(row) for row in rows.fetchall()]

    def at(self, positions: Sequence[int]) -> list[Row]:
        """The events at some positions."""
        rows = []
        for first in range(0, len(positions), PAGE):
            page = positions[first : first + PAGE]
            marks = ", ".join("?" * len(page))
            sql = f"{_EVENTS} WHERE e.space = ? AND e.position IN ({marks})"
            rows += self._connection.execute(sql, (self._space, *page)).fetchall()
        return [_row(row) for row in rows]

    def tag_rows(self, after: int, through: int) -> set[tuple[int, str, str]]:
        """The (position, tag, type) rows of the tag table in a stretch of the log, for audit."""
        rows = self._connection.execute(
            "SELECT position, tag, type FROM tags"
            " WHERE space = ? AND position > ? AND position <= ?",
            (self._space, after, through),
        )
        return {(position, tag, event_type) for position, tag, event_type in rows.fetchall()}

    def stray_rows(self) -> list[tuple[str, int | None]]:
        """Rows that belong to no event: (table, position), for audit."""
        stray = {
            (table, position if isinstance(position, int) else None)
            for table in ("tags", "bodies")
            for (position,) in self._connection.execute(
                f"SELECT DISTINCT position FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM events e"
                " WHERE e.space = t.space AND e.position = t.position)"
            ).fetchall()
        }
        return sorted(stray, key=lambda it: (it[0], it[1] or 0))

    def storage_faults(self) -> list[str]:
        """What the engine itself finds wrong with its storage, where it can tell."""
        return []

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


class SQLTransaction(SQLSnapshot):
    """The deciding transaction: what is read here cannot change before it is appended to."""

    def __init__(
        self, connection: Connection, space: str, stamps: Stamps, seen: Head = UNSEEN
    ) -> None:
        super().__init__(connection, space, seen)
        self.clock = microseconds(stamps.now())
        """The clock's own reading, in microseconds: what is early, expired or in the future."""
        self.now = max(self.clock, self.head.recorded_at + 1)
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
        write = self._connection.executemany
        write(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(self._space, *row[:4], "\n".join(tags), sealed.commitment, tip)],
        )
        write(
            "INSERT INTO tags VALUES (?, ?, ?, ?)",
            [(self._space, tag, event.type, position) for tag in tags],
        )
        if sealed.key_id is not None:
            write(
                "INSERT INTO bodies VALUES (?, ?, ?, ?)",
                [(self._space, position, sealed.key_id, sealed.sealed)],
            )
        self.head = self.head._replace(
            position=position, chain=tip, recorded_at=recorded_at, type=event.type
        )
        return row

    def erase_bodies(self, positions: Iterable[int]) -> None:
        """Removes bodies; headers, commitments and tags stay, so the chain still verifies."""
        self._connection.executemany(
            "DELETE FROM bodies WHERE space = ? AND position = ?",
            [(self._space, position) for position in positions],
        )

    def erase_every_body(self) -> None:
        """Removes all of them; the chain still verifies."""
        self._connection.executemany("DELETE FROM bodies WHERE space = ?", [(self._space,)])

    def bodies_under(self, key_id: str) -> list[Row]:
        """The events whose bodies lie under a key; for keys that several share."""
        rows = self._connection.execute(
            "SELECT position FROM bodies WHERE space = ? AND key_id = ? ORDER BY position",
            (self._space, key_id),
        )
        return self.at([position for (position,) in rows.fetchall()])

    def replace_body(self, position: int, key_id: str, sealed: bytes) -> None:
        """Puts the same body under another key."""
        self.erase_bodies([position])
        self._connection.executemany(
            "INSERT INTO bodies VALUES (?, ?, ?, ?)", [(self._space, position, key_id, sealed)]
        )

    def set_key_epoch(self, key_epoch: int) -> None:
        self.head = self.head._replace(key_epoch=key_epoch)

    def set_term(self, term: int) -> None:
        self.head = self.head._replace(term=term)

    def write_head(self) -> None:
        """Puts the head row where the appends have led; once, before the commit."""
        write_head(self._connection, self._space, self.head)


def under(space: str, asked: Sequence[Asked]) -> tuple[str, list[object]]:
    """The statement that finds what is asked for, and its values."""
    values = [it for tag, types, _ in asked for _ in types for it in (space, tag)]
    return _sql_under(tuple((types, newest) for _, types, newest in asked)), [*values, space]


def _pages(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    """What is asked, in parts of as many look-ups as one statement takes."""
    page: list[Asked] = []
    lookups = 0
    for each in asked:
        lookups += len(each.types)
        if lookups > LOOKUPS_MAX:
            yield page
            page, lookups = [], len(each.types)
        page.append(each)
    if page:
        yield page


@lru_cache(maxsize=256)
def _sql_under(asked: tuple[tuple[tuple[str, ...], bool], ...]) -> str:
    """The events under some tags, by the types that are asked for there, and if the newest."""
    # One look-up for each type: left to IN, SQLite walks every event of the types under the tag.
    # The types are this program's own words, and need no place of their own.
    positions = " UNION ALL ".join(
        f"SELECT {n} AS n, {'max(position)' if newest else 'position'} AS position"
        f" FROM tags WHERE space = ? AND tag = ? AND type = '{each}'"
        for n, (types, newest) in enumerate(asked)
        for each in types
    )
    return f"SELECT p.n, {_COLUMNS} FROM ({positions}) {AT_POSITIONS}"


def found_under(asked: Sequence[Asked], columns: Iterable[Sequence[Any]]) -> list[list[Row]]:
    """What the statement found, as it was asked for: the newest of a type each, of all the one."""
    found: list[dict[int, Row]] = [{} for _ in asked]
    for n, *event in columns:
        row = _row(event)
        found[n][row.position] = row
    return [
        [rows[it] for it in sorted(rows)[-1 if newest else 0 :]]
        for (_, _, newest), rows in zip(asked, found, strict=True)
    ]


def copy_log(snapshot: SQLSnapshot, connection: Connection, space: str) -> None:
    """Writes a whole log, as one snapshot shows it, into tables that hold none of the space."""
    after = 0
    while rows := snapshot.read(None, after, PAGE):
        connection.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(space, *row[:4], "\n".join(row.tags), row.commitment, row.chain) for row in rows],
        )
        connection.executemany(
            "INSERT INTO tags VALUES (?, ?, ?, ?)",
            [(space, tag, row.type, row.position) for row in rows for tag in row.tags],
        )
        connection.executemany(
            "INSERT INTO bodies VALUES (?, ?, ?, ?)",
            [(space, row.position, row.key_id, row.sealed) for row in rows if row.key_id],
        )
        after = rows[-1].position
    write_head(connection, space, snapshot.head)


def write_head(connection: Connection, space: str, head: Head) -> None:
    """Puts the head row of a space where its log has come to."""
    connection.executemany(
        "INSERT INTO heads VALUES (?, ?, ?, ?, ?) ON CONFLICT (space) DO UPDATE SET"
        " position = excluded.position, chain = excluded.chain, term = excluded.term,"
        " key_epoch = excluded.key_epoch",
        [(space, head.position, head.chain, head.term, head.key_epoch)],
    )


_BODY_TYPES = ((str, bytes), (type(None), type(None)))
_ROW_TYPES = frozenset((int, str, int, bytes, str, bytes, bytes, *body) for body in _BODY_TYPES)
_ALL = 2**63 - 1
"""A limit that no log reaches: not every engine knows how to say none."""

_TIME_MAX = 253_402_300_800_000_000
"""The year 10000, which no clock shows and no date can say."""


def _row(columns: Sequence[Any]) -> Row:
    if tuple(map(type, columns)) not in _ROW_TYPES or not 0 <= columns[2] < _TIME_MAX:
        columns = _retyped(columns)
    tags = tuple(columns[4].split("\n")) if columns[4] else ()
    return Row._make((*columns[:4], tags, *columns[5:]))


def _retyped(columns: Sequence[Any]) -> tuple[Any, ...]:
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
