"""The view of records: where each one stands, to list them without opening all."""

import sqlite3
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StrictBool, StrictInt
from pydantic_core import PydanticCustomError

from memoranda.ledger.asking import ReadRecord
from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import Stored, newest_of, stored_in
from memoranda.ledger.commands import admit, is_new_record_id
from memoranda.ledger.entries import Event
from memoranda.ledger.errors import IntegrityFault, Refused
from memoranda.ledger.events import (
    CandidatesDelivered,
    ConflictChanged,
    Delivery,
    OperationAborted,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
    Value,
)
from memoranda.ledger.guards import reader_of
from memoranda.ledger.log import Log
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps, microseconds, parse_time, time_text
from memoranda.projections.feed import current
from memoranda.projections.history import RecordRead, read_of
from memoranda.projections.views import ViewFile

LIST_MAX = 100


def _limit(limit: int) -> int:
    if limit > LIST_MAX:
        raise PydanticCustomError("limit_exceeded", "at most {limit}", {"limit": LIST_MAX})
    return limit


class Listing(Value):
    """What a list asks for."""

    include_inactive: StrictBool = False
    limit: Annotated[StrictInt, Field(ge=1), AfterValidator(_limit)]


class RecordsView:
    """One row per record by its blind tag: positions, states and times, no content."""

    name: ClassVar[str] = "records"
    version: ClassVar[int] = 4
    tables: ClassVar[tuple[str, ...]] = ("records", "counters", "open_operations")
    schema: ClassVar[str] = """
CREATE TABLE records (
    record        TEXT PRIMARY KEY,
    id            BLOB,
    position      INTEGER NOT NULL,
    opened        INTEGER NOT NULL,
    status        TEXT NOT NULL,
    tier          TEXT,
    size          INTEGER,
    newest_source INTEGER,
    effective_at  INTEGER,
    expires_at    INTEGER,
    delivery      INTEGER
) WITHOUT ROWID;
CREATE INDEX records_in_order ON records
    (status, tier, newest_source DESC, id, position, size, effective_at, expires_at);
CREATE INDEX records_by_id ON records (id);
CREATE TABLE counters (deliveries INTEGER NOT NULL, changed INTEGER NOT NULL);
CREATE TABLE open_operations (operation TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID
"""

    def begin(self, connection: sqlite3.Connection, _: sqlite3.Connection | None = None) -> None:
        """Deliveries are numbered from 1; `changed` is the last position that changed a record."""
        connection.execute("INSERT INTO counters VALUES (0, 0)")

    def apply(self, connection: sqlite3.Connection, event: Event) -> None:
        """Takes a record's new state; an erased one leaves its status and nothing else."""
        if isinstance(event.header, CandidatesDelivered):
            delivery = event.body(Delivery)
            for record_id in delivery.candidate_ids if delivery else ():
                connection.execute("UPDATE counters SET deliveries = deliveries + 1")
                connection.execute(_DELIVER, (id_bytes(record_id),))
        if isinstance(event.header, RecordCommitted | ConflictChanged):
            connection.execute("UPDATE counters SET changed = ?", (event.position,))
        self._note_operation(connection, event)
        if isinstance(event.header, RecordCommitted):
            tag = event.tag("personal:rec")
            if tag is None:
                raise IntegrityFault(f"position {event.position}: a record's event without its tag")
            row = (tag.blind, event.position, event.header.status, *_facts(event.body(RecordBody)))
            connection.execute(_PUT, row)

    def _note_operation(self, connection: sqlite3.Connection, event: Event) -> None:
        """Keeps the operations that were prepared and have no end."""
        header, operation = event.header, event.tag("personal:op")
        name = operation.blind if operation else None
        if isinstance(header, OperationPrepared):
            connection.execute(_OPEN, (name, event.position))
        elif isinstance(header, OperationAborted | RecordCommitted):
            # A restore's tombstone ends other intents on its record along with its own.
            ended = [tag for tag in event.row.tags if tag.startswith("op:")]
            for tag in ended if header.intent or len(ended) > 1 else ():
                connection.execute("DELETE FROM open_operations WHERE operation = ?", (tag,))


_ID_LENGTH = len("mem_") + 64
_PACKED = b"mem_\0"
"""Begins the ids of ours, which are kept as 32 bytes; no text holds its NUL."""


def id_bytes(record_id: str) -> bytes:
    """A record's id as the view holds it: in the order of the texts, ours before like ones."""
    if is_new_record_id(record_id):
        return _PACKED + bytes.fromhex(record_id.removeprefix("mem_"))
    return record_id.encode()


def id_text(kept: bytes) -> str:
    """The record's id again."""
    if kept.startswith(_PACKED):
        return f"mem_{kept.removeprefix(_PACKED).hex()}"
    return kept.decode()


def _ranges(text: str) -> list[tuple[bytes, bytes]]:
    """Between which bytes the ids lie that begin so: ids as text, then ours by their digits."""
    ranges = [(text.encode(), text.encode() + b"\xff")]
    low, high = text.ljust(_ID_LENGTH, "0"), text.ljust(_ID_LENGTH, "f")
    if is_new_record_id(low) and text != "mem_":
        ranges.append((id_bytes(low), id_bytes(high)))
    return ranges


