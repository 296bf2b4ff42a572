"""Records by id with everything that happened to them, and operations by id."""

from typing import Literal

from memoranda.ledger.asking import ReadOperation, ReadRecord
from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import (
    Stored,
    conflicts_about,
    conflicts_in,
    history_of,
    newest_of,
    owner_of,
    stored_in,
)
from memoranda.ledger.case import operation_selector
from memoranda.ledger.commands import admit
from memoranda.ledger.entries import Event
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    Actor,
    Conflict,
    ConflictChanged,
    ForgetReason,
    IntentBody,
    Json,
    NamedBody,
    OperationAborted,
    OperationBody,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
    Status,
    Value,
)
from memoranda.ledger.guards import Guards, reader_of
from memoranda.ledger.holding import held_on, revision_of, still_held, until_of
from memoranda.ledger.log import Log
from memoranda.ledger.personal import AnyRecord, Record
from memoranda.ledger.receipts import (
    AbortReceipt,
    ConflictReceipt,
    Receipt,
    abort_receipt_of,
    conflict_receipt_of,
    receipt_of,
)
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps, moment_of, parse_time, time_text


class HeldRead(Value):
    """Words of one revision that the person may take back until then."""

    revision: int
    until: str


class ForgottenRead(Value):
    """How a record was forgotten: why, by whom, and what of it is held for the person."""

    reason: ForgetReason
    actor: Actor
    held: tuple[HeldRead, ...]


class RecordRead(Value):
    """A record as it stands; `key` is the text that names it, while it may be read.

    `forgotten` says of a tombstone how it came to be.
    """

    record: AnyRecord
    key: str | None
    is_active: bool
    conflicts: tuple[Conflict, ...]
    position: int
    decided_at: str
    forgotten: ForgottenRead | None = None


class RevisionRead(Value):
    """One revision; content, actor and command are None once it was forgotten."""

    revision: int
    status: Status
    position: int
    decided_at: str
    actor: Actor | None
    command: Json | None
    operation_id: str | None
    content: str | None


class OperationRead(Value):
    """An operation by id: state, the content first prepared while it exists, its receipt.

    `intent` is `{id, key, expected, value}`, byte for byte what `commit` takes again; of a
    migration, and of an operation on a conflict, which changes no revision, it is the command.
    """

    state: Literal["prepared", "committed", "aborted"]
    intent: Json | None
    receipt: Receipt | ConflictReceipt | AbortReceipt | None
    is_current: bool
    current_revision: int | None


def is_active(record: AnyRecord, now_text: str) -> bool:
    """Accepted, effective and not expired at that time (PM 1.5): what recall may show."""
    if not isinstance(record, Record) or record.status != "accepted":
        return False
    now = parse_time(now_text)
    is_expired = record.expires_at is not None and parse_time(record.expires_at) <= now
    is_early = record.effective_at is not None and parse_time(record.effective_at) > now
    return not is_expired and not is_early


class History:
    """Reads of one space by id; every read takes one snapshot and one clock reading."""

    def __init__(self, log: Log, stamps: Stamps) -> None:
        self._log = log
        self._stamps = stamps

    def read(
        self, caller: Caller, record_id: str, *, include_inactive: bool = False
    ) -> RecordRead | Refused:
        """The record with its open conflicts; an inactive one only when asked for (F35)."""
        asked = {"record_id": record_id, "include_inactive": include_inactive}
        if isinstance(request := admit(ReadRecord, asked), Refused):
            return request
        with self._log.reading() as store:
            guards = reader_of(store, caller, "read")
            if isinstance(guards, Refused):
                return guards
            found = store.select(newest_of(record_id))
            stored = stored_in(found[0]) if found else None
            if stored is None:
                return Refused(Refusal.NOT_FOUND, "record_id")
            read = read_of(store, stored, time_text(self._stamps.now()))
        if not read.is_active and not include_inactive:
            message = f"is {stored.value.status} or outside its dates; ask for inactive records"
            return Refused(Refusal.NOT_FOUND, "record_id", message)
        return read

    def revisions(self, caller: Caller, record_id: str) -> tuple[RevisionRead, ...] | Refused:
        """Every revision of the record in order, forgotten ones without what they said."""
        if isinstance(request := admit(ReadRecord, {"record_id": record_id}), Refused):
            return request
        with self._log.reading() as store:
            guards = reader_of(store, caller, "read")
            if isinstance(guards, Refused):
                return guards
            revisions = tuple(_revision(event) for event in store.select(history_of(record_id)))
        return revisions or Refused(Refusal.NOT_FOUND, "record_id")

    def operation(self, caller: Caller, operation_id: str) -> OperationRead | Refused:
        """The operation with its first content and receipt; a model sees its own only."""
        if isinstance(request := admit(ReadOperation, {"operation_id": operation_id}), Refused):
            return request
        with self._log.reading() as store:
            guards = reader_of(store, caller, "operation")
            if isinstance(guards, Refused):
                return guards
            found = store.select(operation_selector(operation_id))
            if not found:
                return Refused(Refusal.NOT_FOUND, "operation_id")
            if not _is_own(found[0].body(NamedBody), guards):
                return Refused(Refusal.NOT_FOUND, "operation_id")
            return operation_read(store, found[0])


