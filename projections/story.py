"""A record's whole story in words: who did what, when, on whose authority, from which source."""

from typing import assert_never

from memoranda.ledger.asking import ReadRecord
from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import conflicts_about, history_of, stored_in
from memoranda.ledger.commands import admit
from memoranda.ledger.entries import Event
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import (
    Actor,
    Conflict,
    ConflictBody,
    ConflictChanged,
    ForgetHeld,
    RecordBody,
    RecordCommitted,
    Status,
)
from memoranda.ledger.guards import reader_of
from memoranda.ledger.holding import held_on
from memoranda.ledger.log import Log
from memoranda.ledger.personal import Record, Tombstone, source_refs
from memoranda.ledger.stamps import moment_of


class Story:
    """Tells what the log says of one record, forgotten revisions included."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def tell(self, caller: Caller, record_id: str) -> tuple[str, ...] | Refused:
        """One sentence or more per event, in the order of the log."""
        if isinstance(request := admit(ReadRecord, {"record_id": record_id}), Refused):
            return request
        with self._log.reading() as store:
            guards = reader_of(store, caller, "read")
            if isinstance(guards, Refused):
                return guards
            events = {e.position: e for e in store.select(history_of(record_id))}
            if not events:
                return Refused(Refusal.NOT_FOUND, "record_id")
            for beside in (conflicts_about(record_id), held_on(record_id)):
                events |= {e.position: e for e in store.select(beside)}
            return tuple(
                f"{_when(event)}, position {position}: {_what(event, record_id)}"
                for position, event in sorted(events.items())
            )


def _when(event: Event) -> str:
    return f"{moment_of(event.recorded_at):%Y-%m-%d %H:%M:%S} UTC"


def _what(event: Event, record_id: str) -> str:
    if isinstance(event.header, ForgetHeld):
        until = f"{moment_of(event.header.until):%Y-%m-%d %H:%M:%S} UTC"
        said = f"what revision {event.header.revision} said"
        is_gone = event.row.key_id is None
        return f"{said} {'was' if is_gone else 'is'} held for the person until {until}" + (
            ", and is gone." if is_gone else "."
        )
    if isinstance(event.header, ConflictChanged):
        body = event.body(ConflictBody)
        if body is None:
            return "a conflict about it; what it said was erased with a forgotten record."
        verb = (
            "opened" if body.conflict.state == "open" else f"resolved ({body.conflict.resolution})"
        )
        return f"{_conflict(body.conflict)} was {verb} by {_who(body.actor)}: {body.reason}"
    record = event.body(RecordBody)
    assert isinstance(event.header, RecordCommitted), "the selectors ask for these two shapes"
    if record is None:
        return f"revision {event.header.to_revision}; what it said was erased by a later forget."
    if record.value["id"] != record_id:
        return " ".join(f"{_conflict(c)} is now {c.state}." for c in record.conflicts)
    return " ".join([_revision(event, record), *_asides(record)])


def _revision(event: Event, body: RecordBody) -> str:
    stored = stored_in(event)
    assert stored is not None, "the body was opened"
    value = stored.value
    deed = f"revision {value.revision}, {_deed(value.status, body)} by {_who(body.actor)}"
    deed += f" (operation {body.operation_id})."
    if isinstance(value, Tombstone):
        blocked = ", ".join(value.blocked_sources)
        assert isinstance(event.header, RecordCommitted), "the caller has looked"
        if event.header.reason != "unstated":
            deed += f" Reason: {event.header.reason}."
        return f"{deed} Its content and its keys are gone; blocked from now on: {blocked}."
    assert isinstance(value, Record), "a record is live or a tombstone"
    dates = [
        f" {word} {date}."
        for word, date in (("Effective from", value.effective_at), ("Expires", value.expires_at))
        if date
    ]
    sources = ", ".join(source_refs(value))
    return (
        f"{deed} It says, as {value.evidence} {value.tier}: {value.content!r},"
        f" from {sources}.{''.join(dates)}"
    )


def _deed(status: Status, body: RecordBody) -> str:
    return _DEEDS.get(str(body.command.get("name")), f"committed as {status}")


_DEEDS = {
    "propose": "proposed",
    "publish": "published",
    "revise": "revised",
    "accept": "accepted as inspected",
    "reject": "rejected",
    "correct": "corrected",
    "tier": "moved to another tier",
    "retire": "retired",
    "reactivate": "brought back",
    "forget": "forgotten",
    "take_back": "taken back",
    "migrate": "taken over from an earlier store",
}


def _asides(body: RecordBody) -> list[str]:
    # A forget's is a code, and stands in its header.
    reason = None if body.value["status"] == "forgotten" else body.command.get("reason")
    asides = [f"Reason: {reason}"] if reason else []
    return asides + [f"{_conflict(c)} is now {c.state}." for c in body.conflicts]


def _conflict(conflict: Conflict) -> str:
    return f"Conflict {conflict.conflict_id} with {conflict.other_id or 'no named record'}"


def _who(actor: Actor) -> str:
    match actor.role:
        case "client":
            return "the person's own client"
        case "primary":
            return f"the primary session {actor.session_id} (agent {actor.agent_id})"
        case "item":
            return (
                f"background item {actor.item_id} under authorization {actor.authorization_id}"
                f" (session {actor.session_id}, agent {actor.agent_id})"
            )
        case _:
            assert_never(actor.role)