def _facts(body: RecordBody | None) -> tuple[str | int | bytes | None, ...]:
    """Id, tier, size, newest source, dates; read off the JSON, which its writer validated."""
    if body is None or body.value["status"] == "forgotten":
        return (None,) * 6
    value: dict[str, Any] = body.value
    return (
        id_bytes(value["id"]),
        value["tier"],
        len(value["content"].encode()),
        max([_count(source["occurred_at"]) for source in value["sources"]]),
        _count(value["effective_at"]) if value["effective_at"] else None,
        _count(value["expires_at"]) if value["expires_at"] else None,
    )


def _count(text: str) -> int:
    return microseconds(parse_time(text))


# A record keeps its place among its like while its status stays, however often it is revised.
_PUT = """
INSERT INTO records VALUES (?1, ?4, ?2, ?2, ?3, ?5, ?6, ?7, ?8, ?9, NULL)
ON CONFLICT (record) DO UPDATE SET
    id = excluded.id, position = excluded.position, size = excluded.size, tier = excluded.tier,
    opened = CASE WHEN status = excluded.status THEN opened ELSE excluded.position END,
    delivery = CASE WHEN status = excluded.status THEN delivery END,
    status = excluded.status, newest_source = excluded.newest_source,
    effective_at = excluded.effective_at, expires_at = excluded.expires_at
"""
_OPEN = "INSERT OR REPLACE INTO open_operations VALUES (?, ?)"
_BEGINNING = "SELECT id FROM records WHERE id BETWEEN ? AND ? LIMIT 2"
_DELIVER = """
UPDATE records SET delivery = (SELECT deliveries FROM counters)
 WHERE status = 'candidate' AND id = ?
"""


class Records:
    """Lists of one space's records; what is shown is opened, what is not is only counted."""

    def __init__(self, log: Log, views: ViewFile, stamps: Stamps) -> None:
        self._log = log
        self._views = views
        self._stamps = stamps
        self._view = RecordsView()

    def listed(
        self, caller: Caller, *, include_inactive: bool = False, limit: int = LIST_MAX
    ) -> tuple[RecordRead, ...] | Refused:
        """Active records, newest source first; with the inactive ones when asked for."""
        asked = {"include_inactive": include_inactive, "limit": limit}
        if isinstance(listing := admit(Listing, asked), Refused):
            return listing
        now = microseconds(self._stamps.now())
        where = "WHERE :all OR (status = 'accepted' AND coalesce(effective_at, :now) <= :now"
        where += " AND coalesce(expires_at, :now + 1) > :now)"
        order = "ORDER BY newest_source DESC, record"
        values = {"all": include_inactive, "now": now, "limit": limit}
        return self._opened(caller, f"{where} {order}", values)

    def candidates(
        self, caller: Caller, *, limit: int = LIST_MAX
    ) -> tuple[RecordRead, ...] | Refused:
        """Candidates, the oldest first."""
        if isinstance(listing := admit(Listing, {"limit": limit}), Refused):
            return listing
        return self._opened(caller, "WHERE status = 'candidate' ORDER BY opened", {"limit": limit})

    def ids_beginning(self, caller: Caller, text: str) -> tuple[str, ...] | Refused:
        """At most two ids that begin so: one, or not the only one; an id in full is the only one.

        The view keeps no id of a forgotten record, so tombstones are opened when nothing else fits.
        """
        if isinstance(asked := admit(ReadRecord, {"record_id": text}), Refused):
            return asked
        with current(self._log, self._views, self._view) as (store, connection):
            guards = reader_of(store, caller, "query")
            if isinstance(guards, Refused):
                return guards
            if store.select(newest_of(text)):
                return (text,)
            found = [
                id_text(kept)
                for low, high in _ranges(text)
                for (kept,) in connection.execute(_BEGINNING, (low, high)).fetchall()
            ]
            return tuple(found[:2]) or _tombstones_beginning(store, connection, text)

    def counts(self) -> dict[str, int]:
        """How many records there are of each status."""
        with current(self._log, self._views, self._view) as (_, connection):
            return dict(connection.execute("SELECT status, count(*) FROM records GROUP BY status"))

    def _opened(
        self, caller: Caller, where: str, values: dict[str, int]
    ) -> tuple[RecordRead, ...] | Refused:
        now_text = time_text(self._stamps.now())
        with current(self._log, self._views, self._view) as (store, connection):
            guards = reader_of(store, caller, "query")
            if isinstance(guards, Refused):
                return guards
            query = f"SELECT record, position FROM records {where} LIMIT :limit"
            rows = connection.execute(query, values).fetchall()
            found = [_stored(store, record, position) for record, position in rows]
            return tuple(read_of(store, stored, now_text) for stored in found if stored)


def _stored(store: SealedStore, record: object, position: object) -> Stored | None:
    event = store.at(position) if isinstance(position, int) else None
    tag = event.tag("personal:rec") if event else None
    if tag is None or tag.blind != record:
        # Told apart from an answer here, so that the view is computed anew and nothing is crossed.
        raise sqlite3.DatabaseError("a row of the view points at another event")
    return stored_in(event)


def _tombstones_beginning(
    store: SealedStore, connection: sqlite3.Connection, text: str
) -> tuple[str, ...]:
    rows = connection.execute("SELECT position FROM records WHERE status = 'forgotten'")
    bodies = (
        event.body(RecordBody) for (position,) in rows.fetchall() if (event := store.at(position))
    )
    ids = (str(body.value["id"]) for body in bodies if body)
    return tuple(record_id for record_id in ids if record_id.startswith(text))[:2]
