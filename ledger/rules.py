"""The rules for one operation on one record, in the order in which refusals win (PM 2.5)."""

from collections.abc import Callable, Sequence

import rfc8785

from memoranda.ledger.authority import is_by, role_refusal
from memoranda.ledger.candidates import (
    Asking,
    history_of,
    newest_of,
    open_conflicts,
    owner_of,
    source_refusal,
    stored_in,
)
from memoranda.ledger.case import Case
from memoranda.ledger.commands import SourceRef
from memoranda.ledger.entries import Event
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    ConflictBody,
    ConflictChanged,
    IntentBody,
    Json,
    OperationAborted,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
)
from memoranda.ledger.guards import caller_boundary
from memoranda.ledger.personal import AnyRecord, Record, Tombstone, source_refs
from memoranda.ledger.receipts import Receipt, receipt_of
from memoranda.ledger.requests import Raw
from memoranda.ledger.sources import PREFIX, overlapping_any
from memoranda.ledger.transitions import is_allowed_from

Answer = Refused | Receipt | None


def _role(case: Case) -> Answer:
    action = case.request.change.action if case.request.change else "publish"
    refusal = role_refusal(action, case.guards.role)
    return Refused(refusal) if refusal else None


def _takes_along(case: Case) -> Answer:
    """F2: messages cannot be held, so within a window only the person takes them along."""
    is_decided = case.earlier is not None and case.prepared is None
    if is_decided or not case.is_held_back or not case.change.takes_sources:
        return None
    return Refused(Refusal.NOT_AUTHORIZED, "with_sources", PERSONS_TO_TAKE)


PERSONS_TO_TAKE = "takes messages for good; while forgets are held for the person, only they do"


def _identity(case: Case) -> Answer:
    """The operation's first receipt, F21 or F22: an id stands for one content, for ever."""
    earlier = case.earlier
    if earlier is None:
        return None
    match earlier.header:
        case ConflictChanged():
            is_erased = earlier.body(ConflictBody) is None
            refusal = Refusal.RECEIPT_SUPERSEDED if is_erased else Refusal.OPERATION_CONFLICT
            return Refused(refusal, "operation_id")
        case OperationAborted(refusal=name):
            return Refused(Refusal[name], "operation_id", ABORTED)
        case OperationPrepared():
            is_own = is_resumed(case)
            return None if is_own else Refused(Refusal.OPERATION_CONFLICT, "operation_id")
        case _:
            return _replay(case, earlier)


ABORTED = "was aborted by this rule, and stays so; a new intent takes a new id"


def is_resumed(case: Case) -> bool:
    """Whether this is the open operation again, from the one who prepared it."""
    prepared = case.prepared
    return (
        prepared is not None
        and is_by(prepared.actor, case.caller)
        and _is_same_content(case, prepared)
    )


def _replay(case: Case, earlier: Event) -> Answer:
    current = case.seen.one(owner_of(earlier))
    assert current is not None, "a record that had an operation has a newest event"
    assert isinstance(current.header, RecordCommitted), "one type of event holds records"
    superseded = Refused(Refusal.RECEIPT_SUPERSEDED, current_revision=current.header.to_revision)
    body = earlier.body(RecordBody)
    if body is None:
        return superseded
    if not _is_same_content(case, body):
        return Refused(Refusal.OPERATION_CONFLICT, "operation_id")
    is_current = current.position == earlier.position
    return receipt_of(earlier, replayed=True) if is_current else superseded


def _is_same_content(case: Case, body: IntentBody) -> bool:
    raw = case.request.raw
    if raw is None:
        return body.command == case.request.intent
    if body.value["id"] != case.request.record_id:
        return False
    if canonical(body.value) != canonical(raw.sent_value):
        return False
    if body.expected is None or raw.sent_expected is None:
        return body.expected is None and raw.sent_expected is None
    events = case.seen.all(history_of(case.request.record_id))
    named = (event for event in events if event.row.commitment.hex() == body.expected)
    expected = next((event.body(RecordBody) for event in named), None)
    if expected is None:
        # A forget has erased the record that it expected; id and revision name it still.
        before = raw.expected
        return before is not None and (before.id, before.revision + 1) == (
            body.value["id"],
            body.value["revision"],
        )
    return canonical(expected.value) == canonical(raw.sent_expected)


