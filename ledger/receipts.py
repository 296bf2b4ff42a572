"""Receipts: the terminal answer of an operation, rebuilt from the event that holds it (PM 1.7)."""

from typing import Literal

from memoranda.ledger.entries import Event
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    ConflictBody,
    ConflictChanged,
    RecordBody,
    RecordCommitted,
    Status,
    Value,
)
from memoranda.ledger.stamps import moment_of, time_text


class Receipt(Value):
    """A committed operation on a record.

    The digests are hiding commitments (hex), `epoch` is the term, `replayed` says that this
    answers a retry. After a forget only the public part is left: the ids are None.
    """

    operation_id: str | None
    intent_digest: str
    record_id: str | None
    from_revision: int | None
    to_revision: int
    status: Status
    record_digest: str
    session_id: str | None
    item_id: str | None
    authorization_id: str | None
    binding_id: str | None
    epoch: int
    decided_at: str
    outcome: Literal["committed", "aborted"]
    reason: str | None
    position: int
    replayed: bool = False


class ConflictReceipt(Value):
    """A conflict opened or resolved; the pair has at most one open at a time."""

    operation_id: str
    conflict_id: str
    candidate_id: str
    other_id: str | None
    state: Literal["open", "resolved"]
    resolution: str | None
    decided_at: str
    position: int
    replayed: bool = False


class DeliveryReceipt(Value):
    """Candidates noted as shown in a step; `position` is None when there were none to note."""

    step: str
    candidate_ids: tuple[str, ...]
    position: int | None
    replayed: bool = False


def receipt_of(event: Event, *, replayed: bool = False) -> Receipt:
    """The receipt that an event of a committed operation carries."""
    header, body = event.header, event.body(RecordBody)
    assert isinstance(header, RecordCommitted), "records are committed by one type of event"
    actor = body.actor if body else None
    digest = event.row.commitment.hex()
    return Receipt(
        operation_id=body.operation_id if body else None,
        intent_digest=digest,
        record_id=str(body.value["id"]) if body else None,
        from_revision=header.from_revision,
        to_revision=header.to_revision,
        status=header.status,
        record_digest=digest,
        session_id=actor.session_id if actor else None,
        item_id=actor.item_id if actor else None,
        authorization_id=actor.authorization_id if actor else None,
        binding_id=actor.binding_id if actor else None,
        epoch=header.term,
        decided_at=time_text(moment_of(event.recorded_at)),
        outcome=header.outcome,
        reason=None,
        position=event.position,
        replayed=replayed,
    )


def conflict_receipt_of(event: Event, *, replayed: bool = False) -> ConflictReceipt | Refused:
    """The receipt of a conflict operation; superseded once its content was forgotten."""
    assert isinstance(event.header, ConflictChanged), "conflicts change by one type of event"
    body = event.body(ConflictBody)
    if body is None:
        return Refused(Refusal.RECEIPT_SUPERSEDED)
    return ConflictReceipt(
        operation_id=body.operation_id,
        conflict_id=body.conflict.conflict_id,
        candidate_id=body.conflict.candidate_id,
        other_id=body.conflict.other_id,
        state=body.conflict.state,
        resolution=body.conflict.resolution,
        decided_at=time_text(moment_of(event.recorded_at)),
        position=event.position,
        replayed=replayed,
    )
