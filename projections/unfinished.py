"""Operations by state: those that a crash left open, with their ages, and the latest ends."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from memoranda.ledger.authority import Auditor, Caller, PersonClient
from memoranda.ledger.commands import admit
from memoranda.ledger.entries import Event
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    Actor,
    ConflictChanged,
    NamedBody,
    OperationAborted,
    OperationPrepared,
    RecordCommitted,
    Value,
)
from memoranda.ledger.log import Log
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps, microseconds, moment_of, time_text
from memoranda.projections.feed import current
from memoranda.projections.records import LIST_MAX, RecordsView
from memoranda.projections.views import ViewFile

PAGE = 256
State = Literal["prepared", "committed", "aborted"]


class OperationLine(Value):
    """One operation in a list; `at` is when it was prepared, or ended. No body is shown."""

    operation_id: str | None
    state: State
    actor: Actor | None
    term: int
    position: int
    at: str
    age_s: int


class AskOperations(Value):
    """What a list of operations asks for."""

    state: State | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=LIST_MAX)] = LIST_MAX


class Unfinished:
    """What is under way in one space, and what ended last."""

    def __init__(self, log: Log, views: ViewFile, stamps: Stamps) -> None:
        self._log = log
        self._views = views
        self._stamps = stamps
        self._view = RecordsView()

    def count(self) -> int:
        """How many operations have no end."""
        with current(self._log, self._views, self._view) as (_, connection):
            found = connection.execute("SELECT count(*) FROM open_operations").fetchone()
            return int(found[0])

    def listed(
        self, caller: Caller, *, state: str | None = None, limit: int = LIST_MAX
    ) -> tuple[OperationLine, ...] | Refused:
        """Open operations, oldest first, then those that ended, newest first (PM 2.3)."""
        asked = admit(AskOperations, {"state": state, "limit": limit})
        if isinstance(asked, Refused):
            return asked
        if not isinstance(caller, PersonClient | Auditor):
            return Refused(Refusal.RECONCILE_REFUSED)
        now = microseconds(self._stamps.now())
        with current(self._log, self._views, self._view) as (store, connection):
            rows = connection.execute(
                "SELECT position FROM open_operations ORDER BY position LIMIT ?", (asked.limit,)
            )
            events = store.at_positions([position for (position,) in rows])
            is_open_wanted = asked.state in {None, "prepared"}
            found = [events[position] for position in sorted(events)] if is_open_wanted else []
            if asked.state != "prepared":
                ended = _ended_before(store, store.head.position + 1, asked.state)
                found += islice(ended, asked.limit - len(found))
            return tuple(_line(event, now) for event in found)


def _ended_before(store: SealedStore, position: int, state: State | None) -> Iterator[Event]:
    """Terminal events, the newest first, read backwards page by page."""
    while position > 1:
        after = max(0, position - 1 - PAGE)
        for event in reversed(store.page(after, min(PAGE, position - 1 - after))):
            if _state(event) not in {None, "prepared"} and state in {None, _state(event)}:
                yield event
        position = after + 1


def _state(event: Event) -> State | None:
    match event.header:
        case OperationPrepared():
            return "prepared"
        case OperationAborted():
            return "aborted"
        case RecordCommitted() | ConflictChanged():
            return "committed"
        case _:
            return None


def _line(event: Event, now: int) -> OperationLine:
    header, body, state = event.header, event.body(NamedBody), _state(event)
    assert state is not None, "only events of operations are listed"
    assert isinstance(
        header, OperationPrepared | OperationAborted | RecordCommitted | ConflictChanged
    ), "only events of operations are listed"
    return OperationLine(
        operation_id=body.operation_id if body else None,
        state=state,
        actor=body.actor if body else None,
        term=header.term,
        position=event.position,
        at=time_text(moment_of(event.recorded_at)),
        age_s=max(0, now - event.recorded_at) // 1_000_000,
    )