def _authorization(case: Case) -> Answer:
    refusal = case.guards.item_refusal(case.caller)
    return Refused(refusal) if refusal else None


def _background(case: Case) -> Answer:
    """F3: a background item proposes, and revises what it opened, and nothing else."""
    if case.guards.role != "item":
        return None
    change, stored = case.request.change, case.stored
    status = stored.value.status if stored else None
    is_proposal = change.action in {"propose", "revise"} if change else _is_unread_candidate(case)
    is_anothers = (
        change is not None
        and change.action == "revise"
        and stored is not None
        and stored.body.opened_by_item != case.actor.item_id
    )
    if not is_proposal or is_anothers or status in {"accepted", "retired"} or _asks_for_core(case):
        return Refused(Refusal.BACKGROUND_CANDIDATE_ONLY)
    return None


def _is_unread_candidate(case: Case) -> bool:
    """Whether a raw commit means a candidate but cannot be read, which a later rule says."""
    raw = case.request.raw
    is_unread = raw is not None and not (raw.value and raw.is_expected_readable)
    return is_unread and raw is not None and raw.sent_value.get("status") == "candidate"


def _asks_for_core(case: Case) -> bool:
    value = case.request.raw.value if case.request.raw else None
    return isinstance(value, Record) and value.tier == "core"


def _form(case: Case) -> Answer:
    """F18, F19 and F20 as far as the request itself shows them."""
    raw, change = case.request.raw, case.request.change
    if raw is not None and (answer := _raw_form(case, raw)):
        return answer
    cited = change.sources if change else None
    if case.guards.role == "item" and cited is not None and len(cited) != 1:
        return Refused(Refusal.VALUE_INVALID, "sources", "an item cites exactly one source")
    return None


def _raw_form(case: Case, raw: Raw) -> Answer:
    """F17 for an `expected` that is no record, F18, and F19 or F20 for what is no value here."""
    if not raw.is_expected_readable:
        return _conflict(case, "expected")
    revision = raw.sent_value.get("revision")
    if isinstance(revision, bool) or revision != (raw.expected.revision + 1 if raw.expected else 1):
        return Refused(Refusal.REVISION_INVALID, "value.revision")
    if raw.value is None:
        return raw.fault
    if raw.value.id != case.request.record_id:
        return Refused(Refusal.VALUE_INVALID, "value.id", "differs from the key")
    if raw.value.user_space_id != case.space:
        return Refused(Refusal.VALUE_INVALID, "value.user_space_id", "is another space")
    return None


def _transition(case: Case) -> Answer:
    """F35, F33, the revision that a tool call saw (F16, F17), then F34."""
    request, stored = case.request, case.stored
    status = stored.value.status if stored else None
    if request.raw is None:
        if stored is None and request.change and request.change.action not in _OPENS:
            return Refused(Refusal.NOT_FOUND, "record_id")
        if answer := _seen_revision(case):
            return answer
    if request.change is None:
        return Refused(Refusal.TRANSITION_INVALID)
    if status == "forgotten" and case.guards.role == "item":
        return Refused(Refusal.RECORD_FORGOTTEN)
    start = case.previous.status if case.previous else None
    is_taken = request.raw is None and request.change.action in _OPENS and status in _LIVE
    if not is_taken and (
        not (is_allowed_from(request.change.action, start) or _takes_held(case))
        or _changes_nothing(case)
    ):
        return Refused(Refusal.TRANSITION_INVALID, current_revision=_revision(case))
    return None


