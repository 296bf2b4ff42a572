"""The state machine of PM 1.6: which change leads from which record to which, as pure functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from memoranda.ledger.authority import Action
from memoranda.ledger.commands import (
    SOURCES_MAX,
    Accept,
    ChooseTier,
    Correct,
    Forget,
    Propose,
    Publish,
    Reactivate,
    RecordCommand,
    Reject,
    Retire,
    Revise,
    SourceRef,
    TakeBack,
)
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Actor, Evidence, ForgetReason, Status, Tier
from memoranda.ledger.personal import (
    CONTRIBUTIONS_MAX,
    RECORD_BYTES_MAX,
    REJECTIONS_MAX,
    AnyRecord,
    Contribution,
    Record,
    Rejection,
    Source,
    Tombstone,
    source_refs,
    status_of,
)
from memoranda.ledger.sources import first_overlap, merged


@dataclass(frozen=True, slots=True)
class Change:
    """What a command changes, however it was asked for; `keep` leaves a date as it is.

    `why` is a forget's, `held_revision` a take-back's: its words are found under the lock.
    """

    action: Action
    content: str | None = None
    evidence: Evidence | None = None
    effective_at: str | None = "keep"
    expires_at: str | None = "keep"
    sources: tuple[SourceRef, ...] | None = None
    reason: str | None = None
    tier: Tier | None = None
    takes_sources: bool = False
    why: ForgetReason = "unstated"
    held_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Author:
    """Everything around a change that the next value depends on.

    `occurred_at` answers the time of a source: the persisted one of a message, the commit's clock
    reading for other kinds. `refs_ever` are the refs of all revisions, for a forget.
    """

    record_id: str
    space: str
    actor: Actor
    occurred_at: Callable[[SourceRef], str]
    refs_ever: Sequence[str] = ()


_FROM: Mapping[Action, frozenset[Status | None]] = {
    "propose": frozenset({None, "rejected", "forgotten"}),
    "publish": frozenset({None, "rejected", "forgotten"}),
    "revise": frozenset({"candidate"}),
    "accept": frozenset({"candidate"}),
    "reject": frozenset({"candidate"}),
    "correct": frozenset({"candidate", "accepted"}),
    "tier": frozenset({"accepted"}),
    "retire": frozenset({"accepted"}),
    "reactivate": frozenset({"retired"}),
    "forget": frozenset({"candidate", "accepted", "retired", "rejected"}),
    "take_back": frozenset({"forgotten", "candidate", "accepted"}),
}


def is_allowed_from(action: Action, status: Status | None) -> bool:
    """Whether a row of the state machine leaves this status by this action (PM 1.6)."""
    return status in _FROM[action]


def change_of(command: RecordCommand) -> Change:
    """What a named command changes."""
    match command:
        case Propose() | Publish() | Revise() | Correct():
            evidence = "explicit" if isinstance(command, Correct) else command.evidence
            return Change(
                command.ACTION, command.content, evidence, command.effective_at,
                command.expires_at, command.sources,
            )  # fmt: skip
        case Reject() | Retire():
            return Change(command.ACTION, reason=command.reason)
        case ChooseTier():
            return Change("tier", tier=command.tier)
        case Forget():
            return Change("forget", takes_sources=command.with_sources, why=command.reason)
        case TakeBack():
            return Change("take_back", held_revision=command.held_revision)
        case Accept() | Reactivate():
            return Change(command.ACTION)
        case _:
            assert_never(command)


def change_between(previous: AnyRecord | None, value: AnyRecord) -> Change | None:
    """The change that a raw commit asks for; None where no row of PM 1.6 fits."""
    action = _ACTIONS.get((status_of(previous), value.status))
    if action == "tier" and isinstance(previous, Record) and isinstance(value, Record):
        return _change_of_accepted(previous, value)
    if action == "accept" and isinstance(previous, Record) and isinstance(value, Record):
        is_unchanged = _facts(previous) == _facts(value)
        action = "accept" if is_unchanged else "correct"
    if action is None:
        return None
    if isinstance(value, Tombstone) or action in {"accept", "retire", "reactivate"}:
        return Change(action)
    if action == "reject":
        return Change("reject", reason=value.rejections[-1].reason if value.rejections else "")
    return _content_change(action, previous, value)


_ACTIONS: Mapping[tuple[Status | None, Status], Action] = {
    (None, "candidate"): "propose",
    (None, "accepted"): "publish",
    ("rejected", "candidate"): "propose",
    ("rejected", "accepted"): "publish",
    ("forgotten", "candidate"): "propose",
    ("forgotten", "accepted"): "publish",
    ("candidate", "candidate"): "revise",
    ("candidate", "accepted"): "accept",
    ("candidate", "rejected"): "reject",
    ("accepted", "accepted"): "tier",
    ("accepted", "retired"): "retire",
    ("retired", "accepted"): "reactivate",
    ("candidate", "forgotten"): "forget",
    ("accepted", "forgotten"): "forget",
    ("retired", "forgotten"): "forget",
    ("rejected", "forgotten"): "forget",
}


def _change_of_accepted(previous: Record, value: Record) -> Change | None:
    has_new_facts = _facts(previous) != _facts(value)
    if previous.tier != value.tier:
        return None if has_new_facts else Change("tier", tier=value.tier)
    return _content_change("correct", previous, value) if has_new_facts else None


def _facts(record: Record) -> tuple[object, ...]:
    """What acceptance must leave unchanged."""
    dates = (record.effective_at, record.expires_at)
    return (record.content, record.evidence, record.sources, *dates)


def _content_change(action: Action, previous: AnyRecord | None, value: Record) -> Change:
    carried = source_refs(previous) if action == "correct" else ()
    sources = tuple(
        SourceRef(kind=source.kind, ref=source.ref)
        for source in value.sources
        if source.ref not in carried
    )
    return Change(
        action, value.content, value.evidence, value.effective_at, value.expires_at, sources
    )


# -- the next value -------------------------------------------------------------------------


def successor(change: Change, previous: AnyRecord | None, author: Author) -> AnyRecord | Refused:
    """The record that the change yields from an allowed state, or the rule that forbids it."""
    match change.action:
        case "propose" | "publish":
            record = _opened(change, previous, author)
        case "forget":
            return _tombstone(previous, author)
        case _:
            assert isinstance(previous, Record), "every other row leaves a live record"
            record = _continued(change, previous, author)
    return _within_rules(record, change)


def _opened(change: Change, previous: AnyRecord | None, author: Author) -> Record:
    assert change.content is not None, "an opening has content"
    assert change.evidence is not None, "an opening has evidence"
    revision = previous.revision + 1 if previous else 1
    rejected = previous if isinstance(previous, Record) else None
    contributor = rejected.contributor_agent_id if rejected else author.actor.agent_id
    return Record.model_construct(
        id=author.record_id,
        revision=revision,
        product_domain="personal",
        user_space_id=author.space,
        status="candidate" if change.action == "propose" else "accepted",
        tier="detail",
        content=change.content,
        evidence=change.evidence,
        effective_at=change.effective_at,
        expires_at=change.expires_at,
        contributor_agent_id=contributor,
        updated_by_agent_id=author.actor.agent_id,
        sources=_sources(change, author),
        contributions=_contributions(rejected, revision, author),
        rejections=rejected.rejections if rejected else (),
        blocked_sources=previous.blocked_sources if previous else (),
    )


def _continued(change: Change, previous: Record, author: Author) -> Record:
    revision = previous.revision + 1
    update: dict[str, object] = {
        "revision": revision,
        "updated_by_agent_id": author.actor.agent_id,
        "contributions": _contributions(previous, revision, author),
    }
    update |= {
        name: given
        for name in ("content", "evidence", "tier")
        if (given := getattr(change, name)) is not None
    }
    update |= {
        name: given
        for name in ("effective_at", "expires_at")
        if (given := getattr(change, name)) != "keep"
    }
    match change.action:
        case "accept" | "reactivate":
            update |= {"status": "accepted", "tier": "detail"}
        case "retire":
            update["status"] = "retired"
        case "reject":
            update |= {"status": "rejected", "rejections": _rejections(change, previous)}
        case "correct":
            update |= {"status": "accepted", "sources": _with_old_sources(change, previous, author)}
        case "revise" if change.sources is not None:
            update["sources"] = _sources(change, author)
    return previous.model_copy(update=update)


def _tombstone(previous: AnyRecord | None, author: Author) -> Tombstone:
    assert previous is not None, "only a record can be forgotten"
    return Tombstone(
        id=author.record_id,
        revision=previous.revision + 1,
        product_domain="personal",
        user_space_id=author.space,
        status="forgotten",
        blocked_sources=tuple(merged((*previous.blocked_sources, *author.refs_ever))),
    )


def _sources(change: Change, author: Author) -> tuple[Source, ...]:
    return tuple(
        Source(kind=source.kind, ref=source.ref, occurred_at=author.occurred_at(source))
        for source in change.sources or ()
    )


def _with_old_sources(change: Change, previous: Record, author: Author) -> tuple[Source, ...]:
    sources = [*previous.sources, *_sources(change, author)]
    # Over the limit the oldest hand edits leave the record; the log keeps them for a forget.
    for source in previous.sources:
        if len(sources) > SOURCES_MAX and source.kind == "user_edit":
            sources.remove(source)
    return tuple(sources)


def _contributions(
    previous: Record | None, revision: int, author: Author
) -> tuple[Contribution, ...]:
    own = Contribution(
        agent_id=author.actor.agent_id,
        executor_session_id=author.actor.session_id,
        revision=revision,
    )
    earlier = previous.contributions if previous else ()
    return (*earlier[1 - CONTRIBUTIONS_MAX :], own)


def _rejections(change: Change, previous: Record) -> tuple[Rejection, ...]:
    own = [
        Rejection.model_construct(
            ref=ref, reason=change.reason or "", revision=previous.revision + 1
        )
        for ref in source_refs(previous)
    ]
    return (*previous.rejections, *own)[-REJECTIONS_MAX:]


def _within_rules(record: Record, change: Change) -> Record | Refused:
    refs = source_refs(record)
    if len(refs) > SOURCES_MAX:
        return Refused(Refusal.LIMIT_EXCEEDED, "sources", f"at most {SOURCES_MAX}")
    if (place := first_overlap(refs)) is not None:
        message = "overlaps another source of the record"
        return Refused(Refusal.VALUE_INVALID, f"sources.{place}", message)
    if not refs:
        return Refused(Refusal.VALUE_INVALID, "sources", "at least one source")
    if change.action in {"publish", "correct"} and not _has_persons_source(change):
        message = "at least one message or hand edit that the record did not carry"
        return Refused(Refusal.VALUE_INVALID, "sources", message)
    if len(record.model_dump_json().encode()) > RECORD_BYTES_MAX:
        return Refused(Refusal.LIMIT_EXCEEDED, "value", f"at most {RECORD_BYTES_MAX} bytes")
    return record


def _has_persons_source(change: Change) -> bool:
    """Whether the person said it, in a message or by hand; what is carried cannot be cited anew."""
    persons = {"personal_message", "user_edit"}
    return any(source.kind in persons for source in change.sources or ())
