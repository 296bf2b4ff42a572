"""What stands between a candidate and its acceptance: conflicts, and ranges that are taken."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memoranda.ledger.commands import SourceRef
from memoranda.ledger.entries import Event, Selector, Tag
from memoranda.ledger.errors import IntegrityFault, Refusal
from memoranda.ledger.events import (
    BlockedSource,
    CandidatesDelivered,
    Conflict,
    ConflictBody,
    ConflictChanged,
    OperationAborted,
    OperationPrepared,
    ReconcileRecorded,
    RecordBody,
    RecordCommitted,
    SourceBlocked,
)
from memoranda.ledger.guards import Guards, Seen, captured_at, message_guard
from memoranda.ledger.personal import AnyRecord, Record, Tombstone, claims
from memoranda.ledger.sources import (
    MessageRef,
    message_refusal,
    overlapping_any,
    parse_ref,
    subject,
)


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as the log holds it, with what lies beside its value."""

    value: AnyRecord
    event: Event
    body: RecordBody

    @property
    def rejected_refs(self) -> tuple[str, ...]:
        """Every range from which this key was rejected, those beyond the value's cap included."""
        in_value = self.value.rejections if isinstance(self.value, Record) else ()
        return (*self.body.earlier_rejections, *(rejection.ref for rejection in in_value))


def stored_in(event: Event | None) -> Stored | None:
    """The record state that an event holds; None without one, or once it was erased."""
    body = event.body(RecordBody) if event else None
    if event is None or body is None:
        return None
    shape = Tombstone if body.value["status"] == "forgotten" else Record
    # The body was validated when it was written, and its commitment says it is still that.
    return Stored(shape.model_validate(body.value), event, body)


def step_delivery(step: str) -> Selector:
    """The delivery that a step noted, if it did."""
    return Selector(Tag("step", step), (CandidatesDelivered,))


def newest_of(record_id: str) -> Selector:
    """The record's present state."""
    return Selector(Tag("personal:rec", record_id), (RecordCommitted,))


def history_of(record_id: str) -> Selector:
    """Every revision of the record."""
    return Selector(Tag("personal:rec", record_id), (RecordCommitted,), newest=False)


def prepared_on(record_id: str) -> Selector:
    """The newest intent on the record; while it has no end, it holds the record."""
    return Selector(Tag("personal:rec", record_id), (OperationPrepared,))


def intents_on(record_id: str) -> Selector:
    """Every intent that was ever prepared on the record, and how it was ended or settled."""
    shapes = (OperationPrepared, OperationAborted, ReconcileRecorded)
    return Selector(Tag("personal:rec", record_id), shapes, newest=False)


def owner_of(event: Event) -> Selector:
    """The present state of the record that an event is about, known by its blind tag alone."""
    tag = event.tag("personal:rec")
    if tag is None:
        raise IntegrityFault(f"position {event.position}: a record's event without its tag")
    return Selector(tag, (RecordCommitted,))


def users_of(ref: str) -> Selector:
    """Every event that added, released or blocked a range of the ref's message."""
    return Selector(Tag("personal:src", subject(ref)), (RecordCommitted,), newest=False)


def blocks_of(ref: str) -> Selector:
    """Every mark of an earlier store that blocks a range of the ref's message."""
    return Selector(Tag("personal:src", subject(ref)), (SourceBlocked,), newest=False)


def conflicts_about(record_id: str) -> Selector:
    """Every event that opened or resolved a conflict about the record."""
    return Selector(
        Tag("personal:con", record_id), (RecordCommitted, ConflictChanged), newest=False
    )


def conflict_events(conflict_id: str) -> Selector:
    return Selector(
        Tag("personal:cid", conflict_id), (RecordCommitted, ConflictChanged), newest=False
    )


def conflicts_in(events: Iterable[Event]) -> dict[str, Conflict]:
    """The conflicts that these events tell of, each as it stands; erased ones are resolved."""
    known: dict[str, Conflict] = {}
    for event in events:
        for conflict in _told_by(event):
            known[conflict.conflict_id] = conflict
    return known