_OPENS = frozenset({"propose", "publish"})
_LIVE = frozenset({"candidate", "accepted", "retired"})


def _takes_held(case: Case) -> bool:
    """Whether the person forgets, once more and for good, what is held for them."""
    change = case.request.change
    is_forget = change is not None and change.action == "forget"
    is_gone = isinstance(case.previous, Tombstone) and bool(case.held_copies)
    return is_forget and case.guards.role == "client" and is_gone


def _held(case: Case) -> Answer:
    """F34: only what is held can be taken back, and only until its window is over."""
    change = case.request.change
    if change is None or change.action != "take_back" or case.taken_back is not None:
        return None
    message = "nothing of it is held for you, or no longer"
    return Refused(Refusal.TRANSITION_INVALID, "record_id", message, _revision(case))


def _changes_nothing(case: Case) -> bool:
    change, before = case.request.change, case.previous
    if change is None or change.action != "tier" or not isinstance(before, Record):
        return False
    return before.tier == change.tier


def _seen_revision(case: Case) -> Answer:
    stored, change = case.stored, case.request.change
    if change is None:
        return None
    if stored is None:
        is_opening = case.request.revision is None
        return None if is_opening else _conflict(case, "expected_revision")
    if change.action in _OPENS:
        is_seen = case.request.revision in {None, stored.value.revision}
        return None if is_seen else _conflict(case, "expected_revision")
    if case.request.revision == stored.value.revision:
        return None
    if change.action in {"accept", "reject"}:
        return Refused(Refusal.CANDIDATE_CHANGED, current_revision=_revision(case))
    return _conflict(case, "expected_revision")


def _successor(case: Case) -> Answer:
    """F19, F20 and F32 of the value itself."""
    if isinstance(case.successor, Refused):
        return case.successor
    raw = case.request.raw
    for other_id in case.conflicts_with:
        other = stored_in(case.seen.one(newest_of(other_id)))
        if other is None or isinstance(other.value, Tombstone):
            return Refused(Refusal.NOT_FOUND, "conflicts_with")
    if raw is None or raw.value is None:
        return None
    return _difference(raw.value, case.successor)


def _difference(sent: AnyRecord, built: AnyRecord) -> Refused | None:
    if isinstance(built, Tombstone):
        is_same = isinstance(sent, Tombstone) and _ordered(sent) == _ordered(built)
        return None if is_same else Refused(Refusal.TOMBSTONE_INVALID, "value")
    for field in type(built).model_fields:
        if getattr(sent, field) != getattr(built, field):
            return Refused(Refusal.VALUE_INVALID, f"value.{field}")
    return None


def _ordered(tombstone: Tombstone) -> Tombstone:
    blocked = tuple(sorted(tombstone.blocked_sources))
    return tombstone.model_copy(update={"blocked_sources": blocked})


def _sources(case: Case) -> Answer:
    """Each cited source in turn: F13, F9, F8, F7, F10, F11, F12, F31, F15, F14, F30."""
    carried = source_refs(case.previous) if case.change.action in {"revise", "correct"} else ()
    for place, source in enumerate(case.cited):
        refusal = _kind_refusal(case, source)
        if refusal is None and source.ref not in carried:
            asking = Asking(case.request.record_id, case.guards)
            refusal = source_refusal(case.seen, source, asking, case.moment.text)
            refusal = refusal or _rejection_refusal(case, source)
        if refusal:
            return Refused(refusal, f"sources.{place}")
    return None


def _kind_refusal(case: Case, source: SourceRef) -> Refusal | None:
    is_candidate = case.change.action in {"propose", "revise", "accept"}
    is_allowed = source.kind == "personal_message" or (not is_candidate and source.kind != "legacy")
    if is_allowed and source.kind != "personal_message" and source.ref.startswith(PREFIX):
        # Blocks keep refs without their kind, so the messages' names are theirs alone.
        return Refusal.SOURCE_REF_INVALID
    return None if is_allowed else Refusal.SOURCE_KIND_UNSUPPORTED


