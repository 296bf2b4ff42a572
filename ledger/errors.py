"""Refusals (values a caller can act on) and the few exceptions nobody can.

MemorandaError
├── RefusedError     a refusal where no value can be returned (opening a ledger)
├── OutcomeUnknown   a fault at or after the append: look the operation up, use no new id
├── StorageFault     the storage failed; nothing of this call was written
└── IntegrityFault   what is stored is not what was sealed
"""

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Self


class Refusal(Enum):
    """Why not: one member per F-number of PM 2.4 and DESIGN 9, in the order of PM 2.5.

    `.number` is the contract's number, `.code` the wire's word, `.rule` what must hold and what
    to do about it.
    """

    number: str
    code: str
    rule: str

    def __new__(cls, number: str, code: str, rule: str) -> Self:
        member = object.__new__(cls)
        member._value_ = (number, rule)
        member.number, member.code, member.rule = number, code, rule
        return member

    SERVICE_UNAVAILABLE = (
        "F1",
        "service_unavailable",
        "Personal memory and its providers must be available; enable or restore them first.",
    )
    OUTSIDE_PERSONAL = (
        "F28",
        "service_unavailable",
        "The personal host service answers only inside the Personal domain.",
    )
    MIGRATION_FAILED = (
        "F26",
        "migration_failed",
        "A store or export is taken in whole or not at all; mend the named place and run it again.",
    )
    SPACE_UNKNOWN = (
        "F38",
        "space_unknown",
        "The space must exist and be whole; create it with `memoranda init`, or restore its files.",
    )
    READ_ONLY = (
        "F39",
        "read_only",
        "What is to be written must be writable; check its folder's owner, mode and free space.",
    )
    SCHEMA_NEWER = (
        "F40",
        "schema_newer",
        "The ledger was written by a newer version; open it with that version or a later one.",
    )
    BUSY = (
        "F41",
        "busy",
        "Another process holds the ledger; try again with the same operation id.",
    )
    INVALID_REQUEST = (
        "F36",
        "invalid_request",
        "The request must have the form of the call; correct the named field.",
    )
    LIMIT_EXCEEDED = (
        "F32",
        "limit_exceeded",
        "The named field must stay within its limit; shorten it.",
    )
    SECRET_DETECTED = (
        "F37",
        "secret_detected",
        "Text must hold no secret; take the named secret out, or let the setting redact it.",
    )
    CURSOR_INVALID = (
        "F25",
        "cursor_invalid",
        "A cursor holds for its own filters until a record changes; query again from the start.",
    )
    NOT_AUTHORIZED = (
        "F2",
        "not_authorized",
        "The caller must be the bound primary session or one whom the action allows.",
    )
    RECONCILE_REFUSED = (
        "F24",
        "reconcile_refused",
        "Only the person's own client reconciles, with writers stopped, a reason and the term.",
    )
    OPERATION_CONFLICT = (
        "F21",
        "operation_conflict",
        "An operation id stands for one content; resend that content, or take a new id.",
    )
    RECEIPT_SUPERSEDED = (
        "F22",
        "receipt_superseded",
        "The record has changed or was forgotten since that operation; read it before going on.",
    )
    EXECUTION_FENCED_EARLY = (
        "F6",
        "execution_fenced",
        "The item must run under the requirement and authorization it started with.",
    )
    AUTHORIZATION_REQUIRED = (
        "F4",
        "authorization_required",
        "A background item needs its exact execution authorization; ask the person for it.",
    )
    REAUTHORIZATION_REQUIRED = (
        "F5",
        "reauthorization_required",
        "The authorization must support commit guards; the person must authorize again.",
    )
    BACKGROUND_CANDIDATE_ONLY = (
        "F3",
        "background_candidate_only",
        "A background item only proposes, and revises candidates it opened itself.",
    )
    REVISION_INVALID = (
        "F18",
        "invalid_value",
        "The value's revision must be the expected one plus 1, or 1 for a new record.",
    )
    VALUE_INVALID = (
        "F19",
        "invalid_value",
        "The value must be the record that the transition yields; correct the named field.",
    )
    TOMBSTONE_INVALID = (
        "F20",
        "invalid_value",
        "A forgotten record keeps no content and every blocked range.",
    )
    NOT_FOUND = (
        "F35",
        "not_found",
        "The record, operation or conflict must exist (inactive ones must be asked for).",
    )
    RECORD_FORGOTTEN = (
        "F33",
        "record_forgotten",
        "The key was forgotten; only the primary session may open it again, from a new source.",
    )
    TRANSITION_INVALID = (
        "F34",
        "invalid_transition",
        "The record's state allows no such step; read it and choose another command.",
    )
    SOURCE_KIND_UNSUPPORTED = (
        "F13",
        "source_kind_unsupported",
        "A candidate rests on captured messages only; use publish or correct for other kinds.",
    )
    SOURCE_REF_INVALID = (
        "F9",
        "source_ref_invalid",
        "A source reference must be canonical: personal-message:<session>:<seq>[#start-end].",
    )
    ITEM_WITHOUT_SOURCE = (
        "F8",
        "source_not_bound",
        "The item was made without a captured message, so it has no source to propose from.",
    )
    SOURCE_NOT_BOUND = (
        "F7",
        "source_not_bound",
        "The source must lie in the bound primary conversation (an item's: its captured one).",
    )
    SOURCE_MISSING = (
        "F10",
        "source_missing",
        "The message must have been captured at that sequence.",
    )
    SOURCE_REJECTED = (
        "F11",
        "source_rejected",
        "The source must be a visible, complete message that the person wrote.",
    )
    SOURCE_IN_FUTURE = (
        "F12",
        "source_in_future",
        "The message's time must not lie in the future.",
    )
    SOURCE_SPAN_INVALID = (
        "F31",
        "source_span_invalid",
        "The span must lie inside the message's text, counted in code points.",
    )
    SOURCE_FORGOTTEN = (
        "F15",
        "source_forgotten",
        "The range was blocked by a forget; cite something the person said anew.",
    )
    SOURCE_IN_USE = (
        "F14",
        "source_in_use",
        "Another live record owns the range; cite a span it does not cover.",
    )
    CANDIDATE_REJECTED = (
        "F30",
        "candidate_rejected",
        "This key was rejected from that range; only the primary session may publish it.",
    )
    OUTCOME_UNKNOWN = (
        "F23",
        "outcome_unknown",
        "The outcome is not known yet; look the operation up and use no new id.",
    )
    REVISION_CONFLICT = (
        "F17",
        "revision_conflict",
        "The record has another revision than expected; read it and decide again.",
    )
    CANDIDATE_CHANGED = (
        "F16",
        "revision_conflict",
        "The candidate changed since it was inspected; read its evidence again.",
    )
    CONFLICT_UNRESOLVED = (
        "F27",
        "conflict_unresolved",
        "An open conflict names this candidate; resolve it first.",
    )
    EXECUTION_FENCED = (
        "F6",
        "execution_fenced",
        "A stop, requirement change, revocation or newer term came before this commit.",
    )
    BINDING_MISMATCH = (
        "F29",
        "binding_mismatch",
        "The authority data set must be the bound one; restore the original binding.",
    )


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal with its place: the field at fault, what is wrong there (never its value)."""

    refusal: Refusal
    field: str | None = None
    message: str | None = None
    current_revision: int | None = None
    operation_id: str | None = None
    """The operation to look up, where its outcome is not known (F23)."""

    @property
    def code(self) -> str:
        return self.refusal.code

    @property
    def rule(self) -> str:
        """What must hold, and what to do about it."""
        return self.refusal.rule

    def wire(self) -> dict[str, object]:
        """The error object of DESIGN 9."""
        error: dict[str, object] = {
            "code": self.refusal.code,
            "number": self.refusal.number,
            "rule": self.refusal.rule,
            "field": self.field,
            "message": self.message or self.refusal.rule,
        }
        if self.current_revision is not None:
            error["current_revision"] = self.current_revision
        if self.operation_id is not None:
            error["operation_id"] = self.operation_id
        return error


CLOSED = Refused(Refusal.SERVICE_UNAVAILABLE, message="the ledger is closed; open it again")
FORKED = Refused(
    Refusal.SERVICE_UNAVAILABLE,
    message="this process was forked from one that had the ledger open; open it in a fresh process",
)

_ORDER = {refusal: place for place, refusal in enumerate(Refusal)}


def first_of(refused: Iterable[Refused]) -> Refused:
    """The refusal that wins when several apply (PM 2.5)."""
    return min(refused, key=lambda one: _ORDER[one.refusal])


FULL = "the disk is full; make room on it and try again"


class MemorandaError(Exception):
    """Root of what nobody can act on in the call itself; a full disk behind it is named."""

    def __str__(self) -> str:
        said = super().__str__()
        return f"{said}: {FULL}" if _is_full(self.__cause__) and "is full" not in said else said


def _is_full(cause: BaseException | None) -> bool:
    """Whether a file could not grow; SQLite's shared memory is one beside a log."""
    if isinstance(cause, MemorandaError):
        return FULL in str(cause)
    if isinstance(cause, OSError):
        return cause.errno in {errno.ENOSPC, errno.EDQUOT}
    return getattr(cause, "sqlite_errorname", None) in {"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"}


class RefusedError(MemorandaError):
    """A refusal raised where no value can be returned; `.refused` holds it."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"{refused.code}: {refused.message or refused.refusal.rule}")
        self.refused = refused


class OutcomeUnknown(MemorandaError):  # noqa: N818  # unknown is not an error, that is the point
    """A fault at or after the append; `operation_id` tells the truth once reopened."""

    operation_id: str | None = None

    @property
    def refused(self) -> Refused:
        """The same as an answer (F23), for those who must not be interrupted by it."""
        return Refused(Refusal.OUTCOME_UNKNOWN, message=str(self), operation_id=self.operation_id)


class StorageFault(MemorandaError):  # noqa: N818  # the contract's word is fault
    """The storage failed before anything of this call was written."""


class IntegrityFault(MemorandaError):  # noqa: N818  # the contract's word is fault
    """A chain, commitment, seal or key does not match what is stored."""
