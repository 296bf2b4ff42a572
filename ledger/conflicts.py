"""Conflicts between records: opened and resolved by operations of their own (PM 1.8)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from memoranda.ledger.authority import Caller, actor_of, role_refusal
from memoranda.ledger.candidates import (
    conflict_events,
    conflict_tags,
    conflicts_about,
    conflicts_in,
    newest_of,
    open_conflicts,
    owner_of,
    stored_in,
)
from memoranda.ledger.case import Moment, operation_selector
from memoranda.ledger.commands import ConflictCommand, OpenConflict
from memoranda.ledger.decisions import Decided
from memoranda.ledger.entries import FRESH_KEY, Draft, Event, Selector, Tag
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    Conflict,
    ConflictBody,
    ConflictChanged,
    RecordBody,
    RecordCommitted,
)
from memoranda.ledger.guards import Guards, Seen, caller_boundary, guards_of
from memoranda.ledger.personal import Tombstone
from memoranda.ledger.receipts import ConflictReceipt, conflict_receipt_of

Answer = ConflictReceipt | Refused | None


@dataclass(frozen=True)
class ConflictSlice:
    """Opens or resolves one conflict; it changes no record and no revision."""

    command: ConflictCommand
    caller: Caller
    moment: Moment

    def boundary(self, seen: Seen) -> Iterator[Selector]:
        """Caller, operation, and the two sides with what is open between them."""
        operation = operation_selector(self.command.operation_id)
        yield from caller_boundary(self.caller)
        yield operation
        if (earlier := seen.one(operation)) and isinstance(earlier.header, RecordCommitted):
            yield owner_of(earlier)
        if isinstance(self.command, OpenConflict):
            yield conflicts_about(self.command.candidate_id)
            yield newest_of(self.command.candidate_id)
            yield newest_of(self.command.other_id)
        else:
            yield conflict_events(self.command.conflict_id)

    def execute(self, seen: Seen) -> Decided | ConflictReceipt | Refused:
        """The event, the receipt of a retry, or the first refusal by PM 2.5."""
        case = _Case(self, seen)
        for rule in (_role, _identity, _authorization, _state, _fence):
            answer = rule(case)
            if answer is not None:
                return answer
        return _decided(case)


@dataclass(frozen=True)
class _Case:
    of: ConflictSlice
    seen: Seen

    @cached_property
    def guards(self) -> Guards:
        return guards_of(self.seen, self.of.caller)

    @cached_property
    def known(self) -> Conflict | None:
        """The conflict meant: the one to resolve, or the one already open between the two."""
        command = self.of.command
        if not isinstance(command, OpenConflict):
            found = conflicts_in(self.seen.all(conflict_events(command.conflict_id)))
            return found.get(command.conflict_id)
        pair = {command.candidate_id, command.other_id}
        about = open_conflicts(self.seen, command.candidate_id)
        return next((c for c in about if {c.candidate_id, c.other_id} == pair), None)


def _role(case: _Case) -> Answer:
    refusal = role_refusal(case.of.command.ACTION, case.guards.role)
    return Refused(refusal) if refusal else None


def _identity(case: _Case) -> Answer:
    earlier = case.seen.one(operation_selector(case.of.command.operation_id))
    if earlier is None:
        return None
    if not isinstance(earlier.header, ConflictChanged):
        return _of_a_record(case, earlier)
    body = earlier.body(ConflictBody)
    if body is not None and body.command != case.of.command.intent():
        return Refused(Refusal.OPERATION_CONFLICT, "operation_id")
    return conflict_receipt_of(earlier, replayed=True)


def _of_a_record(case: _Case, earlier: Event) -> Refused:
    """F21, or F22 once the record of that operation was forgotten."""
    if not isinstance(earlier.header, RecordCommitted) or earlier.body(RecordBody) is not None:
        return Refused(Refusal.OPERATION_CONFLICT, "operation_id")
    current = case.seen.one(owner_of(earlier))
    assert current is not None, "a record that had an operation has a newest event"
    assert isinstance(current.header, RecordCommitted), "one type of event holds records"
    return Refused(Refusal.RECEIPT_SUPERSEDED, current_revision=current.header.to_revision)


def _authorization(case: _Case) -> Answer:
    refusal = case.guards.item_refusal(case.of.caller)
    if refusal is None and case.guards.role == "item":
        refusal = None if _is_own_candidate(case) else Refusal.BACKGROUND_CANDIDATE_ONLY
    return Refused(refusal) if refusal else None


def _is_own_candidate(case: _Case) -> bool:
    command, task = case.of.command, case.guards.task
    if not isinstance(command, OpenConflict) or task is None:
        return False
    stored = stored_in(case.seen.one(newest_of(command.candidate_id)))
    # A missing record is F35, which the next rule says.
    return stored is None or stored.body.opened_by_item == task.item_id


def _state(case: _Case) -> Answer:
    command = case.of.command
    if not isinstance(command, OpenConflict):
        if case.known is None:
            return Refused(Refusal.NOT_FOUND, "conflict_id")
        is_open = case.known.state == "open"
        return None if is_open else Refused(Refusal.TRANSITION_INVALID, "conflict_id")
    if case.known is not None:
        return None
    for field in ("other_id", "candidate_id"):
        stored = stored_in(case.seen.one(newest_of(getattr(command, field))))
        if stored is None or isinstance(stored.value, Tombstone):
            return Refused(Refusal.NOT_FOUND, field)
        if field == "candidate_id" and stored.value.status != "candidate":
            return Refused(Refusal.TRANSITION_INVALID, field)
    is_pair = command.candidate_id != command.other_id
    return None if is_pair else Refused(Refusal.TRANSITION_INVALID, "other_id")


def _fence(case: _Case) -> Answer:
    """F6 and F29 at the commit point: protections held, authority from the data sets bound."""
    moment = case.of.moment
    if moment.is_fenced:
        return Refused(Refusal.EXECUTION_FENCED)
    is_bound = case.guards.role == "client" or case.guards.is_bound_by(moment.data_sets)
    return None if is_bound else Refused(Refusal.BINDING_MISMATCH)


def _decided(case: _Case) -> Decided:
    command, known = case.of.command, case.known
    if not isinstance(command, OpenConflict):
        assert known is not None, "the rules have refused an unknown conflict"
        conflict = known.model_copy(update={"state": "resolved", "resolution": command.resolution})
    else:
        # A second opening of one pair names the first.
        conflict = known or Conflict(
            conflict_id=case.of.moment.new_id("con"),
            candidate_id=command.candidate_id,
            other_id=command.other_id,
            state="open",
        )
    body = ConflictBody(
        operation_id=command.operation_id,
        actor=actor_of(case.of.caller, case.guards.role, case.guards.binding),
        command=command.intent(),
        conflict=conflict,
        reason=command.reason,
    )
    header = ConflictChanged(family="personal", state=conflict.state, term=case.of.moment.term)
    tags = (Tag("personal:op", command.operation_id), *conflict_tags([conflict]))
    return Decided(Draft(header, body, tags, FRESH_KEY))
