"""A takeover: what becomes of each line of an earlier store, on top of what the log says (PM 6)."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from memoranda.ledger.candidates import (
    blocks_of,
    conflict_tags,
    conflicts_about,
    is_blocked,
    newest_of,
    open_conflicts,
    owner_id,
    owner_of,
    prepared_on,
    users_of,
)
from memoranda.ledger.case import operation_of, operation_selector
from memoranda.ledger.commands import admit
from memoranda.ledger.entries import FRESH_KEY, SPACE_KEY, Draft, Event, Selector, Tag
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    Actor,
    BlockedSource,
    Conflict,
    ConflictBody,
    ConflictChanged,
    Json,
    MigrationBody,
    MigrationCompleted,
    NamedBody,
    OperationBody,
    RecordBody,
    RecordCommitted,
    SourceBlocked,
    Status,
    Value,
)
from memoranda.ledger.guards import Seen
from memoranda.ledger.legacy import (
    ConflictMark,
    LegacyStore,
    Line,
    Ranges,
    SourceMark,
    Survey,
    blocked_by,
    id_of,
    is_tombstone,
    key_of,
    known,
    names_in,
    record_of,
)
from memoranda.ledger.personal import (
    AnyRecord,
    Tombstone,
    claims,
    read_record,
    record_texts,
    source_refs,
)
from memoranda.ledger.screening import SecretPolicy, screen
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.sources import parse_ref, subject

COMPLETION = Selector(Tag("migration", ""), (MigrationCompleted,))
COMMAND: Json = {"name": "migrate"}
WAITING = Refusal.OUTCOME_UNKNOWN
"""What an operation without an end holds is refused for now only, so nothing is complete yet."""

LISTED_MAX = 1000
"""Refused lines and overlaps that are told one by one; the counts tell of all."""

Progress = Callable[[int, int], None]
"""Called with the lines settled so far and all of them."""

Outcome = Draft | Refused | Literal["already_there", "suppressed"]


class RefusedLine(Value):
    """A line that was not taken over, and why; never what it says."""

    line: int
    code: str
    field: str | None


class Overlap(Value):
    """A record that was taken over although another one cites the same words."""

    record_id: str
    other_id: str
    ref: str


class MigrationReport(Value):
    """What became of the lines of an earlier store.

    Every line counts once: as a record imported, a conflict opened, a source blocked, already
    there, suppressed by a tombstone, or refused by its code. What a refused line blocks is kept.
    """

    imported: int
    conflicts: int
    blocked: int
    already_there: int
    suppressed: int
    refused: dict[str, int]
    refused_lines: tuple[RefusedLine, ...]
    overlapping: tuple[Overlap, ...]
    unknown_fields: dict[str, int]

    @property
    def is_complete(self) -> bool:
        """Whether running it again, once every operation has an end, would add nothing."""
        return WAITING.code not in self.refused


def completed_in(store: SealedStore) -> MigrationBody | None:
    """What the newest migration that was complete met."""
    completed = store.select(COMPLETION)
    return completed[0].body(MigrationBody) if completed else None


# -- one line after the other ---------------------------------------------------------------


@dataclass
class Takeover:
    """A store on its way into the log. It holds ids and refs of all lines, texts of none."""

    store: SealedStore
    write: Callable[[Draft], object]
    actor: Actor
    secrets: SecretPolicy
    step: Callable[[str], None]
    survey: Survey
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    refused_lines: list[RefusedLine] = field(default_factory=list)
    overlapping: list[Overlap] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    seen: Seen = field(default_factory=Seen)
    named: set[str] = field(default_factory=set)
    imported: dict[str, Status] = field(default_factory=dict)
    claimed: Ranges = field(default_factory=Ranges)
    left_blocks: dict[str, None] = field(default_factory=dict)
    is_changing: bool = False

    def take(self, legacy: LegacyStore, progress: Progress) -> None:
        """Records and blocks in the order of the file, then the conflicts about them."""
        done = 0
        for kinds in ({"record", "forgotten_source"}, {"conflict"}):
            for line in legacy.lines():
                if line.kind in kinds:
                    self._settle(line)
                    done += 1
                    progress(done, self.survey.lines)
        self._keep_left_blocks()
        assert legacy.digest is not None, "the store was read"
        last = completed_in(self.store)
        is_news = self.is_changing or last is None or last.store_digest != legacy.digest
        if is_news and self.report().is_complete:
            self._append(self._completion(legacy.digest))
            self.step("migrate:completed")

    def report(self) -> MigrationReport:
        return MigrationReport(
            imported=self.counts["record"],
            conflicts=self.counts["conflict"],
            blocked=self.counts["forgotten_source"],
            already_there=self.counts["already_there"],
            suppressed=self.counts["suppressed"],
            refused=dict(sorted(self.refused.items())),
            refused_lines=tuple(sorted(self.refused_lines, key=lambda it: it.line)),
            overlapping=tuple(self.overlapping),
            unknown_fields=dict(sorted(self.unknown.items())),
        )

    def _append(self, draft: Draft) -> None:
        self.write(draft)
        self.is_changing = True

    def _settle(self, line: Line) -> None:
        match line.kind:
            case "record":
                outcome = self._record(line)
            case "conflict":
                outcome = self._conflict(line.fields)
            case _:
                outcome = self._blocked(line.fields)
        if isinstance(outcome, Draft):
            self._append(outcome)
            self.step(f"migrate:{line.kind}")
            self.counts[line.kind] += 1
        elif isinstance(outcome, Refused):
            self.refused[outcome.code] += 1
            self.left_blocks |= dict.fromkeys(blocked_by(line))
            if len(self.refused_lines) < LISTED_MAX:
                told = RefusedLine(line=line.number, code=outcome.code, field=outcome.field)
                self.refused_lines.append(told)
        else:
            self.counts[outcome] += 1

    # -- records ----------------------------------------------------------------------------

    def _record(self, line: Line) -> Outcome:
        fields = line.fields
        value = fields.get("value")
        if not isinstance(value, dict):
            return Refused(Refusal.VALUE_INVALID, "value")
        record_id = id_of(value)
        if record_id is not None:
            if line.number != self.survey.chosen(record_id):
                self.left_blocks |= dict.fromkeys(blocked_by(line))
                is_buried = self.survey.is_forgotten(record_id)
                return "suppressed" if is_buried else Refused(Refusal.VALUE_INVALID, "value.id")
            # The log wins, whatever the store says now: nothing of it is read any more.
            if standing := self._standing(record_id):
                is_buried = standing == "forgotten" and not is_tombstone(value)
                return "suppressed" if is_buried else "already_there"
        record = record_of(value, self.store.space, self.unknown)
        if not isinstance(record, Refused):
            record = self._screened(record)
        if isinstance(record, Refused):
            return record
        key = key_of(fields, record)
        is_secret = key is not None and isinstance(screen({"key": key}, "refuse"), Refused)
        return self._taken(record, None if is_secret else key)

    def _standing(self, record_id: str) -> Status | None:
        """A record's status as this migration took it over, or on the log."""
        if record_id in self.imported:
            return self.imported[record_id]
        for event in self.store.select(newest_of(record_id)):
            assert isinstance(event.header, RecordCommitted), "one type of event holds records"
            return event.header.status
        return None

    def _screened(self, record: AnyRecord) -> AnyRecord | Refused:
        if isinstance(refused := screen(names_in(record), "refuse"), Refused):
            return refused
        if isinstance(record, Tombstone):
            return record
        texts = record_texts(record)
        screened = screen(texts, self.secrets)
        if isinstance(screened, Refused) or screened == texts:
            return screened if isinstance(screened, Refused) else record
        content, *reasons = screened.values()
        value = record.model_dump(mode="json") | {
            "content": content,
            "rejections": [
                {**rejection.model_dump(), "reason": reason}
                for rejection, reason in zip(record.rejections, reasons, strict=True)
            ],
        }
        # A redaction may be longer than the secret that it hides.
        redacted = read_record(value)
        assert not isinstance(redacted, Tombstone), "a live record stays one"
        return redacted

    def _taken(self, record: AnyRecord, key: str | None) -> Draft | Refused:
        operation_id = _operation_id(record.id)
        if self.store.select(operation_selector(operation_id)):
            return Refused(Refusal.OPERATION_CONFLICT, "value.id")
        if self._is_held(record.id):
            return Refused(WAITING, "value.id")
        cited, claimed = source_refs(record), claims(record)
        self._look(cited)
        for place, ref in enumerate(cited):
            if self.survey.blocks.holder(ref) is not None or is_blocked(self.seen, ref):
                return Refused(Refusal.SOURCE_FORGOTTEN, f"value.sources.{place}")
        self._note_overlap(record, claimed)
        self.imported[record.id] = record.status
        body = RecordBody(
            operation_id=operation_id,
            actor=self.actor,
            command=COMMAND,
            key=key,
            expected=None,
            value=record.model_dump(mode="json"),
        )
        moved = {subject(ref) for ref in (*claimed, *record.blocked_sources)}
        return self._record_draft(record, body, moved)

    def _is_held(self, record_id: str) -> bool:
        """Whether an operation without an end holds the record."""
        for holder in self.store.select(prepared_on(record_id)):
            (newest,) = self.store.select(operation_of(holder))
            return newest.position == holder.position
        return False

    def _record_draft(self, record: AnyRecord, body: RecordBody, moved: set[str]) -> Draft:
        header = RecordCommitted(
            family="personal",
            outcome="committed",
            from_revision=None,
            to_revision=record.revision,
            status=record.status,
            term=self.store.head.term,
            is_migrated=True,
        )
        tags = (
            Tag("personal:op", body.operation_id),
            Tag("personal:rec", record.id),
            *(Tag("personal:src", name) for name in sorted(moved)),
        )
        # A tombstone from elsewhere explains no erased body and removes no key of this ledger.
        key_id = SPACE_KEY if isinstance(record, Tombstone) else FRESH_KEY
        return Draft(header, body, tags, key_id)

    def _look(self, refs: Iterable[str]) -> None:
        """Who used these messages before the migration: each is looked up at its first ref."""
        for ref in refs:
            self.seen.look(self.store, (users_of(ref), blocks_of(ref)))
            self.seen.look(self.store, (owner_of(event) for event in self.seen.all(users_of(ref))))

    def _note_overlap(self, record: AnyRecord, claimed: Iterable[str]) -> None:
        for ref in claimed:
            other_id = self.claimed.holder(ref) or owner_id(self.seen, ref, record.id)
            if other_id is not None and len(self.overlapping) < LISTED_MAX:
                overlap = Overlap(record_id=record.id, other_id=other_id, ref=ref)
                self.overlapping.append(overlap)
        for ref in claimed:
            self.claimed.add(ref, record.id)

    # -- marks ------------------------------------------------------------------------------

    def _blocked(self, fields: Json) -> Outcome:
        mark = admit(SourceMark, known(fields, SourceMark, self.unknown))
        if isinstance(mark, Refused):
            return mark
        secret = screen({} if parse_ref(mark.ref) else {"ref": mark.ref}, "refuse")
        if isinstance(secret, Refused):
            return secret
        self._look([mark.ref])
        marks = (event.body(BlockedSource) for event in self.seen.all(blocks_of(mark.ref)))
        if f"source\0{mark.ref}" in self.named or mark.ref in {it.ref for it in marks if it}:
            return "already_there"
        self.named.add(f"source\0{mark.ref}")
        tags = (Tag("personal:src", subject(mark.ref)),)
        return Draft(SourceBlocked(family="personal"), BlockedSource(ref=mark.ref), tags)

    def _keep_left_blocks(self) -> None:
        """What a line that was not taken over blocks stays blocked, as a mark."""
        for ref in self.left_blocks:
            if isinstance(draft := self._blocked({"ref": ref}), Draft):
                self._append(draft)

    def _conflict(self, fields: Json) -> Outcome:
        mark = admit(ConflictMark, known(fields, ConflictMark, self.unknown))
        if isinstance(mark, Refused):
            return mark
        if isinstance(secret := screen({"other_id": mark.other_id or ""}, "refuse"), Refused):
            return secret
        # A pair has one conflict, whichever side is named first; a mark may lack its partner.
        pair = "\0".join(("conflict", *sorted((mark.candidate_id, mark.other_id or ""))))
        operation_id = _operation_id(pair)
        earlier = self.store.select(operation_selector(operation_id))
        if pair in self.named or earlier or self._is_open(mark):
            is_anothers = earlier and not _is_migrated(earlier[0])
            return Refused(Refusal.OPERATION_CONFLICT) if is_anothers else "already_there"
        if (refused := self._conflict_refusal(mark)) is not None:
            return refused
        screened = screen({"reason": mark.reason}, self.secrets)
        if isinstance(screened, Refused):
            return screened
        self.named.add(pair)
        return self._conflict_opened(mark, operation_id, screened["reason"])

    def _conflict_refusal(self, mark: ConflictMark) -> Refused | None:
        if mark.candidate_id == mark.other_id:
            return Refused(Refusal.VALUE_INVALID, "other_id")
        standing = self._standing(mark.candidate_id)
        if standing == "candidate":
            return None
        # A candidate that waits for an operation to end brings its conflict along, later.
        missing = WAITING if self._is_held(mark.candidate_id) else Refusal.NOT_FOUND
        refusal = Refusal.TRANSITION_INVALID if standing else missing
        return Refused(refusal, "candidate_id")

    def _is_open(self, mark: ConflictMark) -> bool:
        self.seen.look(self.store, [conflicts_about(mark.candidate_id)])
        known_pairs = (
            {conflict.candidate_id, conflict.other_id}
            for conflict in open_conflicts(self.seen, mark.candidate_id)
        )
        return {mark.candidate_id, mark.other_id} in known_pairs

    def _conflict_opened(self, mark: ConflictMark, operation_id: str, reason: str) -> Draft:
        conflict = Conflict(
            conflict_id=f"con-{operation_id[-24:]}",
            candidate_id=mark.candidate_id,
            other_id=mark.other_id,
            state="open",
        )
        body = ConflictBody(
            operation_id=operation_id,
            actor=self.actor,
            command=COMMAND,
            conflict=conflict,
            reason=reason,
        )
        header = ConflictChanged(family="personal", state="open", term=self.store.head.term)
        tags = (Tag("personal:op", operation_id), *conflict_tags([conflict]))
        return Draft(header, body, tags, FRESH_KEY)

    # -- the end ----------------------------------------------------------------------------

    def _completion(self, store_digest: str) -> Draft:
        report = self.report()
        header = MigrationCompleted(
            imported=report.imported, conflicts=report.conflicts, blocked=report.blocked
        )
        body = MigrationBody(
            actor=self.actor,
            already_there=report.already_there,
            suppressed=report.suppressed,
            refused=report.refused,
            store_digest=store_digest,
        )
        return Draft(header, body, (COMPLETION.tag,))


def _is_migrated(event: Event) -> bool:
    """Whether a migration has made this operation; of an erased one nothing else is left to say."""
    body = event.body(NamedBody)
    return body is None or (isinstance(body, OperationBody) and body.command == COMMAND)


def _operation_id(name: str) -> str:
    """The same for the same legacy id or pair, so that a repeated migration finds its own."""
    return f"migrate:{hashlib.sha256(name.encode()).hexdigest()}"
