"""Slices: a boundary to read, a decision over what it shows, one event to append."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from memoranda.ledger.authority import Action, Caller
from memoranda.ledger.candidates import (
    Stored,
    conflict_tags,
    conflicts_about,
    conflicts_in,
    history_of,
    intents_on,
    newest_of,
    open_conflicts,
    owner_of,
    prepared_on,
    source_boundary,
    stored_in,
    users_of,
)
from memoranda.ledger.case import Case, Moment, operation_of, operation_selector
from memoranda.ledger.entries import FRESH_KEY, SPACE_KEY, Draft, Event, Selector, Store, Tag
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    AbortBody,
    Conflict,
    ConflictChanged,
    ForgetHeld,
    HeldWords,
    IntentBody,
    OperationAborted,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
)
from memoranda.ledger.guards import NOTHING, Observed, Seen, caller_boundary, message_guard
from memoranda.ledger.holding import FORGET_TAG, held_on
from memoranda.ledger.personal import AnyRecord, Record, Tombstone, claims
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.requests import Request
from memoranda.ledger.rules import RULES, is_resumed
from memoranda.ledger.sources import subject

A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decided:
    """The one event of an operation, and what falls with it.

    `erased` are positions whose bodies go, `left_keys` the keys they shared with bodies that stay.
    `refused` is what the caller hears of an abort, `held` what the person may take back.
    """

    draft: Draft
    held: tuple[Draft, ...] = ()
    erased: tuple[int, ...] = ()
    left_keys: tuple[str, ...] = ()
    refused: Refused | None = None

    @property
    def names_keys(self) -> bool:
        """Whether keys are to be removed once it is durable."""
        return FORGET_TAG in self.draft.tags


class Slice(Protocol, Generic[A_co]):
    """One command: what it must see, and what follows from it."""

    def boundary(self, seen: Seen, /) -> Iterable[Selector]:
        """Everything the decision rests on; it may grow with what was seen."""
        ...

    def execute(self, seen: Seen) -> Decided | A_co:
        """The event to append, or the answer that needs none."""
        ...


class Deciding(Store, Protocol):
    """The store under the lock."""

    def append(self, draft: Draft) -> Event:
        """Appends one event."""
        ...

    def erase_bodies(self, positions: Iterable[int]) -> None:
        """Removes bodies with that append."""
        ...

    def leave_key(self, key_id: str) -> None:
        """Moves what still lies under a shared key to a fresh one."""
        ...


def judge(
    store: Store,
    slice_: Slice[A_co],
    observed: Observed = NOTHING,
    first: Iterable[Selector] = (),
) -> Decided | A_co:
    """Reads the boundary until it no longer grows, and decides; writes nothing.

    What providers answer for themselves stands in `observed`, in place of what the log knows;
    `first` is the boundary of nothing seen, where it is known already.
    """
    seen = Seen(observed)
    boundary = first or slice_.boundary(seen)
    while seen.look(store, boundary):
        boundary = slice_.boundary(seen)
    return slice_.execute(seen)


def apply(store: Deciding, decision: Decided) -> Event:
    """Appends what was decided, with everything that falls with it."""
    event = store.append(decision.draft)
    for copy in decision.held:
        store.append(copy)
    store.erase_bodies(decision.erased)
    for key_id in decision.left_keys:
        store.leave_key(key_id)
    return event


_TOUCHES_CONFLICTS: frozenset[Action] = frozenset(
    {"accept", "correct", "reject", "forget", "take_back"}
)
_TOUCHES_HELD: frozenset[Action] = frozenset({"forget", "take_back"})


@dataclass(frozen=True, slots=True)
class RecordSlice:
    """One operation on one record: folded over headers, bodies only where a rule needs content."""

    request: Request
    caller: Caller
    space: str
    moment: Moment
    is_prepare: bool = False

    def boundary(self, seen: Seen) -> Iterator[Selector]:
        """Caller, operation, record, sources with their users, conflicts, and for a forget all."""
        request, case = self.request, self._case(seen)
        yield from caller_boundary(self.caller)
        yield operation_selector(request.operation_id)
        yield newest_of(request.record_id)
        yield prepared_on(request.record_id)
        if holder := seen.one(prepared_on(request.record_id)):
            yield operation_of(holder)
        if case.earlier:
            yield from self._retry_boundary(case.earlier)
        if request.change is None or (case.earlier and not case.prepared):
            return
        refs = [source.ref for source in case.cited]
        yield from source_boundary(refs)
        for ref in refs:
            yield from (owner_of(event) for event in seen.all(users_of(ref)))
        yield from (newest_of(other_id) for other_id in case.conflicts_with)
        if case.conflicts_with or request.change.action in _TOUCHES_CONFLICTS:
            yield conflicts_about(request.record_id)
        if request.change.action in _TOUCHES_HELD:
            yield held_on(request.record_id)
        if request.change.action == "forget":
            yield from self._falling_boundary(case)

    def _falling_boundary(self, case: Case) -> Iterator[Selector]:
        yield history_of(self.request.record_id)
        yield intents_on(self.request.record_id)
        if case.change.takes_sources:
            yield from (message_guard(address) for address in case.subjects_ever)

    def _retry_boundary(self, earlier: Event) -> Iterator[Selector]:
        if isinstance(earlier.header, RecordCommitted):
            yield owner_of(earlier)
        if self.request.raw:
            yield history_of(self.request.record_id)

    def execute(self, seen: Seen) -> Decided | Event | Receipt | Refused:
        """The event to append, the answer that a retry gets again, or the refusal that wins.

        A refusal of what was prepared before is its end, and an event as well.
        """
        case = self._case(seen)
        for rule in RULES:
            answer = rule(case)
            if isinstance(answer, Refused) and is_resumed(case):
                return _aborted(case, answer)
            if answer is not None:
                return answer
        if self.is_prepare:
            assert case.earlier is None or case.prepared, "an end has answered the retry"
            return case.earlier or _prepared(case)
        return _decided(case)

    def _case(self, seen: Seen) -> Case:
        return Case(self.request, self.caller, self.space, seen, self.moment)


def first_boundary(request: Request, caller: Caller, space: str) -> list[Selector]:
    """What a decision asks before it has seen anything, each once; no moment changes that."""
    slice_ = RecordSlice(request, caller, space, Moment(0, 0, str))
    return list(dict.fromkeys(slice_.boundary(Seen())))


def _prepared(case: Case) -> Decided:
    header = OperationPrepared(
        family="personal", to_revision=case.value.revision, term=case.moment.term
    )
    tags = (Tag("personal:op", case.request.operation_id), Tag("personal:rec", case.value.id))
    return Decided(Draft(header, IntentBody(**_intent(case)), tags, _key_of(case.stored)))


def _intent(case: Case) -> dict[str, Any]:
    """What the operation means to write, as an intent and a record's body both keep it."""
    stored, is_forget = case.stored, isinstance(case.value, Tombstone)
    return {
        "operation_id": case.request.operation_id,
        "actor": case.actor,
        "command": case.request.intent,
        "key": None if is_forget else case.key,
        "expected": stored.event.row.commitment.hex() if stored else None,
        "value": case.value.model_dump(mode="json"),
        "fences": dict(case.moment.fences),
    }


