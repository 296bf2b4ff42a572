"""The conductor of every operation: admit at the door, decide under the lock, answer."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from memoranda.ledger.asking import ReadRecord
from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import step_delivery
from memoranda.ledger.case import Moment
from memoranda.ledger.commands import (
    RECORD_COMMANDS,
    Accept,
    ChooseTier,
    Command,
    Commit,
    CommitMany,
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
    TakeBack,
    admit,
)
from memoranda.ledger.commit_protocol import CommitProtocol
from memoranda.ledger.conflicts import ConflictSlice
from memoranda.ledger.decisions import Decided
from memoranda.ledger.entries import Draft, Event, Selector
from memoranda.ledger.errors import OutcomeUnknown, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.events import CandidatesDelivered, Delivery
from memoranda.ledger.guards import Seen, caller_boundary, guards_of
from memoranda.ledger.log import Log
from memoranda.ledger.oplog import say
from memoranda.ledger.receipts import (
    ConflictReceipt,
    DeliveryReceipt,
    ForgetReceipt,
    PreparedReceipt,
    Receipt,
    conflict_receipt_of,
)
from memoranda.ledger.requests import Request, named_request, raw_request
from memoranda.ledger.screening import SecretPolicy, screen
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.stamps import Stamps

A = TypeVar("A", bound=Receipt | PreparedReceipt | ConflictReceipt | Refused)
C = TypeVar("C", bound=Command)
Q = TypeVar("Q", bound=Request | Command)

SHUTDOWN_WAIT_S = 3.0
"""How long a closing waits for commits under way; with the lock's own wait below 10 s (PM 3.4)."""


