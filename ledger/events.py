"""What the log says: one public header and one sealed body per event type."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["candidate", "accepted", "retired", "rejected", "forgotten"]
Tier = Literal["core", "detail"]
Evidence = Literal["inference", "explicit"]
ForgetReason = Literal["unstated", "requested", "wrong", "outdated", "sensitive", "duplicate"]
"""Why a record was forgotten: a public code, since what is said of a tombstone stays for ever."""

Json = dict[str, object]
"""A JSON object whose members nobody here needs to know; validated where it came in."""


class Value(BaseModel):
    """A frozen value that knows all its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Actor(Value):
    """Who did it, as the host vouched for it at the time."""

    role: Literal["primary", "item", "client"]
    agent_id: str
    session_id: str
    item_id: str | None = None
    authorization_id: str | None = None
    binding_id: str | None = None


class Conflict(Value):
    """Two records that may not both be true (PM 1.8); it changes no record.

    `other_id` is None only for a mark of an earlier store that names no partner.
    """

    conflict_id: str
    candidate_id: str
    other_id: str | None
    state: Literal["open", "resolved"]
    resolution: (
        Literal["keep_candidate", "keep_other", "keep_both", "corrected", "closed"] | None
    ) = None


# -- headers: no content, no identifier in clear, no free text, no size -------------------------


class Header(Value):
    """The public part of an event."""

    TOPIC: ClassVar[str]
    BODY: ClassVar[type[Value] | None] = None


class Body(Value):
    """The sealed part of an event."""


class NamedBody(Body):
    """What every event of an operation keeps: its id, and who asked."""

    operation_id: str
    actor: Actor


class OperationBody(NamedBody):
    """An operation with its command as first received."""

    command: Json


class IntentBody(OperationBody):
    """What an operation on one record means to write: `{id, key, expected, value}` of PM 1.7.

    `key` is the fact key's text, `expected` the commitment (hex) of the body that held the
    expected record, `fences` the fencing numbers of the providers that guarded its preparing.
    """

    key: str | None
    expected: str | None
    value: Json
    fences: dict[str, int] = Field(default_factory=dict)


class OperationPrepared(Header):
    """A durable intent, which holds its record until it is committed or aborted (PM 3.2)."""

    TOPIC: ClassVar[str] = "operation.prepared/1"
    BODY: ClassVar[type[Value] | None] = IntentBody

    family: Literal["personal"]
    to_revision: int
    term: int


class AbortBody(NamedBody):
    """The record meant, and the person's reason where it was a reconcile that decided."""

    record_id: str
    reason: str | None = None


class OperationAborted(Header):
    """A prepared operation that ended without effect; `refusal` names the rule that decided.

    `intent` is the commitment (hex) of the body that held the intent, and is gone.
    """

    TOPIC: ClassVar[str] = "operation.aborted/1"
    BODY: ClassVar[type[Value] | None] = AbortBody

    family: Literal["personal"]
    outcome: Literal["aborted"]
    refusal: str
    intent: str
    term: int
    removed_keys: tuple[str, ...] = ()


class RecordBody(IntentBody):
    """A record's whole new state, and what lies beside its value.

    `opened_by_item` is the item that opened the present candidate, `earlier_rejections` the
    rejected ranges that no longer fit into the value.
    """

    conflicts: tuple[Conflict, ...] = ()
    opened_by_item: str | None = None
    earlier_rejections: tuple[str, ...] = ()


class RecordCommitted(Header):
    """A committed operation on one record: the header is its receipt (PM 1.9).

    `intent` is the commitment (hex) of the body that first held it, when it was prepared before.

    A migrated record is the first of its id here, at whatever revision its store had it. `reason`
    is a tombstone's.
    """

    TOPIC: ClassVar[str] = "record.committed/1"
    BODY: ClassVar[type[Value] | None] = RecordBody

    family: Literal["personal"]
    outcome: Literal["committed"]
    from_revision: int | None
    to_revision: int
    status: Status
    term: int
    removed_keys: tuple[str, ...] = ()
    intent: str | None = None
    is_migrated: bool = False
    reason: ForgetReason = "unstated"


class ConflictBody(OperationBody):
    """The reason stays here, under a key of its own: it may quote either side."""

    conflict: Conflict
    reason: str


class ConflictChanged(Header):
    """A conflict opened or resolved by an operation of its own."""

    TOPIC: ClassVar[str] = "conflict.changed/1"
    BODY: ClassVar[type[Value] | None] = ConflictBody

    family: Literal["personal"]
    state: Literal["open", "resolved"]
    term: int


class BlockedSource(Body):
    """A range that nobody may cite, though no record here tells of its forget."""

    ref: str


class SourceBlocked(Header):
    """A forgotten-source mark of an earlier store: it blocks like a tombstone."""

    TOPIC: ClassVar[str] = "source.blocked/1"
    BODY: ClassVar[type[Value] | None] = BlockedSource

    family: Literal["personal"]


class MigrationBody(Body):
    """What a migration met beside what it took over; `store_digest` names the store's bytes."""

    actor: Actor
    already_there: int
    suppressed: int
    refused: dict[str, int]
    store_digest: str


class MigrationCompleted(Header):
    """An earlier store was taken over, all of it in one transaction; how much, in numbers."""

    TOPIC: ClassVar[str] = "migration.completed/1"
    BODY: ClassVar[type[Value] | None] = MigrationBody

    imported: int
    conflicts: int
    blocked: int


class Message(Body):
    """One message of a conversation, as the host persisted it (PM 4.3 and 4.6)."""

    session_id: str
    seq: int
    role: Literal["user", "assistant", "system", "tool"]
    text: str
    occurred_at: str
    origin: Literal["user", "host", "plugin"]
    origin_id: str | None = None
    cause: str | None = None
    hidden: bool = False
    generated: bool = False
    truncated: bool = False