def operation_read(store: SealedStore, event: Event) -> OperationRead:
    """An operation by its newest event."""
    match event.header:
        case ConflictChanged():
            return _conflict_operation(event)
        case OperationPrepared():
            return _unsettled(store, event)
        case OperationAborted():
            return OperationRead(
                state="aborted",
                intent=None,
                receipt=abort_receipt_of(event),
                is_current=False,
                current_revision=None,
            )
        case _:
            return _committed(store, event)


def _committed(store: SealedStore, event: Event) -> OperationRead:
    (current,) = store.select(owner_of(event))
    assert isinstance(current.header, RecordCommitted), "one type of event holds records"
    return OperationRead(
        state="committed",
        intent=_intent(store, event),
        receipt=receipt_of(event),
        is_current=current.position == event.position,
        current_revision=current.header.to_revision,
    )


def _unsettled(store: SealedStore, event: Event) -> OperationRead:
    current = store.select(owner_of(event))
    header = current[0].header if current else None
    return OperationRead(
        state="prepared",
        intent=_intent(store, event),
        receipt=None,
        is_current=False,
        current_revision=header.to_revision if isinstance(header, RecordCommitted) else None,
    )


def read_of(store: SealedStore, stored: Stored, now_text: str) -> RecordRead:
    """A stored record as a reader gets it."""
    known = conflicts_in(store.select(conflicts_about(stored.value.id)))
    return RecordRead(
        record=stored.value,
        key=stored.body.key,
        is_active=is_active(stored.value, now_text),
        conflicts=tuple(conflict for conflict in known.values() if conflict.state == "open"),
        position=stored.event.position,
        decided_at=time_text(moment_of(stored.event.recorded_at)),
        forgotten=None if isinstance(stored.value, Record) else _forgotten(store, stored),
    )


def _forgotten(store: SealedStore, stored: Stored) -> ForgottenRead:
    header = stored.event.header
    assert isinstance(header, RecordCommitted), "one type of event holds records"
    held = (
        HeldRead(revision=revision_of(it), until=time_text(moment_of(until_of(it))))
        for it in still_held(store.select(held_on(stored.value.id)))
    )
    return ForgottenRead(reason=header.reason, actor=stored.body.actor, held=tuple(held))


def _revision(event: Event) -> RevisionRead:
    header, body, stored = event.header, event.body(RecordBody), stored_in(event)
    assert isinstance(header, RecordCommitted), "the selector asks for one shape"
    value = stored.value if stored else None
    return RevisionRead(
        revision=header.to_revision,
        status=header.status,
        position=event.position,
        decided_at=time_text(moment_of(event.recorded_at)),
        actor=body.actor if body else None,
        command=body.command if body else None,
        operation_id=body.operation_id if body else None,
        content=value.content if isinstance(value, Record) else None,
    )


def _intent(store: SealedStore, event: Event) -> Json | None:
    body = event.body(IntentBody)
    if body is None:
        return None
    if isinstance(event.header, RecordCommitted) and event.header.is_migrated:
        return body.command
    record_id = str(body.value["id"])
    expected: Json | None = None
    if body.expected is not None:
        history = store.select(history_of(record_id))
        named = next(e for e in history if e.row.commitment.hex() == body.expected)
        before = named.body(RecordBody)
        if before is None:
            return None
        expected = before.value
    return {"id": body.operation_id, "key": record_id, "expected": expected, "value": body.value}


def _conflict_operation(event: Event) -> OperationRead:
    body, receipt = event.body(OperationBody), conflict_receipt_of(event)
    return OperationRead(
        state="committed",
        intent=body.command if body else None,
        receipt=None if isinstance(receipt, Refused) else receipt,
        is_current=body is not None,
        current_revision=None,
    )


def _is_own(body: NamedBody | None, guards: Guards) -> bool:
    """A model sees its own intents, by item across its sessions; of an erased one nothing tells."""
    if guards.role in {"client", "auditor"}:
        return True
    if body is None:
        return guards.role == "primary"
    if guards.role == "item":
        return guards.task is not None and body.actor.item_id == guards.task.item_id
    return body.actor.role == "primary"
