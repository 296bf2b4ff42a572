"""Receipts: the terminal answer of an operation, rebuilt from the event that holds it (PM 1.7)."""

from typing import Literal

from memoranda.ledger.entries import Event
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    AbortBody,
    ConflictBody,
    ConflictChanged,
    ForgetReason,
    IntentBody,
    OperationAborted,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
    Status,
    Value,
)
from memoranda.ledger.stamps import moment_of, time_text


class Receipt(Value):
    """A committed operation on a record.

    The digests are hiding commitments (hex), `epoch` is the term, `replayed` says that this
    answers a retry, `reason` is the code of a forget. After a forget only the public part is left:
    the ids are None.
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
    outcome: Literal["committed"] = "committed"
    reason: ForgetReason | None = None
    position: int
    replayed: bool = False


class ForgetReceipt(Receipt):
    """A forget: `forgotten_at` when no read shows it any more, `erased_at` when no file holds it.

    While something holds the erasure up, `pending` says what. `copies` are those that the ledger
    does not own, or was not asked to take.
    """

    forgotten_at: str
    erased_at: str | None
    pending: tuple[str, ...]
    copies: tuple[str, ...]


class AbortReceipt(Value):
    """A prepared operation that ended without effect: the same fields, those of effects None.

    `reason` is the person's where a reconcile decided, else the rule that refused it. What a
    person has said goes with the record when it is forgotten: the ids are then None.
    """

    operation_id: str | None
    intent_digest: str
    record_id: str | None
    from_revision: None = None
    to_revision: None = None
    status: None = None
    record_digest: None = None
    session_id: str | None
    item_id: str | None
    authorization_id: str | None
    binding_id: str | None
    epoch: int
    decided_at: str
    outcome: Literal["aborted"] = "aborted"
    refusal: str
    reason: str
    position: int
    replayed: bool = False


class PreparedReceipt(Value):
    """A durable intent: it holds its record until it is committed, aborted or reconciled."""

    operation_id: str
    intent_digest: str
    record_id: str
    to_revision: int
    epoch: int
    prepared_at: str
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
        intent_digest=header.intent or digest,
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
        reason=header.reason if header.status == "forgotten" else None,
        position=event.position,
        replayed=replayed,
    )


def abort_receipt_of(event: Event, *, replayed: bool = False) -> AbortReceipt:
    """The receipt of an abort."""
    header, body = event.header, event.body(AbortBody)
    assert isinstance(header, OperationAborted), "aborts are one type of event"
    refusal, actor = Refusal[header.refusal], body.actor if body else None
    return AbortReceipt(
        operation_id=body.operation_id if body else None,
        intent_digest=header.intent,
        record_id=body.record_id if body else None,
        session_id=actor.session_id if actor else None,
        item_id=actor.item_id if actor else None,
        authorization_id=actor.authorization_id if actor else None,
        binding_id=actor.binding_id if actor else None,
        epoch=header.term,
        decided_at=time_text(moment_of(event.recorded_at)),
        refusal=refusal.code,
        reason=body.reason if body and body.reason else refusal.rule,
        position=event.position,
        replayed=replayed,
    )


def prepared_receipt_of(event: Event, *, replayed: bool = False) -> PreparedReceipt:
    """What is known of an open intent."""
    header, body = event.header, event.body(IntentBody)
    assert isinstance(header, OperationPrepared), "intents are one type of event"
    assert body is not None, "an open intent has its body"
    return PreparedReceipt(
        operation_id=body.operation_id,
        intent_digest=event.row.commitment.hex(),
        record_id=str(body.value["id"]),
        to_revision=header.to_revision,
        epoch=header.term,
        prepared_at=time_text(moment_of(event.recorded_at)),
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
