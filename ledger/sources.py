"""Where a fact comes from: canonical references, spans, and what a message must be (PM 4)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from memoranda.ledger.errors import Refusal
from memoranda.ledger.events import Message
from memoranda.ledger.stamps import parse_time

PREFIX = "personal-message:"
SEQ_MAX = 2**53 - 1
_UNESCAPED = "-_.!~*'()"
_REF = re.compile(
    r"personal-message:((?:[A-Za-z0-9\-_.!~*'()]|%[0-9A-F]{2})+):([1-9][0-9]*)"
    r"(?:#(0|[1-9][0-9]*)-([1-9][0-9]*))?",
    flags=re.ASCII,
)
_DIGITS_MAX = len(str(SEQ_MAX))


class MessageRef(NamedTuple):
    """A message of a session, or the code points `start` to `end` (exclusive) of its text.

    `address` is the canonical reference of the whole message.
    """

    address: str
    session_id: str
    seq: int
    start: int | None = None
    end: int | None = None

    @property
    def text(self) -> str:
        """The canonical reference, span included."""
        return self.address if self.start is None else f"{self.address}#{self.start}-{self.end}"

    def covers(self, other: "MessageRef") -> bool:
        """Whether every code point of `other` is also one of this reference."""
        if self.address != other.address:
            return False
        low, high = self.range
        other_low, other_high = other.range
        return low <= other_low and other_high <= high

    def overlaps(self, other: "MessageRef") -> bool:
        """Whether the two share a code point; a whole message overlaps each of its spans."""
        if self.address != other.address:
            return False
        low, high = self.range
        other_low, other_high = other.range
        return low < other_high and other_low < high

    def joined(self, other: "MessageRef") -> "MessageRef | None":
        """Both as one range where they touch or overlap, else None."""
        low, high = self.range
        other_low, other_high = other.range
        if self.address != other.address or low > other_high or other_low > high:
            return None
        if self.start is None or other.start is None:
            return self._replace(start=None, end=None)
        return self._replace(start=min(low, other_low), end=max(high, other_high))

    @property
    def range(self) -> tuple[int, int]:
        """The code points meant: start, and end exclusive."""
        return (0, SEQ_MAX + 1) if self.start is None else (self.start, self.end or 0)


def message_ref(session_id: str, seq: int) -> MessageRef:
    """The reference of a whole message."""
    address = f"{PREFIX}{quote(session_id, safe=_UNESCAPED)}:{seq}"
    return MessageRef(address, session_id, seq)


def parse_ref(text: str) -> MessageRef | None:
    """The reference, or None unless it is canonical to the letter (PM 4.1, 4.2)."""
    # Matched before int(), which also takes other digits, signs and spaces.
    found = _REF.fullmatch(text)
    if found is None or any(len(group or "") > _DIGITS_MAX for group in found.groups()[1:]):
        return None
    try:
        session_id = unquote_to_bytes(found[1]).decode()
    except UnicodeDecodeError:
        return None
    if "%" in found[1] and quote(session_id, safe=_UNESCAPED) != found[1]:
        return None
    seq, start, end = (None if group is None else int(group) for group in found.groups()[1:])
    in_range = all(number is None or number <= SEQ_MAX for number in (seq, start, end))
    is_ordered = start is None or end is None or start < end
    if seq is None or not in_range or not is_ordered:
        return None
    return MessageRef(text.partition("#")[0], session_id, seq, start, end)


def overlap(one: str, other: str) -> bool:
    """Whether two refs of any kind name something in common; other kinds compare as text."""
    first, second = parse_ref(one), parse_ref(other)
    return first.overlaps(second) if first and second else one == other


def overlapping_any(ref: str, others: Iterable[str]) -> bool:
    return any(overlap(ref, other) for other in others)


def subject(ref: str) -> str:
    """What the ref's tag names: the message without its span; other texts likewise.

    Refs that overlap have one subject; refs of one subject need not overlap.
    """
    return ref.partition("#")[0]


def merged(refs: Iterable[str]) -> list[str]:
    """The refs with ranges merged where they touch or overlap (PM 1.1), in a fixed order."""
    ranges: list[MessageRef] = []
    texts: set[str] = set()
    for ref in refs:
        parsed = parse_ref(ref)
        if parsed is None:
            texts.add(ref)
            continue
        apart = []
        for known in ranges:
            joined = parsed.joined(known)
            if joined is None:
                apart.append(known)
            else:
                parsed = joined
        ranges = [*apart, parsed]
    ordered = sorted(ranges, key=lambda ref: (ref.session_id, ref.seq, ref.start or 0))
    return [ref.text for ref in ordered] + sorted(texts)


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured message with what became of it."""

    message: Message
    is_hidden: bool

    def span_text(self, ref: MessageRef) -> str:
        return self.message.text[ref.start : ref.end]


def message_refusal(ref: MessageRef, captured: Captured | None, now_text: str) -> Refusal | None:
    """Why a message cannot be a source: F10, F11, F12 or F31 (PM 4.3, points 2 to 4)."""
    if captured is None:
        return Refusal.SOURCE_MISSING
    message = captured.message
    is_the_persons = message.role == "user" and message.origin == "user"
    is_flawed = captured.is_hidden or message.hidden or message.generated or message.truncated
    if not is_the_persons or is_flawed:
        return Refusal.SOURCE_REJECTED
    if parse_time(message.occurred_at) > parse_time(now_text):
        return Refusal.SOURCE_IN_FUTURE
    if ref.end is not None and ref.end > len(message.text):
        return Refusal.SOURCE_SPAN_INVALID
    return None


def first_overlap(refs: Sequence[str]) -> int | None:
    """The place of the first ref that overlaps an earlier one of the same list."""
    places = (at for at, ref in enumerate(refs) if overlapping_any(ref, refs[:at]))
    return next(places, None)