class Ledger:
    """What may happen to the records of one space.

    Every verb takes the caller as the host vouches for it and the request's fields by name, and
    answers with a receipt or a `Refused`. A refusal leaves no trace.
    """

    def __init__(
        self, log: Log, stamps: Stamps, protocol: CommitProtocol, secrets: SecretPolicy = "refuse"
    ) -> None:
        self._log = log
        self._stamps = stamps
        self._protocol = protocol
        self._secrets = secrets

    def close(self) -> None:
        """Lets nobody begin, and waits for what is under way; what stays open can be resumed."""
        self._protocol.writers.stop()
        if not self._protocol.writers.drain(SHUTDOWN_WAIT_S):
            say(logging.WARNING, "close", outcome="commits left to recovery")

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

    def forget(self, caller: Caller, **request: object) -> ForgetReceipt | Refused:
        """Leaves a tombstone and erases the rest; fields as in `commands.Forget`."""
        answer = self._record(caller, Forget, request)
        assert isinstance(answer, ForgetReceipt | Refused), "a forget answers as one"
        return answer

    def take_back(self, caller: Caller, **request: object) -> Receipt | Refused:
        """Gives a record its held words again, for the person; fields as in `commands.TakeBack`."""
        return self._record(caller, TakeBack, request)

    def commit(self, caller: Caller, request: Mapping[str, object]) -> Receipt | Refused:
        """The one way in: `{id, key, expected, value}` of PM 1.7, or a command as for `prepare`."""
        return self._commit(caller, self._any(request), "commit")

    def prepare(self, caller: Caller, request: object) -> PreparedReceipt | Receipt | Refused:
        """Makes an intent durable, which holds its record until the same request is committed.

        The request is `{id, key, expected, value}`, or a named command as `{name, …}`.
        """

        def prepared(admitted: Request) -> PreparedReceipt | Receipt | Refused:
            return self._protocol.prepare(admitted, caller)

        return self._answered("prepare", self._any(request), prepared)

    def commit_many(
        self,
        caller: Caller,
        requests: object,
        *,
        all_or_nothing: bool = False,
    ) -> tuple[Receipt | Refused, ...] | Refused:
        """Decides requests in order inside one durable write; each has its own answer.

        Requests are as for `prepare`. A refusal undoes no other, unless `all_or_nothing` is asked
        for: then the first one, named by its place, is the only answer, and nothing is written.
        Where a host holds guards of its own each request has writes of its own: a fault is the
        answer of the one that met it, and `all_or_nothing` is refused. Raises OutcomeUnknown that
        names the first operation of the one write, which tells for all of them.
        """
        many = admit(CommitMany, {"requests": requests, "all_or_nothing": all_or_nothing})
        if isinstance(many, Refused):
            self._say("commit_many", many)
            return many
        try:
            answers = self._decided_together(caller, many)
        except RefusedError as error:
            self._say("commit_many", error.refused)
            return error.refused
        except OutcomeUnknown:
            say(logging.ERROR, "commit_many", outcome="unknown")
            raise
        refused = sum(isinstance(answer, Refused) for answer in answers)
        say(logging.INFO, "commit_many", committed=len(answers) - refused, refused=refused)
        return tuple(self._told(answer) for answer in answers)

    def _told(self, answer: Receipt | Refused) -> Receipt | Refused:
        """A forget's receipt says how far its erasure is."""
        if isinstance(answer, Refused) or answer.status != "forgotten":
            return answer
        try:
            return self._protocol.forgetting.told(answer)
        except (StorageFault, RefusedError) as error:
            unknown = OutcomeUnknown("it is durable; how far its erasure is could not be read")
            unknown.operation_id = answer.operation_id
            raise unknown from error

    def _decided_together(self, caller: Caller, many: CommitMany) -> tuple[Receipt | Refused, ...]:
        admitted = [self._any(request) for request in many.requests]
        if not self._protocol.is_embedded:
            # Protections are one operation's: where a host holds its own, each has its own append.
            if many.all_or_nothing:
                message = "needs a log that holds every guard"
                raise RefusedError(Refused(Refusal.INVALID_REQUEST, "all_or_nothing", message))
            return tuple(self._committed_alone(caller, request) for request in admitted)
        written: list[str] = []
        try:
            with self._log.deciding() as store:
                decided = (self._decided(store, caller, it, written) for it in admitted)
                if many.all_or_nothing:
                    decided = (_or_nothing(it, place) for place, it in enumerate(decided))
                answers = tuple(decided)
            # A refusal may have ended an operation that was prepared; its key goes too.
            has_ended = any(isinstance(it, Refused) or it.status == "forgotten" for it in answers)
            if has_ended or self._protocol.forgetting.is_owed:
                self._protocol.finish()
        except OutcomeUnknown as unknown:
            # One write, one outcome: what the first id in it tells holds for all of them.
            unknown.operation_id = next(iter(written), None)
            raise
        return answers

    def _decided(
        self, store: DecidingStore, caller: Caller, request: Request | Refused, written: list[str]
    ) -> Receipt | Refused:
        """One of several in a write, noting its id where it has put anything there."""
        if isinstance(request, Refused):
            return request
        before = store.head.position
        answer = self._protocol.decide(store, request, caller)
        if store.head.position > before:
            written.append(request.operation_id)
        return answer

    def _committed_alone(self, caller: Caller, request: Request | Refused) -> Receipt | Refused:
        """A commit whose fault takes no answer of another one along."""
        try:
            return self._commit(caller, request, "commit")
        except OutcomeUnknown as unknown:
            return unknown.refused
        except StorageFault as fault:
            return Refused(Refusal.SERVICE_UNAVAILABLE, "documents", str(fault))

    # -- conflicts --------------------------------------------------------------------------

    def open_conflict(self, caller: Caller, **request: object) -> ConflictReceipt | Refused:
        """Says that two records may not both be true; fields as in `commands.OpenConflict`."""
        return self._conflict(caller, OpenConflict, request)

    def resolve_conflict(self, caller: Caller, **request: object) -> ConflictReceipt | Refused:
        """Settles an open conflict; fields as in `commands.ResolveConflict`."""
        return self._conflict(caller, ResolveConflict, request)

    # -- recovery ---------------------------------------------------------------------------

    def observe(self, caller: Caller, record_id: str | None = None) -> Refused | None:
        """Takes in what foreign providers say of a caller that is about to read, or to judge."""
        if record_id is not None:
            asked = admit(ReadRecord, {"record_id": record_id})
            if isinstance(asked, Refused):
                return asked
        try:
            self._protocol.observe(caller, record_id)
        except RefusedError as error:
            return error.refused
        return None

    # -- recall -----------------------------------------------------------------------------

    def note_delivery(self, caller: Caller, **request: object) -> DeliveryReceipt | Refused:
        """Notes which candidates a step listed (PM 5.2): one append, once per step."""
        noted = admit(NoteDelivery, request)
        if isinstance(noted, Refused):
            return noted
        try:
            found = self._protocol.decide_once(
                lambda moment: _DeliverySlice(noted, caller, moment), caller
            )
            if isinstance(found, Event):
                body = found.body(Delivery)
                assert body is not None, "it was appended just now"
                found = _noted(body, found.position)
            answer: DeliveryReceipt | Refused = found
        except RefusedError as error:
            answer = error.refused
        outcome = "refused" if isinstance(answer, Refused) else "noted"
        say(logging.INFO, "delivery", outcome=outcome, candidates=len(noted.candidate_ids))
        return answer

    # -- how --------------------------------------------------------------------------------

    def _record(
        self, caller: Caller, shape: type[RecordCommand], request: Mapping[str, object]
    ) -> Receipt | Refused:
        return self._commit(caller, self._named(shape, request), shape.ACTION)

    def _commit(self, caller: Caller, request: Request | Refused, name: str) -> Receipt | Refused:
        def committed(admitted: Request) -> Receipt | Refused:
            return self._told(self._protocol.commit(admitted, caller))

        return self._answered(name, request, committed)

    def _named(
        self, shape: type[RecordCommand], request: Mapping[str, object]
    ) -> Request | Refused:
        command = self._admit(shape, request)
        return command if isinstance(command, Refused) else named_request(command)

    def _raw(self, request: object) -> Request | Refused:
        commit = admit(Commit, request)
        return commit if isinstance(commit, Refused) else raw_request(commit, self._secrets)

    def _any(self, request: object) -> Request | Refused:
        if not isinstance(request, Mapping) or "name" not in request:
            return self._raw(request)
        name = request["name"]
        shape = RECORD_COMMANDS.get(name) if isinstance(name, str) else None
        if shape is None:
            return Refused(Refusal.INVALID_REQUEST, "name", "is no command on a record")
        fields = {field: value for field, value in request.items() if field != "name"}
        return self._named(shape, fields)

    def _answered(self, name: str, request: Q | Refused, answer: Callable[[Q], A]) -> A | Refused:
        """An answer to an admitted request, with one log line at its end."""
        if isinstance(request, Refused):
            self._say(name, request)
            return request
        try:
            answered: A | Refused = answer(request)
        except RefusedError as error:
            answered = error.refused
        except OutcomeUnknown as unknown:
            say(logging.ERROR, name, outcome="unknown")
            unknown.operation_id = request.operation_id
            raise
        self._say(name, answered)
        return answered

    def _conflict(
        self, caller: Caller, shape: type[ConflictCommand], request: Mapping[str, object]
    ) -> ConflictReceipt | Refused:
        def decided(command: Command) -> ConflictReceipt | Refused:
            assert isinstance(command, OpenConflict | ResolveConflict), "admitted by its shape"
            answer = self._protocol.decide_once(
                lambda moment: ConflictSlice(command, caller, moment), caller
            )
            return conflict_receipt_of(answer) if isinstance(answer, Event) else answer

        return self._answered(shape.ACTION, self._admit(shape, request), decided)

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

    def _say(
        self, name: str, answer: Receipt | PreparedReceipt | ConflictReceipt | Refused
    ) -> None:
        # Numbers and codes only: a caller's ids may be personal.
        if isinstance(answer, Refused):
            say(logging.INFO, name, outcome="refused", refusal=answer.refusal.name)
        else:
            position, replayed = answer.position, answer.replayed
            say(logging.INFO, name, outcome="committed", position=position, replayed=replayed)


