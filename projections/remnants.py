"""Where a text is still found: every body that the keys at hand open, every index, every file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from memoranda.ledger.asking import AskRemnants
from memoranda.ledger.authority import Caller
from memoranda.ledger.commands import admit
from memoranda.ledger.entries import Event
from memoranda.ledger.errors import MemorandaError, Refused
from memoranda.ledger.events import (
    HeldWords,
    Message,
    MessageCaptured,
    RecordBody,
    RecordCommitted,
    Value,
)
from memoranda.ledger.guards import reader_of
from memoranda.ledger.log import Log
from memoranda.ledger.places import Place
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.sources import message_ref
from memoranda.ledger.sqlite_files import connect_copy, raw
from memoranda.projections.feed import current
from memoranda.projections.postings import SearchView, postings_of
from memoranda.projections.tokens import index_tokens
from memoranda.projections.views import SCHEMA_NUMBER, VIEWS, ViewFile

PAGE = 500
CHUNK_BYTES = 1 << 20


class Remnant(Value):
    """One place where the text still is.

    `body` is a sealed body, by position, and what it belongs to; `file` is a file that holds the
    text in clear, by name and offset, which must never be. `held` is what a forgotten record said,
    kept for the person until its window is over. `index` is a token of one of its words in a file
    of views, for a position of the log at which no record says that word.
    """

    kind: Literal["record", "message", "held", "event", "index", "file"]
    position: int | None = None
    names: str | None = None
    file: str | None = None
    offset: int | None = None


class Proof(Value):
    """What a search for a text looked at, and where it found it."""

    bodies_opened: int
    bodies_erased: int
    files_searched: int
    bytes_searched: int
    remnants: tuple[Remnant, ...]


class Remnants:
    """Searches everything that one space keeps."""

    def __init__(self, log: Log, place: Place, views: ViewFile, index: SearchView) -> None:
        self._log = log
        self._place = place
        self._views = views
        self._index = index

    def of(self, caller: Caller, text: str) -> Proof | Refused:
        """Every place that holds the text: all bodies are opened, all files are read.

        Its words are looked for in the index, and in every other file of views, by their keys.
        """
        # What no body can hold is refused: "found nowhere" would be said of another text.
        if isinstance(asked := admit(AskRemnants, {"text": text}), Refused):
            return asked
        with self._log.reading() as store:
            guards = reader_of(store, caller, "evidence")
            if isinstance(guards, Refused):
                return guards
            found = _Bodies()
            for event in _events(store):
                found.look(event, text)
        files = sorted(_files(self._place))
        needle = text.encode()
        return Proof(
            bodies_opened=found.opened,
            bodies_erased=found.erased,
            files_searched=len(files),
            bytes_searched=sum(path.stat().st_size for path in files),
            remnants=(
                *found.remnants,
                *self._indexed(set(index_tokens(text)), files),
                *(remnant for path in files for remnant in _in_file(path, needle)),
            ),
        )

    def _indexed(self, words: set[str], files: Sequence[Path]) -> Iterator[Remnant]:
        with current(self._log, self._views, self._index) as (store, connection):
            live = self._place.data / VIEWS
            found = {live: postings_of(connection, self._index.blinder(connection), words)}
            found |= {path: self._stray(path, words) for path in files if path != live}
            for path, documents in found.items():
                for position in _unsaid(store, documents):
                    yield Remnant(kind="index", position=position, file=path.name)

    def _stray(self, path: Path, words: set[str]) -> dict[int, set[str]]:
        """The postings of an old file of views; none where it is none, or its key is gone."""
        try:
            with closing(connect_copy(path, schema_number=SCHEMA_NUMBER)) as connection:
                return postings_of(connection, self._index.blinder(connection), words)
        except (sqlite3.Error, TypeError, MemorandaError):
            return {}


@dataclass
class _Bodies:
    """What the bodies of a log have shown."""

    opened: int = 0
    erased: int = 0
    remnants: list[Remnant] = field(default_factory=list)

    def look(self, event: Event, text: str) -> None:
        body = event.body(Value)
        if body is None:
            self.erased += event.header.BODY is not None
            return
        self.opened += 1
        if _holds(body.model_dump(), text):
            self.remnants.append(_remnant(event, body))


def _events(store: SealedStore) -> Iterator[Event]:
    after = 0
    while events := store.page(after, PAGE):
        yield from events
        after = events[-1].position


def _unsaid(store: SealedStore, documents: dict[int, set[str]]) -> Iterator[int]:
    """The positions at which no record says all the words that an index has there."""
    positions = sorted(documents)
    for start in range(0, len(positions), PAGE):
        page = positions[start : start + PAGE]
        events = store.at_positions(page)
        for position in page:
            event = events.get(position)
            body = event.body(RecordBody) if event else None
            said = index_tokens(str(body.value.get("content", ""))) if body else {}
            if not documents[position] <= said.keys():
                yield position


def _holds(value: object, text: str) -> bool:
    """Whether any string of a body holds the text."""
    match value:
        case str():
            return text in value
        case dict():
            return any(_holds(part, text) for pair in value.items() for part in pair)
        case list() | tuple():
            return any(_holds(part, text) for part in value)
        case _:
            return False


def _remnant(event: Event, body: Value) -> Remnant:
    if isinstance(event.header, MessageCaptured) and isinstance(body, Message):
        ref = message_ref(body.session_id, body.seq).address
        return Remnant(kind="message", position=event.position, names=ref)
    if isinstance(event.header, RecordCommitted) and isinstance(body, RecordBody):
        return Remnant(kind="record", position=event.position, names=str(body.value["id"]))
    if isinstance(body, HeldWords):
        return Remnant(kind="held", position=event.position, names=body.record_id)
    return Remnant(kind="event", position=event.position, names=event.header.TOPIC)


def _files(place: Place) -> Iterator[Path]:
    for folder in (place.data, place.state):
        yield from (path for path in folder.rglob("*") if path.is_file())


def _in_file(path: Path, needle: bytes) -> Iterator[Remnant]:
    """The places of the needle in a file, read in pieces that overlap."""
    with raw(path) as file:
        tail, start = b"", 0
        while chunk := file.read(CHUNK_BYTES):
            window = tail + chunk
            at = window.find(needle)
            while at >= 0:
                yield Remnant(kind="file", file=path.name, offset=start + at)
                at = window.find(needle, at + 1)
            tail = window[len(window) - len(needle) + 1 :] if len(needle) > 1 else b""
            start += len(window) - len(tail)