def _rejection_refusal(case: Case, source: SourceRef) -> Refusal | None:
    if case.change.action not in {"propose", "revise"} or case.stored is None:
        return None
    is_rejected = overlapping_any(source.ref, case.stored.rejected_refs)
    return Refusal.CANDIDATE_REJECTED if is_rejected else None


def _expected(case: Case) -> Answer:
    """F23 while another operation holds the record; F17 unless `expected` is the record."""
    if case.holder is not None:
        return _held_by(case, case.holder)
    raw, stored = case.request.raw, case.stored
    if raw is None:
        is_taken = stored is not None and stored.value.status in _LIVE
        return _conflict(case, "key") if is_taken and case.change.action in _OPENS else None
    if stored is None or raw.sent_expected is None:
        is_met = stored is None and raw.sent_expected is None
    else:
        is_met = canonical(stored.body.value) == canonical(raw.sent_expected)
    return None if is_met else _conflict(case, "expected")


HELD = "another operation holds the record"


def _held_by(case: Case, holder: Event) -> Refused:
    """F23, with the operation to look up for whoever may see it."""
    intent = holder.body(IntentBody)
    is_shown = intent is not None and (
        case.guards.role == "client" or is_by(intent.actor, case.caller)
    )
    operation_id = intent.operation_id if intent is not None and is_shown else None
    return Refused(Refusal.OUTCOME_UNKNOWN, "key", HELD, operation_id=operation_id)


def _conflicts(case: Case) -> Answer:
    is_open = case.change.action == "accept" and open_conflicts(case.seen, case.request.record_id)
    return Refused(Refusal.CONFLICT_UNRESOLVED) if is_open else None


def _fence(case: Case) -> Answer:
    """F6 and F29 at the commit point: protections held, authority from the data sets bound."""
    if case.moment.is_fenced or _was_fenced(case):
        return Refused(Refusal.EXECUTION_FENCED)
    rests_on_the_binding = case.guards.role != "client" or any(
        source.kind == "personal_message" for source in case.cited
    )
    is_bound = not rests_on_the_binding or case.guards.is_bound_by(case.moment.data_sets)
    return None if is_bound else Refused(Refusal.BINDING_MISMATCH)


def _was_fenced(case: Case) -> bool:
    """Whether a guard has changed since the intent was prepared, even if it was put back since."""
    if case.prepared is None or case.earlier is None or case.guards.role == "client":
        return False
    if case.prepared.fences != case.moment.fences:
        return True
    guards = (case.seen.one(selector) for selector in caller_boundary(case.caller))
    return any(guard and guard.position > case.earlier.position for guard in guards)


def _as_prepared(case: Case) -> Answer:
    """F17: what is written now is what was prepared, to the byte."""
    prepared = case.prepared
    is_same = prepared is None or canonical(_json(case.value)) == canonical(prepared.value)
    return None if is_same else _conflict(case, "value")


def _json(value: AnyRecord) -> Json:
    return value.model_dump(mode="json")


RULES: Sequence[Callable[[Case], Answer]] = (
    _role,
    _takes_along,
    _identity,
    _authorization,
    _background,
    _form,
    _transition,
    _held,
    _successor,
    _sources,
    _expected,
    _conflicts,
    _as_prepared,
    _fence,
)


def canonical(value: object) -> bytes:
    """RFC 8785 (PM 1.4); raises rfc8785.CanonicalizationError for what JSON cannot say."""
    return rfc8785.dumps(value)  # type: ignore[arg-type]  # it refuses other types by itself


def _conflict(case: Case, field: str) -> Refused:
    return Refused(Refusal.REVISION_CONFLICT, field, current_revision=_revision(case))


def _revision(case: Case) -> int | None:
    return case.stored.value.revision if case.stored else None
