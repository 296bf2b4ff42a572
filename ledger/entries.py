"""What the log holds, as everyone above the recorder sees it: rows, tags, selectors, events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from memoranda.ledger.events import Header, Value
from memoranda.ledger.shapes import read_header


class Row(NamedTuple):
    """One event as stored; `key_id` and `sealed` are None when it has no body, or no more."""

    position: int
    type: str
    recorded_at: int
    header: bytes
    tags: tuple[str, ...]
    commitment: bytes
    chain: bytes
    key_id: str | None
    sealed: bytes | None


class Head(NamedTuple):
    """The tip of a space, with what its last event is: what every read compares first."""

    position: int
    chain: bytes
    term: int
    key_epoch: int
    recorded_at: int
    type: str = ""


UNSEEN = Head(0, b"", 0, 0, 0)

B = TypeVar("B", bound=Value)


class Tag(NamedTuple):
    """An index key in clear: what it is and what it names; stored blind.

    `kind` carries the family where one applies (`personal:op`, `msg`); a tag read back from an
    event keeps its blind form in `blind` and needs no name.
    """

    kind: str
    name: str
    blind: str | None = None


class Selector(NamedTuple):
    """One line of a boundary: events of some shapes under a tag, all of them or the newest."""

    tag: Tag
    shapes: tuple[type[Header], ...]
    newest: bool = True


class Event:
    """One event of the log; its body is opened when it is asked for."""

    __slots__ = ("_body", "_open", "header", "row")

    def __init__(self, row: Row, open_body: Callable[[Row], Value | None]) -> None:
        self.row = row
        self.header = read_header(row.type, row.header)
        self._open: Callable[[Row], Value | None] | None = open_body
        self._body: Value | None = None

    @property
    def position(self) -> int:
        return self.row.position

    @property
    def recorded_at(self) -> int:
        """Microseconds since 1970."""
        return self.row.recorded_at

    def tag(self, kind: str) -> Tag | None:
        """The event's tag of one kind, blind as it is."""
        prefix = kind.rpartition(":")[2] + ":"
        for tag in self.row.tags:
            if tag.startswith(prefix):
                return Tag(kind, "", tag)
        return None

    def body(self, shape: type[B]) -> B | None:
        """The body, or None when it was erased; an erased body is never a missing event."""
        if self._open is not None:
            self._body, self._open = self._open(self.row), None
        assert self._body is None or isinstance(self._body, shape)
        return self._body


SPACE_KEY = "space"
"""The key id of bodies that no one record owns: it follows from the space secret."""

FRESH_KEY = "fresh"
"""Asks for a data key that nobody has used."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An event to append; `key_id` names its data key, the space's own by default."""

    header: Header
    body: Value | None = None
    tags: tuple[Tag, ...] = field(default=())
    key_id: str = SPACE_KEY


class Store(Protocol):
    """What a decision reads from."""

    def select(self, selector: Selector, after: int = 0) -> list[Event]:
        """The events behind a selector, in order; of the newest, `after` is not asked."""
        ...

    def select_each(self, selectors: Sequence[Selector]) -> list[list[Event]]:
        """The events behind each of some selectors, with as few journeys as the engine can."""
        ...
