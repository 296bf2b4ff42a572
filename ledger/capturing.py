"""Taking a message into the log, once per address, under the key of its session and day."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr
from pydantic_core import PydanticCustomError

from memoranda.ledger.commands import Strict, Time, storable
from memoranda.ledger.entries import FRESH_KEY, Draft, Event, Selector, Tag
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Message, MessageCaptured, MessageHidden, Value
from memoranda.ledger.guards import Seen, captured_at, message_guard
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.sources import SEQ_MAX, message_ref
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
Sequence = Annotated[StrictInt, Field(ge=1, le=SEQ_MAX)]


class IncomingMessage(Strict):
    """A message as the host persisted it; `at` is that time, the clock's when it is left out."""

    session: HostId
    seq: Sequence
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