def _aborted(case: Case, refused: Refused) -> Decided:
    """The end of a prepared operation without effect; its content goes with the guard."""
    assert case.earlier is not None, "what is aborted was prepared"
    if refused.refusal is Refusal.EXECUTION_FENCED_EARLY:
        refused = replace(refused, refusal=Refusal.EXECUTION_FENCED)
    end = abort(case.earlier, case.stored, case.moment.term, refused.refusal)
    return replace(end, refused=refused)


def abort(
    prepared: Event,
    stored: Stored | None,
    term: int,
    refusal: Refusal,
    reason: str | None = None,
) -> Decided:
    """The abort of exactly one open intent, with its reason where a person gave one."""
    intent, key_id = prepared.body(IntentBody), prepared.row.key_id
    assert intent is not None, "an open intent has its body"
    assert key_id is not None, "an open intent has its body"
    # A live record's key serves its revisions too; the key of one that never came serves nobody.
    is_shared = stored is not None and stored.event.row.key_id == key_id
    removed = () if is_shared else (key_id,)
    header = OperationAborted(
        family="personal",
        outcome="aborted",
        refusal=refusal.name,
        intent=prepared.row.commitment.hex(),
        term=term,
        removed_keys=removed,
    )
    body = AbortBody(
        operation_id=intent.operation_id,
        actor=intent.actor,
        record_id=str(intent.value["id"]),
        reason=reason,
    )
    tags = (
        Tag("personal:op", intent.operation_id),
        Tag("personal:rec", body.record_id),
        *([FORGET_TAG] if removed else []),
    )
    # A person's reason may quote the record: it lies under a key that a forget of it removes.
    key_id = FRESH_KEY if reason else SPACE_KEY
    return Decided(Draft(header, body, tags, key_id), erased=(prepared.position,))


