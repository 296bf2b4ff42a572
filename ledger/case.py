"""One operation on one record: the request, who makes it, and what its boundary has shown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, cast

from memoranda.ledger.authority import Caller, actor_of
from memoranda.ledger.candidates import (
    Stored,
    history_of,
    newest_of,
    prepared_on,
    stored_in,
)
from memoranda.ledger.commands import SourceRef
from memoranda.ledger.entries import Event, Selector, Tag
from memoranda.ledger.errors import IntegrityFault, Refused
from memoranda.ledger.events import (
    Actor,
    ConflictChanged,
    DataSets,
    ForgetReason,
    HeldWords,
    IntentBody,
    Json,
    OperationAborted,
    OperationPrepared,
    RecordCommitted,
)
from memoranda.ledger.guards import Guards, Seen, captured_at, guards_of
from memoranda.ledger.holding import held_on, revision_of, still_held
from memoranda.ledger.personal import AnyRecord, Record, Tombstone, source_refs
from memoranda.ledger.requests import Request
from memoranda.ledger.sources import parse_ref, subject
from memoranda.ledger.stamps import moment_of, parse_time, time_text
from memoranda.ledger.transitions import Author, Change, successor


class Moment(NamedTuple):
    """What a decision takes from outside: the clock reading, the term, fresh ids.

    `data_sets` are those of the providers selected; `is_fenced` says that a protection was lost,
    `fences` are the fencing numbers of those that hold.
    `forget_window` is how long a forget can be taken back; microseconds both.
    """

    now: int
    term: int
    new_id: Callable[[str], str]
    data_sets: DataSets = DataSets()
    is_fenced: bool = False
    fences: Mapping[str, int] = MappingProxyType({})
    forget_window: int = 0

    @property
    def text(self) -> str:
        return time_text(moment_of(self.now))


OPERATION = (RecordCommitted, ConflictChanged, OperationPrepared, OperationAborted)


def operation_selector(operation_id: str) -> Selector:
    """The newest event of an operation: what it prepared, until that has an end."""
    return Selector(Tag("personal:op", operation_id), OPERATION)


def operation_of(event: Event) -> Selector:
    """The newest event of the operation that an event belongs to."""
    tag = event.tag("personal:op")
    if tag is None:
        raise IntegrityFault(f"position {event.position}: an operation's event without its tag")
    return Selector(tag, OPERATION)


@dataclass(frozen=True)
class Case:
    """A request, who makes it, and what its boundary has shown so far."""

    request: Request
    caller: Caller
    space: str
    seen: Seen
    moment: Moment

    @cached_property
    def guards(self) -> Guards:
        return guards_of(self.seen, self.caller)

    @cached_property
    def actor(self) -> Actor:
        return actor_of(self.caller, self.guards.role, self.guards.binding)

    @cached_property
    def earlier(self) -> Event | None:
        """The newest event of this operation."""
        return self.seen.one(operation_selector(self.request.operation_id))

    @cached_property
    def prepared(self) -> IntentBody | None:
        """This operation's durable intent, while it has no end."""
        earlier = self.earlier
        is_open = earlier is not None and isinstance(earlier.header, OperationPrepared)
        return earlier.body(IntentBody) if earlier and is_open else None

    @property
    def is_held(self) -> bool:
        """Whether the record is held by another operation's guard."""
        holder = self.seen.one(prepared_on(self.request.record_id))
        if holder is None or (self.earlier and self.earlier.position == holder.position):
            return False
        newest = self.seen.one(operation_of(holder))
        return newest is not None and newest.position == holder.position

    @property
    def conflicts_with(self) -> tuple[str, ...]:
        """The records that the change opens conflicts with; a raw retry does not repeat them."""
        named = self.prepared.command.get("conflicts_with") if self.prepared else None
        return tuple(named) if isinstance(named, list) else self.request.conflicts_with

    @cached_property
    def stored(self) -> Stored | None:
        """The record as it stands."""
        return stored_in(self.seen.one(newest_of(self.request.record_id)))

    @property
    def previous(self) -> AnyRecord | None:
        """What the change starts from: the stored record, or the one a raw commit expects."""
        if self.request.raw:
            return self.request.raw.expected
        return self.stored.value if self.stored else None

    @cached_property
    def change(self) -> Change:
        """The change, with the hand edit that a person's own statement is (PM 2.2)."""
        change = self.request.change
        assert change is not None, "the rules have refused what is no transition"
        if self.prepared and change.action == "forget":
            change = _as_asked(change, self.prepared.command)
        if change.action == "take_back":
            change = self._given_back(change)
        if self.guards.role != "client" or change.action not in {"publish", "correct"}:
            return change
        edit = SourceRef(kind="user_edit", ref=self.request.operation_id)
        sources = tuple(source for source in change.sources or () if source != edit)
        return replace(change, evidence="explicit", sources=(*sources, edit))

    def _given_back(self, change: Change) -> Change:
        """The held words as the hand edit of a record that is forgotten, or was opened again."""
        held = self.taken_back
        is_open = self.stored is not None and isinstance(self.stored.value, Record)
        return replace(
            change,
            action="correct" if is_open else "publish",
            content=held.content if held else None,
            effective_at=held.effective_at if held else None,
            expires_at=held.expires_at if held else None,
        )

    @property
    def key(self) -> str | None:
        """The text of the fact key, as far as anything still says it."""
        kept = self.stored.body.key if self.stored else None
        return self.request.key or kept or (self.taken_back.key if self.taken_back else None)

    @property
    def held_copies(self) -> list[Event]:
        """What is held of the record for the person."""
        return still_held(self.seen.all(held_on(self.request.record_id)))

    @property
    def taken_back(self) -> HeldWords | None:
        """The words that a take-back means, while they are held."""
        revision = self.request.change.held_revision if self.request.change else None
        meant = [it for it in self.held_copies if revision in {None, revision_of(it)}]
        return meant[-1].body(HeldWords) if meant else None

    @property
    def is_held_back(self) -> bool:
        """Whether the person may take back what is decided: a forget by somebody else."""
        change = self.request.change
        is_forget = change is not None and change.action == "forget"
        return is_forget and self.guards.role != "client" and self.moment.forget_window > 0

    @property
    def cited(self) -> tuple[SourceRef, ...]:
        """The sources to verify: all of them to accept, else those the change brings."""
        if self.request.change is None:
            return ()
        if self.change.action == "accept" and isinstance(self.previous, Record):
            carried = self.previous.sources
            return tuple(SourceRef(kind=source.kind, ref=source.ref) for source in carried)
        return self.change.sources or ()

    @cached_property
    def refs_ever(self) -> list[str]:
        """Every ref that any revision carried, as far as the history was seen."""
        events = self.seen.all(history_of(self.request.record_id))
        return [ref for e in events if (s := stored_in(e)) for ref in source_refs(s.value)]

    @property
    def subjects_ever(self) -> list[str]:
        """The messages that any revision cited; of a tombstone those that it blocks."""
        blocked = self.stored.value.blocked_sources if self._is_forgotten and self.stored else ()
        return sorted({subject(ref) for ref in (*self.refs_ever, *blocked) if parse_ref(ref)})

    @property
    def _is_forgotten(self) -> bool:
        return self.stored is not None and isinstance(self.stored.value, Tombstone)

    @cached_property
    def successor(self) -> AnyRecord | Refused:
        """The record's next value."""
        author = Author(
            self.request.record_id,
            self.space,
            self.actor,
            self._occurred_at,
            self.refs_ever,
        )
        return successor(self.change, self.previous, author)

    @property
    def value(self) -> AnyRecord:
        """The next value, once the rules have let it pass."""
        assert not isinstance(self.successor, Refused), "the rules have refused it"
        raw = self.request.raw
        # A raw tombstone lists its blocks in its own order, and a retry must find them so.
        return raw.value if raw and isinstance(raw.value, Tombstone) else self.successor

    def _occurred_at(self, source: SourceRef) -> str:
        """The persisted time of a message; for other kinds, and until F10, the clock's."""
        given = self.request.raw.time_given(source.ref) if self.request.raw else None
        if self.prepared:
            return _time_in(self.prepared.value, source.ref) or self.moment.text
        if source.kind == "personal_message":
            captured = captured_at(self.seen, subject(source.ref))
            return captured.message.occurred_at if captured else given or self.moment.text
        is_past = given is not None and parse_time(given) <= parse_time(self.moment.text)
        return given if given is not None and is_past else self.moment.text


def _as_asked(change: Change, command: Json) -> Change:
    """A forget as the command asked for it that was prepared; a raw retry does not repeat it."""
    why = cast("ForgetReason", command.get("reason", change.why))
    takes_sources = change.takes_sources or bool(command.get("with_sources"))
    return replace(change, takes_sources=takes_sources, why=why)


def _time_in(value: Json, ref: str) -> str | None:
    """The time that a record gives a source."""
    sources = value.get("sources")
    listed = sources if isinstance(sources, list) else ()
    return next((str(it["occurred_at"]) for it in listed if it["ref"] == ref), None)