def _told_by(event: Event) -> Sequence[Conflict]:
    if isinstance(event.header, ConflictChanged):
        body = event.body(ConflictBody)
        return (body.conflict,) if body else ()
    record = event.body(RecordBody)
    return record.conflicts if record else ()


def open_conflicts(seen: Seen, record_id: str) -> list[Conflict]:
    """The open conflicts that name the record."""
    known = conflicts_in(seen.all(conflicts_about(record_id)))
    return [conflict for conflict in known.values() if conflict.state == "open"]


def conflict_tags(conflicts: Iterable[Conflict]) -> list[Tag]:
    """The tags under which an event that tells of these conflicts is found again."""
    tags = []
    for conflict in conflicts:
        tags.append(Tag("personal:cid", conflict.conflict_id))
        sides = (conflict.candidate_id, conflict.other_id)
        tags += [Tag("personal:con", side) for side in sides if side is not None]
    return tags


def source_boundary(refs: Iterable[str]) -> Iterator[Selector]:
    """What must be seen to judge sources: the messages, and who used their ranges."""
    for ref in refs:
        yield message_guard(subject(ref))
        yield users_of(ref)
        yield blocks_of(ref)


def source_refusal(
    seen: Seen, source: SourceRef, asking: "Asking", now_text: str
) -> Refusal | None:
    """The first check of PM 4.3 that a source fails, in the order of PM 2.5 step 7."""
    refusal = None
    if source.kind == "personal_message":
        refusal = citation_refusal(seen, source.ref, asking, now_text)
    return refusal or range_refusal(seen, source.ref, asking.record_id)


def citation_refusal(seen: Seen, text: str, asking: "Asking", now_text: str) -> Refusal | None:
    """Why a message may not be cited here, whoever uses its ranges."""
    ref = parse_ref(text)
    if ref is None:
        return Refusal.SOURCE_REF_INVALID
    captured = captured_at(seen, ref.address)
    return asking.binding_refusal(ref) or message_refusal(ref, captured, now_text)


@dataclass(frozen=True, slots=True)
class Asking:
    """For whom a source is checked: the record, and the conversation or message it may cite."""

    record_id: str
    guards: Guards

    def binding_refusal(self, ref: MessageRef) -> Refusal | None:
        """F8 and F7: an item cites its captured message, everyone else the bound conversation."""
        task, binding = self.guards.task, self.guards.binding
        if self.guards.role == "item" and task is not None:
            if task.captured_ref is None:
                return Refusal.ITEM_WITHOUT_SOURCE
            captured = parse_ref(task.captured_ref)
            is_own = captured is not None and captured.covers(ref)
            return None if is_own else Refusal.SOURCE_NOT_BOUND
        is_bound = binding is not None and binding.session_id == ref.session_id
        return None if is_bound else Refusal.SOURCE_NOT_BOUND


def range_refusal(seen: Seen, ref: str, record_id: str) -> Refusal | None:
    """F15 when the range was blocked by a forget, F14 when another live record owns it."""
    if is_blocked(seen, ref):
        return Refusal.SOURCE_FORGOTTEN
    return Refusal.SOURCE_IN_USE if owner_id(seen, ref, record_id) else None


def is_blocked(seen: Seen, ref: str) -> bool:
    """Whether a forget blocked the range, here or in an earlier store."""
    marks = (event.body(BlockedSource) for event in seen.all(blocks_of(ref)))
    marked = [mark.ref for mark in marks if mark]
    blocked = (ref for holder in holders_of(seen, ref) for ref in holder.blocked_sources)
    return overlapping_any(ref, [*marked, *blocked])


def owner_id(seen: Seen, ref: str, record_id: str) -> str | None:
    """Another live record that owns the range; the first of several by id."""
    others = (holder for holder in holders_of(seen, ref) if holder.id != record_id)
    return min((it.id for it in others if overlapping_any(ref, claims(it))), default=None)


def holders_of(seen: Seen, ref: str) -> list[AnyRecord]:
    """The records that ever added, released or blocked a range of the ref's message."""
    owners = {owner_of(event) for event in seen.all(users_of(ref))}
    return [stored.value for owner in owners if (stored := stored_in(seen.one(owner)))]