def _decided(case: Case) -> Decided:
    value, stored = case.value, case.stored
    conflicts = tuple(_settled(case)) + tuple(_opened(case))
    is_forget = isinstance(value, Tombstone)
    falling = _falling(case) if is_forget else []
    messages = _messages(case) if is_forget else []
    header = RecordCommitted(
        family="personal",
        outcome="committed",
        from_revision=stored.value.revision if stored else None,
        to_revision=value.revision,
        status=value.status,
        term=case.moment.term,
        removed_keys=tuple(dict.fromkeys(_keys_of([*falling, *messages]))),
        intent=case.earlier.row.commitment.hex() if case.earlier else None,
        reason=case.change.why,
    )
    body = RecordBody(
        **(dict(case.prepared) if case.prepared else _intent(case)),
        conflicts=conflicts,
        opened_by_item=_opener(case),
        earlier_rejections=_earlier_rejections(case),
    )
    tags = (
        Tag("personal:op", case.request.operation_id),
        Tag("personal:rec", value.id),
        *(Tag("personal:src", name) for name in _moved_subjects(case)),
        *conflict_tags(conflicts),
        # A tombstone explains every erased body: its record's by `rec`, its conflicts' by `con`.
        # Messages that it takes along are explained by `msg`.
        *([FORGET_TAG, Tag("personal:con", value.id)] if is_forget else []),
        *(tag for message in messages if (tag := message.tag("msg"))),
    )
    draft = Draft(header, body, tags, SPACE_KEY if is_forget else _key_of(stored, case.earlier))
    erased = tuple(event.position for event in [*falling, *messages])
    held = tuple(_held(case)) if case.is_held_back else ()
    return Decided(draft, held, erased, tuple(dict.fromkeys(_keys_of(messages))))


def _held(case: Case) -> Iterator[Draft]:
    """Whatever any revision said, for the person to take back until the window is over.

    The last one alone would let a model's session correct a record first and then forget it.
    """
    said: dict[object, Stored] = {}
    for stored in map(stored_in, case.seen.all(history_of(case.request.record_id))):
        if stored is not None and isinstance(stored.value, Record):
            words = (stored.value.content, stored.value.effective_at, stored.value.expires_at)
            said.pop(words, None)  # what was said twice counts as said the later time
            said[words] = stored
    yield from (_copy(case, stored, stored.value) for stored in said.values())


def _copy(case: Case, stored: Stored, value: AnyRecord) -> Draft:
    assert isinstance(value, Record), "a tombstone says nothing"
    words = HeldWords(
        record_id=value.id,
        key=stored.body.key,
        content=value.content,
        effective_at=value.effective_at,
        expires_at=value.expires_at,
    )
    # A name of its own: its release explains this body's end and no other's.
    name = Tag("held", case.moment.new_id("held"))
    since, window = case.moment.now, case.moment.forget_window
    header = ForgetHeld(revision=value.revision, since=since, until=since + window)
    return Draft(header, words, (FORGET_TAG, Tag("personal:rec", value.id), name), FRESH_KEY)


