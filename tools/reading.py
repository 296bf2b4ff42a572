"""The verbs that read, typed; each answers a value or a `Refused`, and writes nothing."""

from collections.abc import Callable
from typing import TypeVar

from memoranda.ledger import events
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import Tier, Value
from memoranda.projections.evidence import EvidenceRead, SourceTime
from memoranda.projections.falling import Fall
from memoranda.projections.history import OperationRead, RecordRead, RevisionRead
from memoranda.projections.query import PAGE_DEFAULT, QueryPage
from memoranda.projections.recall import StepRecall
from memoranda.projections.records import LIST_MAX
from memoranda.projections.remnants import Proof
from memoranda.projections.search import FOUND_DEFAULT, Found
from memoranda.projections.unfinished import OperationLine
from memoranda.projections.zones import ZoneName
from memoranda.tools.doctoring import Check, examined
from memoranda.tools.parts import Parts, Seat

A = TypeVar("A")


class Status(Value):
    """Where a space stands."""

    space: str
    position: int
    key_epoch: int
    keys: int
    records: dict[str, int]
    unfinished: int
    overdue: int
    """How many forgets are held past their windows, as the host that wrote last is away."""


class Reading(Seat):
    """Reads answer at one snapshot of the log, with one clock reading."""

    # -- what can be seen -------------------------------------------------------------------

    def read(self, record_id: str, *, include_inactive: bool = False) -> RecordRead | Refused:
        """One record with its open conflicts."""
        return self._observed(
            lambda it: it.history.read(self.caller, record_id, include_inactive=include_inactive)
        )

    def revisions(self, record_id: str) -> tuple[RevisionRead, ...] | Refused:
        """Every revision of a record, in order."""
        return self._observed(lambda it: it.history.revisions(self.caller, record_id))

    def operation(self, operation_id: str) -> OperationRead | Refused:
        """An operation with its first content and its receipt."""
        return self._observed(lambda it: it.history.operation(self.caller, operation_id))

    def operations(
        self, *, state: str | None = None, limit: int = LIST_MAX
    ) -> tuple[OperationLine, ...] | Refused:
        """Operations without their content: open ones with their ages, then the latest ends."""
        return self._answered(
            lambda it: it.unfinished.listed(self.caller, state=state, limit=limit)
        )

    def records(
        self, *, include_inactive: bool = False, limit: int = LIST_MAX
    ) -> tuple[RecordRead, ...] | Refused:
        """Active records, newest source first; inactive ones too when asked for."""
        return self._observed(
            lambda it: it.records.listed(
                self.caller, include_inactive=include_inactive, limit=limit
            )
        )

    def ids_beginning(self, text: str) -> tuple[str, ...] | Refused:
        """At most two ids that begin so."""
        return self._observed(lambda it: it.records.ids_beginning(self.caller, text))

    def candidates(self, *, limit: int = LIST_MAX) -> tuple[RecordRead, ...] | Refused:
        """What waits for acceptance, oldest first."""
        return self._observed(lambda it: it.records.candidates(self.caller, limit=limit))

    def explain(self, record_id: str) -> tuple[str, ...] | Refused:
        """A record's whole story in words, one sentence or more per event."""
        return self._observed(lambda it: it.story.tell(self.caller, record_id))

    def evidence(self, candidate_id: str) -> EvidenceRead | Refused:
        """A candidate with the original text of its sources and the checks done now."""
        return self._observed(lambda it: it.evidence.of(self.caller, candidate_id), candidate_id)

    def source(self, ref: str) -> SourceTime | Refused:
        """When a message was said, never what."""
        return self._observed(lambda it: it.evidence.source(self.caller, ref))

    def recall(self, query: str = "", *, step: str | None = None) -> StepRecall | Refused:
        """What an assistant should know for one model step: core, recent and detail."""
        step = self._parts.stamps.new_id("step") if step is None else step
        return self._observed(lambda it: it.recall.for_step(self.caller, query, step))

    def search(self, words: str, *, limit: int = FOUND_DEFAULT) -> tuple[Found, ...] | Refused:
        """Active records that share a word with the query, the best first."""
        return self._observed(lambda it: it.search.for_words(self.caller, words, limit))

    def query(
        self,
        *,
        text: str | None = None,
        tier: Tier | None = None,
        status: events.Status | None = None,
        zone: ZoneName | None = None,
        since: str | None = None,
        until: str | None = None,
        include_inactive: bool = False,
        as_of: int | None = None,
        limit: int = PAGE_DEFAULT,
        cursor: str | None = None,
    ) -> QueryPage | Refused:
        """The exact, filtered listing, page by page; `as_of` is a position of the log."""
        return self._observed(
            lambda it: it.query.page(
                self.caller,
                text=text,
                tier=tier,
                status=status,
                zone=zone,
                since=since,
                until=until,
                include_inactive=include_inactive,
                as_of=as_of,
                limit=limit,
                cursor=cursor,
            )
        )

    def falling(
        self,
        *,
        record: str | None = None,
        source: str | None = None,
        session: str | None = None,
        everything: bool = False,
    ) -> Fall | Refused:
        """What a forget would take: one record, all from one source or session, or everything."""
        return self._answered(
            lambda it: it.falling.of(
                self.caller, record=record, source=source, session=session, everything=everything
            )
        )

    def remnants(self, text: str) -> Proof | Refused:
        """Where a text is still found, in any body that opens and in any file."""
        return self._answered(lambda it: it.remnants.of(self.caller, text))

    def status(self) -> Status:
        """Counts and positions, nothing personal."""
        head = self._parts.log.head()
        return Status(
            space=self._parts.log.space,
            position=head.position,
            key_epoch=head.key_epoch,
            keys=self._parts.log.key_count(),
            records=self._parts.records.counts(),
            unfinished=self._parts.unfinished.count(),
            overdue=self._parts.forgetting.overdue(),
        )

    def old_bundles(self) -> tuple[str, ...]:
        """The backup folders whose key bundle is an older one: they were out of reach since.

        This and the doctor raise RefusedError (F2) for anybody but the person.
        """
        self._refuse_others()
        log = self._parts.log
        key_epoch = log.head().key_epoch
        return tuple(it.path for it in log.copies.read().backups if it.key_epoch != key_epoch)

    def doctor(self) -> tuple[Check, ...]:
        """What could cost the ledger its memories or its secrets."""
        self._refuse_others()
        return examined(self._parts)

    def _answered(self, read: Callable[[Parts], A]) -> A | Refused:
        try:
            return read(self._parts)
        except RefusedError as error:
            return error.refused

    def _observed(
        self, read: Callable[[Parts], A | Refused], record_id: str | None = None
    ) -> A | Refused:
        """A read, once foreign providers have said who the caller is now.

        While one does not answer, what it said last holds: only writes need its word. Whoever
        nobody could vouch for is told that, and not that they may not read.
        """
        unsaid = self._answered(lambda it: it.ledger.observe(self.caller, record_id))
        answer = self._answered(read)
        is_stranger = isinstance(answer, Refused) and answer.refusal is Refusal.NOT_AUTHORIZED
        is_down = unsaid is not None and unsaid.refusal is Refusal.SERVICE_UNAVAILABLE
        return unsaid if unsaid is not None and is_stranger and is_down else answer
