"""The front door: the one place where the parts of a ledger meet."""

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from memoranda.ledger import events
from memoranda.ledger.authority import Caller, PersonClient
from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Tier, Value
from memoranda.ledger.hosting import CaptureReceipt, Host
from memoranda.ledger.log import Log, Place
from memoranda.ledger.operations import Ledger
from memoranda.ledger.receipts import ConflictReceipt, Receipt
from memoranda.ledger.stamps import Stamps
from memoranda.projections.audit import Audit
from memoranda.projections.evidence import Evidence, EvidenceRead, SourceTime
from memoranda.projections.history import History, OperationRead, RecordRead, RevisionRead
from memoranda.projections.records import LIST_MAX, Records, RecordsView
from memoranda.projections.story import Story
from memoranda.projections.views import ViewFile
from memoranda.tools.settings import Settings, load_settings

Source = str | Mapping[str, str]
"""A message's reference, or `{"kind": …, "ref": …}` for another kind of source."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What one open ledger consists of."""

    log: Log
    views: ViewFile
    ledger: Ledger
    host: Host
    history: History
    evidence: Evidence
    records: Records
    audit: Audit
    story: Story
    stamps: Stamps


class Status(Value):
    """Where a space stands."""

    space: str
    position: int
    key_epoch: int
    keys: int
    records: dict[str, int]


