"""The family `personal`: its record's value, and what its refs claim (PM 1.1 to 1.3)."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictInt, StrictStr, ValidationError

from memoranda.ledger.commands import (
    SOURCES_MAX,
    Content,
    Reason,
    RecordId,
    Ref,
    Revision,
    SourceKind,
    refusals_of,
)
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Evidence, Status, Tier, Value
from memoranda.ledger.stamps import parse_time, time_text

CONTRIBUTIONS_MAX = 8
REJECTIONS_MAX = 64
RECORD_BYTES_MAX = 65_536


def _canonical_time(text: str) -> str:
    if time_text(parse_time(text)) != text:
        raise ValueError("is an RFC 3339 time in UTC ending in Z, in its shortest form")
    return text


CanonicalTime = Annotated[StrictStr, AfterValidator(_canonical_time)]
HostId = Annotated[StrictStr, Field(min_length=1)]
Count = Annotated[StrictInt, Field(ge=1)]


class Source(Value):
    kind: SourceKind
    ref: Ref
    occurred_at: CanonicalTime


class Contribution(Value):
    agent_id: HostId
    executor_session_id: HostId
    revision: Count


class Rejection(Value):
    ref: Ref
    reason: Reason
    revision: Count


class Record(Value):
    """A live record: the `value` of a commit (PM 1.1)."""

    id: RecordId
    revision: Revision
    product_domain: Literal["personal"]
    user_space_id: StrictStr
    status: Literal["candidate", "accepted", "retired", "rejected"]
    tier: Tier
    content: Content
    evidence: Evidence
    effective_at: CanonicalTime | None
    expires_at: CanonicalTime | None
    contributor_agent_id: HostId
    updated_by_agent_id: HostId
    sources: tuple[Source, ...] = Field(min_length=1, max_length=SOURCES_MAX)
    contributions: tuple[Contribution, ...] = Field(min_length=1, max_length=CONTRIBUTIONS_MAX)
    rejections: tuple[Rejection, ...] = Field(max_length=REJECTIONS_MAX)
    blocked_sources: tuple[Ref, ...]


class Tombstone(Value):
    """What stays of a forgotten record (PM 1.1)."""

    id: RecordId
    revision: Revision
    product_domain: Literal["personal"]
    user_space_id: StrictStr
    status: Literal["forgotten"]
    blocked_sources: tuple[Ref, ...]


AnyRecord = Record | Tombstone


def read_record(value: Mapping[str, object]) -> AnyRecord | Refused:
    """The record in a raw value, or its first fault: F32, F20 for tombstones, else F19."""
    is_tombstone = value.get("status") == "forgotten"
    try:
        return (Tombstone if is_tombstone else Record).model_validate(value)
    except ValidationError as error:
        form = Refusal.TOMBSTONE_INVALID if is_tombstone else Refusal.VALUE_INVALID
        faults = refusals_of(error, form)
        limits = [fault for fault in faults if fault.refusal is Refusal.LIMIT_EXCEEDED]
        first = (limits or faults)[0]
        return replace(first, field=f"value.{first.field}")


def record_texts(record: Record) -> dict[str, str]:
    """The free text of a record by field."""
    reasons = {f"value.rejections.{at}": r.reason for at, r in enumerate(record.rejections)}
    return {"value.content": record.content, **reasons}


def record_id_of(normal_key: str) -> str:
    """The id of a normalised fact key, for ever (PM 1.3)."""
    return f"mem_{hashlib.sha256(normal_key.encode()).hexdigest()}"


def status_of(record: AnyRecord | None) -> Status | None:
    return record.status if record is not None else None


def source_refs(record: AnyRecord | None) -> tuple[str, ...]:
    """The refs that the record carries; a tombstone carries none."""
    return tuple(source.ref for source in record.sources) if isinstance(record, Record) else ()


def claims(record: AnyRecord) -> tuple[str, ...]:
    """The refs whose ranges the record owns: retired keeps them, rejected gives them back."""
    if not isinstance(record, Record) or record.status == "rejected":
        return ()
    # Files and hand edits are no ranges: they are compared as text for blocks, never claimed.
    return tuple(source.ref for source in record.sources if source.kind == "personal_message")
