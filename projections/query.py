"""Query: the exact, filtered listing of records in stable pages (PM 5.3)."""

import base64
import hmac
import sqlite3
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import Stored, stored_in
from memoranda.ledger.commands import Time, admit
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Status, Tier, Value
from memoranda.ledger.guards import reader_of
from memoranda.ledger.log import Log
from memoranda.ledger.personal import Record
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps, microseconds, moment_of, parse_time, time_text
from memoranda.projections.feed import current
from memoranda.projections.history import RecordRead, read_of
from memoranda.projections.records import RecordsView
from memoranda.projections.tokens import folded, is_matched
from memoranda.projections.views import ViewFile
from memoranda.projections.zones import ACTIVE, MEMBERS, RECENT_US

PAGE_DEFAULT, PAGE_MAX = 20, 100
FOLD_PAGE = 500
TEXT_POINTS_MAX = 10_000


class Filters(BaseModel):
    """What a query asks for. `as_of` is a log position: records as they stood there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[StrictStr, Field(max_length=TEXT_POINTS_MAX)] | None = None
    tier: Tier | None = None
    status: Status | None = None
    zone: Literal["core", "recent", "detail"] | None = None
    since: Time | None = None
    until: Time | None = None
    include_inactive: StrictBool = False
    as_of: Annotated[StrictInt, Field(ge=1)] | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    cursor: StrictStr | None = None


class QueryPage(Value):
    """Records in order, the newest source first; `next_cursor` when there are more."""

    records: tuple[RecordRead, ...]
    next_cursor: str | None


class _Cursor(BaseModel):
    """Where a chain of pages stands: everything that must be the same on the next page."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    filters: str
    changed: int
    now: int
    source: int
    record: str


class Query:
    """Exact listings of one space's records."""

    def __init__(self, log: Log, views: ViewFile, stamps: Stamps) -> None:
        self._log = log
        self._views = views
        self._stamps = stamps
        self._view = RecordsView()

    def page(self, caller: Caller, **request: object) -> QueryPage | Refused:
        """One page; with its cursor and the same filters, the next. Pages are one view (F25)."""
        filters = admit(Filters, request)
        if isinstance(filters, Refused):
            return filters
        with current(self._log, self._views, self._view) as (store, connection):
            guards = reader_of(store, caller, "query")
            if isinstance(guards, Refused):
                return guards
            at = filters.as_of
            rows = connection if at is None else _as_of(store, self._view, at)
            start = self._start(store, rows, filters)
            return start if isinstance(start, Refused) else _page(store, rows, filters, start)

    def _start(
        self, store: SealedStore, connection: sqlite3.Connection, filters: Filters
    ) -> _Cursor | Refused:
        (changed,) = connection.execute("SELECT changed FROM counters").fetchone()
        now = microseconds(self._stamps.now())
        first = _Cursor(
            filters=_digest(store, filters), changed=changed, now=now, source=2**62, record=""
        )
        if filters.cursor is None:
            return first
        given = _read_cursor(store, filters.cursor)
        if given is None or (given.filters, given.changed) != (first.filters, first.changed):
            return Refused(Refusal.CURSOR_INVALID, "cursor")
        return given


# Tombstones have no source and no id: they come last, in the order of their blind tags.
_SOURCE, _NAME = (
    "coalesce(newest_source, -1)",
    "CASE WHEN id IS NULL THEN record ELSE lower(hex(id)) END",
)


def _page(
    store: SealedStore, connection: sqlite3.Connection, filters: Filters, start: _Cursor
) -> QueryPage:
    now_text = time_text(moment_of(start.now))
    terms = folded(filters.text or "").split()
    found: list[tuple[Stored, _Cursor]] = []
    for stored, at in _matching(store, connection, filters, start):
        if terms and not _has_terms(stored, terms):
            continue
        found.append((stored, at))
        if len(found) > filters.limit:
            break
    shown = found[: filters.limit]
    is_more = len(found) > filters.limit
    return QueryPage(
        records=tuple(read_of(store, stored, now_text) for stored, _ in shown),
        next_cursor=_write_cursor(store, shown[-1][1]) if is_more else None,
    )


def _matching(
    store: SealedStore, connection: sqlite3.Connection, filters: Filters, start: _Cursor
) -> Iterator[tuple[Stored, _Cursor]]:
    """Records behind the cursor that pass every filter but the text, in order."""
    where, values = _where(filters, start)
    rows = connection.execute(
        f"SELECT position, {_SOURCE}, {_NAME} FROM records WHERE {where}"
        f" ORDER BY {_SOURCE} DESC, {_NAME}",
        values,
    )
    for position, source, record in rows:
        event = store.at(position)
        stored = stored_in(event)
        if stored is not None:
            yield stored, start.model_copy(update={"source": source, "record": record})


def _where(filters: Filters, start: _Cursor) -> tuple[str, dict[str, object]]:
    values: dict[str, object] = {
        "now": start.now,
        "recent": RECENT_US,
        "source": start.source,
        "record": start.record,
    }
    where = [f"({_SOURCE} < :source OR ({_SOURCE} = :source AND {_NAME} > :record))"]
    if not filters.include_inactive and filters.status in {None, "accepted"}:
        where.append(ACTIVE)
    if filters.zone is not None:
        where.append(MEMBERS[filters.zone])
    for column in ("status", "tier"):
        if (wanted := getattr(filters, column)) is not None:
            where.append(f"{column} = :{column}")
            values[column] = wanted
    for name, sign in (("since", ">="), ("until", "<=")):
        if (time := getattr(filters, name)) is not None:
            where.append(f"newest_source {sign} :{name}")
            values[name] = microseconds(parse_time(time))
    return " AND ".join(where), values


def _has_terms(stored: Stored, terms: list[str]) -> bool:
    value = stored.value
    if not isinstance(value, Record):
        return False
    return is_matched(folded(f"{value.content} {stored.body.key or ''}"), terms)


def _as_of(store: SealedStore, view: RecordsView, position: int) -> sqlite3.Connection:
    """The view as it stood at a position, computed aside; its cost is that of reading the log."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(view.schema)
    view.begin(connection)
    after = 0
    while events := store.page(after, FOLD_PAGE):
        for event in events:
            if event.position <= position:
                view.apply(connection, event)
        after = events[-1].position
        if after >= position:
            break
    return connection


def _digest(store: SealedStore, filters: Filters) -> str:
    content = filters.model_dump_json(exclude={"cursor", "limit"}).encode()
    return hmac.digest(store.cursor_key, b"filters" + content, "sha256").hex()


def _write_cursor(store: SealedStore, cursor: _Cursor) -> str:
    content = cursor.model_dump_json().encode()
    mac = hmac.digest(store.cursor_key, b"cursor" + content, "sha256")
    return base64.urlsafe_b64encode(mac + content).decode()


def _read_cursor(store: SealedStore, text: str) -> _Cursor | None:
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii"))
    except ValueError:
        return None
    mac, content = raw[:32], raw[32:]
    if not hmac.compare_digest(hmac.digest(store.cursor_key, b"cursor" + content, "sha256"), mac):
        return None
    return _Cursor.model_validate_json(content)