class Memory:
    """One person's memory, as one caller sees it; `acting_as` gives the same to another.

    Verbs answer with a receipt or a `Refused`; reads with a value or a `Refused`. Operation ids
    are fresh unless given; give one to make a retry harmless.
    """

    def __init__(self, parts: Parts, caller: Caller) -> None:
        self._parts = parts
        self.caller = caller

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; what was answered is durable already. Closing twice is harmless."""
        if not self._parts.log.is_closed:
            self._parts.views.close()
            self._parts.log.close()

    def acting_as(self, caller: Caller) -> "Memory":
        """The same open ledger for another caller, whose identity the host vouches for."""
        return Memory(self._parts, caller)

    @property
    def host(self) -> Host:
        """The host's side: conversations, the primary session, tasks, authorizations."""
        return self._parts.host

    @property
    def audit(self) -> Audit:
        return self._parts.audit

    @property
    def recovery_code(self) -> str | None:
        """The recovery code, if this opening created the space; it is shown this once."""
        return self._parts.log.recovery_code

    # -- what goes in -----------------------------------------------------------------------

    def capture(
        self, messages: Iterable[Mapping[str, object]]
    ) -> Iterator[CaptureReceipt | Refused]:
        """Takes conversation messages in, each with its answer; see `Host.capture`."""
        return self._parts.host.capture(messages)

    def remember(
        self,
        content: str,
        *,
        key: str | None = None,
        effective_at: str | None = None,
        expires_at: str | None = None,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Keeps a fact that the person states; without a key, its text is its identity."""
        return self.publish(
            key_of(content) if key is None else key,
            content,
            effective_at=effective_at,
            expires_at=expires_at,
            operation_id=operation_id,
        )

    def publish(
        self,
        key: str,
        content: str,
        *,
        evidence: events.Evidence = "explicit",
        sources: Iterable[Source] = (),
        effective_at: str | None = None,
        expires_at: str | None = None,
        expected_revision: int | None = None,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """An accepted record at once; a person's own client is its own source."""
        return self._parts.ledger.publish(
            self.caller,
            operation_id=self._operation(operation_id),
            key=key,
            content=content,
            evidence=evidence,
            sources=tuple(sources),
            effective_at=effective_at,
            expires_at=expires_at,
            expected_revision=expected_revision,
        )

    def propose(
        self,
        key: str,
        content: str,
        *,
        sources: Iterable[Source],
        evidence: events.Evidence = "inference",
        effective_at: str | None = None,
        expires_at: str | None = None,
        conflicts_with: Iterable[str] = (),
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """A candidate, which waits for acceptance and is never recalled before."""
        return self._parts.ledger.propose(
            self.caller,
            operation_id=self._operation(operation_id),
            key=key,
            content=content,
            evidence=evidence,
            sources=tuple(sources),
            effective_at=effective_at,
            expires_at=expires_at,
            conflicts_with=tuple(conflicts_with),
        )

    def revise(
        self,
        record_id: str,
        expected_revision: int,
        *,
        content: str | None = None,
        evidence: events.Evidence | None = None,
        sources: Iterable[Source] | None = None,
        effective_at: str | None = "keep",
        expires_at: str | None = "keep",
        conflicts_with: Iterable[str] = (),
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Changes a candidate; what is not named stays, None clears a date."""
        return self._parts.ledger.revise(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            content=content,
            evidence=evidence,
            sources=None if sources is None else tuple(sources),
            effective_at=effective_at,
            expires_at=expires_at,
            conflicts_with=tuple(conflicts_with),
        )

    def accept(
        self, record_id: str, inspected_revision: int, *, operation_id: str | None = None
    ) -> Receipt | Refused:
        """Accepts a candidate exactly as `evidence` showed it."""
        return self._parts.ledger.accept(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            inspected_revision=inspected_revision,
        )

    def correct(
        self,
        record_id: str,
        expected_revision: int,
        content: str,
        *,
        sources: Iterable[Source] = (),
        effective_at: str | None = "keep",
        expires_at: str | None = "keep",
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """New explicit content with a new source; old sources stay, None clears a date."""
        return self._parts.ledger.correct(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            content=content,
            sources=tuple(sources),
            effective_at=effective_at,
            expires_at=expires_at,
        )

    def reject(
        self,
        record_id: str,
        expected_revision: int,
        reason: str,
        *,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Rejects a candidate: its key may not be proposed from those sources again."""
        return self._on_record(
            self._parts.ledger.reject, record_id, expected_revision, operation_id, reason=reason
        )

    def choose_tier(
        self, record_id: str, expected_revision: int, tier: Tier, *, operation_id: str | None = None
    ) -> Receipt | Refused:
        """Moves a record into core or back to detail."""
        return self._on_record(
            self._parts.ledger.choose_tier, record_id, expected_revision, operation_id, tier=tier
        )

    def retire(
        self,
        record_id: str,
        expected_revision: int,
        reason: str,
        *,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Takes a record out of every projection; its content stays."""
        return self._on_record(
            self._parts.ledger.retire, record_id, expected_revision, operation_id, reason=reason
        )

    def reactivate(
        self, record_id: str, expected_revision: int, *, operation_id: str | None = None
    ) -> Receipt | Refused:
        """Brings a retired record back."""
        return self._on_record(
            self._parts.ledger.reactivate, record_id, expected_revision, operation_id
        )

    def forget(
        self, record_id: str, expected_revision: int, *, operation_id: str | None = None
    ) -> Receipt | Refused:
        """Leaves a tombstone and removes the record's keys and bodies."""
        return self._on_record(
            self._parts.ledger.forget, record_id, expected_revision, operation_id
        )

    def commit(self, request: Mapping[str, object]) -> Receipt | Refused:
        """The one way in, `{id, key, expected, value}`, which every verb above builds."""
        return self._parts.ledger.commit(self.caller, request)

    def open_conflict(
        self, candidate_id: str, other_id: str, reason: str, *, operation_id: str | None = None
    ) -> ConflictReceipt | Refused:
        """Says that a candidate and another record may not both be true."""
        return self._parts.ledger.open_conflict(
            self.caller,
            operation_id=self._operation(operation_id),
            candidate_id=candidate_id,
            other_id=other_id,
            reason=reason,
        )

    def resolve_conflict(
        self,
        conflict_id: str,
        resolution: Literal["keep_candidate", "keep_other", "keep_both"],
        reason: str,
        *,
        operation_id: str | None = None,
    ) -> ConflictReceipt | Refused:
        """Settles an open conflict; no record changes by it."""
        return self._parts.ledger.resolve_conflict(
            self.caller,
            operation_id=self._operation(operation_id),
            conflict_id=conflict_id,
            resolution=resolution,
            reason=reason,
        )

    # -- what can be seen -------------------------------------------------------------------

    def read(self, record_id: str, *, include_inactive: bool = False) -> RecordRead | Refused:
        """One record with its open conflicts."""
        return self._parts.history.read(self.caller, record_id, include_inactive=include_inactive)

    def revisions(self, record_id: str) -> tuple[RevisionRead, ...] | Refused:
        """Every revision of a record, in order."""
        return self._parts.history.revisions(self.caller, record_id)

    def operation(self, operation_id: str) -> OperationRead | Refused:
        """An operation with its first content and its receipt."""
        return self._parts.history.operation(self.caller, operation_id)

    def records(
        self, *, include_inactive: bool = False, limit: int = LIST_MAX
    ) -> tuple[RecordRead, ...] | Refused:
        """Active records, newest source first; inactive ones too when asked for."""
        return self._parts.records.listed(
            self.caller, include_inactive=include_inactive, limit=limit
        )

    def candidates(self, *, limit: int = LIST_MAX) -> tuple[RecordRead, ...] | Refused:
        """What waits for acceptance, oldest first."""
        return self._parts.records.candidates(self.caller, limit=limit)

    def explain(self, record_id: str) -> tuple[str, ...] | Refused:
        """A record's whole story in words, one sentence or more per event."""
        return self._parts.story.tell(self.caller, record_id)

    def evidence(self, candidate_id: str) -> EvidenceRead | Refused:
        """A candidate with the original text of its sources and the checks done now."""
        return self._parts.evidence.of(self.caller, candidate_id)

    def source(self, ref: str) -> SourceTime | Refused:
        """When a message was said, never what."""
        return self._parts.evidence.source(self.caller, ref)

    def status(self) -> Status:
        """Counts and positions, nothing personal."""
        head = self._parts.log.head()
        return Status(
            space=self._parts.log.space,
            position=head.position,
            key_epoch=head.key_epoch,
            keys=self._parts.log.key_count(),
            records=self._parts.records.counts(),
        )

    # -- keys -------------------------------------------------------------------------------

    def rotate_keys(self) -> int:
        """A new wrapping key for every data key; the old one is destroyed. The new key epoch."""
        return self._parts.log.rotate_keys()

    def new_recovery_code(self) -> str:
        """A new recovery code in place of the one before; shown this once."""
        return self._parts.log.new_recovery_code()

    def is_recovery_code(self, code: str) -> bool:
        """Whether `code` is the recovery code in force."""
        return self._parts.log.is_recovery_code(code)

    # -- how --------------------------------------------------------------------------------

    def _operation(self, operation_id: str | None) -> str:
        return self._parts.stamps.new_id("op") if operation_id is None else operation_id

    def _on_record(
        self,
        verb: Callable[..., Receipt | Refused],
        record_id: str,
        expected_revision: int,
        operation_id: str | None,
        **more: str,
    ) -> Receipt | Refused:
        return verb(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            **more,
        )


def key_of(content: str) -> str:
    """The key of a fact that was given none: its text, so that saying it twice is one fact."""
    words = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return f"fact/{hashlib.sha256(words.encode(errors='replace')).hexdigest()[:32]}"


def open_memory(
    space: str | None = None,
    *,
    data: Path | str | None = None,
    state: Path | str | None = None,
    create: bool = True,
    stamps: Stamps | None = None,
    **settings: object,
) -> Memory:
    """Opens one person's memory as the person's own client; creates it when it is new.

    What is not given comes from `MEMORANDA_…` variables, `config.toml`, then the defaults. Raises
    RefusedError when the ledger cannot be opened, with the rule and the place.
    """
    return assemble(
        load_settings(space=space, data=data, state=state, **settings),
        stamps or Stamps(),
        create=create,
    )


def assemble(settings: Settings, stamps: Stamps, *, create: bool) -> Memory:
    """Puts the parts of one ledger together."""
    place = Place.of(settings.space, settings.data.expanduser(), settings.state.expanduser())
    log = Log(place, stamps, create=create)
    try:
        views = ViewFile(place.data / "views.db", place.space)
        parts = Parts(
            log=log,
            views=views,
            ledger=Ledger(log, stamps, settings.secrets),
            host=Host(log, stamps, settings.secrets),
            history=History(log, stamps),
            evidence=Evidence(log, stamps),
            records=Records(log, views, stamps),
            audit=Audit(log, views, [RecordsView()]),
            story=Story(log),
            stamps=stamps,
        )
    except BaseException:
        log.close()
        raise
    return Memory(parts, PersonClient())
