"""Export: everything the person may read, as values that a file of lines or pages can hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import stored_in
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import BlockedSource, ConflictBody, ConflictChanged, SourceBlocked
from memoranda.ledger.guards import reader_of
from memoranda.ledger.log import Log
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps, time_text
from memoranda.projections.feed import current
from memoranda.projections.history import RecordRead, read_of
from memoranda.projections.records import RecordsView
from memoranda.projections.views import ViewFile

PAGE = 500
NO_REASON = "open when it was exported"


@dataclass(frozen=True, slots=True)
class Readable:
    """One snapshot of a space: its records in order, and the sources that are blocked beside them.

    `reasons` are those of the conflicts that an operation of its own opened, by conflict id.
    """

    space: str
    position: int
    now_text: str
    records: Iterator[RecordRead]
    blocked: tuple[str, ...]
    reasons: dict[str, str]


class Export:
    """Reads one space out, for its person alone."""

    def __init__(self, log: Log, views: ViewFile, stamps: Stamps) -> None:
        self._log = log
        self._views = views
        self._stamps = stamps
        self._view = RecordsView()

    @contextmanager
    def reading(self, caller: Caller) -> Iterator[Readable]:
        """One snapshot to read out; raises RefusedError (F2) for anybody but the person."""
        now_text = time_text(self._stamps.now())
        with current(self._log, self._views, self._view) as (store, connection):
            guards, head = reader_of(store, caller, "query"), store.head
            rows = connection.execute("SELECT position FROM records ORDER BY position")
            positions = [position for (position,) in rows]
        if isinstance(guards, Refused) or guards.role != "client":
            raise RefusedError(Refused(Refusal.NOT_AUTHORIZED))
        # Nobody waits for the views meanwhile; what was forgotten between the two is left out.
        with self._log.reading() as store:
            blocked, reasons = _marks(store, head.position)
            yield Readable(
                space=store.space,
                position=head.position,
                now_text=now_text,
                records=_records(store, positions, now_text),
                blocked=tuple(dict.fromkeys(blocked)),
                reasons=reasons,
            )


def _records(store: SealedStore, positions: list[int], now_text: str) -> Iterator[RecordRead]:
    for start in range(0, len(positions), PAGE):
        events = store.at_positions(positions[start : start + PAGE])
        for position in sorted(events):
            if stored := stored_in(events[position]):
                yield read_of(store, stored, now_text)


def _marks(store: SealedStore, through: int) -> tuple[list[str], dict[str, str]]:
    """Up to a position: blocked sources that no tombstone tells of, and reasons of conflicts."""
    blocked: list[str] = []
    reasons: dict[str, str] = {}
    after = 0
    while events := store.page(after, min(PAGE, through - after)):
        after = events[-1].position
        for event in events:
            if isinstance(event.header, SourceBlocked) and (mark := event.body(BlockedSource)):
                blocked.append(mark.ref)
            elif isinstance(event.header, ConflictChanged) and (told := event.body(ConflictBody)):
                reasons[told.conflict.conflict_id] = told.reason
    return blocked, reasons