class MessageCaptured(Header):
    """A message taken into the log; `bucket` counts the messages under its key."""

    TOPIC: ClassVar[str] = "message.captured/1"
    BODY: ClassVar[type[Value] | None] = Message

    bucket: int


class MessageHidden(Header):
    """The host hid a captured message: it supports nothing from here on."""

    TOPIC: ClassVar[str] = "message.hidden/1"


class DataSets(Value):
    """Whose data sets authority comes from, by provider; None is the log itself (PM 3.5)."""

    conversations: str | None = None
    tasks: str | None = None
    authorizations: str | None = None


class MessageForgotten(Header):
    """Captured messages were forgotten for themselves; their tags name them."""

    TOPIC: ClassVar[str] = "message.forgotten/1"

    removed_keys: tuple[str, ...]


class Binding(Body):
    """Which session is the primary one, and by which data sets it was bound."""

    binding_id: str
    session_id: str
    data_sets: DataSets = DataSets()


class BindingChanged(Header):
    TOPIC: ClassVar[str] = "binding.changed/1"
    BODY: ClassVar[type[Value] | None] = Binding


class Task(Body):
    """A background item as it stands; `captured_ref` is the message that asked for it."""

    item_id: str
    requirement_revision: int
    captured_ref: str | None
    stopped: bool = False


class TaskChanged(Header):
    TOPIC: ClassVar[str] = "task.changed/1"
    BODY: ClassVar[type[Value] | None] = Task


class Authorization(Body):
    """Leave for one item, under one requirement, in one executor session (PM 2.2)."""

    authorization_id: str
    item_id: str
    requirement_revision: int
    executor_session_id: str
    guard_capable: bool
    revoked: bool = False


class AuthorizationChanged(Header):
    TOPIC: ClassVar[str] = "authorization.changed/1"
    BODY: ClassVar[type[Value] | None] = Authorization


class Delivery(Body):
    """Candidate ids that a step of the primary session listed."""

    step: str
    candidate_ids: tuple[str, ...]


class CandidatesDelivered(Header):
    """Candidates were shown, by id, so that the next step lists those that waited longer."""

    TOPIC: ClassVar[str] = "candidates.delivered/1"
    BODY: ClassVar[type[Value] | None] = Delivery


TermCause = Literal["attached", "reconciled", "restored"]


class Attachment(Body):
    """Which host holds the term; `since` is the position at which it took over from another.

    `clock` is what the clock read then, in microseconds; the log's own time may run ahead of it.
    """

    host: str
    since: int
    clock: int | None = None


class TermTaken(Header):
    """A host attached, or raised its term to reconcile or restore; older terms append no more."""

    TOPIC: ClassVar[str] = "term.taken/1"
    BODY: ClassVar[type[Value] | None] = Attachment

    term: int
    cause: TermCause


class ReconcileBody(NamedBody):
    """The person's word that its writers are stopped, and why it is settled (PM 3.5)."""

    reason: str


class ReconcileRecorded(Header):
    """The person settled an operation; what became of it is its own terminal event."""

    TOPIC: ClassVar[str] = "reconcile.recorded/1"
    BODY: ClassVar[type[Value] | None] = ReconcileBody


class RestoredFrom(Body):
    """How far the log had been before, as the anchor said: what lay behind the copy is gone."""

    position: int
    chain: str
    key_epoch: int
    recorded_at: int


class LedgerRestored(Header):
    """The log was restored from a copy that ended at `position`, under a newer term."""

    TOPIC: ClassVar[str] = "ledger.restored/1"
    BODY: ClassVar[type[Value] | None] = RestoredFrom

    position: int
    term: int


class SpaceCreated(Header):
    """The first event of every space; `normalization` is the version of PM 1.3."""

    TOPIC: ClassVar[str] = "space.created/1"

    normalization: int


class SpaceForgotten(Header):
    """The whole space was forgotten: every key and every body is gone; nothing follows."""

    TOPIC: ClassVar[str] = "space.forgotten/1"


class KeysRotated(Header):
    """A new key epoch is in force and the wrapping key of the one before is destroyed."""

    TOPIC: ClassVar[str] = "keys.rotated/1"

    key_epoch: int


class HeldWords(Body):
    """What a revision of a forgotten record said, and when that held."""

    record_id: str
    key: str | None
    content: str
    effective_at: str | None = None
    expires_at: str | None = None


class ForgetHeld(Header):
    """What a model's session forgot is held for the person, under a key of its own.

    `revision` said it; the window is `since` to `until`, readings of the clock in microseconds.
    """

    TOPIC: ClassVar[str] = "forget.held/1"
    BODY: ClassVar[type[Value] | None] = HeldWords

    revision: int
    since: int
    until: int


class ForgetDue(Header):
    """A reading of the clock beyond the window of what is held, which falls by a later one."""

    TOPIC: ClassVar[str] = "forget.due/1"

    reading: int


class ForgetReleased(Header):
    """What was held up to the position `through` is let go of: in time, or the person said so."""

    TOPIC: ClassVar[str] = "forget.released/1"

    removed_keys: tuple[str, ...]
    is_early: bool = False
    through: int = 0


class ForgetCompleted(Header):
    """The keys and bodies of every forget up to a position are gone, from every file.

    `key_epoch` is the one in force since: older wrapping keys are destroyed. What is held for the
    person is none of them before it is released.
    """

    TOPIC: ClassVar[str] = "forget.completed/1"

    through: int
    key_epoch: int | None = None
