"""What a host tells, by the rules of one door; and taking a message in, once per address."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from memoranda.ledger.authority import (
    Auditor,
    BackgroundItem,
    Caller,
    ModelSession,
    PersonClient,
)
from memoranda.ledger.commands import Strict, Time, admit, storable
from memoranda.ledger.entries import FRESH_KEY, Draft, Event, Selector, Tag
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Message, MessageCaptured, MessageHidden, Value
from memoranda.ledger.guards import Seen, captured_at, message_guard
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.sources import SEQ_MAX, message_ref, parse_ref
from memoranda.ledger.stamps import moment_of, time_text

BUCKET_MESSAGES = 64
"""Messages of one session and day under one data key (DESIGN 5), and in one transaction."""

_DAY_US = 86_400_000_000
TEXT_BYTES_MAX = 262_144


def _host_id(text: str) -> str:
    if not storable(text):
        raise PydanticCustomError("empty", "must not be empty")
    if len(text.encode()) > 256:
        raise PydanticCustomError("limit_exceeded", "at most 256 bytes")
    return text


def _text(text: str) -> str:
    if len(storable(text).encode()) > TEXT_BYTES_MAX:
        raise PydanticCustomError("limit_exceeded", f"at most {TEXT_BYTES_MAX} bytes")
    return text


HostId = Annotated[StrictStr, AfterValidator(_host_id)]
Ordinal = Annotated[StrictInt, Field(ge=1, le=SEQ_MAX)]


class IncomingMessage(Strict):
    """A message as the host persisted it; `at` is that time, the clock's when it is left out."""

    session: HostId
    seq: Ordinal
    role: Literal["user", "assistant", "system", "tool"]
    text: Annotated[StrictStr, AfterValidator(_text)]
    at: Time | None = None
    origin: Literal["user", "host", "plugin"] | None = None
    origin_id: HostId | None = None
    cause: HostId | None = None
    hidden: StrictBool = False
    generated: StrictBool = False
    truncated: StrictBool = False

    def message_at(self, default_time: str) -> Message:
        """The message as it is kept."""
        return Message(
            session_id=self.session,
            seq=self.seq,
            role=self.role,
            text=self.text,
            occurred_at=self.at or default_time,
            origin=self.origin or ("user" if self.role == "user" else "host"),
            origin_id=self.origin_id,
            cause=self.cause,
            hidden=self.hidden,
            generated=self.generated,
            truncated=self.truncated,
        )


def _message_ref(text: str) -> str:
    if parse_ref(text) is None:
        raise PydanticCustomError("source_ref", "is a canonical personal-message reference")
    return text


class IncomingBinding(Strict):
    """The session that becomes the primary one."""

    session_id: HostId


class IncomingTask(Strict):
    """A background item; `captured_ref` names the message that asked for it."""

    item_id: HostId
    requirement_revision: Ordinal = 1
    captured_ref: Annotated[StrictStr, AfterValidator(_message_ref)] | None = None


class IncomingAuthorization(Strict):
    """The person's leave for one item, under one requirement, in one executor session."""

    authorization_id: HostId
    item_id: HostId
    requirement_revision: Ordinal
    executor_session_id: HostId
    guard_capable: StrictBool = True


class IncomingStop(Strict):
    item_id: HostId


class IncomingRevocation(Strict):
    authorization_id: HostId


class AnsweredBinding(IncomingBinding):
    """The primary session as a provider answers it; whose data that is follows from the port."""

    binding_id: HostId


class AnsweredTask(IncomingTask):
    stopped: StrictBool


class AnsweredAuthorization(IncomingAuthorization):
    revoked: StrictBool


class DataSetName(Strict):
    name: HostId


class ActingSession(Strict):
    """A session and its agent, as the host vouches for them."""

    session_id: HostId
    agent_id: HostId


class ActingItem(ActingSession):
    """A background item's executor session."""

    item_id: HostId
    requirement_revision: Ordinal
    authorization_id: HostId | None


_ACTING: Mapping[type, type[Strict]] = {
    ModelSession: ActingSession,
    PersonClient: ActingSession,
    BackgroundItem: ActingItem,
    Auditor: Strict,
}


def admitted_caller(caller: Caller) -> Caller | Refused:
    """The caller as it was given, once its identity has passed the door."""
    shape = _ACTING.get(type(caller))
    if shape is None:
        return Refused(Refusal.INVALID_REQUEST, "caller", "is no caller of `ledger.authority`")
    identity = admit(shape, {name: getattr(caller, name) for name in shape.model_fields})
    if isinstance(identity, Refused):
        return replace(identity, field=f"caller.{identity.field}")
    return caller


class CaptureReceipt(Value):
    """A message taken in; `replayed` when it was there already."""

    ref: str
    position: int
    replayed: bool = False


def session_messages(session_id: str) -> Selector:
    """The newest captured message of a session."""
    return Selector(Tag("ses", session_id), (MessageCaptured,))


def take_message(
    store: DecidingStore, session_id: str, seq: int, message_at: Callable[[str], Message]
) -> CaptureReceipt | Refused:
    """Takes one message in; `message_at` says it, at a time given where it names none itself."""
    ref = message_ref(session_id, seq).address
    guard, session = message_guard(ref), session_messages(session_id)
    seen = Seen()
    seen.look(store, (guard, session))
    if seen.all(guard):
        return _again(store, seen, ref, message_at)
    key_id, bucket = _bucket(store, seen.one(session))
    body = message_at(time_text(moment_of(store.clock)))
    draft = Draft(MessageCaptured(bucket=bucket), body, (guard.tag, session.tag), key_id)
    return CaptureReceipt(ref=ref, position=store.append(draft).position)


def _again(
    store: DecidingStore, seen: Seen, ref: str, message_at: Callable[[str], Message]
) -> CaptureReceipt | Refused:
    guard = message_guard(ref)
    known = captured_at(seen, ref)
    if known is None:
        return Refused(Refusal.SOURCE_FORGOTTEN, "seq")
    again = message_at(known.message.occurred_at)
    if again.model_copy(update={"hidden": known.message.hidden}) != known.message:
        return Refused(Refusal.OPERATION_CONFLICT, "seq", "another message has this address")
    if again.hidden and not (known.message.hidden or known.is_hidden):
        store.append(Draft(MessageHidden(), tags=(guard.tag,)))
    return CaptureReceipt(ref=ref, position=seen.all(guard)[0].position, replayed=True)


def _bucket(store: DecidingStore, newest: Event | None) -> tuple[str, int]:
    """The data key for a session's next message, and its place among those under that key."""
    if newest is None or newest.row.key_id is None:
        return FRESH_KEY, 1
    assert isinstance(newest.header, MessageCaptured), "the selector asks for one shape"
    is_same_day = newest.recorded_at // _DAY_US == store.now // _DAY_US
    if not is_same_day or newest.header.bucket >= BUCKET_MESSAGES:
        return FRESH_KEY, 1
    return newest.row.key_id, newest.header.bucket + 1