@dataclass(frozen=True, slots=True)
class _DeliverySlice:
    """The candidates of one step, noted once by the primary session."""

    noted: NoteDelivery
    caller: Caller
    moment: Moment

    def boundary(self, _: Seen) -> Iterator[Selector]:
        yield from caller_boundary(self.caller)
        yield step_delivery(self.noted.step)

    def execute(self, seen: Seen) -> Decided | DeliveryReceipt | Refused:
        guards, delivery = guards_of(seen, self.caller), step_delivery(self.noted.step)
        if guards.role != "primary":
            return Refused(Refusal.NOT_AUTHORIZED)
        earlier, known = seen.one(delivery), seen.body(delivery, Delivery)
        if earlier is not None and known is not None:
            return _noted(known, earlier.position, replayed=True)
        if self.moment.is_fenced:
            return Refused(Refusal.EXECUTION_FENCED)
        if not guards.is_bound_by(self.moment.data_sets):
            return Refused(Refusal.BINDING_MISMATCH)
        body = Delivery(step=self.noted.step, candidate_ids=self.noted.candidate_ids)
        if not body.candidate_ids:
            return _noted(body, None)
        return Decided(Draft(CandidatesDelivered(), body, (delivery.tag,)))


def _noted(body: Delivery, position: int | None, *, replayed: bool = False) -> DeliveryReceipt:
    return DeliveryReceipt(**dict(body), position=position, replayed=replayed)


def _or_nothing(answer: Receipt | Refused, place: int) -> Receipt:
    """The receipt; raises RefusedError that names the request by its place."""
    if isinstance(answer, Refused):
        field = f"requests.{place}" + (f".{answer.field}" if answer.field else "")
        raise RefusedError(replace(answer, field=field))
    return answer
