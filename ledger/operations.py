"""The conductor of every operation: admit at the door, decide under the lock, answer."""

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import step_delivery
from memoranda.ledger.case import Moment, Raw, Request
from memoranda.ledger.commands import (
    Accept,
    ChooseTier,
    Command,
    Commit,
    ConflictCommand,
    Correct,
    Forget,
    NoteDelivery,
    OpenConflict,
    Propose,
    Publish,
    Reactivate,
    RecordCommand,
    Reject,
    ResolveConflict,
    Retire,
    Revise,
    admit,
    is_new_record_id,
)
from memoranda.ledger.conflicts import ConflictSlice
from memoranda.ledger.decisions import RecordSlice, Slice, decide
from memoranda.ledger.entries import Draft, Event
from memoranda.ledger.errors import OutcomeUnknown, Refusal, Refused, RefusedError
from memoranda.ledger.events import CandidatesDelivered, Delivery, Json
from memoranda.ledger.forgetting import finish_forgets
from memoranda.ledger.guards import Seen, caller_boundary, guards_of
from memoranda.ledger.log import Log
from memoranda.ledger.oplog import say
from memoranda.ledger.personal import Record, read_record, record_id_of, record_texts
from memoranda.ledger.receipts import (
    ConflictReceipt,
    DeliveryReceipt,
    Receipt,
    conflict_receipt_of,
    receipt_of,
)
from memoranda.ledger.screening import SecretPolicy, screen
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.transitions import change_between, change_of

C = TypeVar("C", bound=Command)
R = TypeVar("R", Receipt, ConflictReceipt)

RAW_INTENT: Json = {"name": "commit"}


