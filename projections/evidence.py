"""What a candidate rests on: original texts, the checks done now, and what stands against it."""

from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import (
    Asking,
    citation_refusal,
    holders_of,
    newest_of,
    owner_of,
    source_boundary,
    source_refusal,
    stored_in,
    users_of,
)
from memoranda.ledger.commands import ReadRecord, ReadSource, SourceRef, admit
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Conflict, Value
from memoranda.ledger.guards import Seen, captured_at, reader_of
from memoranda.ledger.log import Log
from memoranda.ledger.personal import Record, claims
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.sources import parse_ref, subject
from memoranda.ledger.stamps import Stamps, time_text
from memoranda.projections.history import read_of


class SourceEvidence(Value):
    """One source: the original text and the cited span, or the code of the check it fails."""

    ref: str
    ok: bool
    code: str | None = None
    occurred_at: str | None = None
    text: str | None = None
    span_text: str | None = None


class Claim(Value):
    """A range of the same message that another live record owns."""

    record_id: str
    ref: str


class EvidenceRead(Value):
    """A candidate beside what it rests on, at the revision that an acceptance must name."""

    candidate: Record
    inspected_revision: int
    sources: tuple[SourceEvidence, ...]
    conflicts: tuple[Conflict, ...]
    other_claims: tuple[Claim, ...]


class SourceTime(Value):
    """A source's verified time, never its text."""

    ref: str
    occurred_at: str


class Evidence:
    """Reads of sources for who must judge them."""

    def __init__(self, log: Log, stamps: Stamps) -> None:
        self._log = log
        self._stamps = stamps

    def of(self, caller: Caller, candidate_id: str) -> EvidenceRead | Refused:
        """The candidate with the original text of its sources (PM 2.3, 4.3)."""
        if isinstance(request := admit(ReadRecord, {"record_id": candidate_id}), Refused):
            return request
        with self._log.reading() as store:
            guards = reader_of(store, caller, "evidence")
            if isinstance(guards, Refused):
                return guards
            found = store.select(newest_of(candidate_id))
            stored = stored_in(found[0]) if found else None
            if stored is None or not isinstance(stored.value, Record):
                return Refused(Refusal.NOT_FOUND, "record_id")
            if stored.value.status != "candidate":
                return Refused(Refusal.TRANSITION_INVALID, "record_id", "is no candidate")
            now_text = time_text(self._stamps.now())
            refs = [source.ref for source in stored.value.sources]
            seen = _seen(store, refs)
            asking = Asking(candidate_id, guards)
            return EvidenceRead(
                candidate=stored.value,
                inspected_revision=stored.value.revision,
                sources=tuple(
                    _evidence(seen, SourceRef(kind=s.kind, ref=s.ref), asking, now_text)
                    for s in stored.value.sources
                ),
                conflicts=read_of(store, stored, now_text).conflicts,
                other_claims=tuple(_other_claims(seen, refs, candidate_id)),
            )

    def source(self, caller: Caller, ref: str) -> SourceTime | Refused:
        """When the cited message was said; an item may ask for its captured one only (F7)."""
        if isinstance(request := admit(ReadSource, {"ref": ref}), Refused):
            return request
        with self._log.reading() as store:
            guards = reader_of(store, caller, "read")
            if isinstance(guards, Refused):
                return guards
            seen = _seen(store, [ref])
            asking = Asking("", guards)
            refusal = citation_refusal(seen, ref, asking, time_text(self._stamps.now()))
            if refusal:
                return Refused(refusal, "ref")
            captured = captured_at(seen, subject(ref))
            assert captured is not None, "the check has found the message"
            return SourceTime(ref=ref, occurred_at=captured.message.occurred_at)


def _seen(store: SealedStore, refs: list[str]) -> Seen:
    seen = Seen()
    seen.look(store, source_boundary(refs))
    seen.look(store, [owner_of(event) for ref in refs for event in seen.all(users_of(ref))])
    return seen


def _evidence(seen: Seen, source: SourceRef, asking: Asking, now_text: str) -> SourceEvidence:
    if source.kind != "personal_message":
        refusal: Refusal | None = Refusal.SOURCE_KIND_UNSUPPORTED
    else:
        refusal = source_refusal(seen, source, asking, now_text)
    if refusal:
        return SourceEvidence(ref=source.ref, ok=False, code=refusal.code)
    ref = parse_ref(source.ref)
    captured = captured_at(seen, subject(source.ref))
    assert ref is not None, "the check has read the reference"
    assert captured is not None, "the check has found the message"
    return SourceEvidence(
        ref=source.ref,
        ok=True,
        occurred_at=captured.message.occurred_at,
        text=captured.message.text,
        span_text=captured.span_text(ref),
    )


def _other_claims(seen: Seen, refs: list[str], candidate_id: str) -> list[Claim]:
    holders = {holder.id: holder for ref in refs for holder in holders_of(seen, ref)}
    subjects = {subject(ref) for ref in refs}
    found = [
        Claim(record_id=holder.id, ref=ref)
        for holder in holders.values()
        if holder.id != candidate_id
        for ref in claims(holder)
        if subject(ref) in subjects
    ]
    return sorted(found, key=lambda claim: (claim.ref, claim.record_id))