def _key_of(stored: Stored | None, prepared: Event | None = None) -> str:
    """A record keeps one data key until it is forgotten; a revived one gets another."""
    if prepared is not None and prepared.row.key_id is not None:
        return prepared.row.key_id
    if stored is None or isinstance(stored.value, Tombstone):
        return FRESH_KEY
    assert stored.event.row.key_id is not None, "a live record's body has a key"
    return stored.event.row.key_id


def _falling(case: Case) -> list[Event]:
    """Everything a forget takes: bodies under the record's keys and those of its conflicts."""
    record_id = case.request.record_id
    events = [
        *case.seen.all(history_of(record_id)),
        *case.seen.all(intents_on(record_id)),
        # HeldWords for the person, what an earlier forget took is theirs alone to erase.
        *(case.held_copies if case.guards.role == "client" else ()),
        *(
            event
            for event in case.seen.all(conflicts_about(record_id))
            if isinstance(event.header, ConflictChanged)
        ),
    ]
    return [event for event in events if event.row.key_id not in {None, SPACE_KEY}]


def _messages(case: Case) -> list[Event]:
    """The captured messages that a forget takes along when it is asked to."""
    if not case.change.takes_sources:
        return []
    events = (e for address in case.subjects_ever for e in case.seen.all(message_guard(address)))
    return [event for event in events if event.row.key_id is not None]


def _keys_of(events: Iterable[Event]) -> list[str]:
    return [event.row.key_id for event in events if event.row.key_id is not None]


def _opener(case: Case) -> str | None:
    match case.change.action:
        case "propose":
            return case.actor.item_id
        case "revise":
            return case.stored.body.opened_by_item if case.stored else None
        case _:
            return None


def _earlier_rejections(case: Case) -> tuple[str, ...]:
    """Rejected ranges that no longer fit into the value; the block itself stays (PM 1.2)."""
    value, stored = case.value, case.stored
    if not isinstance(value, Record) or stored is None or isinstance(stored.value, Tombstone):
        return ()
    kept = {rejection.ref for rejection in value.rejections}
    return tuple(ref for ref in stored.rejected_refs if ref not in kept)


def _moved_subjects(case: Case) -> list[str]:
    """The messages whose ranges this operation adds, releases or blocks."""
    before = case.stored.value if case.stored else None
    claimed_before = set(claims(before)) if before else set()
    blocked_before = set(before.blocked_sources) if before else set()
    moved = claimed_before ^ set(claims(case.value))
    moved |= set(case.value.blocked_sources) - blocked_before
    return sorted({subject(ref) for ref in moved})


def _settled(case: Case) -> Iterator[Conflict]:
    """Open conflicts that end with this operation (PM 1.8).

    A tombstone tells of every conflict about its record as resolved: the events that resolved
    earlier ones are erased with it, and an erased event must not open its conflict again.
    """
    action, record_id = case.change.action, case.request.record_id
    about = conflicts_in(case.seen.all(conflicts_about(record_id))).values()
    was_candidate = case.stored is not None and case.stored.value.status == "candidate"
    for conflict in about:
        is_the_candidate = conflict.candidate_id == record_id and was_candidate
        ends = action in {"correct", "reject"} and is_the_candidate and conflict.state == "open"
        if ends or action == "forget":
            resolution = conflict.resolution or ("corrected" if action == "correct" else "closed")
            yield conflict.model_copy(update={"state": "resolved", "resolution": resolution})


def _opened(case: Case) -> Iterator[Conflict]:
    known = open_conflicts(case.seen, case.request.record_id)
    paired = {conflict.candidate_id for conflict in known} | {c.other_id for c in known}
    for other_id in dict.fromkeys(case.conflicts_with):
        if other_id not in paired and other_id != case.request.record_id:
            yield Conflict(
                conflict_id=case.moment.new_id("con"),
                candidate_id=case.request.record_id,
                other_id=other_id,
                state="open",
            )