class Ledger:
    """What may happen to the records of one space.

    Every verb takes the caller as the host vouches for it and the request's fields by name, and
    answers with a receipt or a `Refused`. A refusal leaves no trace.
    """

    def __init__(self, log: Log, stamps: Stamps, secrets: SecretPolicy = "refuse") -> None:
        self._log = log
        self._stamps = stamps
        self._secrets = secrets
        finish_forgets(log, stamps)

    # -- records ----------------------------------------------------------------------------

    def propose(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Opens a candidate; fields as in `commands.Propose`."""
        return self._record(caller, Propose, request)

    def publish(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Opens an accepted record; fields as in `commands.Publish`."""
        return self._record(caller, Publish, request)

    def revise(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Changes a candidate; fields as in `commands.Revise`."""
        return self._record(caller, Revise, request)

    def accept(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Accepts a candidate as inspected; fields as in `commands.Accept`."""
        return self._record(caller, Accept, request)

    def reject(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Rejects a candidate for its sources; fields as in `commands.Reject`."""
        return self._record(caller, Reject, request)

    def correct(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Gives new explicit content; fields as in `commands.Correct`."""
        return self._record(caller, Correct, request)

    def choose_tier(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Moves a record in or out of core; fields as in `commands.ChooseTier`."""
        return self._record(caller, ChooseTier, request)

    def retire(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Takes a record out of recall, kept; fields as in `commands.Retire`."""
        return self._record(caller, Retire, request)

    def reactivate(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Brings a retired record back; fields as in `commands.Reactivate`."""
        return self._record(caller, Reactivate, request)

    def forget(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Leaves a tombstone and removes keys and bodies; fields as in `commands.Forget`."""
        answer = self._record(caller, Forget, request)
        if isinstance(answer, Receipt):
            finish_forgets(self._log, self._stamps)
        return answer

    def commit(self, caller: Caller, request: Mapping[str, object]) -> Receipt | Refused:
        """The one way in: `{id, key, expected, value}` of PM 1.7."""
        commit = admit(Commit, request)
        admitted = commit if isinstance(commit, Refused) else _raw_request(commit, self._secrets)
        answer = self._decide_record(caller, admitted, "commit")
        if isinstance(answer, Receipt) and answer.status == "forgotten":
            finish_forgets(self._log, self._stamps)
        return answer

    # -- conflicts --------------------------------------------------------------------------

    def open_conflict(self, caller: Caller, **request: object) -> ConflictReceipt | Refused:
        """Says that two records may not both be true; fields as in `commands.OpenConflict`."""
        return self._conflict(caller, OpenConflict, request)

    def resolve_conflict(self, caller: Caller, **request: object) -> ConflictReceipt | Refused:
        """Settles an open conflict; fields as in `commands.ResolveConflict`."""
        return self._conflict(caller, ResolveConflict, request)

    # -- recall -----------------------------------------------------------------------------

    def note_delivery(self, caller: Caller, **request: object) -> DeliveryReceipt | Refused:
        """Notes which candidates a step listed (PM 5.2): one append, once per step."""
        noted = admit(NoteDelivery, request)
        if isinstance(noted, Refused):
            return noted
        try:
            with self._log.deciding() as store:
                answer = _note(store, caller, noted)
        except RefusedError as error:
            answer = error.refused
        outcome = "refused" if isinstance(answer, Refused) else "noted"
        say(logging.INFO, "delivery", outcome=outcome, candidates=len(noted.candidate_ids))
        return answer

    # -- how --------------------------------------------------------------------------------

    def _record(
        self, caller: Caller, shape: type[RecordCommand], request: Mapping[str, object]
    ) -> Receipt | Refused:
        command = self._admit(shape, request)
        admitted = command if isinstance(command, Refused) else _named_request(command)
        return self._decide_record(caller, admitted, shape.ACTION)

    def _decide_record(
        self, caller: Caller, request: Request | Refused, name: str
    ) -> Receipt | Refused:
        if isinstance(request, Refused):
            self._say(name, request)
            return request
        space = self._log.space
        return self._decide(
            name, lambda moment: RecordSlice(request, caller, space, moment), receipt_of
        )

    def _conflict(
        self, caller: Caller, shape: type[ConflictCommand], request: Mapping[str, object]
    ) -> ConflictReceipt | Refused:
        command = self._admit(shape, request)
        if isinstance(command, Refused):
            self._say(shape.ACTION, command)
            return command
        return self._decide(
            shape.ACTION,
            lambda moment: ConflictSlice(command, caller, moment),
            conflict_receipt_of,
        )

    def _admit(self, shape: type[C], request: Mapping[str, object]) -> C | Refused:
        command = admit(shape, request)
        if isinstance(command, Refused):
            return command
        fields = {name: getattr(command, name) for name in shape.SCREENED}
        texts = {name: text for name, text in fields.items() if text is not None}
        # A reference cannot be redacted and still refer: one that holds a secret is refused.
        refs = {
            f"sources.{place}": source.ref
            for place, source in enumerate(getattr(command, "sources", None) or ())
            if source.kind != "personal_message"
        }
        if isinstance(refused := screen(refs, "refuse"), Refused):
            return refused
        screened = screen(texts, self._secrets)
        if isinstance(screened, Refused):
            return screened
        return command if screened == texts else command.model_copy(update=screened)

    def _decide(
        self,
        name: str,
        slice_at: Callable[[Moment], Slice[R | Refused]],
        receipt: Callable[[Event], R | Refused],
    ) -> R | Refused:
        """One decision under the lock, and one log line at its end."""
        try:
            with self._log.deciding() as store:
                moment = Moment(store.clock, store.head.term, self._stamps.new_id)
                decided = decide(store, slice_at(moment))
                answer = receipt(decided) if isinstance(decided, Event) else decided
        except RefusedError as error:
            answer = error.refused
        except OutcomeUnknown:
            say(logging.ERROR, name, outcome="unknown")
            raise
        self._say(name, answer)
        return answer

    def _say(self, name: str, answer: Receipt | ConflictReceipt | Refused) -> None:
        # Numbers and codes only: a caller's ids may be personal.
        if isinstance(answer, Refused):
            say(logging.INFO, name, outcome="refused", refusal=answer.refusal.name)
        else:
            position, replayed = answer.position, answer.replayed
            say(logging.INFO, name, outcome="committed", position=position, replayed=replayed)


def _note(store: DecidingStore, caller: Caller, noted: NoteDelivery) -> DeliveryReceipt | Refused:
    seen = Seen()
    delivery = step_delivery(noted.step)
    seen.look(store, (*caller_boundary(caller), delivery))
    if guards_of(seen, caller).role != "primary":
        return Refused(Refusal.NOT_AUTHORIZED)
    earlier, known = seen.one(delivery), seen.body(delivery, Delivery)
    if earlier is not None and known is not None:
        return DeliveryReceipt(
            step=noted.step,
            candidate_ids=known.candidate_ids,
            position=earlier.position,
            replayed=True,
        )
    position = None
    if noted.candidate_ids:
        body = Delivery(step=noted.step, candidate_ids=noted.candidate_ids)
        position = store.append(Draft(CandidatesDelivered(), body, (delivery.tag,))).position
    return DeliveryReceipt(step=noted.step, candidate_ids=noted.candidate_ids, position=position)


def _named_request(command: RecordCommand) -> Request:
    """A named command as an operation on one record."""
    match command:
        case Propose() | Publish():
            return Request(
                command.operation_id,
                record_id_of(command.key),
                command.intent(),
                change_of(command),
                key=command.key,
                revision=command.expected_revision if isinstance(command, Publish) else None,
                conflicts_with=command.conflicts_with if isinstance(command, Propose) else (),
            )
        case Accept():
            revision = command.inspected_revision
        case _:
            revision = command.expected_revision
    return Request(
        command.operation_id,
        command.record_id,
        command.intent(),
        change_of(command),
        revision=revision,
        conflicts_with=command.conflicts_with if isinstance(command, Revise) else (),
    )


def _raw_request(commit: Commit, secrets: SecretPolicy) -> Request | Refused:
    """A raw commit as an operation; only new ids, limits and secrets are refused at the door."""
    if commit.expected is None and not is_new_record_id(commit.key):
        return Refused(Refusal.INVALID_REQUEST, "key", "is mem_ and 64 lower-case hex digits")
    value = read_record(commit.value)
    if isinstance(value, Refused) and value.refusal is Refusal.LIMIT_EXCEEDED:
        return value
    texts = record_texts(value) if isinstance(value, Record) else {}
    screened = screen(texts, secrets)
    if isinstance(screened, Refused):
        return screened
    if screened != texts:
        # A raw value is the caller's to the byte; it cannot be redacted on the way in.
        return Refused(Refusal.SECRET_DETECTED, "value.content")
    expected = None if commit.expected is None else read_record(commit.expected)
    raw = Raw(
        sent_expected=commit.expected,
        sent_value=commit.value,
        expected=None if isinstance(expected, Refused) else expected,
        value=None if isinstance(value, Refused) else value,
        fault=value if isinstance(value, Refused) else None,
    )
    is_readable = raw.value is not None and raw.is_expected_readable
    return Request(
        commit.id,
        commit.key,
        dict(RAW_INTENT),
        change_between(raw.expected, raw.value) if is_readable and raw.value else None,
        raw=raw,
    )
