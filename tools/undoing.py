"""Undo: the person's own last command is taken back, by an ordinary operation of its own."""

from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Json, Tier
from memoranda.ledger.receipts import Receipt
from memoranda.projections.history import OperationRead
from memoranda.tools.memory import Memory

REASON = "taken back by the person"
LOOK_BACK = 100

_GONE = {
    "forgotten": "was a forget, and what it took is gone for good",
    "rejected": "was a rejection, which holds for ever; publish the fact to overrule it",
}


def undo(memory: Memory, *, operation_id: str | None = None) -> Receipt | Refused:
    """Takes the person's last command back; history keeps both.

    What destroyed something, or decided about a candidate, is refused with the reason; so is what
    another operation has changed since.
    """
    known = memory.operation(operation_id) if operation_id else None
    if known and not isinstance(known, Refused) and isinstance(known.receipt, Receipt):
        return known.receipt.model_copy(update={"replayed": True})
    read = _own_last(memory)
    if isinstance(read, Refused):
        return read
    if isinstance(read.receipt, Receipt) and read.receipt.status == "forgotten":
        return _cannot(_GONE["forgotten"])
    value = read.intent.get("value") if read.intent else None
    if not isinstance(value, dict):
        return _cannot("was no command on one record")
    if not read.is_current:
        message = "another operation has changed its record since"
        return Refused(Refusal.RECEIPT_SUPERSEDED, "operation", message, read.current_revision)
    before = read.intent.get("expected") if read.intent else None
    return _taken_back(memory, before if isinstance(before, dict) else None, value, operation_id)


def _own_last(memory: Memory) -> OperationRead | Refused:
    latest = memory.operations(state="committed", limit=LOOK_BACK)
    if isinstance(latest, Refused):
        return latest
    own = next((it for it in latest if it.actor and it.actor.role == "client"), None)
    if own is None or own.operation_id is None:
        message = f"none of the latest {LOOK_BACK} operations is your own"
        return Refused(Refusal.NOT_FOUND, "operation", message)
    return memory.operation(own.operation_id)


def _taken_back(
    memory: Memory, before: Json | None, value: Json, operation_id: str | None
) -> Receipt | Refused:
    """The inverse of a step from one state of a record to the next."""
    record_id, revision = str(value["id"]), int(str(value["revision"]))
    was, became = before.get("status") if before else None, value["status"]
    if became not in {"accepted", "retired"}:
        return _cannot(_GONE.get(str(became), "left a candidate; reject it instead"))
    if was == "candidate":
        return _cannot("decided about a candidate; retire the record instead")
    if became == "retired":
        return memory.reactivate(record_id, revision, operation_id=operation_id)
    if was != "accepted" or before is None:
        return memory.retire(record_id, revision, REASON, operation_id=operation_id)
    if before["tier"] != value["tier"]:
        tier: Tier = "core" if before["tier"] == "core" else "detail"
        return memory.choose_tier(record_id, revision, tier, operation_id=operation_id)
    return memory.correct(
        record_id,
        revision,
        str(before["content"]),
        effective_at=_date(before["effective_at"]),
        expires_at=_date(before["expires_at"]),
        operation_id=operation_id,
    )


def _date(kept: object) -> str | None:
    return kept if isinstance(kept, str) else None


def _cannot(message: str) -> Refused:
    return Refused(Refusal.TRANSITION_INVALID, "operation", message)
